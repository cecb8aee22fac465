"""`--option collect`: not built yet."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup

from errors import AnalyzeError
from result import Result

HELP = "not built yet"
EXAMPLE = "analyze.py --option collect --path TRACE"


def add_arguments(group: _ArgumentGroup) -> None:
    """No flags yet."""


def run(args: Namespace) -> Result:
    """Say that the option is not there yet."""
    raise AnalyzeError("--option collect is not built yet")
