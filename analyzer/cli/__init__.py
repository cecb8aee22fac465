"""The registry: every value of `--option` and its module, in the order of `--help`.

A module has a line `HELP`, a command `EXAMPLE`, `add_arguments(parser)`, which declares its flags (those of
`SHARED` with `add_flags`), and `run(args) -> Result`, which raises `AnalyzeError` for the user's mistakes. It
imports heavy modules inside `run`, so that `--help` and a wrong argument answer at once.
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
import shutil
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import PROGRAM, NoteKind, UsageError, counted, listed, notes_of, whole_number
from analyzer.base.units import in_ms, in_range
from analyzer.report.result import Command

if TYPE_CHECKING:
    from dag_utils import LoadedSteps
    from replay.real_step import RealJob, RealStep
    from trace_utils import Request, TraceFile

_NAMES = ("diagnose", "statistic", "graph", "combine", "compare", "critical", "replay", "collect")
MODULES = {**{name: f"analyzer.cli.{name}" for name in _NAMES}, "3dcompare": "analyzer.cli.compare3d"}
#: The variant of `replay` that takes edits as words.
WHAT_IF = "whatif"
#: Short words for an option with a flag.
SHORT: Mapping[str, tuple[str, Mapping[str, str]]] = {
    WHAT_IF: ("replay", {"sub_option": WHAT_IF}),
    "breakdown": ("statistic", {"sub_option": "breakdown"}),
    "collectives": ("statistic", {"sub_option": "collectives"}),
    "kernels": ("statistic", {"group_by": "kernel_kind"}),
}
#: The command that pip installs.
INSTALLED = "analyze"
#: Values of `--group_by` that group the work of devices.
GROUPS = ("operator", "module", "annotation", "kernel_kind")
#: The words that choose an option at the beginning of a command line.
NAMES = (*MODULES, *SHORT)
#: The shared flags on how to read a job; see `asked`.
READING = ("filter", "comm", "step_by", "rank_by")
#: The shared flags on the step without the profiler; see `real`.
REAL = ("real_step", "as_recorded")


def option_of(name: str) -> str:
    """Name the option of one of `NAMES`."""
    return SHORT[name][0] if name in SHORT else name


def load(name: str) -> ModuleType:
    """Import the module that answers ``--option name``, one of `NAMES`."""
    return importlib.import_module(MODULES[option_of(name)])


def run(args: Namespace, show: Callable[..., Any]) -> Any:
    """Run one option; `show` takes its result, the arguments and the output files."""
    from analyzer.base.outputs.atomic import Outputs, check_named, guard
    from trace_utils import is_input

    with Outputs(partial(guard, args, is_input)) as outputs:
        check_named(args, outputs)
        with contextlib.ExitStack() as stack:
            if args.cluster is not None:
                from analyzer.base import parallel
                from analyzer.base.parallel import cluster

                workers = stack.enter_context(cluster.connected(cluster.checked_address(args.cluster)))
                stack.enter_context(parallel.working_on(workers))
            result = load(args.option).run(args)
        return show(result, args, outputs)


# ---- shared flags


#: Flags and variants of earlier versions, of byteprofile and of dPRO, and what replaces them.
REMOVED = {
    "--peak": "compare the column bus (GB/s) with your links",
    "--scope": "the table shows the widest scope, --format json all of them",
    "--max_unpacked": "unpack the file with gunzip and give the result",
    "--picture": "--html FILE writes a page with the charts; graph and 3dcompare draw pictures",
    "--comm_backend": "the traces tell how ranks communicate: analyze.py JOB",
    "--platform": "the traces tell which framework wrote them: analyze.py JOB",
    "--clean": "nothing is kept between runs; analyze.py collect JOB renews each final trace",
    "collect --sub_option straggler": "analyze.py diagnose JOB",
    "collect --sub_option gap": "analyze.py breakdown JOB",
    "collect --sub_option bottleneck": "analyze.py diagnose JOB",
    "collect --sub_option combine": "analyze.py combine JOB",
    "collect --sub_option xlsx": "analyze.py statistic JOB --xlsx",
    "replay --sub_option compare": "analyze.py replay JOB --html",
    "replay --sub_option theory": "analyze.py whatif JOB bandwidth=10Gbit",
}


def above_zero(
    what: str, number: Callable[[str], float | None], *, or_zero: bool = False
) -> Callable[[str], Any]:
    """Make the type of a flag: a number above 0. `number` reads it; None or ValueError is no number."""
    least = "" if or_zero else " above 0"

    def parsed(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = number(text)
            if value is not None and (0 < value < float("inf") or (or_zero and value == 0)):
                return value
        raise ArgumentTypeError(f"{text!r} is not a {what}{least}")

    return parsed


whole_above_zero = above_zero("whole number", whole_number)


def _part_of_a_name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("a part of a name is expected")
    return text


#: Flags that several options have.
SHARED: Mapping[str, Mapping[str, Any]] = {
    "filter": {
        "metavar": "A,B",
        "type": lambda text: tuple(filter(None, text.split(","))),
        "help": "of communications, keep only these",
    },
    "comm": {
        "metavar": "NAME",
        "type": _part_of_a_name,
        "action": "append",
        "help": "count operations with this in their name as communication (repeatable)",
    },
    "step_by": {
        "metavar": "NAME",
        "help": "what marks a step: an annotation, an instant, or args.KEY of the events",
    },
    "rank_by": {
        "metavar": "FIELD",
        "help": "what tells the ranks in one file apart: pid, tid or args.KEY of the events",
    },
    "group_by": {
        "choices": ("operation", "rank", *GROUPS),
        "help": "rows: each operation of each rank (rank, the default up to 16 ranks) or of all ranks "
        "(operation); or device work by operator, module, annotation or kernel kind",
    },
    "real_step": {
        "metavar": "MS",
        "type": above_zero("number of milliseconds", float),
        "help": "the step time without the profiler, from your own log: lengths and savings refer to it",
    },
    "as_recorded": {
        "action": "store_true",
        "help": "lengths and savings as recorded, with the profiler's own time in them",
    },
    "sort": {"action": "store_true", "help": "largest total, or part of the change, first"},
    "head": {"metavar": "N", "type": whole_above_zero, "help": "only the first N rows"},
    "output": {
        "metavar": "FILE",
        "type": Path,
        "help": "write the trace (.json) or picture here (.gz compresses)",
    },
    "picture": {"metavar": "FILE", "type": Path, "help": "also draw the first chart (.svg .png .pdf)"},
    "save": {
        "metavar": "FILE",
        "type": Path,
        "help": "also write the job's digest, a small file to compare with later (.gz compresses)",
    },
    "del_queue": {"action": "store_true", "help": "show each partition and stage of a communication"},
    "step": {
        "metavar": "N",
        "help": "which recorded step (default: the median one); in critical also mean: the average step",
    },
}


def add_flags(parser: ArgumentParser, *names: str) -> None:
    """Declare shared flags."""
    for name in names:
        parser.add_argument(f"--{name}", **SHARED[name])


def add_variants(parser: ArgumentParser, variants: Mapping[str, str]) -> None:
    """Declare `--sub_option` with the option's variants and their help."""

    def variant(text: str) -> str:
        if instead := REMOVED.get(f"{parser.get_default('option')} --sub_option {text}"):
            raise ArgumentTypeError(f"{text} was removed: {instead}")
        return text

    parser.add_argument(
        "--sub_option",
        metavar="VARIANT",
        type=variant,
        choices=[*variants],
        help="; ".join(f"{name}: {words}" for name, words in variants.items()).replace("%", "%%"),
    )


def refuse(args: Namespace, why: str, *flags: str) -> None:
    """Raise `UsageError` for flags without effect in this run."""
    for flag in flags:
        if getattr(args, flag) not in (None, False, (), []):
            raise UsageError(f"--{flag} {why}")


def variant_of(args: Namespace) -> str:
    """Write why this variant refuses a flag; see `refuse`."""
    variant = f"--sub_option {args.sub_option}" if args.sub_option else f"a plain --option {args.option}"
    return f"has no effect with {variant}"


def name_files(args: Namespace, beside: Path) -> None:
    """Name the workbook and the page requested without a name: beside a file, or in a directory."""
    from analyzer.base.outputs.atomic import default_file

    for flag in ("xlsx", "html"):
        if getattr(args, flag) is True:
            setattr(args, flag, default_file(beside, args.option, flag))


def asked(args: Namespace) -> Request:
    """Collect the flags on how to read a job."""
    from trace_utils import Request

    return Request(
        only=args.filter,
        comm=args.comm,
        step_by=args.step_by,
        rank_by=args.rank_by,
        jobs=args.jobs,
        progress=args.progress,
    )


def real(args: Namespace, loaded: LoadedSteps) -> RealJob | None:
    """Remove the profiler's cost from a job, as the flags say; None with `--as_recorded`."""
    from replay.real_step import kept, real_job

    if args.as_recorded:
        refuse(args, "has no effect with --as_recorded", "real_step")
        return None
    return kept(real_job(loaded, None if args.real_step is None else args.real_step * 1e6))


def recorded_notes(loaded: LoadedSteps) -> list[str]:
    """Say beside recorded lengths how long a step takes without the profiler, if that is another time."""
    from analyzer.reading import dialects

    if not dialects.named(loaded.files[0].dialect).slows_host:
        return []
    from replay.real_step import real_job

    step = real_job(loaded).step
    if not step.differs:
        return []
    between = in_range(step.low_ns, step.high_ns)
    return [f"as recorded; without the profiler a step takes about {in_ms(step.mid_ns)} ({between})"]


def real_notes(step: RealStep) -> list[str]:
    """Say what the lengths of steps are, if they are not the recorded ones."""
    if step.source == "unknown":
        return ["how much the profiler slows the host is not known here; --real_step MS tells the real step"]
    if not step.differs:
        return []
    recorded = f"{in_ms(step.recorded_ns)} while profiled"
    if step.source == "measured":
        return [f"the step is that of the step log beside the recording; {recorded} (--as_recorded)"]
    if step.source == "told":
        notes = [f"the step is that of --real_step; {recorded}"]
        if step.is_another:
            notes.append(
                f"the profiler alone does not explain this step: all recorded work counts {step.pace:.3g} "
                "times; is it a step of the same job, batch and machine?"
            )
        return notes
    between = in_range(step.low_ns, step.high_ns)
    return [f"the step is that without the profiler, {between}; {recorded} (--as_recorded)"]


def damage_notes(files: Iterable[TraceFile]) -> list[str]:
    """Name the files that lost events, with the remedy."""
    return damage_of(
        [file.path for file in files if len(notes_of(NoteKind.WHOLE, file.repairs)) < len(file.repairs)]
    )


def damage_of(paths: Sequence[Path]) -> list[str]:
    """Name damaged files, if there are any, with the remedy."""
    if not paths:
        return []
    files = f"{counted(len(paths), 'damaged file')} ({listed([path.name for path in paths])})"
    remedy = "Let the profiler finish writing before the job ends."
    return [f"{files}: the result lacks the lost events. {remedy}"]


# ---- commands that answers print, to be typed where this program was started


def command(args: Namespace, name: str, *rest: str, paths: Sequence[Path] = ()) -> Command:
    """Write a command of an option, or `whatif`, for the same paths or other `paths`, read alike."""
    words = [f"./{path}" if str(path).startswith("-") else str(path) for path in paths or args.path]
    values = [("filter", ",".join(args.filter)), *(("comm", part) for part in args.comm)]
    values += [("step_by", args.step_by), ("rank_by", args.rank_by)]
    is_real = name in (WHAT_IF, "diagnose")  # others answer about the recorded steps
    is_told = is_real and isinstance(args.real_step, float)
    values += [("real_step", f"{args.real_step:g}" if is_told else None)]
    flags = [word for flag, value in values if value for word in (f"--{flag}", value)]
    flags += ["--as_recorded"] * (is_real and args.as_recorded)
    return Command(shlex.join([*_program(), name, *words, *rest, *flags]))


def _program() -> list[str]:
    """List the words that started this program, or the usual words if another program imported it."""
    script = sys.argv[0]
    if Path(script).name == INSTALLED:
        return [INSTALLED if shutil.which(INSTALLED) == script else script]
    if Path(script).name != PROGRAM or script not in sys.orig_argv:
        return ["python3", PROGRAM]
    return sys.orig_argv[: sys.orig_argv.index(script) + 1]
