"""The exceptions that end a run with one line for the user."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 event``, ``1,234 events``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


class AnalyzeError(Exception):
    """Something the user can mend; `analyze.py` prints it and exits with `exit_code`.

    The message names the file or operation, says what is wrong and, where there is one, the remedy.
    """

    exit_code = 1


class UsageError(AnalyzeError):
    """The command line asks for something that makes no sense (exit code 2)."""

    exit_code = 2


class TraceError(AnalyzeError):
    """A trace, or a path that should hold one, cannot be used."""


class DagError(AnalyzeError):
    """A dependency graph cannot be used: broken GML, a cycle, no operation in common with its trace."""


class OutputError(AnalyzeError):
    """A result cannot be written."""
