"""The registry: every value of `--option` and the module that answers it, in the order of `--help`.

A module is an `Option`. It imports what is heavy inside `run`, so that `--help` and a wrong argument
answer at once.
"""

from __future__ import annotations

import contextlib
import importlib
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from errors import UsageError, meant, whole_number
from result import Result

if TYPE_CHECKING:
    from trace_utils import Request

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


#: The word for ``--option replay --sub_option whatif``, after which words may be edits.
WHAT_IF = "whatif"
#: What `--group_by` puts the work of devices together by.
GROUPS = ("operator", "module", "annotation", "kernel_kind")
#: The shared flags that say how a job is read; see `asked`.
READING = frozenset({"filter", "comm", "step_by", "rank_by"})


def names() -> Sequence[str]:
    """Return the words that can choose an option at the beginning of a command line."""
    return (*MODULES, WHAT_IF)


class Option(Protocol):
    """The names that each module of this package defines.

    One with flags of its own has ``add_arguments(group)``, which declares them.
    """

    HELP: str  # one line
    EXAMPLE: str  # one command
    FLAGS: frozenset[str]  # of the flags that not every option heeds, those that this one does

    def run(self, args: Namespace) -> Result:
        """Answer; raise `AnalyzeError` for what the user can mend."""


def load(name: str) -> Option:
    """Import and return the module that answers ``--option name``, one of `names`."""
    return cast("Option", importlib.import_module(MODULES["replay" if name == WHAT_IF else name]))


# ---- what several options do with the flags that they share


def above_zero(
    what: str, number: Callable[[str], float | None], *, or_zero: bool = False
) -> Callable[[str], Any]:
    """Return the type of a flag: what `number` makes of its text (None, ValueError: nothing), above 0."""
    least = "" if or_zero else " above 0"

    def parsed(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = number(text)
            if value is not None and (0 < value < float("inf") or (or_zero and value == 0)):
                return value
        raise ArgumentTypeError(f"{text!r} is not a {what}{least}")

    return parsed


whole_above_zero = above_zero("whole number", whole_number)


def check_variant(args: Namespace, *variants: str) -> None:
    """Refuse (`UsageError`) a `--sub_option` other than the option's `variants`."""
    if args.sub_option not in (None, *variants):
        near = meant(args.sub_option, variants)
        has = f"{args.option} has the variants {', '.join(variants)}{near}"
        raise UsageError(f"--sub_option {args.sub_option}: {has}")


def check_heeded(args: Namespace, *flags: str) -> None:
    """Refuse (`UsageError`) `flags` that the chosen variant does not heed, rather than ignore them."""
    variant = f"--sub_option {args.sub_option}" if args.sub_option else f"a plain --option {args.option}"
    for flag in flags:
        if getattr(args, flag) not in (None, False, (), []):
            raise UsageError(f"--{flag} has no effect with {variant}")


def is_drawn(args: Namespace) -> bool:
    """Whether some file shows charts."""
    return bool(args.html or args.picture or args.xlsx)


def asked(args: Namespace) -> Request:
    """Return how the command line asks for jobs to be read."""
    from trace_utils import Request

    return Request(
        only=args.filter,
        comm=args.comm,
        step_by=args.step_by,
        rank_by=args.rank_by,
        jobs=args.jobs,
        progress=args.progress,
    )
