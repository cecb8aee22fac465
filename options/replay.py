"""`--option replay`: simulate the recorded steps, and those of a job that was not run."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError
from result import Chart, Column, Result, Table

if TYPE_CHECKING:
    from replay.answer import Answer, PathItem
    from replay.load import Loaded

HELP = "simulate the steps: iteration time and its error, and what-if"
EXAMPLE = "analyze.py --option replay --path JOB --sub_option whatif --set bandwidth=2"

VARIANTS = ("smlt_delay_cmp", "smlt_delay_comm", "map_delay", "bottleneck", "whatif")

_STEPS = (
    Column("step", "step", "int"),
    Column("measured_ms", "recorded (ms)", "float"),
    Column("predicted_ms", "replayed (ms)", "float"),
    Column("error", "error", "percent", 2),
)
_PATH = (
    Column("owner", "rank"),
    Column("name", "operation"),
    Column("cat", "category"),
    Column("dur_ms", "on the path (ms)", "float"),
    Column("share", "share", "percent", 1),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare the flags of replay."""
    group.add_argument(
        "--step_num", metavar="N", type=_steps, help="replay N steps in sequence (default: as recorded)"
    )
    group.add_argument("--delay_ratio", metavar="R", type=float, default=1.1,
        help="factor of smlt_delay_cmp, smlt_delay_comm and map_delay (default 1.1)")  # fmt: skip
    group.add_argument("--set", metavar="EDIT", action="append", default=[],
        help="an edit of --sub_option whatif (repeatable): BW=0.8, Comm.x.PUSH=2, rank1.FW=1.5, bandwidth=2, "
        "partition_bytes=1048576, schedule=priority, drop=Comm.x, straggler=none")  # fmt: skip


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r}: a replay needs a whole number of steps, 1 or more")
    return int(text)


def run(args: Namespace) -> Result:
    """Replay the job, or answer the variant that `--sub_option` names."""
    _check(args)
    from replay.answer import answer
    from replay.load import load_recording
    from replay.model import fit

    loaded = load_recording(args.path, jobs=args.jobs, progress=args.progress)
    model = fit(loaded.recording)
    return _replayed(args, loaded, answer(model, args.step_num))


def _check(args: Namespace) -> None:
    if args.sub_option not in (None, *VARIANTS):
        raise UsageError(f"--sub_option {args.sub_option}: replay has the variants {', '.join(VARIANTS)}")
    if not args.delay_ratio > 0:
        raise UsageError(f"--delay_ratio {args.delay_ratio:g}: a ratio must be above 0 (1 changes nothing)")
    if args.set and args.sub_option != "whatif":
        raise UsageError("--set belongs to --sub_option whatif")


def _replayed(args: Namespace, loaded: Loaded, found: Answer) -> Result:
    from replay.answer import path_items, typical_position
    from replay.timeline import write_synthetic

    position = typical_position(found.result)
    path = path_items(found.result, position, parts=args.del_queue)
    notes = list(loaded.recording.notes)
    output = _output(args)
    if output is not None:
        n_events = write_synthetic(found.result, output, parts=True)
        notes.append(f"replayed timeline: {output} ({n_events:,} events)")
    document = {**_document(args, loaded, found, path), "output": None if output is None else str(output)}
    figures = [("replayed", f"{found.iteration_ns / 1e6:.3f} ms a step")]
    return Result(
        option="replay",
        title="Replay",
        document=document,
        tables=[_step_table(found), _path_table(found, position, path)],
        charts=_charts(found, position),
        figures=figures,
        notes=notes,
        repairs=loaded.job.repairs,
    )


def _document(args: Namespace, loaded: Loaded, found: Answer, path: list[PathItem]) -> dict[str, Any]:
    owners = loaded.recording.owners
    several = len(owners) > 1
    recorded = found.recorded_ns
    return {
        "option": "replay",
        "steps": len(found.result.rows),
        "operations": _n_operations(loaded, args.del_queue),
        "predicted_ms": {
            owner: ns / 1e6 for owner, ns in zip(owners, found.predicted_ns.tolist(), strict=True)
        },
        "iteration_ms": found.iteration_ns / 1e6,
        "measured_ms": None if recorded is None else recorded / 1e6,
        "error": found.error,
        "critical_path": [
            {
                "name": f"{item.owner}.{item.name}" if several else item.name,
                "cat": item.cat,
                "dur_ms": item.dur_ns / 1e6,
            }
            for item in path
        ],
        "interval_ms": None if found.interval_ns is None else [ns / 1e6 for ns in found.interval_ns],
    }


def _n_operations(loaded: Loaded, parts: bool) -> int:
    return sum(op.is_traced and (parts or not op.whole) for op in loaded.recording.operations)


def _output(args: Namespace) -> Path | None:
    if args.output is None:
        path: Path = args.path[0]
        return (path if path.is_dir() else path.parent) / "synthetic.json"
    return None if str(args.output) == "-" else args.output


def _step_table(found: Answer) -> Table:
    from replay.answer import measured_ns

    recorded = measured_ns(found.result.model)
    rows = []
    for position, row in enumerate(found.result.rows):
        replayed = found.result.iteration_ns[position]
        known = recorded[row] == recorded[row]
        measured = float(recorded[row][known].mean()) if known.any() else None
        error = None if measured is None else (float(replayed[known].mean()) - measured) / measured
        rows.append(
            (position + 1, None if measured is None else measured / 1e6, float(replayed.mean()) / 1e6, error)
        )
    return Table("steps", "Iteration time, step by step", _STEPS, rows)


def _path_table(found: Answer, position: int, path: list[PathItem]) -> Table:
    total = sum(item.dur_ns for item in path) or 1
    rows = [(item.owner, item.name, item.cat, item.dur_ns / 1e6, item.dur_ns / total) for item in path]
    return Table("critical_path", f"Critical path of step {position + 1}", _PATH, rows)


def _charts(found: Answer, position: int) -> list[Chart]:
    return []
