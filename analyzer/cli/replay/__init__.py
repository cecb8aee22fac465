"""`--option replay`: simulate the recorded steps, as they are or edited."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from analyzer import cli
from analyzer.base.errors import UsageError
from analyzer.cli import WHAT_IF, asked, refuse, variant_of
from analyzer.report.result import Result

HELP = "simulate the recorded steps, as they are or with changes"
EXAMPLE = "analyze.py whatif JOB bandwidth=2"
VARIANTS = {
    "smlt_delay_cmp": "delay all computation",
    "smlt_delay_comm": "delay all communication",
    "map_delay": "delay each operation in turn, and rank them by the effect",
    "bottleneck": "make each operation 10 % faster in turn, and rank them by the effect",
    WHAT_IF: "make the edits of --set",
}
_DELAYED = ("smlt_delay_cmp", "smlt_delay_comm", "map_delay")
_IN_TURN = ("map_delay", "bottleneck")
#: Default of `--delay_ratio`: the factor by which delayed operations take longer.
_DELAY = 1.1


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    cli.add_flags(parser, *cli.READING, *cli.REAL, "del_queue", "head", "output")
    cli.add_variants(parser, VARIANTS)
    add = parser.add_argument
    add("--step_num", metavar="N", type=cli.whole_above_zero,
        help="replay N steps in sequence (default: the recorded ones)")  # fmt: skip
    add("--delay_ratio", metavar="R", type=float,
        help=f"factor of smlt_delay_cmp, smlt_delay_comm and map_delay (default {_DELAY:g})")  # fmt: skip
    add("--set", metavar="EDIT", action="append", default=[],
        help="an edit for --sub_option whatif, repeatable: BW=0.8, rank1.FW=1.5, bandwidth=2, drop=NAME, "
        "straggler=none, rank1.gap=peers, …; --set help lists all, with the names of this job")  # fmt: skip


def run(args: Namespace) -> Result:
    """Replay the job, or answer the variant that `--sub_option` names."""
    _check(args)
    from analyzer.cli.replay import replayed, whatif
    from dag_utils import load_steps, read_partitions

    if args.sub_option == WHAT_IF or "help" in args.set:
        loaded = load_steps(args.path, asked(args), partitions=read_partitions(args.path), sizes=True)
        if "help" in args.set:
            return whatif.list_edits(args, loaded)
        answer = whatif.forecast if args.set else whatif.most_helpful
    else:
        loaded = load_steps(args.path, asked(args))
        if args.sub_option is None:
            return replayed.replay(args, loaded)
        answer = replayed.change_in_turn if args.sub_option in _IN_TURN else whatif.forecast
    job = cli.real(args, loaded)
    result = answer(args, loaded if job is None else job.loaded)
    return result if job is None else result._replace(notes=[*result.notes, *cli.real_notes(job.step)])


def _check(args: Namespace) -> None:
    """Refuse flags that belong to other variants, before anything is read."""
    from replay.edit import EditRequest
    from replay.selection import checked_ratio

    if args.sub_option not in _DELAYED:
        refuse(args, variant_of(args), "delay_ratio")
    if args.delay_ratio is None:
        args.delay_ratio = _DELAY
    checked_ratio(f"--delay_ratio {args.delay_ratio:g}", args.delay_ratio)
    if args.sub_option in _IN_TURN:
        refuse(args, variant_of(args), "step_num")
    if args.sub_option is None:
        refuse(
            args, "has no effect with a plain --option replay, which replays the recorded steps", *cli.REAL
        )
    args.set = [text if text == "help" else str(EditRequest.of(text)) for text in args.set]
    if args.set and "help" not in args.set and args.sub_option != WHAT_IF:
        raise UsageError(f"--set belongs to whatif: analyze.py whatif JOB {args.set[0]}")
    for flag in ("step_num", "output") if args.sub_option == WHAT_IF and not args.set else ():
        refuse(args, f"needs an edit: analyze.py whatif JOB bandwidth=2 --{flag} …", flag)
