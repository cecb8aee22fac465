"""Progress bars: seen on a terminal, silent elsewhere."""

from __future__ import annotations

import io
import os
import pty
import sys
import time
import types

import pytest

from parallel import progress


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, enabled: bool | None, unit: str = "files"
) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.bar(4, unit, what="reading", enabled=enabled) as bar:
        time.sleep(0.15)  # a bar is drawn at most ten times a second
        bar.update(1)
    return stderr.getvalue()


def test_a_bar_shows_the_share_the_rate_and_the_time_that_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal(), None)
    assert "reading:  25%" in text
    assert "| 1/4 [" in text
    assert "<" in text  # elapsed<remaining
    assert "files/s" in text


def test_bytes_are_shown_with_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| 1.00/4.00 [" in drawn(monkeypatch, Terminal(), True, "B")


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO(), None) == ""


def test_no_progress_is_silent_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, Terminal(), False) == ""


def test_progress_can_be_forced_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reading" in drawn(monkeypatch, io.StringIO(), True)


def said(monkeypatch: pytest.MonkeyPatch, until: str, enabled: bool | None = None) -> str:
    """Return what a terminal gets until `until` appears, and after the work has ended."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr(progress, "_SILENT", 0.01)
    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours, "rb", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stderr", stderr)
        text = ""
        with progress.heartbeat(enabled):
            while until not in text:
                text += terminal.read(1024).decode()
        os.write(stderr.fileno(), b"done")
        while "done" not in text:
            text += terminal.read(1024).decode()
        return text


def test_work_without_a_word_says_that_it_goes_on_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = said(monkeypatch, "working: 0 s")
    assert text.endswith("\r\x1b[Kdone")


def test_a_bar_that_does_not_move_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.bar(4, "files", what="reading", enabled=True):
        text = said(monkeypatch, "reading:   0%")
    assert "working" not in text


def test_the_heartbeat_survives_a_library_that_is_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    assert "working" in said(monkeypatch, "working: 0 s")


def test_nobody_hears_the_heartbeat_of_work_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "_SILENT", 0.0)
    with progress.heartbeat():
        time.sleep(0.05)
    assert stderr.getvalue() == ""
