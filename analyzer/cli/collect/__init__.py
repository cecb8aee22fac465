"""`--option collect`: from the profilers' files to the final trace, its DAG and the iteration time."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import Repairs, TraceError, UsageError, missing
from analyzer.cli import add_flags, add_variants, asked, command, refuse, variant_of
from analyzer.report.result import Result

if TYPE_CHECKING:
    from analyzer.reading.formats.columns import Trace
    from analyzer.reading.traces.gpu_folders import GpuDir
    from collector.gpu.parts import PartName

HELP = "make each GPU's final trace and DAG from raw files, and compute the iteration time"
EXAMPLE = "analyze.py collect BYTEPS_TRACE_DIR"

_PARTS: Mapping[str, tuple[PartName, ...]] = {
    "operator": ("operator",),
    "comm": ("comm",),
    "io": ("io", "step"),
}
_NETWORK = ("pcap", "server")
VARIANTS = {
    "iter_time": "compute the iteration time, write nothing",
    "operator": "renew the operators of the final traces",
    "comm": "renew the communication of the final traces",
    "io": "renew the I/O and steps of the final traces",
    "pcap": "make a timeline of the network from packet captures",
    "server": "make a timeline of the servers from their logs",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, "step_by", "sort", "head", "output")
    add_variants(parser, VARIANTS)


def run(args: Namespace) -> Result:
    """Collect every GPU directory below `--path`, or do what `--sub_option` names."""
    variant = args.sub_option
    if variant in _NETWORK:
        refuse(args, variant_of(args), "sort", "step_by")
        return _one_source(args, variant)
    if args.output is not None:
        raise UsageError("--output: collect writes into the GPUs' own directories")
    result = (_iter_time if variant == "iter_time" else _collect)(args)
    return result._replace(notes=[*result.notes, command(args, "diagnose")])


def _collect(args: Namespace) -> Result:
    """Renew the final traces, and read the captures and server logs below the paths."""
    from analyzer.cli.collect.collect_tables import all_there_is, time_result
    from trace_utils import find_gpus

    for path in args.path:
        if not path.exists():
            raise missing(path)
    gpus = [gpu for path in args.path for gpu in find_gpus(path)]
    result = _gpus(args, gpus) if gpus else time_result(args, [], Repairs(), "Collected from")
    for path in args.path if not args.sub_option else ():
        for part in all_there_is(path, jobs=args.jobs, progress=args.progress):
            result = _joined(result, part)
    if not gpus and not result.tables:
        why = f" ({'; '.join(result.repairs)})" if result.repairs else ""
        raise TraceError(
            f"{args.path[0]}: no GPU directory of BytePS (comm.json, temp.json, …) to collect{why}; "
            "--sub_option iter_time takes other traces too"
        )
    return result


def _gpus(args: Namespace, gpus: Sequence[GpuDir]) -> Result:
    from msgspec.structs import replace

    from analyzer.base.outputs.atomic import temporary_directory
    from analyzer.cli.collect.collect_tables import time_result
    from analyzer.reading.dialects import Need, keys_for
    from collector.gpu.final_trace import collect_gpus, renew
    from collector.gpu.iteration_times import Gpu, iterations
    from collector.gpu.parts import PARTS
    from trace_utils import read_trace

    with temporary_directory() as made:
        wanted = _PARTS.get(args.sub_option, PARTS)
        reports = collect_gpus(gpus, wanted, into=made, jobs=args.jobs, progress=args.progress)
        repairs = Repairs([line for report in reports for line in report.warnings])
        done = [(gpu, report) for gpu, report in zip(gpus, reports, strict=True) if report.new]
        if not done:
            raise TraceError(repairs.lines[0])
        homes, contents = zip(*(next(iter(report.new.items())) for _, report in done), strict=True)
        traces = [read_trace(path, args=keys_for({Need.STEPS})) for path in contents]
        renew(reports)
    names = _names(gpus)
    collected = []
    for (gpu, report), path, trace in zip(done, homes, traces, strict=True):
        if trace.repairs:
            repairs.add(str(path), "; ".join(trace.repairs))
        times = iterations(replace(trace, path=str(path)), args.step_by)
        collected.append(Gpu(names[gpu.path], gpu.path, path, report.events, *times))
    notes = [*(f"written: {path}" for path in homes), *(line for report in reports for line in report.notes)]
    return time_result(args, collected, repairs, "Collected from", notes)


def _iter_time(args: Namespace) -> Result:
    from analyzer.cli.collect.collect_tables import time_result
    from analyzer.reading.dialects import Need
    from collector.gpu.iteration_times import Gpu, iterations
    from trace_utils import read_ranks

    loaded = read_ranks(args.path, request=asked(args)._replace(needs={Need.STEPS}))
    gpus = []
    for name, source, trace in zip(loaded.names, loaded.job.sources, loaded.made, strict=True):
        path = source.path.parent if loaded.job.has_gpus else source.path
        gpus.append(Gpu(name, path, source.path, _counts(trace), *iterations(trace, args.step_by)))
    if not any(gpu.steps for gpu in gpus):
        raise TraceError(
            f"{gpus[0].trace}: no whole step found: it has no I/O, FW or Comm of two steps, no "
            "ProfilerStep#N, event/batch, round of reductions, Optimizer.step or other span that repeats; "
            "--step_by NAME says what marks a step"
        )
    return time_result(args, gpus, Repairs(loaded.repairs), "Iteration time of")


def _counts(trace: Trace) -> dict[str, int]:
    """Count slices per category: BytePS's kind of operation, else the event's category."""
    import numpy as np

    from analyzer.base.names import OpName

    counts: dict[str, int] = {}
    pairs = np.stack([trace.name_id, trace.cat_id], axis=1)
    for (name, cat), n in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
        key = OpName.parse(trace.names[name]).cat or trace.cats[cat]
        counts[key] = counts.get(key, 0) + int(n)
    return counts


def _names(gpus: Sequence[GpuDir]) -> dict[Path, str]:
    """Name each GPU by worker and local rank where these differ, else by its path."""
    from trace_utils import Source

    names = {gpu.path: Source(gpu.path, gpu.worker, gpu.rank).prefix.rstrip(".") for gpu in gpus}
    distinct = len(set(names.values())) == len(names) and all(names.values())
    return names if distinct else {gpu.path: str(gpu.path) for gpu in gpus}


def _one_source(args: Namespace, variant: str) -> Result:
    """Read the transfers in the captures, or in the servers' logs, under one path."""
    from analyzer.cli.collect.collect_tables import pcap, server, time_result

    if len(args.path) > 1:
        raise UsageError(f"--sub_option {variant} takes one path: the job's root, or one file")
    [path] = args.path
    if variant == "pcap":
        transfers = pcap(path, jobs=args.jobs, progress=args.progress, output=args.output)
    else:
        transfers = server(path, progress=args.progress, output=args.output)
    return _joined(time_result(args, [], Repairs(), f"Collected ({variant}) from"), transfers)


def _joined(result: Result, other: Result) -> Result:
    lists = ("tables", "figures", "notes", "repairs")
    joined: dict[str, Any] = {name: [*getattr(result, name), *getattr(other, name)] for name in lists}
    document = {**result.document, **other.document}
    return result._replace(document=document, headline=result.headline or other.headline, **joined)
