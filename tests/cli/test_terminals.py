"""What a terminal of 100 columns shows of the options that are asked most."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from made_jobs import Job, data_parallel

from analyzer import cli
from analyzer.cli import arguments
from analyzer.report import text
from analyzer.report.result import Result
from analyzer.report.show import arranged
from conftest import REPO

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
        return [(line, args, arranged(cli.load(args.option).run(args), args)) for line, args in parsed]


def test_a_terminal_shows_the_answer_in_its_width(
    asked: list[tuple[str, Namespace, Result]],
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = []
    for line, args, result in asked:
        stream = io.StringIO()
        text.write(result, stream, args)
        assert max(map(len, stream.getvalue().splitlines())) <= 100, line
        shown.append(f"$ analyze.py {line}\n{stream.getvalue()}")
    golden("terminal_100.txt", "\n".join(shown))
