"""Show a `Result`: text, JSON, CSV, Markdown, XLSX, pages and pictures."""
