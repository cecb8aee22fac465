"""Tables of the memory at its peak, and of how it differs between two recordings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzer.answers.statistic.memory_peaks import CACHED, EVIDENCE, NOT_ATTRIBUTED, memory_peaks
from analyzer.base.errors import AnalyzeError, UsageError, counted
from analyzer.base.inputs import is_digest
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.cli import asked, command, damage_notes, name_files, variant_of
from analyzer.report.result import Bars, Column, Result, Table
from trace_utils import TraceFile

_SET = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_MUCH = 0.1  # share of the reserved bytes from which free ones are worth a setting
_TOTAL = "= allocated at the peak"
_IN_WORDS = {NOT_ATTRIBUTED: "was allocated before the recording", "temporary": "is temporary"}
_BYTES, _SHARE = Column("bytes", "bytes", "int"), Column("share", "share", "percent", 1)
_PARTS = (
    Column("rank", "rank"),
    Column("category", "held by"),
    _BYTES,
    _SHARE,
    Column("why", "because it was"),
)
_HOLDERS = (Column("rank", "rank"), Column("category", "category"), Column("holder", "module, operator or line"),
            _BYTES, _SHARE, Column("allocations", "allocations", "int"))  # fmt: skip
_CHANGES = (Column("category", "held by"), Column("base_bytes", "base (bytes)", "int"),
            Column("new_bytes", "new (bytes)", "int"), Column("difference_bytes", "difference (bytes)", "int"))  # fmt: skip


def memory(args: Namespace) -> Result:
    """Show who holds the memory of each device of the job at `--path` at its peak."""
    peaks, files, repairs = _load(args, args.path)
    ordered = sorted(peaks, key=lambda peak: -peak["peak_bytes"])
    name_files(args, files[0].path)
    skip = len(peaks) == 1  # the column of the ranks
    parts = [row[skip:] for peak in ordered for row in _parts(peak)]
    held = [
        [peak["rank"], each["category"], each["holder"], each["bytes"], each["bytes"] / peak["peak_bytes"],
         each["allocations"]][skip:]
        for peak in ordered for each in peak["holders"]
    ]  # fmt: skip
    tables = [
        Table("memory", "Memory at the peak", _PARTS[skip:], parts),
        Table("holders", "What allocated it", _HOLDERS[skip:], held),
        *([] if skip else [_ranks(peaks)]),
    ]
    has_steps = any(file.n_events for file in files)
    return Result(
        "statistic",
        f"Memory of {', '.join(map(str, args.path))}",
        {"memory": peaks},
        tables,
        charts=[_over_time(ordered[0])],
        headline=_headline(ordered),
        notes=[
            *_notes(ordered[0]),
            *damage_notes(files),
            *([command(args, "diagnose")] if has_steps else []),
        ],
        repairs=repairs,
    )


def _load(
    args: Namespace, paths: Sequence[Path]
) -> tuple[list[dict[str, Any]], Sequence[TraceFile], list[str]]:
    for digest in filter(is_digest, paths):
        raise UsageError(f"--sub_option memory: {digest} is a digest, which has no memory; give the traces")
    recorded = memory_peaks(paths, asked(args))
    if not recorded[0]:
        raise AnalyzeError(
            f"{paths[0]}: no memory is recorded; torch.profiler records it with profile_memory=True, and "
            "torch.cuda.memory._dump_snapshot writes a snapshot that tells more"
        )
    return recorded


def _parts(peak: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Make rows of a rank's categories, which add up to the peak, and then to what is reserved."""
    sizes, whole = dict(peak["categories"]), peak["peak_bytes"]
    cached = sizes.pop(CACHED, 0)
    reasons = {each["category"]: each["holder"] for each in peak["holders"] if not each["allocations"]}
    rows = [
        (name, sizes[name], {**EVIDENCE, **reasons}[name]) for name in sorted(sizes, key=lambda n: -sizes[n])
    ]
    rows.append((_TOTAL, whole, ""))
    if peak["reserved_bytes"]:
        rows += [(CACHED, cached, EVIDENCE[CACHED]), ("= reserved", whole + cached, "")]
    for name, n_bytes, why in rows:
        yield [peak["rank"], name, n_bytes, n_bytes / whole, why]


def _ranks(peaks: Sequence[Mapping[str, Any]]) -> Table:
    """Set the devices beside each other, in MB."""
    used = [name for name in EVIDENCE if any(name in peak["categories"] for peak in peaks)]
    columns = [Column(f"{name.replace(' ', '_')}_mb", f"{name} (MB)", "float", 1) for name in ("peak", *used)]
    rows = [
        [p["rank"], p["device"], p["step"], *(n / 1e6 for n in (p["peak_bytes"], *(p["categories"].get(c, 0) for c in used)))]
        for p in peaks
    ]  # fmt: skip
    return Table(
        "ranks",
        "Peak of each rank",
        (_PARTS[0], Column("device", "device"), Column("step", "step", "id"), *columns),
        rows,
    )


def _over_time(peak: Mapping[str, Any]) -> Bars:
    """Draw what is held over time."""
    at, *series = peak["over_time"].items()
    title = f"Memory of {peak['rank']}, over time"
    names = [in_digits(moment) for moment in at[1]]
    moment = "event" if peak["at_ms"] is None else "ms"
    in_gb = {name: [n / 1e9 for n in values] for name, values in series if any(values)}
    return Bars(title, "GB", names, in_gb, unit="GB", by_step=True, moment=moment)


def _headline(ordered: Sequence[Mapping[str, Any]]) -> str:
    """Say who holds most and when, and what most of it is."""
    top, *_, least = (*ordered, ordered[-1])
    if top["step"] is not None:
        when = f"in step {top['step']}"
    elif top["event"] < 1:
        when = "before the history begins" if top["events"] else "when the snapshot was taken"
    else:
        when = f"at event {top['event']:,}" if top["at_ms"] is None else f"after {in_ms(top['at_ms'] * 1e6)}"
    others = f"; {least['rank']} holds least, {_gb(least['peak_bytes'])}" if len(ordered) > 1 else ""
    most, name = max((n, name) for name, n in top["categories"].items() if name != CACHED)
    words = _IN_WORDS.get(name, f"is of {name}" if name.startswith("unknown") else f"are {name}")
    share = in_percent(most / top["peak_bytes"])
    return f"{top['rank']} holds {_gb(top['peak_bytes'])} at its peak, {when}{others}; {share} {words}."


def _notes(top: Mapping[str, Any]) -> Iterator[str]:
    """Say what the peak lacks, which memory is free, and what to do about it."""
    free, largest = top.get("free_bytes"), top.get("largest_free_bytes", 0)
    if free is not None:
        n_events, missing = counted(top["events"], "event"), abs(top["missing_bytes"])
        yield f"Bytes as requested; the history has {n_events}, and an earlier peak is not in it."
        if missing:
            yield f"The history and the blocks differ by {missing:,} bytes: events are missing."
        blocks = counted(top["free_blocks"], "free block")
        yield f"When the snapshot was taken, {blocks} had {_gb(free)}, the largest {_gb(largest)}."
    if failed := top.get("out_of_memory"):
        yield f"An allocation of {_gb(failed['bytes'])} failed with {_gb(failed['free_bytes'])} free on the device."
    cached, reserved = top["categories"].get(CACHED, 0), top["reserved_bytes"] or 0
    if cached > _MUCH * reserved:
        share = f"{_gb(cached)} ({in_percent(cached / reserved)} of the reserved) are cached but free"
        if free and largest > free / 2:
            yield f"{share}, later most in one block: torch.cuda.empty_cache() gives it to other programs."
        elif top.get("expandable_segments"):
            yield f"{share}, although expandable_segments is on: allocate the largest sizes first."
        else:
            unknown = " (blocks are not recorded; a snapshot has them)" if free is None else ""
            yield f"{share}{unknown}: if allocations fail or this grows, try {_SET}."


def _gb(n_bytes: float) -> str:
    return f"{in_digits(n_bytes / 1e9)} GB" if abs(n_bytes) >= 1e9 else f"{in_digits(n_bytes / 1e6)} MB"


def compared(args: Namespace) -> Result:
    """Compare who holds the memory at the peaks of two recordings, each of its largest device."""
    if len(args.path) != 2:
        raise UsageError("--sub_option memory needs two recordings: analyze.py compare BASE NEW")
    both = [_load(args, [path]) for path in args.path]
    base, new = (max(peaks, key=lambda peak: peak["peak_bytes"]) for peaks, _, _ in both)
    sizes = [{**peak["categories"], _TOTAL: peak["peak_bytes"]} for peak in (base, new)]
    held = [{f"{h['category']}: {h['holder']}": h["bytes"] for h in peak["holders"]} for peak in (base, new)]
    names = (Column("holder", "category: allocated by"), *_CHANGES[1:])
    tables = [
        Table("memory", "Memory at the peak", _CHANGES, _changes(*sizes)),
        Table("holders", "What allocated it", names, _changes(*held)),
    ]
    before, after = base["peak_bytes"], new["peak_bytes"]
    name_files(args, both[0][1][0].path)
    return Result(
        "compare",
        f"Memory of {args.path[0]} → {args.path[1]}",
        {"paths": list(map(str, args.path)), **{table.name: table for table in tables}},
        tables,
        headline=f"The peak goes from {_gb(before)} to {_gb(after)} ({in_percent(after / before - 1, 1, sign='+')}).",
        repairs=[line for _, _, repairs in both for line in repairs],
    )


def _changes(base: Mapping[str, int], new: Mapping[str, int]) -> list[list[Any]]:
    """Make a row for each name, the largest difference first."""
    both = [(name, base.get(name, 0), new.get(name, 0)) for name in dict.fromkeys((*base, *new))]
    return sorted(([*row, row[2] - row[1]] for row in both), key=lambda row: (row[0] == _TOTAL, -abs(row[3])))
