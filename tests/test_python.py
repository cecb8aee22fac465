"""The options as functions: results instead of output, exceptions instead of exit codes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import analyzer
from conftest import REPO, ask

LENET = REPO / "examples/lenet"
_PAGE = REPO / "docs/python.md"
_BLOCK = re.compile(r"(?<=^```python\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)


def without_lists(document: object) -> object:
    return json.loads(json.dumps(document, default=lambda value: value.tolist()))


@pytest.mark.slow
def test_every_line_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(REPO / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    lines = "".join(_BLOCK.findall(_PAGE.read_text())).splitlines()
    missing = [name for name in ("pandas", "polars") if find_spec(name) is None]
    for name in missing:
        with pytest.raises(
            analyzer.AnalyzeError, match=f"^to_{name} needs {name}: python3 -m pip install {name}$"
        ):
            getattr(analyzer.statistic("examples/lenet").table("operations"), f"to_{name}")()
    exec("\n".join(line for line in lines if not any(f"to_{name}(" in line for name in missing)), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "examples", "page.html", "steps.parquet", "tables.xlsx",
    ]  # fmt: skip
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: analyzer.diagnose(LENET), ("diagnose", LENET)),
        (lambda: analyzer.statistic(LENET, sort=True, head=3), ("statistic", LENET, "--sort", "--head", "3")),
        (lambda: analyzer.breakdown(LENET, head=2), ("breakdown", LENET, "--head", "2")),
        (lambda: analyzer.whatif(LENET, "BW=2", "FW=3"), ("whatif", LENET, "BW=2", "FW=3")),
        (
            lambda: analyzer.compare(LENET, f"{LENET}-100mbit", head=2),
            ("compare", LENET, f"{LENET}-100mbit", "--head", "2"),
        ),
        (
            lambda: analyzer.critical(analyzer.load(LENET, step_by=None), step="mean"),
            ("critical", LENET, "--step", "mean"),
        ),
    ],
)
def test_a_function_answers_as_its_option(answer: object, words: tuple[object, ...]) -> None:
    result = answer()  # type: ignore[operator]
    printed = ask(*words)
    head = {"option": printed["option"], "headline": result.headline}
    assert without_lists({**head, **result.document, "repairs": result.repairs}) == printed


def test_a_job_names_its_ranks_and_steps() -> None:
    job = analyzer.load(LENET)
    assert (job.ranks, job.steps) == (["wk0.rank0", "wk1.rank0"], list(range(10, 21)))  # as recorded


def test_flags_of_load_hold_for_all_answers() -> None:
    job = analyzer.load(LENET, filter="Comm.hybridsequential0_dense0_weight")
    names = {
        row["name"] for row in analyzer.statistic(job).table("operations").records() if row["cat"] == "Comm"
    }
    assert {str(name).partition("Comm.")[2].partition(".")[0] for name in names} == {
        "hybridsequential0_dense0_weight"
    }


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: analyzer.load(LENET / "nothing"), f"{LENET}/nothing: no such file or directory"),
        (lambda: analyzer.statistic(LENET, head=0), "--head: '0' is not a whole number above 0 (see --help)"),
        (lambda: analyzer.statistic(LENET, colour=1), "unrecognized argument: --colour=1 (see --help)"),
        (lambda: analyzer.statistic(LENET, help=True), "help: is for the command line only"),
        (
            lambda: analyzer.statistic(LENET).table("x"),
            "statistic has no table x; there are operations, categories",
        ),
        (
            lambda: analyzer.compare(analyzer.load(LENET, step_by="a"), LENET),
            "the jobs are loaded with different flags",
        ),
    ],
)
def test_a_mistake_is_an_exception_of_one_line(wrong: object, line: str) -> None:
    with pytest.raises(analyzer.AnalyzeError) as raised:
        wrong()  # type: ignore[operator]
    assert str(raised.value) == line


def test_import_loads_no_library_and_none_of_the_program() -> None:
    loaded = "[name for name in sys.modules if name.startswith(('analyzer.', 'numpy', 'msgspec'))]"
    code = f"import sys, analyzer; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout == "['analyzer.base', 'analyzer.base.errors']\n"
