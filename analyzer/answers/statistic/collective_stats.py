"""Collectives of a job: transfer and waiting times, bandwidths, and the share exposed.

The transfer lasts from the start of the last rank to the end, on one clock; the other ranks wait until then.
Bandwidths are those of nccl-tests (doc/PERFORMANCE.md there): bytes over transfer time, on the bus times
`bus_factor`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered, ranges
from analyzer.base.errors import counted
from analyzer.model.clocks.offsets import aligned
from analyzer.model.figures.time_by_role import Slices, time_of_ids
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role, is_communication
from analyzer.reading.dialects.recorded_collectives import Call, SyncPoints, base_of, bus_factor
from analyzer.reading.dialects.step_parts import RankTrace
from analyzer.reading.formats.columns import Trace
from trace_utils import Request, Source, TraceFile, read_args, read_ranks

#: Kinds for which all ranks record the same size.
_EVEN = ("all-reduce", "all-gather", "reduce-scatter")


class _CollectiveStat(Struct, frozen=True):
    """The collectives of one kind, group and size; None for unknown values."""

    kind: str
    group: str | None
    ranks: int | None  # of the group
    n_bytes: int | None  # of each
    count: int
    transfer_ns: float | None  # mean; if ranks are missing, the shortest time of any: an upper bound
    waiting_ns: float | None  # mean of a rank; None if ranks are missing
    algbw: float | None  # GB/s (10⁹) of `transfer_ns`
    busbw: float | None
    exposed_share: float | None  # of the time on all ranks
    total_ns: float  # time on a rank, the mean


class CollectiveStats(Struct, frozen=True):
    """The collectives of a job, with notes on missing data and lines on the files."""

    rows: Sequence[_CollectiveStat]
    notes: Sequence[str]
    files: Sequence[TraceFile]
    repairs: Sequence[str]


def collective_stats(paths: Sequence[Path], bytes_of: Mapping[int, int], asked: Request) -> CollectiveStats:
    """Summarise the collectives of the job at `paths`; `bytes_of` maps keys of BytePS's partitions to bytes.

    TraceError without a trace; AnalyzeError if a name in `asked.only` is no communication of the job.
    """
    request = asked._replace(needs={Need.SIZES, Need.SYNC, Need.STEPS}, points=True)
    job = read_ranks(paths, partial(_rank_collectives, bytes_of=bytes_of), request)
    job.check_any()
    kept = [i for i, rank in enumerate(job.ranks) if rank.n_slices]
    ranks, names = [job.ranks[i].made for i in kept], [job.names[i] for i in kept]
    hosts = job.job.hosts
    moved, is_tied, notes = _on_one_clock(ranks, names, [hosts[i] for i in kept])
    members = _members(moved)
    collectives = _joined(members, ranks, np.array(is_tied, np.bool_))
    return CollectiveStats(
        rows=[*_rows(collectives, members, len(ranks))],
        notes=[*_notes(collectives, members), *notes],
        files=job.files,
        repairs=job.repairs,
    )


def _on_one_clock(
    ranks: Sequence[_RankCollectives], names: Sequence[str], hosts: Sequence[int]
) -> tuple[Sequence[_RankCollectives], list[bool], list[str]]:
    """Move the ranks to the first host's clock; return also if each clock is known, and remarks."""
    hosts = numbered(hosts)[1].tolist()
    if max(hosts) == 0:
        return ranks, [True] * len(ranks), []
    known = ([getattr(rank, key) for rank in ranks] for key in ("points", "span", "machine"))
    clocks, notes = aligned(names, hosts, *known)
    moved = []
    for rank, host in zip(ranks, hosts, strict=True):
        offset_ns = clocks[host].offset_ns
        moved.append(replace(rank, start_ns=rank.start_ns + offset_ns, end_ns=rank.end_ns + offset_ns))
    return moved, [host == 0 or clocks[host].is_tied for host in hosts], notes


# ---- matching the parts of a collective


class _Members(Struct, frozen=True):
    """The parts (k,) of ranks in collectives, sorted by collective."""

    of: Int64  # number of the collective
    rank: Int64
    call: Int64  # index into `calls`
    n_bytes: Int64
    start_ns: Int64
    end_ns: Int64
    exposed_ns: Float64  # as of `_RankCollectives`
    taken_ns: Float64
    calls: Sequence[Call]  # of all ranks, without fields that differ between members
    n_unmatched: int


def _members(ranks: Sequence[_RankCollectives]) -> _Members:
    """Match each rank's part in collectives by key and number, where all ranks have equally many."""
    keys: dict[Hashable, int] = {}
    calls: dict[Call, int] = {}
    parts = []
    for i, part in enumerate(ranks):
        table = [
            (
                -1 if call.key is None else keys.setdefault(call.key, len(keys)),
                calls.setdefault(replace(call, sent=0, received=0, key=None), len(calls)),
                call.n_bytes,
            )
            for call in part.calls
        ]
        rows = np.array(table, np.int64).reshape(-1, 3)[part.call]
        parts.append(np.column_stack([rows, part.number, np.full(len(rows), i), part.start_ns, part.end_ns]))
    key, call, n_bytes, number, rank, start, end = np.concatenate(parts).T
    exposed, taken = (
        np.concatenate([getattr(part, name) for part in ranks]) for name in ("exposed_ns", "taken_ns")
    )
    is_even = np.array([known.kind in _EVEN for known in calls], np.bool_)[call]
    is_odd = _unlike(key, base_of(number), rank)
    is_odd |= _contradicted(key, number, np.where(is_even, n_bytes, 0))
    key, number = np.where(is_odd, -1, key), np.where(is_odd | (key < 0), np.arange(len(key)), number)
    order = np.lexsort((start, rank, number, key))
    of = _runs(key[order], number[order])
    first = np.flatnonzero(np.diff(_runs(of, rank[order]), prepend=-1))  # fused tensors are one collective
    index = order[first]
    last_end = np.maximum.reduceat(end[order], first)
    exposed, taken = (np.add.reduceat(column[order], first) for column in (exposed, taken))
    of_rank = rank[index], call[index], n_bytes[index], start[index], last_end, exposed, taken
    return _Members(of[first], *of_rank, list(calls), int(is_odd.sum()))


def _unlike(key: Int64, base: Int64, rank: Int64) -> Mask:
    """Mask the collectives (k,) of a key and base that ranks recorded in different numbers."""
    order = np.lexsort((rank, base, key))
    of = _runs(key[order], base[order])
    of_rank = _runs(of, rank[order])
    count = np.bincount(of_rank)[of_rank]
    bounds = np.flatnonzero(np.diff(of, prepend=-1))
    differ = np.maximum.reduceat(count, bounds) != np.minimum.reduceat(count, bounds)
    is_unlike = np.zeros(len(key), np.bool_)
    is_unlike[order] = differ[of]
    return is_unlike & (key >= 0)


def _contradicted(key: Int64, number: Int64, n_bytes: Int64) -> Mask:
    """Mask the collectives (k,) of a base if matched ones differ in `n_bytes` (0: unknown).

    Some are missing then, so that their order does not match them (HTA's 2 of 128 ranks are samples of
    events).
    """
    sized = np.flatnonzero((n_bytes > 0) & (key >= 0))
    if not len(sized):
        return np.zeros(len(key), np.bool_)
    order = sized[np.lexsort((number[sized], key[sized]))]
    first = np.flatnonzero(np.diff(_runs(key[order], number[order]), prepend=-1))
    least, most = (ufunc.reduceat(n_bytes[order], first) for ufunc in (np.minimum, np.maximum))
    bases = base_of(number[order[first[least < most]]])
    return np.isin(base_of(number), bases) & (key >= 0)


def _runs(*columns: Int64) -> Int64:
    """Give each run of equal rows (k,) a number, from 0."""
    is_new = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    return np.cumsum(is_new)


class _Joined(Struct, frozen=True):
    """The collectives (c,) of a job."""

    first: Int64  # index of the first member
    n_ranks: Int64  # 0 if unknown
    n_bytes: Float64
    transfer_ns: Int64  # the shortest time of a recorded rank, if not `is_whole`
    waiting_ns: Float64
    is_whole: Mask  # transfer and waiting are known
    factor: Float64
    start_ns: Int64


def _joined(members: _Members, ranks: Sequence[_RankCollectives], is_tied: Mask) -> _Joined:
    """Measure each collective; starts of ranks compare if their clocks are tied (ranks,)."""
    first = np.flatnonzero(np.diff(members.of, prepend=-1))
    n_met = np.diff(np.append(first, len(members.of)))
    last_start = np.maximum.reduceat(members.start_ns, first)
    transfer = np.maximum.reduceat(members.end_ns, first) - last_start
    waiting = np.add.reduceat(last_start[members.of] - members.start_ns, first) / n_met
    of_calls = np.array([(call.n_ranks, call.waits) for call in members.calls], np.int64).reshape(-1, 2)
    n_ranks, waits = of_calls[members.call[first]].T
    world = max([len(ranks), *(rank.world_size for rank in ranks)])
    is_of_all = (n_ranks == 0) & (n_met == world) & (world > 1)
    n_ranks = np.where(is_of_all, world, n_ranks)
    n_sized = np.add.reduceat((members.n_bytes > 0).astype(np.int64), first)
    n_bytes = np.add.reduceat(members.n_bytes, first) / np.maximum(n_sized, 1)
    shortest = np.minimum.reduceat(members.end_ns - members.start_ns, first)
    kinds = [call.kind for call in members.calls]
    factor = [
        bus_factor(kinds[call], n) if n else np.nan
        for call, n in zip(members.call[first].tolist(), n_ranks.tolist(), strict=True)
    ]
    is_known = (n_met == 1) | np.logical_and.reduceat(is_tied[members.rank], first)
    is_known &= transfer >= 0
    is_whole = ((waits == 0) | (n_met == n_ranks)) & is_known
    transfer = np.where(is_known, transfer, shortest)
    begin = np.minimum.reduceat(members.start_ns, first)
    return _Joined(first, n_ranks, n_bytes, transfer, waiting, is_whole, np.array(factor, np.float64), begin)


# ---- tables


def _rows(collectives: _Joined, members: _Members, n_recorded: int) -> Iterator[_CollectiveStat]:
    """Yield the statistics of each kind, group and size, by first appearance."""
    for alike, parts in _alike(collectives, members):
        call = members.calls[members.call[collectives.first[alike[0]]]]
        whole = alike[collectives.is_whole[alike]]
        n_bytes, transfer = collectives.n_bytes[alike], collectives.transfer_ns[alike]
        factor = float(collectives.factor[alike[0]]) or np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where((n_bytes > 0) & (transfer > 0), n_bytes / transfer, np.nan)
        usual = None if np.isnan(rates).all() else float(np.nanmax(rates))
        if len(whole):
            moved, took = collectives.n_bytes[whole].sum(), int(collectives.transfer_ns[whole].sum())
            usual = float(moved / took) if took and collectives.n_bytes[whole].all() else None
        taken = float(members.taken_ns[parts].sum())
        yield _CollectiveStat(
            kind=call.kind,
            group=call.group or None,
            ranks=int(collectives.n_ranks[alike[0]]) or None,
            n_bytes=round(n_bytes[0]) or None,
            count=len(alike),
            transfer_ns=float(collectives.transfer_ns[whole].mean() if len(whole) else transfer.min()),
            waiting_ns=float(collectives.waiting_ns[whole].mean()) if len(whole) else None,
            algbw=usual,
            busbw=None if usual is None or np.isnan(factor) else usual * factor,
            exposed_share=float(members.exposed_ns[parts].sum()) / taken if taken else None,
            total_ns=float((members.end_ns - members.start_ns)[parts].sum()) / n_recorded,
        )


def _alike(collectives: _Joined, members: _Members) -> Iterator[tuple[Int64, Int64]]:
    """Yield the collectives of each kind, group and size, and their members."""
    if not len(collectives.first):
        return
    n_bytes = np.round(collectives.n_bytes).astype(np.int64)
    columns = (members.call[collectives.first], collectives.n_ranks, n_bytes)
    order = np.lexsort((collectives.start_ns, *columns))
    parts = np.split(order, np.flatnonzero(np.diff(_runs(*(column[order] for column in columns)))) + 1)
    bounds = np.append(collectives.first, len(members.of))
    for alike in sorted(parts, key=lambda part: collectives.start_ns[part[0]]):
        yield alike, ranges(bounds[alike], bounds[alike + 1])[0]


def _notes(collectives: _Joined, members: _Members) -> Iterator[str]:
    """Yield a line for each kind of missing data."""
    if n := int((~collectives.is_whole).sum()):
        yield (
            f"{counted(n, 'collective')}: transfer and waiting cannot be told apart, as it is not recorded "
            "when the last rank entered. Rows without a waiting time have the shortest time instead: the "
            "transfer takes at most that, and its bandwidth is at least the one shown."
        )
    if members.n_unmatched:
        yield (
            f"{members.n_unmatched:,} of these are not matched between ranks, which recorded different "
            "numbers of them; each counts for itself."
        )


#: Roles that overlap communication, or share its time.
_BESIDE = (Role.COMPUTE, Role.COMM, Role.WHOLE_COMM, Role.WAIT, Role.IDLE)


class _RankCollectives(Struct, frozen=True):
    """The k collectives of one rank, as of `Collectives`; times on its own clock."""

    calls: Sequence[Call]
    call: Int64
    number: Int64
    start_ns: Int64
    end_ns: Int64
    exposed_ns: Float64  # (k,) part of `taken_ns` that no computation overlaps
    taken_ns: Float64  # (k,) time of each; simultaneous ones share it
    span: tuple[int, int] = (0, 0)  # of the recording
    points: SyncPoints = field(default_factory=dict)
    machine: str = ""
    world_size: int = 0


def _rank_collectives(source: Source, trace: Trace, bytes_of: Mapping[int, int]) -> _RankCollectives:
    """Find the collectives in a rank's trace, which was read for `Need.SIZES`, `SYNC` and `STEPS`."""
    if not len(trace):
        none = np.empty(0, np.int64)
        return _RankCollectives((), none, none, none, none, none.astype(float), none.astype(float))
    system = dialects.of(trace)
    args_of = partial(read_args, source.path, slices=True)
    collectives = system.collectives(RankTrace("", trace, bytes_of=bytes_of, args_of=args_of))
    exposed_ns, taken_ns = _times(trace, system.roles(trace), collectives.row)
    return _RankCollectives(
        calls=collectives.calls,
        call=collectives.call,
        number=collectives.number,
        start_ns=trace.ts_ns[collectives.row],
        end_ns=trace.end_ns[collectives.row],
        exposed_ns=exposed_ns,
        taken_ns=taken_ns,
        span=(int(trace.ts_ns.min()), int(trace.end_ns.max())),
        points=system.sync_points(trace),
        machine=system.machine(trace),
        world_size=trace.world_size or 0,
    )


def _times(trace: Trace, roles: NDArray[np.int8], rows: Int64) -> tuple[Float64, Float64]:
    """Measure the exposed and the whole time of each communication (k,), as `time_by_role.breakdown` does."""
    ids = np.full(len(trace), len(rows))
    ids[rows] = np.arange(len(rows))
    slices = Slices.of(trace.ts_ns, trace.end_ns, trace.track_id, roles)
    bounds = trace.ts_ns.min(keepdims=True), trace.end_ns.max(keepdims=True)
    exposed, taken = (
        time_of_ids(slices.at(part), ids[part], len(rows) + 1, *bounds)[0, :-1]
        for part in (np.flatnonzero(np.isin(roles, _BESIDE)), np.flatnonzero(is_communication(roles)))
    )
    return exposed, taken
