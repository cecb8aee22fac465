"""What a terminal of 80, 100 and 160 columns shows of the options that are asked most."""

from __future__ import annotations

import io
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from made_jobs import Job, data_parallel

import options
import recorded
from conftest import REPO, few
from errors import TraceError
from options import arguments
from report import text
from result import Result

pytestmark = pytest.mark.slow

COMMANDS = (
    "diagnose examples/lenet", "whatif examples/lenet bandwidth=0.1",
    "compare examples/lenet examples/lenet-100mbit", "critical examples/lenet",
    "diagnose gpus", "whatif gpus", "whatif gpus straggler=none", "compare healthy gpus", "critical gpus",
)  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Namespace, Result]]:
    """What is asked of the examples, and of four GPUs of which the last is slower, and none is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("asked"))
        Path("examples").symlink_to(REPO / "examples")
        data_parallel(Path("healthy"), Job(transfer=30))
        data_parallel(Path("gpus"), Job(transfer=30, more_forward=(0, 0, 0, 12)))
        parsed = [(line, arguments.parse(line.split())) for line in COMMANDS]
        return [(line, args, options.load(args.option).run(args)) for line, args in parsed]


@pytest.mark.parametrize("columns", ["80", "100", "160"])
def test_a_terminal_shows_the_answer_in_its_width(
    columns: str,
    asked: list[tuple[str, Namespace, Result]],
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = []
    for line, args, result in asked:
        stream = io.StringIO()
        text.write(result, stream, args)
        assert max(map(len, stream.getvalue().splitlines())) <= int(columns), line
        shown.append(f"$ analyze.py {line}\n{stream.getvalue()}")
    golden(f"terminal_{columns}.txt", "\n".join(shown))


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_diagnosis_is_a_screen(
    columns: int, asked: list[tuple[str, Namespace, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for line, args, result in asked:
        if line.startswith("diagnose"):
            assert_a_screen(result, args)
            assert len(result.cards) > 1
            assert len({card.title for card in result.cards}) == len(result.cards)


@pytest.mark.parametrize("job", few(4, recorded.jobs()))
def test_a_diagnosis_of_a_recorded_job_is_a_screen(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments.parse(["diagnose", str(job)])
    try:
        result = options.load("diagnose").run(args)
    except TraceError:  # a job that has no steps
        return
    for columns in (80, 100, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert_a_screen(result, args)


def assert_a_screen(result: Result, args: Namespace) -> None:
    """What a terminal shows of a diagnosis, and its next prompt, fit 24 lines; the answer is among them."""
    stream = io.StringIO()
    text.write(result, stream, args)
    lines = stream.getvalue().splitlines()
    assert len(lines) + 1 <= 24, stream.getvalue()
    words = " ".join(stream.getvalue().replace("\\\n", "").split())
    assert result.headline in words
    for card in result.cards[:1]:
        assert f"1. {card.title}" in words
        command = next(text for label, text in card.lines if label in ("Try", "Look"))
        assert command in words
    rows = [line for line in lines if re.match(r"\d  ", line)]
    assert len(rows) == min(len(result.cards), 5) or not result.cards[0].bar  # a hang has other tables
