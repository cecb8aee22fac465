"""Tables of who holds the memory of devices at its peak."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzer.answers.statistic.memory_peaks import CACHED, EVIDENCE, memory_peaks
from analyzer.base.errors import AnalyzeError, counted
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.cli import asked, command, damage_notes, name_files
from analyzer.cli.statistic.statistic_tables import check_events
from analyzer.report.result import Bars, Column, Result, Table

_SET = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_MUCH = 0.1  # share of the reserved bytes from which free ones are worth a setting
_RANK, _CATEGORY, _BYTES = (
    Column("rank", "rank"),
    Column("category", "held by"),
    Column("bytes", "bytes", "int"),
)
_SHARE, _WHO = Column("share", "share", "percent", 1), Column("holder", "module, operator or line")
_PARTS = (_RANK, _CATEGORY, _BYTES, _SHARE, Column("evidence", "because it was"))
_HOLDERS = (_RANK, _CATEGORY, _WHO, _BYTES, _SHARE, Column("allocations", "allocations", "int"))


def memory(args: Namespace) -> Result:
    """Show who holds the memory of each device of the job at `--path` at its peak."""
    check_events(args, "memory")
    peaks, files, repairs = memory_peaks(args.path, asked(args))
    if not peaks:
        raise AnalyzeError(
            f"{args.path[0]}: no memory is recorded, or in several files of a rank: give one of these; "
            "torch.profiler records it with profile_memory=True, torch.cuda.memory._dump_snapshot tells more"
        )
    name_files(args, files[0].path)
    ordered = sorted(peaks, key=lambda peak: -peak["peak_bytes"])
    skip = len(peaks) == 1  # the column of ranks
    parts, held = ([row[skip:] for p in ordered for row in rows(p)] for rows in (_parts, _held))
    tables = [
        Table("memory", "Memory at the peak", _PARTS[skip:], parts),
        Table("holders", "What allocated it", _HOLDERS[skip:], held),
        *([] if skip else [_ranks(peaks)]),
    ]
    used = [name for name in EVIDENCE if any(name in peak["categories"] for peak in peaks)]
    series = {name: [peak["categories"].get(name, 0) / 1e9 for peak in peaks] for name in used}
    has_steps = any(file.n_events for file in files)
    return Result(
        "statistic",
        f"Memory of {', '.join(map(str, args.path))}",
        {"memory": peaks},
        tables,
        charts=[Bars("Who holds memory at the peak", "GB", [p["rank"] for p in peaks], series, unit="GB")],
        headline=_headline(ordered),
        notes=[*_notes(ordered[0]), *damage_notes(files), *[command(args, "diagnose")] * has_steps],
        repairs=repairs,
    )


def _parts(peak: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Make rows of categories, which add up to the peak, and then to what is reserved."""
    whole, cached = peak["peak_bytes"], peak["categories"].get(CACHED, 0)
    sizes = sorted(peak["categories"].items(), key=lambda part: -part[1])
    rows = [(name, n_bytes, EVIDENCE[name]) for name, n_bytes in sizes if name != CACHED]
    rows.append(("= allocated at the peak", whole, ""))
    if peak["reserved_bytes"]:
        rows += [(CACHED, cached, EVIDENCE[CACHED]), ("= reserved", whole + cached, "")]
    for name, n_bytes, why in rows:
        yield [peak["rank"], name, n_bytes, n_bytes / whole, why]


def _held(peak: Mapping[str, Any]) -> Iterator[list[Any]]:
    for each in peak["holders"]:
        share = each["bytes"] / peak["peak_bytes"]
        yield [peak["rank"], each["category"], each["holder"], each["bytes"], share, each["allocations"]]


def _ranks(peaks: Sequence[Mapping[str, Any]]) -> Table:
    """Set the devices beside each other, in MB; of two also the difference."""
    sizes = [{"peak": peak["peak_bytes"], **peak["categories"]} for peak in peaks]
    names = [name for name in ("peak", *EVIDENCE) if any(name in of_rank for of_rank in sizes)]
    rows = [[peak["rank"], peak["device"], peak["step"]] for peak in peaks]
    if len(peaks) == 2:
        rows.append(["difference", "", None])
        sizes.append({name: sizes[1].get(name, 0) - sizes[0].get(name, 0) for name in names})
    for row, of_rank in zip(rows, sizes, strict=True):
        row += [of_rank.get(name, 0) / 1e6 for name in names]
    columns = [Column(f"{name.replace(' ', '_')}_mb", f"{name} (MB)", "float", 1) for name in names]
    first = (_RANK, Column("device", "device"), Column("step", "step", "id"))
    return Table("ranks", "Peak of each rank", (*first, *columns), rows)


def _headline(ordered: Sequence[Mapping[str, Any]]) -> str:
    """Say who holds most and when, and what most of it is."""
    top, least = ordered[0], ordered[-1]
    when = "when the snapshot was taken" if not top["events"] else "before the history begins"
    if top["event"] > 0:
        when = f"at event {top['event']:,}" if top["at_ms"] is None else f"after {in_ms(top['at_ms'] * 1e6)}"
    when = when if top["step"] is None else f"in step {top['step']}"
    others = f"; {least['rank']} holds least, {_gb(least['peak_bytes'])}" if len(ordered) > 1 else ""
    most, name = max((n_bytes, name) for name, n_bytes in top["categories"].items() if name != CACHED)
    share = in_percent(most / top["peak_bytes"])
    return f"{top['rank']} holds {_gb(top['peak_bytes'])} at its peak, {when}{others}; {share}: {name}."


def _notes(top: Mapping[str, Any]) -> Iterator[str]:
    """Say what the peak lacks, which memory is free, and what to do about it."""
    free, largest = top.get("free_bytes"), top.get("largest_free_bytes", 0)
    if free is not None:
        history, blocks = counted(top["events"], "event"), counted(top["free_blocks"], "free block")
        yield f"Bytes as requested; the history has {history}, and an earlier peak is not in it."
        if missing := abs(top["missing_bytes"]):
            yield f"The history and the blocks differ by {missing:,} bytes: events are missing."
        yield f"When the snapshot was taken, {blocks} had {_gb(free)}, the largest {_gb(largest)}."
    if failed := top.get("out_of_memory"):
        wanted, left = _gb(failed["bytes"]), _gb(failed["free_bytes"])
        yield f"An allocation of {wanted} failed with {left} free on the device."
    cached, reserved = top["categories"].get(CACHED, 0), top["reserved_bytes"] or 0
    if cached <= _MUCH * reserved:
        return
    share = f"{_gb(cached)} ({in_percent(cached / reserved)} of the reserved) are cached but free"
    if free and largest > free / 2:
        yield f"{share}, later most in one block: torch.cuda.empty_cache() gives it to other programs."
    elif top.get("expandable_segments"):
        yield f"{share}, although expandable_segments is on: allocate the largest sizes first."
    else:
        unknown = " (blocks are not recorded; a snapshot has them)" if free is None else ""
        yield f"{share}{unknown}: if allocations fail or this grows, try {_SET}."


def _gb(n_bytes: float) -> str:
    return f"{in_digits(n_bytes / 1e9)} GB" if n_bytes >= 1e9 else f"{in_digits(n_bytes / 1e6)} MB"
