"""What a terminal of 80, 100 and 160 columns shows of the options that are asked most."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from made_jobs import Job, data_parallel

import options
from conftest import REPO
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


def test_a_diagnosis_is_a_screen(
    asked: list[tuple[str, Namespace, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for line, args, result in asked:
        if line.startswith("diagnose"):
            stream = io.StringIO()
            text.write(result, stream, args)
            assert len(stream.getvalue().splitlines()) <= 24
            assert len(result.cards) > 1
            assert len({card.title for card in result.cards}) == len(result.cards)
