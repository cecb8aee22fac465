"""The traces to be combined: the system that wrote each, its rank and host, and the shift of its clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.combine.rewrite_source import Rewritten, SourcePlace
from analyzer.base.errors import TraceError
from analyzer.model.clocks.offsets import Clock, align, doubts
from analyzer.reading import dialects
from analyzer.reading.dialects.recorded_collectives import SyncPoints, merged
from analyzer.reading.formats import chrome
from analyzer.reading.formats.builder import Builder
from trace_utils import Source, check_chrome

_SNIFFED = 4  # pieces of a file (about 1 MiB each) that tell what wrote it


class Member(Struct, frozen=True):
    """A trace to be combined: its file, and its clock (host), worker and rank."""

    source: Source
    file: Path  # for a GPU without a final trace, a file collected elsewhere
    host: int
    owner: Path  # the host as the user knows it: a worker's directory, or the file itself

    def of_rank(self, rank: int | None) -> Member:
        """Replace the rank, unless it is None."""
        return self if rank is None else replace(self, source=replace(self.source, rank=rank))

    @property
    def prefix(self) -> str:
        """The prefix of BytePS names: ``wk<i>.rank<r>.``, or ``rank<r>.`` for a single worker."""
        return replace(self.source, rank=self.source.rank or 0).prefix


def sniffed(path: Path, scan: bool = False) -> SourcePlace | TraceError:
    """Find the system and rank of a file by its first pieces, or why the file cannot be combined.

    All of it is read if the first pieces are only metadata. `scan`: in C.
    """
    try:
        check_chrome(path)
        rows = chrome.read_rows(path, dialects.keys_for(()), pieces=_SNIFFED, scan=scan)
        if not _has_events(rows):
            rows = chrome.read_rows(path, dialects.keys_for(()), scan=scan)
        if not rows.keys and rows.damage.strays:
            raise TraceError(f"{path}: not a trace: nothing in its list is an event")
        trace = chrome.assemble(path, rows)
        system = dialects.recognise(trace)
        axis = system.second_axis(
            lambda: chrome.assemble(path, chrome.read_rows(path, scan=scan), system.pairing)
        )
        return SourcePlace(path, system.name, system.rank(trace)[0], _has_events(rows), axis)
    except TraceError as error:
        return error


def _has_events(rows: Builder) -> bool:
    return any(phase != "M" for phase, *_ in rows.keys)


def usable(
    members: Sequence[Member], beginnings: Sequence[SourcePlace | TraceError], *, skip_broken: bool
) -> tuple[list[Member], list[SourcePlace], list[str]]:
    """Select the members with events and their beginnings; also a line for each member left out.

    A rank that was killed before it wrote leaves a trace without events, dialect and clock. With
    `skip_broken`, files that are not traces are left out. In a system without workers hosts are unknown:
    each file has a clock of its own.

    TraceError if a member is not a trace, nothing is left, or the rest is of several dialects.
    """
    pairs = list(zip(members, beginnings, strict=True))
    kept = [(member, kind) for member, kind in pairs if isinstance(kind, SourcePlace) and kind.has_events]
    errors = [error for error in beginnings if isinstance(error, TraceError)]
    if errors and not (skip_broken and kept):
        raise errors[0]
    if not kept:
        others = "" if len(members) == 1 else ", nor in the others"
        raise TraceError(f"{members[0].source.path}: no events in it{others}: nothing to combine")
    notes = [
        f"{kind}; left out" if isinstance(kind, TraceError) else f"{member.source.path}: no events, left out"
        for member, kind in pairs
        if isinstance(kind, TraceError) or not kind.has_events
    ]
    usable_members, kinds = [member for member, _ in kept], [kind for _, kind in kept]
    first, dialect = usable_members[0], kinds[0].dialect
    for member, kind in kept:
        if kind.dialect != dialect:
            raise TraceError(
                f"{member.source.path}: a {kind.dialect} trace, but {first.source.path} is a {dialect} one; "
                "combine one kind at a time"
            )
    if not dialects.named(dialect).has_workers:
        usable_members = [
            Member(replace(member.source, worker=None), member.file, host, member.source.path)
            for host, member in enumerate(usable_members)
        ]
    return usable_members, kinds, notes


def with_ranks(members: Sequence[Member], dialect: str, sources: Sequence[Rewritten]) -> list[Member]:
    """Give members the ranks in their contents; files of one rank that follow each other share a clock.

    If files of one rank overlap, one of them is mistaken, and its clock is unknown.
    """
    system = dialects.named(dialect)
    if system.has_workers:
        return list(members)
    ranked = [m.of_rank(system.rank(s.about)[0]) for m, s in zip(members, sources, strict=True)]
    spans = [source.extent for source in sources]
    last: dict[int, int] = {}  # rank -> its latest file
    for i in sorted(range(len(members)), key=lambda i: spans[i] or (0, 0)):
        rank, span = ranked[i].source.rank, spans[i]
        if rank is None or span is None:
            continue
        before = last.get(rank)
        if before is not None and (spans[before] or span)[1] <= span[0]:
            ranked[i] = replace(ranked[i], host=ranked[before].host, owner=ranked[before].owner)
        last[rank] = i
    return ranked


def clocks_of(
    members: Sequence[Member], sources: Sequence[Rewritten], epochs_ns: Sequence[int]
) -> tuple[list[Clock], str, list[str]]:
    """Estimate the clock of each source; also the basis of the comparison, and warnings."""
    hosts = _hosts(members, sources, epochs_ns)
    clocks, by, warnings = _host_clocks(hosts)
    of_host = {host.number: clock for host, clock in zip(hosts, clocks, strict=True)}
    return [of_host[member.host] for member in members], by, warnings


class _Host(Struct, frozen=True):
    """A clock, and the recordings by it."""

    number: int
    owner: Path
    points: SyncPoints
    span: tuple[int, int] | None  # the first begin and the last end (ns); None without events
    common: str  # the metadata that puts its times on a common clock
    machine: str  # "" if not recorded


def _hosts(members: Sequence[Member], sources: Sequence[Rewritten], bases: Sequence[int]) -> list[_Host]:
    rows = list(zip(members, sources, bases, strict=True))
    hosts = []
    for number in dict.fromkeys(member.host for member in members):
        of_host = [row for row in rows if row[0].host == number]
        points = merged(source.sync_points for _, source, _ in of_host)
        spans = [[time + base for time in source.extent] for _, source, base in of_host if source.extent]
        span = (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None
        about = [source.about for _, source, _ in of_host]
        system = dialects.named(about[0].dialect)
        common = next(filter(None, map(system.common_clock, about)), "")
        hosts.append(_Host(number, of_host[0][0].owner, points, span, common, system.machine(about[0])))
    return hosts


def _host_clocks(hosts: Sequence[_Host]) -> tuple[list[Clock], str, list[str]]:
    """Estimate the clocks of the hosts; also the basis of the comparison, and warnings."""
    if len(hosts) < 2:
        return [Clock()], "none", []
    if all(host.common and not host.points for host in hosts):  # the clocks are taken to agree
        return [Clock() for _ in hosts], hosts[0].common, []
    alignment = align(
        [host.points for host in hosts], [host.span for host in hosts], [host.machine for host in hosts]
    )
    tied = any(clock.is_tied for clock in alignment.clocks[1:])
    by = "none" if not tied else "matched ends" if alignment.by_ends else hosts[0].common or "causality"
    return list(alignment.clocks), by, doubts([str(host.owner) for host in hosts], alignment)
