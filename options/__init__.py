"""The registry: every value of `--option` and the module that answers it, in the order of `--help`.

A module is an `Option`. It imports what is heavy inside `run`, so that `--help` and a wrong argument
answer at once.
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
import shutil
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from errors import UsageError, meant, whole_number
from outputs.marks import PROGRAM
from result import Command, Result

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
#: The command of a copy that pip installed.
INSTALLED = "analyze"
#: What `--group_by` puts the work of devices together by.
GROUPS = ("operator", "module", "annotation", "kernel_kind")
#: The shared flags that say how a job is read; see `asked`.
READING = frozenset({"filter", "comm", "step_by", "rank_by"})


def names() -> Sequence[str]:
    """Return the words that can choose an option at the beginning of a command line."""
    return (*MODULES, WHAT_IF)


class Option(Protocol):
    """The names that each module of this package defines.

    One with flags of its own has ``add_arguments(group)``, which declares them, one with variants (of
    `--sub_option`) their names as ``VARIANTS``.
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
    """Refuse (`UsageError`) `flags` that the chosen variant does not use, rather than ignore them."""
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


# ---- the commands that answers print, as one would type them where this program was started


def command(args: Namespace, name: str, *rest: str, paths: Sequence[Path] = ()) -> Command:
    """Return the command that asks the option `name`, or `whatif`, about the paths of this one, or others.

    What says how the recording is read goes with it, as far as the option heeds it.
    """
    heeded = load(name).FLAGS
    words = [f"./{path}" if str(path).startswith("-") else str(path) for path in paths or args.path]
    read = {
        "filter": [",".join(args.filter)],
        "comm": args.comm,
        "step_by": [args.step_by],
        "rank_by": [args.rank_by],
    }
    asked = [(flag, value) for flag, values in read.items() for value in values if value and flag in heeded]
    flags = [word for flag, value in asked for word in (f"--{flag}", value)]
    return Command(shlex.join([*_program(), name, *words, *rest, *flags]))


def _program() -> list[str]:
    """Return the words that started this program; the usual ones where another program did."""
    script = sys.argv[0]
    if Path(script).name == INSTALLED:
        return [INSTALLED if shutil.which(INSTALLED) == script else script]
    if Path(script).name != PROGRAM or script not in sys.orig_argv:
        return ["python3", PROGRAM]
    return sys.orig_argv[: sys.orig_argv.index(script) + 1]
