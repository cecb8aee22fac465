"""The commands that answers print: as one would type them where this program was started."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import options
from outputs.marks import PROGRAM
from result import Command


def command(args: Namespace, name: str, *rest: str, paths: Sequence[Path] = ()) -> Command:
    """Return the command that asks the option `name`, or `whatif`, about the paths of this one, or others.

    What says how the recording is read goes with it, as far as the option heeds it.
    """
    heeded = options.load(name).FLAGS
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
    if Path(script).name != PROGRAM or script not in sys.orig_argv:
        return ["python3", PROGRAM]
    return sys.orig_argv[: sys.orig_argv.index(script) + 1]
