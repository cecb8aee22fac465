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


def drawn(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, enabled: bool | None, unit: str = "files"
) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar(4, unit, what="reading", enabled=enabled) as advance:
        time.sleep(0.15)  # a bar is drawn at most ten times a second
        advance(1)
    return stderr.getvalue()


def test_a_bar_shows_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal(), None)
    assert "reading" in text
    assert "1/4" in text
    assert "files" in text


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO(), None) == ""
