"""Progress bars: seen on a terminal, silent elsewhere."""

from __future__ import annotations

import io
import sys
import time

import pytest

from analyzer.base.parallel import progress_bar


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_terminal_shows_the_progress_and_a_pipe_nothing(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = kind()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar(4, "files", what="reading") as advance:
        time.sleep(0.15)  # a bar is drawn at most ten times a second
        advance(1)
    words = [word for word in ("reading", "1/4", "files") if word in stderr.getvalue()]
    assert len(words) == (3 if kind is Terminal else 0)
