"""`--sort`, `--head` and `--full` are applied to every table of a result, and of its document."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from analyzer.report.result import Column, Result, Table
from analyzer.report.show import arranged
from conftest import REPO, run_cli

TABLE = Table.of(
    "t", "T", (Column("n", "n", value=int),), [3, 1, 2], sort_by=int, about=[("c",), ("a",), ("b",)]
)


def rows(*, sort: bool = False, head: int | None = None, full: bool = False) -> tuple[object, object]:
    document = {"t": TABLE, "parts": [{"t": TABLE}], "n": 3}
    result = arranged(
        Result("o", "", document, [TABLE]), Namespace(sort=sort, head=head, full=full, brief=False)
    )
    [table] = result.tables
    in_document = [row["n"] for row in result.document["t"]]
    assert [row["n"] for row in result.document["parts"][0]["t"]] == in_document
    assert [row[0] for row in table.rows] == in_document
    return in_document, [*table.about]


def test_without_flags_rows_stay() -> None:
    assert rows() == ([3, 1, 2], [("c",), ("a",), ("b",)])


def test_sorted_rows_keep_what_they_are_about() -> None:
    assert rows(sort=True, head=2) == ([1, 2], [("a",), ("b",)])


@pytest.mark.parametrize(("only", "full", "detail"), [(True, False, True), (True, True, False),
                                                      (False, True, True), (None, False, False)])  # fmt: skip
def test_tables_for_the_other_answer_are_not_on_standard_output(
    only: bool | None, full: bool, detail: bool
) -> None:
    result = Result("o", "", {}, [TABLE._replace(full=only)])
    assert (
        arranged(result, Namespace(sort=False, head=None, full=full, brief=False)).tables[0].detail == detail
    )


@pytest.mark.parametrize(
    ("environment", "is_opened"), [({}, False), ({"DISPLAY": ":0"}, True), ({"BROWSER": "echo"}, True)]
)
def test_open_shows_the_page_where_there_is_a_display(
    environment: dict[str, str], is_opened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    page = tmp_path / "my page.html"
    code, _, err = run_cli("breakdown", REPO / "examples/lenet", "--html", page, "--open")
    assert (code, opened) == (0, [page.as_uri()] if is_opened else [])
    warning = f"analyze.py: WARNING: --open: there is no display here; open {page} in a browser elsewhere\n"
    assert err == f"analyze.py: INFO: wrote {page}\n" + ("" if is_opened else warning)
