"""Whose a source is, what wrote it, and what has to be added to its times."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dialects
from clocks.offsets import Alignment, Clock, align
from combine.spill_source import Rewritten
from combine.stepwise_shift import Steps, steps
from errors import TraceError
from formats import chrome
from formats import dasf_records as dasf
from jobfiles import head_of

Int64 = NDArray[np.int64]
_FARTHEST_NS = 25 * 10**17  # the year 2049
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_SNIFFED = 4  # pieces of a file (about 1 MiB each) that tell what wrote it


@dataclass(frozen=True, slots=True)
class Member:
    """A trace to be combined: its file, and the clock (host), worker and rank it belongs to.

    `owner` is what the user knows the host by: a worker's directory, or the file itself.
    """

    path: Path
    owner: Path
    host: int
    worker: int | None = None
    rank: int | None = None

    @property
    def prefix(self) -> str:
        """What BytePS names are given: ``wk<i>.rank<r>.``, or ``rank<r>.`` where there is one worker."""
        worker = "" if self.worker is None else f"wk{self.worker}."
        return f"{worker}rank{self.rank or 0}."


@dataclass(frozen=True, slots=True)
class Kind:
    """What wrote a file, and the rank it names at its beginning."""

    dialect: str
    rank: int | None
    has_events: bool  # other than metadata: what tells the dialect


@dataclass(frozen=True, slots=True)
class Timing:
    """How the sources get on one clock.

    `shifts` map times (n,) of each source to what is added; `base_ns` is what the combined file's times
    count from; `clocks` are per source; `aligned_by` says what the clocks were compared by.
    """

    shifts: Sequence[Callable[[Int64], Int64]]
    base_ns: int
    clocks: Sequence[Clock]
    aligned_by: str
    warnings: Sequence[str]


def sniffed(path: Path) -> Kind | TraceError:
    """Return what wrote a file, or the error that says why it cannot be combined."""
    try:
        return sniff(path)
    except TraceError as error:
        return error


def sniff(path: Path) -> Kind:
    """Return what wrote a file, by its first pieces; by all of it where these are nothing but metadata.

    Raises
    ------
    TraceError
        The file is unreadable, no trace, or no trace in the chrome format.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    if dasf.is_dasf(head_of(path)[:64]):
        raise TraceError(f"{path}: a DASF profile; combine takes chrome-trace files only")
    part = chrome.read_part(path, pieces=_SNIFFED)
    if not _has_events(part):
        part = chrome.read_part(path)
    rows = part.rows
    phases = {phase for phase, *_ in rows.keys}
    if phases <= {None} and (phases or part.strays):
        raise TraceError(f"{path}: not a trace: nothing in its list is an event")
    dialect = dialects.recognise(chrome.assemble(path, part)).name
    ranks = [event["args"].get("value") for event in rows.metadata if event["name"] == "global_rank"]
    rank = ranks[0] if ranks and isinstance(ranks[0], int) else None
    return Kind(dialect, rank, _has_events(part))


def _has_events(part: chrome.Part) -> bool:
    return any(phase not in (None, "M") for phase, *_ in part.rows.keys)


def usable(
    members: Sequence[Member], found: Sequence[Kind | TraceError], *, skip_broken: bool
) -> tuple[list[Member], list[Kind], list[str]]:
    """Return the members that have events, what wrote them, and a line for each that is left out.

    A rank that was killed before it wrote leaves a trace without events, which says nothing about its
    dialect and its clock. What is no trace is left out where `skip_broken`.

    Raises
    ------
    TraceError
        A member is no trace, or nothing is left.
    """
    pairs = list(zip(members, found, strict=True))
    kept = [(member, kind) for member, kind in pairs if isinstance(kind, Kind) and kind.has_events]
    errors = [error for error in found if isinstance(error, TraceError)]
    if errors and not (skip_broken and kept):
        raise errors[0]
    if not kept:
        others = "" if len(members) == 1 else ", nor in the others"
        raise TraceError(f"{members[0].path}: no events in it{others}: nothing to combine")
    notes = [
        f"{kind}; left out" if isinstance(kind, TraceError) else f"{member.path}: no events, left out"
        for member, kind in pairs
        if isinstance(kind, TraceError) or not kind.has_events
    ]
    return [member for member, _ in kept], [kind for _, kind in kept], notes


def one_dialect(members: Sequence[Member], kinds: Sequence[Kind]) -> str:
    """Return the dialect of all members.

    Raises
    ------
    TraceError
        They are of several.
    """
    first = kinds[0].dialect
    for member, kind in zip(members, kinds, strict=True):
        if kind.dialect != first:
            raise TraceError(
                f"{member.path}: a {kind.dialect} trace, but {members[0].path} is a {first} one; "
                "combine one kind at a time"
            )
    return first


def settled(members: Sequence[Member], dialect: str) -> list[Member]:
    """Return the members once their dialect is known: only BytePS and MXNet have workers.

    Of every other trace it is not known which share a host: each has a clock of its own.
    """
    if dialect in ("byteps", "mxnet"):
        return list(members)
    return [replace(member, host=i, worker=None, owner=member.path) for i, member in enumerate(members)]


def timing(members: Sequence[Member], dialect: str, sources: Sequence[Rewritten], *, align: bool) -> Timing:
    """Return what is added to the times of every source."""
    bases = [_base_ns(dialect, source) for source in sources]
    base_ns = bases[0] if dialect == "kineto" and all(bases) else 0
    clocks, by, warnings = _clocks(members, dialect, sources, bases) if align else _none(members)
    by_host = {}
    for host, clock in {m.host: c for m, c in zip(members, clocks, strict=True) if c.drift_ppm}.items():
        own = [(s, b) for m, s, b in zip(members, sources, bases, strict=True) if m.host == host]
        by_host[host] = steps(clock, [(run, base) for source, base in own for run in source.runs])
    clocks = [
        _widened(clock, by_host.get(member.host)) for member, clock in zip(members, clocks, strict=True)
    ]
    shifts = [
        _shift(by_host.get(member.host, clock), base - base_ns, base)
        for member, clock, base in zip(members, clocks, bases, strict=True)
    ]
    return Timing(shifts, base_ns, clocks, by, warnings)


def _shift(clock: Clock | Steps, constant: int, base: int) -> Callable[[Int64], Int64]:
    def shift(ts: Int64) -> Int64:
        return constant + clock.shift(ts + base)

    return shift


def _widened(clock: Clock, taken: Steps | None) -> Clock:
    """Add to the bound what a correction in steps leaves of the drift."""
    if taken is None or clock.bound_ns is None:
        return clock
    return replace(clock, bound_ns=clock.bound_ns + taken.error_ns)


def _none(members: Sequence[Member]) -> tuple[list[Clock], str, list[str]]:
    return [Clock() for _ in members], "none", []


def _base_ns(dialect: str, source: Rewritten) -> int:
    """Return what makes the times of a source nanoseconds since the epoch."""
    if dialect == "kineto":
        base = source.header.get("baseTimeNanoseconds")
        base_ns = int(base) if isinstance(base, (int, str)) and _WHOLE.fullmatch(str(base)) else 0
    else:
        base_ns = source.start_ns or 0
    return base_ns if abs(base_ns) < _FARTHEST_NS else 0


def _clocks(
    members: Sequence[Member], dialect: str, sources: Sequence[Rewritten], bases: Sequence[int]
) -> tuple[list[Clock], str, list[str]]:
    if dialect == "composer":
        return _by_clock_sync(members, sources)
    if dialect == "horovod":
        return _by_start_time(members, sources)
    hosts = sorted({member.host for member in members})
    if len(hosts) < 2:
        return _none(members)
    anchors: list[dict[Hashable, tuple[Int64, Int64]]] = [{} for _ in hosts]
    for member, source, base in zip(members, sources, bases, strict=True):
        own = anchors[hosts.index(member.host)]
        for key, (begin, end) in source.anchors.items():
            own.setdefault(key, (begin + base, end + base))
    if dialect == "kineto":
        anchors = _same_counts(anchors)
    found = align(anchors)
    if any(abs(clock.offset_ns) >= _FARTHEST_NS for clock in found.clocks):
        found = align([{} for _ in hosts])
    owners = [next(m.owner for m in members if m.host == host) for host in hosts]
    clocks = [found.clocks[hosts.index(member.host)] for member in members]
    tied = any(clock.is_tied for clock in found.clocks[1:])
    return clocks, "causality" if tied else "none", _warnings(found, owners)


def _same_counts(hosts: Sequence[Mapping[Hashable, Any]]) -> list[dict[Hashable, Any]]:
    """Leave out operations that some ranks recorded more often: which belong together is not known."""
    counts: dict[Hashable, set[int]] = {}
    for host in hosts:
        for key, (begin, _) in host.items():
            counts.setdefault(key, set()).add(len(begin))
    return [{key: spans for key, spans in host.items() if len(counts[key]) == 1} for host in hosts]


def _warnings(found: Alignment, owners: Sequence[Path]) -> list[str]:
    warnings = [
        f"{owner}: no operation in common with {owners[0]}: combined unaligned"
        for owner, clock in zip(owners, found.clocks, strict=True)
        if not clock.is_tied
    ]
    if found.contradicting:
        moved = any(clock.offset_ns for clock in found.clocks)
        names = ", ".join(str(owners[i]) for i in found.contradicting)
        warnings.append(
            f"{names}: no offsets of these clocks make every operation possible, by "
            f"{found.contradiction_ns / 1e3:,.1f} us; "
            + ("the offsets are the best compromise" if moved else "combined unaligned")
        )
    return warnings


def _by_clock_sync(
    members: Sequence[Member], sources: Sequence[Rewritten]
) -> tuple[list[Clock], str, list[str]]:
    """Use Composer's own synchronisation: a rank's clock reading at one common instant.

    The lowest rank's clock is the common one, as in Composer's merger.
    """
    ranks = [(source.processes[0].pid, i) for i, source in enumerate(sources) if source.processes]
    first = sources[min(ranks, default=(0, 0))[1]]
    clocks, warnings = [], []
    for member, source in zip(members, sources, strict=True):
        if first.sync_us is None or source.sync_us is None:
            clocks.append(Clock())
            warnings.append(f"{member.path}: no clock_sync_timestamp_us: combined unaligned")
            continue
        bound = 0 if source is first else (source.sync_bound_us or 0) + (first.sync_bound_us or 0)
        clocks.append(
            Clock(offset_ns=(first.sync_us - source.sync_us) * 1000, bound_ns=bound * 1000, anchors=1)
        )
    return clocks, "clock_sync_timestamp_us", warnings


def _by_start_time(
    members: Sequence[Member], sources: Sequence[Rewritten]
) -> tuple[list[Clock], str, list[str]]:
    """Use the epoch time of a Horovod timeline's start; hosts' clocks are taken to agree."""
    warnings = [
        f"{member.path}: no start_time_since_epoch_in_micros: combined unaligned"
        for member, source in zip(members, sources, strict=True)
        if source.start_ns is None and len(members) > 1
    ]
    return [Clock() for _ in members], "none" if warnings else "start_time_since_epoch_in_micros", warnings
