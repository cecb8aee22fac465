"""The command line: arguments, exit codes, one line for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.cli import arguments
from analyzer.cli.arguments import expand_paths
from conftest import REPO, run_cli

TRACE = '{"traceEvents": [{"ph": "X", "name": "FW.a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}]}'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of one event."""
    path = tmp_path / "t.json"
    path.write_text(TRACE)
    return path


LENET = REPO / "examples" / "lenet"
WHAT_IF = ("--option", "replay", "--sub_option", "whatif", "--path", LENET)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("a",), ("--path", "a")),
        (("a",), ("diagnose", "a")),
        (("--type", "graph", "--path", "a"), ("graph", "a")),
        (("statistic", "a", "b", "--sort"), ("--option", "statistic", "--path", "a", "b", "--sort")),
        (("--sort", "statistic", "a"), ("--option", "statistic", "--path", "a", "--sort")),
        (("compare", "./compare"), ("--option", "compare", "--path", "./compare")),
        (("--option", "whatif", "a", "BW=2"), ("whatif", "a", "BW=2")),
        (("--option", "graph", "replay"), ("--option", "graph", "--path", "replay")),
        (("breakdown", "a"), ("statistic", "a", "--sub_option", "breakdown")),
        (("collectives", "a"), ("--option", "statistic", "--sub_option", "collectives", "--path", "a")),
        (("kernels", "a", "--head", "3"), ("statistic", "a", "--group_by", "kernel_kind", "--head", "3")),
        (("graph", "a", "--pretty"), ("graph", "a", "--quiet")),
        (("whatif", LENET, "bandwidth=2", "BW=0.5"), (*WHAT_IF, "--set", "bandwidth=2", "--set", "BW=0.5")),
        ((*WHAT_IF, "BW=0.5"), (*WHAT_IF, "--set", "BW=0.5")),
        ((*WHAT_IF, "--set", "bandwidth=2", "BW=0.5"), ("whatif", LENET, "bandwidth=2", "BW=0.5")),
    ],
)
def test_words_stand_for_flags(words: tuple[object, ...], flags: tuple[object, ...]) -> None:
    assert arguments.parse([*map(str, words)]) == arguments.parse([*map(str, flags)])


def test_a_path_with_an_equals_sign_that_exists_is_no_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    args = arguments.parse(["whatif", "lr=0.1", "BW=2"])
    assert (args.path, args.set) == ([Path("lr=0.1")], ["BW=2"])


def test_help_imports_nothing_heavy() -> None:
    heavy = "msgspec|numpy|networkx|scipy|vl_convert|scapy|xlsxwriter|distributed"
    script = (
        "import sys, analyze\n"
        "try: analyze.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(m for m in sys.modules if m in {heavy.split('|')!r}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_paths_by_comma_by_word_and_repeated(tmp_path: Path) -> None:
    whole = tmp_path / "a,b.json"
    whole.touch()
    assert expand_paths([str(whole)]) == [whole]
    assert expand_paths(["x,y", "z"]) == [Path("x"), Path("y"), Path("z")]
    assert expand_paths(["x,,y,"]) == [Path("x"), Path("y")]


def only_line(err: str) -> str:
    lines = err.splitlines()
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(trace: Path) -> None:
    trace.chmod(0)
    code, _, err = run_cli("--option", "statistic", "--path", trace)
    assert (code, only_line(err)) == (1, f"analyze.py: error: {trace}: may not be read (permission denied)")


def test_repairs_are_warnings_on_stderr_and_in_the_document(trace: Path) -> None:
    trace.write_text(TRACE[:-2] + ', {"ph": "X", "na')
    code, out, err = run_cli("--option", "statistic", "--path", trace, "--format", "json")
    assert code == 0
    assert "ends early (cut in an event)" in only_line(err)
    assert "ends early (cut in an event)" in out


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(trace: Path) -> None:
    command = f"{sys.executable} analyze.py --option statistic --path {trace} --format json | true"
    done = subprocess.run(["bash", "-c", command], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_message_is_one_line_whatever_the_name() -> None:
    code, _, err = run_cli("--option", "statistic", "--path", "a\nb\x1b[31m")
    assert (code, only_line(err)) == (1, r"analyze.py: error: a\nb\x1b[31m: no such file or directory")


def test_without_its_libraries_it_says_how_to_get_them(trace: Path) -> None:
    """As on a machine where nothing was installed: -S leaves site-packages out."""
    command = [sys.executable, "-S", str(REPO / "analyze.py"), "--path", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "analyze.py: error: No module named 'msgspec'; python3 -m pip install -r requirements.txt\n"
    )


def test_help_is_a_screen_with_what_people_look_for() -> None:
    code, out, _ = run_cli("--help")
    assert (code, len(out.splitlines()) <= 40, max(map(len, out.splitlines())) <= 110) == (0, True, True)
    flags = "--brief --quiet --open --output --comm --group_by --step --real_step --format --save --cluster"
    assert [
        flag for flag in (*flags.split(), "2 the command line is wrong, 3 slower") if flag not in out
    ] == []
