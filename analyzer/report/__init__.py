"""Show a `Result`: text, JSON, CSV, Markdown, Parquet, XLSX, pages and pictures."""

#: The format that is a file.
PARQUET = "parquet"
#: Values of `--format` and their modules.
FORMATS = {
    "table": "analyzer.report.text",
    "json": "analyzer.report.json",
    "csv": "analyzer.report.csv",
    "markdown": "analyzer.report.markdown",
    PARQUET: "analyzer.report.parquet",
}
