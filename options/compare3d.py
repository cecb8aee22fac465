"""`--option 3dcompare`: not built yet."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup

from errors import AnalyzeError
from result import Result

HELP = "not built yet"
EXAMPLE = "analyze.py --option 3dcompare --path TRACE"


def add_arguments(group: _ArgumentGroup) -> None:
    """No flags yet."""


def run(args: Namespace) -> Result:
    """Say that the option is not there yet."""
    raise AnalyzeError("--option 3dcompare is not built yet")
