"""Tables of the memory at its peak, and of how it differs between two recordings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzer.answers.statistic.memory_peaks import (
    CACHED,
    CATEGORIES,
    NOT_ATTRIBUTED,
    MemoryPeaks,
    _Peak,
    memory_peaks,
)
from analyzer.base.errors import AnalyzeError, UsageError, counted
from analyzer.base.inputs import is_digest
from analyzer.base.units import in_digits, in_ms, in_percent, ms_of
from analyzer.cli import asked, command, damage_notes, name_files, variant_of
from analyzer.report.result import Bars, Column, Result, Table

#: What shows that memory belongs to a category.
_EVIDENCE = {
    "parameters": "allocated where a module is made, moved or loaded; never freed",
    "gradients": "allocated in backward; held when the optimizer runs",
    "optimizer state": "allocated in an optimizer step; held after it",
    "activations": "allocated in forward; freed in backward",
    "temporary": "allocated and freed within one pass",
    "unknown": "no phase is recorded",
    **dict.fromkeys(CATEGORIES[-4:], "held to the end, or freed elsewhere"),
    CACHED: "reserved, not allocated; with what sizes are rounded up by",
}
_IN_WORDS = {
    "temporary": "is temporary", NOT_ATTRIBUTED: "is not attributed", "input": "is input",
    "unknown": "is of unknown use",
}  # fmt: skip
_SET = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_FRAGMENTED = 0.1  # share of the reserved bytes from which free ones are worth a setting
_NEARLY_FULL = 0.9  # of the device
_SHARE = Column("share", "share", "percent", 1)
_OWNER = (Column("rank", "rank"), Column("device", "device"))
_PARTS = (
    Column("category", "held by"),
    Column("bytes", "bytes", "int"),
    _SHARE,
    Column("evidence", "because it is"),
)
_HOLDERS = (
    Column("category", "category"), Column("holder", "module, operator or line"),
    Column("bytes", "bytes", "int"), _SHARE, Column("allocations", "allocations", "int"),
)  # fmt: skip


def memory(args: Namespace) -> Result:
    """Show who holds the memory of each device of the job at `--path` at its peak."""
    recorded = _load(args, args.path)
    peaks = recorded.peaks
    top = max(peaks, key=lambda peak: peak.peak)
    name_files(args, recorded.files[0].path)
    tables = [
        *_tables("memory", "Memory at the peak", _PARTS, _parts, peaks, top),
        *_tables("holders", "What allocated it", _HOLDERS, _held, peaks, top),
    ]
    has_steps = any(file.n_events for file in recorded.files)
    return Result(
        "statistic",
        f"Memory of {', '.join(map(str, args.path))}",
        {"memory": list(map(_document, peaks))},
        tables if len(peaks) == 1 else [*tables, _ranks(peaks)],
        charts=[_over_time(top)],
        headline=_headline(peaks, top),
        notes=[
            *_notes(top),
            *damage_notes(recorded.files),
            *([command(args, "diagnose")] if has_steps else []),
        ],
        repairs=recorded.repairs,
    )


def _load(args: Namespace, paths: Sequence[Path]) -> MemoryPeaks:
    for digest in filter(is_digest, paths):
        raise UsageError(f"{variant_of(args)}: {digest} is a digest, which has no memory; give the traces")
    recorded = memory_peaks(paths, asked(args))
    if not recorded.peaks:
        raise AnalyzeError(
            f"{paths[0]}: no memory is recorded; torch.profiler records it with profile_memory=True, and "
            "torch.cuda.memory._dump_snapshot writes a snapshot that tells more"
        )
    return recorded


def _tables(
    name: str, title: str, columns: Sequence[Column], rows: Callable[[_Peak], list[Any]],
    peaks: Sequence[_Peak], top: _Peak,
) -> list[Table]:  # fmt: skip
    """Make a table of all devices, and if there are several, of the `top` for standard output."""
    of_all = [[peak.rank, peak.device, *row] for peak in peaks for row in rows(peak)]
    if len(peaks) == 1:
        return [Table(name, title, columns, rows(top))]
    whose = f"{title} of {top.rank}"
    return [
        Table(name, title, (*_OWNER, *columns), of_all, full=True),
        Table(f"{name}_of_{top.rank}", whose, columns, rows(top), brief=True, full=False),
    ]


def _parts(peak: _Peak) -> list[Any]:
    """Make a row for each category, which add up to the peak, and then to what is reserved."""
    parts = sorted(peak.by_category.items(), key=lambda part: (part[0] == NOT_ATTRIBUTED, -part[1]))
    recorded = (
        dict.fromkeys(CATEGORIES, "recorded by the profiler") if peak.facts.get("is_made_of_profile") else {}
    )
    evidence = {
        **_EVIDENCE,
        **recorded,
        **{name: who for name, who, _, _ in peak.holders if name == NOT_ATTRIBUTED},
    }
    rows: list[list[Any]] = [[name, n, n / max(peak.peak, 1), evidence.get(name, "")] for name, n in parts]
    rows.append(["= allocated at the peak", peak.peak, 1.0, ""])
    if peak.reserved:
        rows.append([CACHED, peak.cached, peak.cached / max(peak.peak, 1), _EVIDENCE[CACHED]])
        rows.append(
            ["= reserved", peak.peak + peak.cached, (peak.peak + peak.cached) / max(peak.peak, 1), ""]
        )
    return rows


def _held(peak: _Peak) -> list[Any]:
    return [
        [category, holder, n_bytes, n_bytes / max(peak.peak, 1), count]
        for category, holder, n_bytes, count in peak.holders
    ]


def _ranks(peaks: Sequence[_Peak]) -> Table:
    """Set the devices beside each other, in MB."""
    used = [name for name in (*CATEGORIES, NOT_ATTRIBUTED) if any(name in peak.by_category for peak in peaks)]
    names = ("peak", "reserved", *used, CACHED)
    values = [{"peak": p.peak, "reserved": p.reserved, CACHED: p.cached, **p.by_category} for p in peaks]
    columns = [Column(f"{name.replace(' ', '_')}_mb", f"{name} (MB)", "float", 1) for name in names]
    rows = [
        [peak.rank, peak.device, peak.step, *(of_rank.get(name, 0) / 1e6 for name in names)]
        for peak, of_rank in zip(peaks, values, strict=True)
    ]
    return Table("ranks", "Peak of each rank", (*_OWNER, Column("step", "step", "id"), *columns), rows)


def _document(peak: _Peak) -> dict[str, Any]:
    free = {
        key: peak.facts[key]
        for key in ("free_bytes", "free_blocks", "largest_free_bytes")
        if key in peak.facts
    }
    return {
        "rank": peak.rank,
        "device": peak.device,
        "step": peak.step,
        "at_ms": ms_of(peak.at_ns),
        "event": peak.event,
        "events": peak.n_events,
        "peak_bytes": peak.peak,
        "reserved_bytes": peak.reserved or None,
        "most_reserved_bytes": peak.most_reserved or None,
        "capacity_bytes": peak.capacity or None,
        "categories": {**peak.by_category, **({CACHED: peak.cached} if peak.reserved else {})},
        "holders": [
            dict(zip(("category", "holder", "bytes", "allocations"), held, strict=True))
            for held in peak.holders
        ],
        **free,
    }


def _over_time(peak: _Peak) -> Bars:
    """Draw what is held over time, in GB."""
    series = {name: [n / 1e9 for n in of] for name, of in peak.series.items() if any(of)}
    title = f"Memory of {peak.rank}, {'at the peak of each step' if peak.moment == 'step' else 'over time'}"
    return Bars(title, "GB", peak.moments, series, unit="GB", by_step=True, moment=peak.moment)


def _headline(peaks: Sequence[_Peak], top: _Peak) -> str:
    """Say who holds most and when, and what most of it is."""
    if top.step is not None:
        when = f"in step {top.step}"
    elif not top.n_events:
        when = "when the snapshot was taken"
    elif top.event < 1:
        when = "before the history begins"
    else:
        when = (
            f"at event {top.event:,} of {top.n_events:,}"
            if top.at_ns is None
            else f"after {in_ms(top.at_ns)}"
        )
    least = min(peaks, key=lambda peak: peak.peak)
    others = f"; {least.rank} holds least, {_gb(least.peak)}" if len(peaks) > 1 else ""
    name, most = max(top.by_category.items(), key=lambda part: part[1])
    share = in_percent(most / max(top.peak, 1))
    words = _IN_WORDS.get(name, f"are {name}").replace("are unknown, from", "is of unknown use, from")
    return f"{top.rank} holds {_gb(top.peak)} at its peak, {when}{others}; {share} {words}."


def _notes(top: _Peak) -> Iterator[str]:
    facts = top.facts
    if facts.get("why"):
        yield "Only changes are recorded: the peak is above what was held before, and owners are unknown."
    if "n_before" in facts:
        n_events = counted(top.n_events, "event")
        yield f"Bytes as requested; the history has {n_events}, and an earlier peak is not in it."
    if missing := facts.get("missing_bytes"):
        yield f"The history and the blocks differ by {abs(missing):,} bytes: events are missing."
    if facts.get("out_of_memory"):
        wanted, left = facts["out_of_memory"]
        yield f"An allocation of {_gb(wanted)} failed with {_gb(left)} free on the device."
    if top.most_reserved > _NEARLY_FULL * top.capacity > 0:
        yield f"{_gb(top.most_reserved)} of the {_gb(top.capacity)} of the device are reserved."
    yield from _fragmentation(top)


def _fragmentation(top: _Peak) -> Iterator[str]:
    """Say how much of the reserved memory is free, and what to do about it."""
    free, largest = (top.facts.get(key, 0) for key in ("free_bytes", "largest_free_bytes"))
    if free:
        blocks = counted(top.facts["free_blocks"], "free block")
        yield f"When the snapshot was taken, {blocks} had {_gb(free)}, the largest {_gb(largest)}."
    if top.cached <= _FRAGMENTED * top.reserved:
        return
    cached = (
        f"{_gb(top.cached)} ({in_percent(top.cached / top.reserved)} of the reserved) are cached but free"
    )
    if free and largest > free / 2:
        yield f"{cached}, most in one block: torch.cuda.empty_cache() gives it to other programs."
    elif top.facts.get("expandable"):
        yield f"{cached}, although expandable_segments is on: allocate the largest sizes first."
    else:
        unknown = "" if free else " (blocks are not recorded; a snapshot has them)"
        yield f"{cached}{unknown}: if allocations fail or this grows, try {_SET}."


def _gb(n_bytes: float) -> str:
    return f"{in_digits(n_bytes / 1e9)} GB" if abs(n_bytes) >= 1e9 else f"{in_digits(n_bytes / 1e6)} MB"


# ---- two recordings

_CHANGES = (
    Column("category", "held by"), Column("base_bytes", "base (bytes)", "int"),
    Column("new_bytes", "new (bytes)", "int"), Column("difference_bytes", "difference (bytes)", "int"),
)  # fmt: skip


def compared(args: Namespace) -> Result:
    """Compare who holds the memory at the peaks of two recordings, each of its largest device."""
    if len(args.path) != 2:
        raise UsageError(f"{variant_of(args)}: two recordings are needed: analyze.py compare BASE NEW")
    both = [_load(args, [path]) for path in args.path]
    base, new = (max(recorded.peaks, key=lambda peak: peak.peak) for recorded in both)
    parts = _changes(*(peak.by_category for peak in (base, new)))
    held = _changes(
        *({f"{name}: {who}" if who else name: n for name, who, n, _ in p.holders} for p in (base, new))
    )
    total: list[list[Any]] = [["= allocated at the peak", base.peak, new.peak, new.peak - base.peak]]
    tables = [
        Table("memory", "Memory at the peak", _CHANGES, [*parts, *total]),
        Table(
            "holders", "What allocated it", (Column("holder", "category: allocated by"), *_CHANGES[1:]), held
        ),
    ]
    name, _, _, change = max(parts, key=lambda part: abs(part[3]))
    grown = in_percent((new.peak - base.peak) / max(base.peak, 1), 1, sign="+")
    mostly = f", most by {name} ({'+' * (change > 0)}{_gb(change)})" if change else ""
    name_files(args, both[0].files[0].path)
    return Result(
        "compare",
        f"Memory of {args.path[0]} → {args.path[1]}",
        {"paths": [str(path) for path in args.path], "memory": tables[0], "holders": tables[1]},
        tables,
        headline=f"The peak goes from {_gb(base.peak)} to {_gb(new.peak)} ({grown}){mostly}.",
        repairs=[line for recorded in both for line in recorded.repairs],
    )


def _changes(base: Mapping[str, int], new: Mapping[str, int]) -> list[list[Any]]:
    """Make a row for each name, the largest difference first."""
    rows: list[list[Any]] = [
        [name, base.get(name, 0), new.get(name, 0), new.get(name, 0) - base.get(name, 0)]
        for name in dict.fromkeys((*base, *new))
    ]
    return sorted(rows, key=lambda row: -abs(row[3]))
