"""Show a `Result`: text, JSON, CSV, Markdown, XLSX, pages and pictures."""

#: Values of `--format` and their modules.
FORMATS = {
    "table": "analyzer.report.text",
    "json": "analyzer.report.json",
    "csv": "analyzer.report.csv",
    "markdown": "analyzer.report.markdown",
}
