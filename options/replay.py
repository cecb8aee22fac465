"""`--option replay`: simulate the recorded steps, and those of a job that was not run."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError
from result import Repairs, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.anchors import Anchors
    from replay.answer import Answer
    from replay.load import Loaded, Partitions
    from replay.model import Model
    from replay.plan import Int64
    from replay.sensitivity import Effect

HELP = (
    "simulate the recorded steps, with their error, and what-if; "
    "--sub_option smlt_delay_cmp, smlt_delay_comm, map_delay, bottleneck or whatif"
)
EXAMPLE = "analyze.py --option replay --path JOB --sub_option whatif --set bandwidth=2"

VARIANTS = ("smlt_delay_cmp", "smlt_delay_comm", "map_delay", "bottleneck", "whatif")
#: How much faster `bottleneck` makes each candidate.
_FASTER = 0.9


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare the flags of replay."""
    add = group.add_argument
    add("--step_num", metavar="N", type=_steps, help="replay N steps in sequence (default: those recorded)")
    add("--delay_ratio", metavar="R", type=float, default=1.1,
        help="factor of smlt_delay_cmp, smlt_delay_comm and map_delay (default 1.1)")  # fmt: skip
    add("--set", metavar="EDIT", action="append", default=[],
        help="an edit for --sub_option whatif, repeatable: BW=0.8, Comm.x.PUSH=2, rank1.FW=1.5, bandwidth=2, "
        "partition_bytes=1048576, schedule=priority|fifo, drop=Comm.x, straggler=none")  # fmt: skip


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r}: a replay needs a whole number of steps, 1 or more")
    return int(text)


def run(args: Namespace) -> Result:
    """Replay the job, or answer the variant that `--sub_option` names."""
    _check(args)
    from replay.load import load_recording
    from replay.model import fit

    partitions = _partitions(args) if _needs_sizes(args) else None
    loaded = load_recording(
        args.path,
        partitions=partitions,
        only=args.filter,
        align=_shifts,
        jobs=args.jobs,
        progress=args.progress,
    )
    model = fit(loaded.recording)
    if args.sub_option is None:
        return _replayed(args, loaded, model)
    if args.sub_option in ("map_delay", "bottleneck"):
        return _explored(args, loaded, model)
    return _whatif(args, loaded, model)


def _shifts(hosts: Sequence[Anchors]) -> list[Callable[[Int64], Int64]]:
    """Return what is to be added to each host's times; nothing where their order is possible as it is."""
    from clocks.offsets import align

    return [clock.shift for clock in align(hosts).clocks]


def _check(args: Namespace) -> None:
    if args.sub_option not in (None, *VARIANTS):
        raise UsageError(f"--sub_option {args.sub_option}: replay has the variants {', '.join(VARIANTS)}")
    if not 0 < args.delay_ratio < float("inf"):
        raise UsageError(f"--delay_ratio {args.delay_ratio:g}: a ratio must be above 0 (1 changes nothing)")
    if args.set and args.sub_option != "whatif":
        raise UsageError("--set belongs to --sub_option whatif")
    if args.sub_option == "whatif" and not args.set:
        raise UsageError(
            "--sub_option whatif needs at least one --set, e.g. --set BW=0.8 or --set bandwidth=2"
        )


def _needs_sizes(args: Namespace) -> bool:
    return any(edit.startswith(("bandwidth", "partition_bytes")) for edit in args.set)


def _partitions(args: Namespace) -> Partitions:
    """Return what the logs in or beside the job's directories tell about its partitions."""
    from collector.network.partition_keys import read_keys
    from replay.load import Partitions, partition_sizes

    tensors: dict[int, tuple[int, int]] = {}
    servers: dict[int, int] = {}
    for path in args.path:
        keys = read_keys(path, Repairs())
        servers |= keys.servers
        tensors |= {
            declared: (tensor.total_bytes, tensor.n_parts)
            for declared, tensor in keys.tensors.items()
            if tensor.total_bytes and tensor.n_parts
        }
    return Partitions(partition_sizes(tensors), servers)


# ---- the replay itself


def _replayed(args: Namespace, loaded: Loaded, model: Model) -> Result:
    import numpy as np

    from replay.answer import answer, leave_one_out, path_items, typical_position
    from replay.replay_tables import charts, path_table, step_table

    found = answer(model, args.step_num)
    position = typical_position(found)
    path = path_items(found, parts=args.del_queue)[position]
    output, written = _write(args, found)
    errors = np.abs(leave_one_out(model))
    figures = [*_figures(found)]
    if len(errors):
        figures.append(("error with the gaps of the other steps", f"{np.median(errors):.2%} median, "
                        f"{np.percentile(errors, 90):.2%} 90th percentile"))  # fmt: skip
    return Result(
        option="replay",
        title=f"Replay of {args.path[0]}",
        document=_document(args, loaded, found, output),
        tables=[step_table(found), path_table(position + 1, path)],
        charts=charts(found, position) if args.html else (),
        figures=figures,
        commentary=_commentary(found),
        notes=[*loaded.recording.notes, *written],
        repairs=loaded.repairs,
        html_default=_beside(args, "replay.html"),
    )


def _commentary(found: Answer) -> list[str]:
    """Return a line a step: how long it took, and in what the critical path lay."""
    from replay.answer import path_by_category

    lines = []
    for i, shares in enumerate(path_by_category(found)):
        parts = ", ".join(f"{cat} {ns / 1e6:.3f}" for cat, ns in shares.items())
        step_ms = found.result.iteration_ns[i].mean() / 1e6
        lines.append(f"step {i + 1}: {step_ms:.3f} ms; critical path (ms): {parts}")
    return lines


def _figures(found: Answer) -> list[tuple[str, str]]:
    figures = [("iteration time, replayed", f"{found.iteration_ns / 1e6:.3f} ms")]
    if found.recorded_ns is not None and found.error is not None:
        figures.append(("iteration time, recorded", f"{found.recorded_ns / 1e6:.3f} ms"))
        figures.append(("error", f"{found.error:+.2%}"))
    if found.interval_ns is not None:
        low, high = found.interval_ns
        figures.append(("mean of as many further steps (95 %)", f"{low / 1e6:.3f} to {high / 1e6:.3f} ms"))
    return figures


def _document(args: Namespace, loaded: Loaded, found: Answer, output: Path | None) -> dict[str, Any]:
    from replay.answer import path_items, typical_position

    owners = found.result.model.recording.owners
    several = len(owners) > 1
    recorded = found.recorded_ns
    path = path_items(found, parts=args.del_queue)[typical_position(found)]
    return {
        "option": "replay",
        "steps": len(found.result.rows),
        "operations": _n_operations(found.result.model, args.del_queue),
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
        "output": None if output is None else str(output),
    }


def _n_operations(model: Model, parts: bool) -> int:
    """Return how many operations a step has; a communication with its parts is one unless `parts`."""
    traced = [(i, one) for i, one in enumerate(model.recording.operations) if one.is_traced]
    if parts:
        return len(traced)
    return len({(one.owner, one.main) if one.whole or one.is_communication else i for i, one in traced})


def _write(args: Namespace, found: Answer) -> tuple[Path | None, list[str]]:
    """Write the replayed timeline unless ``--output -``; return where, and the line that says so."""
    from replay.timeline import write_synthetic

    if str(args.output) == "-":
        return None, []
    output: Path = args.output or _beside(args, "synthetic.json")
    n_events = write_synthetic(found.result, output)
    return output, [f"replayed timeline: {output} ({n_events:,} events)"]


def _beside(args: Namespace, name: str) -> Path:
    path: Path = args.path[0]
    return (path if path.is_dir() else path.parent) / name


# ---- what if


def _whatif(args: Namespace, loaded: Loaded, model: Model) -> Result:
    from replay.answer import answer, path_shares
    from replay.replay_tables import moved_chart, moved_table, whatif_table

    edits = _edits(args)
    before = answer(model, args.step_num)
    changed = [(name, answer(edit(model), args.step_num)) for name, edit in edits]
    rows = [_change(name, before, after) for name, after in changed]
    after = changed[-1][1]
    output, written = _write(args, after)
    document = {
        **_document(args, loaded, after, output),
        "before_ms": before.iteration_ns / 1e6,
        "after_ms": after.iteration_ns / 1e6,
        "change": rows[-1]["change"],
        "change_interval": [rows[-1]["change_low"], rows[-1]["change_high"]],
        "whatif": rows,
        "path_before_ms": {cat: ns / 1e6 for cat, ns in path_shares(before).items()},
        "path_after_ms": {cat: ns / 1e6 for cat, ns in path_shares(after).items()},
    }
    moved = moved_table(path_shares(before), path_shares(after))
    return Result(
        option="replay",
        title=f"What if, {args.path[0]}",
        document=document,
        tables=[whatif_table(rows), moved],
        charts=[
            moved_chart({"recorded": path_shares(before), **{name: path_shares(a) for name, a in changed}})
        ],
        notes=[*loaded.recording.notes, *_cautions(args, model), *written],
        repairs=loaded.repairs,
        html_default=_beside(args, "replay.html"),
    )


def _cautions(args: Namespace, model: Model) -> list[str]:
    """Return what an edit takes for granted, or why it changes nothing."""
    from replay.whatif.straggler import why_none

    said = []
    if "straggler=none" in args.set and (why := why_none(model)):
        said.append(f"straggler=none changes nothing: {why}")
    links = [one for one in model.recording.operations if one.device >= 0]
    is_sized = not links or any(one.n_bytes for one in links)
    if any(edit.startswith("bandwidth") for edit in args.set) and not is_sized:
        said.append("bandwidth: no log tells the sizes of the transfers; "
                    "they are taken from the copies to host memory")  # fmt: skip
    return said


def _edits(args: Namespace) -> list[tuple[str, Any]]:
    """Return each edit by its name, and after several, all of them together."""
    from replay.whatif.edits import Change, apply, changed, communication, computation

    if args.sub_option != "whatif":
        ratio = args.delay_ratio
        chosen = computation if args.sub_option == "smlt_delay_cmp" else communication
        what = "computation" if args.sub_option == "smlt_delay_cmp" else "communication"
        return [(f"{what} x {ratio:g}", lambda model: changed(model, chosen(model), Change(ratio)))]
    edits: list[tuple[str, Any]] = [
        (text, lambda model, text=text: apply(model, [text])) for text in args.set
    ]
    if len(args.set) > 1:
        edits.append((" ".join(args.set), lambda model: apply(model, args.set)))
    return edits


def _change(name: str, before: Answer, after: Answer) -> dict[str, Any]:
    from replay.answer import change_interval

    then, now = (one.result.iteration_ns.mean(axis=1) for one in (before, after))
    interval = change_interval(then, now)
    return {
        "set": name,
        "before_ms": before.iteration_ns / 1e6,
        "after_ms": after.iteration_ns / 1e6,
        "change": (after.iteration_ns - before.iteration_ns) / before.iteration_ns,
        "change_low": None if interval is None else interval[0],
        "change_high": None if interval is None else interval[1],
    }


# ---- each in turn


def _explored(args: Namespace, loaded: Loaded, model: Model) -> Result:
    from replay.answer import answer
    from replay.replay_tables import effect_chart, effect_table
    from replay.sensitivity import delay_each, speed_up_each

    found = answer(model)
    is_delay = args.sub_option == "map_delay"
    ratio = args.delay_ratio if is_delay else _FASTER
    search = delay_each if is_delay else speed_up_each
    effects = search(model, ratio, parts=args.del_queue, jobs=args.jobs, progress=args.progress)
    key = "delays" if is_delay else "bottlenecks"
    title = f"Each operation x {ratio:g}" if is_delay else "What gives most when 10 % faster"
    return Result(
        option="replay",
        title=f"{title}, {args.path[0]}",
        document={
            **_document(args, loaded, found, None),
            key: [_record(one, found) for one in effects[: args.head]],
        },
        tables=[effect_table(key, title, effects[: args.head], found.iteration_ns)],
        charts=[effect_chart(title, effects)],
        figures=_figures(found),
        notes=loaded.recording.notes,
        repairs=loaded.repairs,
        html_default=_beside(args, "replay.html"),
    )


def _record(one: Effect, found: Answer) -> dict[str, Any]:
    return {
        "kind": one.group.kind,
        "name": one.group.name,
        "cat": one.group.cat,
        "added_ms": one.added_ns / 1e6,
        "effect_ms": one.effect_ns / 1e6,
        "effect": one.effect_ns / found.iteration_ns,
    }
