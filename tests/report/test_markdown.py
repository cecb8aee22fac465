"""Markdown: tables that GitHub reads, names that stand as they are."""

from __future__ import annotations

import io
from argparse import Namespace

from analyzer.report import markdown
from analyzer.report.result import Card, Column, Command, Result, Table

ARGS = Namespace(full=False, head=None)


def shown(result: Result) -> str:
    stream = io.StringIO()
    markdown.write(result, stream, ARGS)
    return stream.getvalue()


def test_headline_table_and_what_to_do() -> None:
    columns = (Column("name", "operation"), Column("ms", "took (ms)", "float", 1), Column("gap", "nothing"))
    table = Table("operations", "Operations", columns, [("FW.a", 2.25, None), ("BW.b", 1000.0, None)])
    card = Card("It is slow", "3.00 ms", [("", "Because."), ("Try", Command("   a.py x"))])
    result = Result(
        "o", "title", {}, (table,), cards=[card], notes=["Said.", Command("a.py y_")],
        headline="A step takes 5 ms.", further="So.",
    )  # fmt: skip
    assert shown(result) == (
        "**A step takes 5 ms.**\n\nSo.\n\n"
        "| operation | took (ms) |\n| --- | ---: |\n| FW.a | 2.2 |\n| BW.b | 1,000 |\n\n"
        "1. **It is slow** 3.00 ms\n   - Because.\n   - Try: `   a.py x`\n\n"
        "Said.\n\n- `a.py y_`\n"
    )


def test_a_name_cannot_become_markup() -> None:
    table = Table("t", "T", (Column("name", "name"),), [("k<float>|*a* __init__ a_b [x](y)\n",)])
    assert r"| k\<float>\|\*a\* \_\_init\_\_ a_b \[x](y)\\n |" in shown(Result("o", "t", {}, tables=[table]))
