"""The registry: every value of `--option` and the module that answers it, in the order of `--help`.

A module is an `Option`. It imports what is heavy inside `run`, so that `--help` and a wrong argument
answer at once.
"""

from __future__ import annotations

import importlib
from argparse import Namespace, _ArgumentGroup
from typing import Protocol, cast

from result import Result

MODULES = {
    "diagnose": "options.diagnose",
    "statistic": "options.statistic",
    "graph": "options.graph",
    "combine": "options.combine",
    "compare": "options.compare",
    "critical": "options.critical",
    "replay": "options.replay",
    "collect": "options.collect",
    "3dcompare": "options.compare3d",
}


class Option(Protocol):
    """What a module of this package offers."""

    HELP: str  # one line
    EXAMPLE: str  # one command
    FLAGS: frozenset[str]  # of the flags that not every option heeds, those that this one does

    def add_arguments(self, group: _ArgumentGroup) -> None:
        """Declare the flags that belong to this option alone."""

    def run(self, args: Namespace) -> Result:
        """Answer; raise `AnalyzeError` for what the user can mend."""


def load(name: str) -> Option:
    """Import and return the module that answers ``--option name``."""
    return cast("Option", importlib.import_module(MODULES[name]))
