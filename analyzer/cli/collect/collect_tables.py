"""Tables of `collect`: step times, network traffic and server operations."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import Repairs, TraceError, counted
from analyzer.base.units import in_digits, in_ms, in_percent, ms_of
from analyzer.report.result import Column, Result, Table, ms_column
from collector.gpu.iteration_times import Gpu, StepTime, known_mean, together

if TYPE_CHECKING:
    from collector.network.server_timeline import ServerKey


def pcap(root: Path, *, jobs: int | None, progress: bool | None, output: Path | None = None) -> Result:
    """Read the captures under `root`, and write their timeline there or to `output`."""
    from collector.network.collect_captures import TIMELINE, read_captures, write_captured

    network = read_captures(root, jobs=jobs, progress=progress)
    target = output or (root if root.is_dir() else root.parent) / TIMELINE
    n_events = write_captured(network, target)
    wire = network.wire
    length_ns = wire.response_end_ns.max() - wire.request_start_ns.min()
    every_worker = all(key.waiting_ns is not None for key in network.keys)
    keys = Table.of("network_keys", "Transfers by key", _KEYS, network.keys, note=_WHERE)
    return Result(
        "collect",
        "network",
        {"network": _document(target, n_events, keys=keys)},
        [keys] if network.keys else [],
        headline=_headline(network.keys),
        figures=[
            ("transfers", f"{len(wire):,}"),
            ("bytes", f"{int(wire.value_bytes.sum()):,}"),
            ("capture length", f"{in_digits(length_ns / 1e9)} s"),
        ],
        notes=[f"written: {target}", *([] if every_worker else [_NOT_EVERY_WORKER])],
        repairs=network.repairs,
    )


def server(root: Path, *, progress: bool | None, output: Path | None = None) -> Result:
    """Read the logs of servers under `root`, and write their timeline there or to `output`."""
    from collector.network.server_timeline import TIMELINE, read_served, write_served

    servers = read_served(root, progress=progress)
    target = output or (root if root.is_dir() else root.parent) / TIMELINE
    n_events = write_served(servers, target)
    operations = Table.of("server_operations", "Operations of the servers", _OPERATIONS, servers.operations)
    keys = Table.of("server_keys", "Requests by key", _REQUESTS, servers.keys)
    return Result(
        "collect",
        "servers",
        {"server": _document(target, n_events, operations=operations, keys=keys)},
        [table for table in (operations, keys) if table.rows],
        figures=[("server events", f"{n_events:,}")],
        notes=[f"written: {target}"],
        repairs=servers.repairs,
    )


def all_there_is(root: Path, *, jobs: int | None, progress: bool | None) -> Iterator[Result]:
    """Yield a result for the captures and for the logs under `root`; unusable captures are a repair."""
    from collector.network.packets import is_capture
    from collector.network.partition_keys import files_below

    if root.is_dir() and any(is_capture(path) for path in files_below(root)):
        try:
            yield pcap(root, jobs=jobs, progress=progress)
        except TraceError as error:
            yield Result("collect", "network", {}, repairs=[str(error)])
    with contextlib.suppress(TraceError):  # most jobs have no server logs
        yield server(root, progress=progress)


def _document(output: Path, n_events: int, **tables: Table) -> dict[str, Any]:
    return {"output": str(output), "events": n_events, **tables}


# ---- captures

_KEYS = (
    Column("key", "key", "id"),
    Column("tensor", "tensor"),
    Column("partition", "part", "id"),
    Column("server", "server", value=lambda k: k.node),
    Column("pushes", "pushes", "int", value=lambda k: k.n_push),
    Column("pulls", "pulls", "int", value=lambda k: k.n_pull),
    Column("push_bytes", "push bytes", "int"),
    Column("pull_bytes", "pull bytes", "int"),
    ms_column("push_ms", "push", "push_ns"),
    ms_column("pull_ms", "pull", "pull_ns"),
    Column("wire_share", "wire", "percent", digits=1, value=lambda k: _share(k, k.wire_ns)),
    Column("server_share", "server", "percent", digits=1, value=lambda k: _share(k, k.server_ns)),
    Column("waiting_share", "waiting", "percent", digits=1, value=lambda k: _share(k, k.waiting_ns)),
)
_WHERE = (
    "wire: request and response in transit; server: work of the server; waiting: until other workers "
    "have pushed"
)
_NOT_EVERY_WORKER = (
    "The captures do not show every worker: the server's time contains the waiting for the others."
)


def _share(key: ServerKey, part_ns: int | None) -> float | None:
    total_ns = key.push_ns + key.pull_ns
    return part_ns / total_ns if total_ns and part_ns is not None else None


def _headline(keys: Sequence[ServerKey]) -> str:
    """Split the mean transfer time into wire, server and waiting."""
    n, total = sum(key.n_push + key.n_pull for key in keys), sum(key.push_ns + key.pull_ns for key in keys)
    if not total:
        return "No transfer of a known key was captured."
    parts = ("wire_ns", "server_ns", "waiting_ns")
    shares = [sum(getattr(key, part) or 0 for key in keys) / total for part in parts]
    wire, server, waiting = map(in_percent, shares)
    return (
        f"A transfer takes {in_ms(total / n)} (mean of {n:,}): {wire} on the wire, {server} in the "
        f"server, {waiting} waiting for other workers."
    )


# ---- servers

_OPERATIONS = (
    Column("node", "node"),
    Column("operation", "operation"),
    Column("count", "count", "int"),
    ms_column("total_ms", "total", "total_ns"),
    Column("avg_ms", "avg (ms)", "float", value=lambda o: o.total_ns / o.count / 1e6),
    ms_column("min_ms", "min", "min_ns"),
    ms_column("max_ms", "max", "max_ns"),
)
_REQUESTS = (Column("node", "node"), *_KEYS[:3], *_KEYS[4:7])


def time_result(
    args: Namespace, gpus: Sequence[Gpu], repairs: Repairs, title: str, notes: Sequence[str] = ()
) -> Result:
    """Make the result of `--option collect` for the GPUs; `title` goes before the paths."""
    ranks = [gpu.steps for gpu in gpus if gpu.steps]
    of_job = (together(ranks) if ranks else []) or [step for rank in ranks for step in rank]
    iteration_ns = known_mean(step.iteration_ns for step in of_job)
    means = {"iteration time": iteration_ns, "FW+BW": known_mean(step.fw_bw_ns for step in of_job)}
    unmarked = [f"{gpu.trace}: marks no whole step: no iteration time" for gpu in gpus if not gpu.steps]
    return Result(
        "collect",
        f"{title} {', '.join(map(str, args.path))}",
        {"gpus": Table.of("", "", _RECORD, gpus).records(), "iteration_ms": ms_of(iteration_ns)},
        headline=_time_headline(of_job, len(ranks)),
        tables=_tables(gpus) if gpus else (),
        figures=[(name, in_ms(ns)) for name, ns in means.items() if ns is not None],
        notes=[*unmarked, *notes],
        repairs=repairs.lines,
    )


def _time_headline(steps: Sequence[StepTime], n_ranks: int) -> str:
    """State the mean length of a step; "" without steps."""
    if not steps:
        return ""
    times = [step.iteration_ns for step in steps]
    of_ranks = f" of {counted(n_ranks, 'rank')}" if n_ranks > 1 else ""
    sentence = f"An iteration takes {in_ms(fmean(times))} (mean of {counted(len(times), 'step')}{of_ranks}"
    sentence += f"; {in_ms(min(times))} to {in_ms(max(times))})" if len(times) > 1 else ")"
    return f"{sentence}."


#: Columns of a GPU in JSON.
_RECORD = (
    Column("path", ""),
    Column("trace", ""),
    Column("events", ""),
    Column("steps", "", value=lambda gpu: len(gpu.steps)),
    Column("fw_bw_ms", "", value=lambda gpu: ms_of(gpu.fw_bw_ns)),
    Column("iteration_ms", "", value=lambda gpu: ms_of(gpu.mean_ns)),
    Column("iteration_ms_per_step", "", value=lambda gpu: gpu.ms),
)
_GPUS = (
    Column("gpu", "GPU", value=lambda g: g.name),
    Column("trace", "trace", value=lambda g: g.trace and g.trace.name),
    Column("events", "events", "int", value=lambda g: sum(g.events.values()) if g.trace else None),
    Column("steps", "steps", "int", value=lambda g: len(g.steps)),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda g: ms_of(g.fw_bw_ns)),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda g: known_mean(g.ms)),
    Column("deviation_ms", "deviation (ms)", "float", value=lambda g: pstdev(g.ms) if g.ms else None),
    Column("min_ms", "min (ms)", "float", value=lambda g: min(g.ms, default=None)),
    Column("max_ms", "max (ms)", "float", value=lambda g: max(g.ms, default=None)),
    Column("told_by", "steps found by", value=lambda g: g.how or None),
)
_STEPS = (
    Column("gpu", "GPU", value=lambda pair: pair[0]),
    Column("step", "step", "int", value=lambda pair: pair[1].step),
    Column("fw_bw_ms", "FW+BW (ms)", "float", value=lambda pair: ms_of(pair[1].fw_bw_ns)),
    Column("iteration_ms", "iteration (ms)", "float", value=lambda pair: pair[1].iteration_ns / 1e6),
)


def _tables(gpus: Sequence[Gpu]) -> list[Table]:
    rows = list(gpus)
    if len(gpus) > 1 and (of_job := together([gpu.steps for gpu in gpus])):
        rows.append(Gpu("job", None, None, {}, of_job, [], "mean of all, step by step"))
    steps = [(gpu.name, step) for gpu in rows for step in gpu.steps]
    return [
        Table.of("gpus", "GPUs", _GPUS, rows),
        Table.of("steps", "Steps", _STEPS, steps, sort_by=lambda pair: -pair[1].iteration_ns),
    ]
