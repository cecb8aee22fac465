"""The clocks of hosts: their offsets, from the operations that hosts do together, and remarks on them.

Two kinds of evidence (`clocks.pair_estimates`). With x the nanoseconds to add to a host's timestamps,
*causality* says of every occurrence that ``x_i - x_j <= end_j - begin_i``, because nobody ends before the
last has begun; *matched ends* say that x_i - x_j is close to the difference of the ends. Every pair of hosts
yields an estimate with a doubt, and a window. The estimates are joined by weighted least squares, which
treats all hosts alike. The windows are difference constraints: shortest paths between the hosts give the
tightest window of every offset, and its far end the bound; a cycle of negative weight is a contradiction.
(Duda et al. 1987; Haddad 1988; Jézéquel 1989; Poirier, Roy, Dagenais 2010.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.numbering import connected, places_by_value
from analyzer.base.errors import Note, NoteKind, listed
from analyzer.base.units import in_digits, in_ms
from analyzer.model.clocks.pair_estimates import (
    AGREES,
    ALL_WINDOWS,
    QUARTZ_PPM,
    ROUNDED_FROM_NS,
    Occurrences,
    PairOffset,
    evidence,
    side_by_side,
)
from analyzer.reading.dialects.recorded_collectives import SyncPoints, merged
from analyzer.reading.formats.columns import Trace


class Clock(Struct, frozen=True):
    """Offset of a host's clock from the first host's, with its bound.

    The true offset is within `offset_ns` ± `bound_ns` all through the recording, with relative drifts of up
    to 50 ppm allowed for. There is no bound where nothing ties the host to the first, and where no offset
    makes all operations possible; it is 0 where they are of one machine and agree. A violation is a pair of
    one occurrence in the impossible order.
    """

    offset_ns: int = 0  # what to add to its timestamps
    bound_ns: int | None = None
    anchors: int = 0  # occurrences it shares with another host
    violations_before: int = 0  # in which this host takes part, as recorded
    violations_after: int = 0  # as corrected
    is_tied: bool = False  # whether common operations, or one machine, tie this host to the first one
    group: int = 0  # the first host that they tie it to, without contradiction

    @property
    def offset_us(self) -> float:
        """The offset in microseconds."""
        return self.offset_ns / 1e3

    @property
    def bound_us(self) -> float | None:
        """The bound in microseconds."""
        return None if self.bound_ns is None else self.bound_ns / 1e3


class Alignment(Struct, frozen=True):
    """The clocks of all hosts, and whether the recorded operations contradict each other."""

    clocks: Sequence[Clock]
    contradiction_ns: int = 0  # by how much an operation remains out of order that no offsets put in order
    contradicting: Sequence[int] = ()  # its two hosts
    by_ends: bool = False  # whether matched ends told an offset


def align(
    hosts: Sequence[SyncPoints],
    recorded: Sequence[tuple[int, int] | None] | None = None,
    machines: Sequence[str] = (),
) -> Alignment:
    """Estimate the clock of every host against the first one's; the relative offsets do not depend on which.

    Clocks that may agree, as far as the estimates can tell, are taken to agree: nothing is moved. Those of
    one machine are one wherever that makes every operation possible, unless matched ends that agree closely
    contradict it. Where no offsets make every operation possible, even with drift, the offsets are those that
    contradict the operations least, and none has a bound.

    `recorded` has the begin of each host's first event and the end of its last one, on its own clock, which
    may be far from its sync points: the bounds allow for the drift since. `machines` are names, "" where
    unknown; none at all if all are.
    """
    shared = side_by_side(hosts)
    machines = machines or [""] * len(hosts)
    if not shared.there.any():
        same = [machines.index(name) if name else i for i, name in enumerate(machines)]
        return Alignment([Clock(0, None if i else 0, is_tied=not i, group=i) for i in same])
    reach = _reach(shared, recorded)
    compared = shared.compared
    pairs = evidence(shared, compared)
    consistent = _consistent(shared, compared, pairs, reach, machines)
    if consistent is not None:
        return consistent
    groups = _tied_together(len(hosts), pairs)
    offsets = np.zeros(len(hosts))
    for group in groups:
        offsets[group] = _least_squares(group, pairs)
    offsets = _whole(shared, groups, offsets, np.full((len(hosts), len(hosts)), np.inf))
    late = _out_of_order(shared, compared, offsets.astype(np.int64))[1]
    worst = np.unravel_index(late.argmax(), late.shape)
    clocks = _clocks(shared, compared, groups, offsets, None)
    return Alignment(clocks, int(late.max()), [int(host) for host in worst])


def _consistent(
    events: Occurrences,
    compared: Mask,
    pairs: Sequence[PairOffset],
    reach: Float64,
    machines: Sequence[str],
) -> Alignment | None:
    """Find the clocks that make every operation possible; None if the drifts of quartzes allow none."""

    def shortest(pairs: Sequence[PairOffset]) -> tuple[Float64, Float64] | None:
        loose, bounds = (
            _shortest(_windows(events, compared, QUARTZ_PPM, pairs, far)) for far in (None, reach)
        )
        if loose is None or bounds is None:
            return None
        exact = _shortest(_windows(events, compared, 0.0, pairs))
        return (loose if exact is None else exact), bounds

    windows = shortest(pairs)
    if windows is None:
        return None
    tight, _ = windows
    by_ends = any(pair.ends is not None for pair in pairs)
    pairs = _of_one_machine(events.middle, pairs, tight, machines)
    within, bounds = (shortest(pairs) if any(machines) else None) or windows
    groups = _tied_together(len(reach), pairs)
    offsets = np.zeros(len(reach))
    for group in groups:
        offsets[group] = _joint(events, group, pairs, within)
    offsets = _whole(events, groups, offsets, tight)
    return Alignment(_clocks(events, compared, groups, offsets, bounds), by_ends=by_ends)


def _of_one_machine(
    middle: Int64, pairs: Sequence[PairOffset], tight: Float64, machines: Sequence[str]
) -> list[PairOffset]:
    """Add the evidence of hosts on one machine, whose clocks are one where they may agree.

    They may where that makes every operation possible and no ends that agree closely contradict it.
    """
    of_machine = [machines.index(name) for name in machines]
    wanted = {(pair.i, pair.j) for pair in pairs} | {(i, j) for j, i in enumerate(of_machine) if i < j}
    ahead = (middle[None, :] - middle[:, None]).astype(np.float64)  # of j against i, where they agree
    agree = {
        (i, j): PairOffset(i, j, ahead[i, j], 1.0, (ahead[i, j], ahead[i, j]))
        for i, j in sorted(wanted)
        if machines[i] == machines[j] != "" and -ahead[i, j] <= tight[i, j] and ahead[i, j] <= tight[j, i]
    }
    return [*(pair for pair in pairs if (pair.i, pair.j) not in agree), *agree.values()]


def _reach(events: Occurrences, recorded: Sequence[tuple[int, int] | None] | None) -> Float64:
    """Farthest time of each host's recording from its middle (n,), ns."""
    reach = np.full(len(events.begin), float(np.abs(events.tau).max(initial=0.0)))
    for i, span in enumerate(recorded or ()):
        if span is not None:
            middle = int(events.middle[i])
            reach[i] = max(reach[i], abs(span[0] - middle), abs(span[1] - middle))
    return reach


def _windows(
    events: Occurrences,
    compared: Mask,
    limit_ppm: float,
    pairs: Sequence[PairOffset],
    reach: Float64 | None = None,
) -> Float64:
    """Compute w (n, n): ``x_i - x_j <= w[i, j]``, inf where nothing is known of what is `compared`.

    With a limit above 0, the windows allow for what such a drift may have added up by each occurrence and for
    errors of its times; with `reach` (n,), also for drift as far as each host's recording reaches.
    """
    n = len(events.begin)
    windows = np.full((n, n), np.inf)
    tau = np.abs(events.tau)
    for i in range(n):
        others = np.flatnonzero(compared[i])
        both = events.there[others] & events.there[i] & events.all_wait
        slack = (events.end[others] - events.begin[i]).astype(np.float64)
        if limit_ppm:
            doubt = limit_ppm / 1e6
            slack += events.error[others] + events.error[i] + doubt * tau
            slack += 0.0 if reach is None else doubt * np.maximum(reach[others], reach[i])[:, None]
        windows[i, others] = np.where(both, slack, np.inf).min(axis=1, initial=np.inf)
    for pair in pairs:
        if pair.ends is not None:
            windows[pair.i, pair.j] = min(windows[pair.i, pair.j], -pair.ends[0])
            windows[pair.j, pair.i] = min(windows[pair.j, pair.i], pair.ends[1])
    np.fill_diagonal(windows, 0.0)
    return windows


def _shortest(windows: Float64) -> Float64 | None:
    """Tighten the windows (n, n) by each other; None where they contradict each other."""
    if len(windows) > ALL_WINDOWS:  # most are not known
        return _shortest_of_many(windows)
    shortest = windows.copy()
    for over in range(len(shortest)):  # Floyd and Warshall; scipy's takes longer to import
        np.minimum(shortest, shortest[:, over, None] + shortest[over], out=shortest)
    return None if (shortest.diagonal() < 0).any() else shortest


def _shortest_of_many(windows: Float64) -> Float64 | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import NegativeCycleError, johnson

    i, j = np.nonzero(np.isfinite(windows))
    known = csr_array((windows[i, j], (i, j)), shape=windows.shape)
    try:
        return np.asarray(johnson(known))
    except NegativeCycleError:
        return None


def _tied_together(n: int, pairs: Sequence[PairOffset]) -> list[Int64]:
    """List the groups of hosts that are tied together, directly or through others."""
    ends = np.array([(pair.i, pair.j) for pair in pairs], np.int64).reshape(-1, 2)
    return places_by_value(connected(n, *ends.T))


def _joint(events: Occurrences, group: Int64, pairs: Sequence[PairOffset], tight: Float64) -> Float64:
    """Estimate the offsets of a group of hosts, relative to their middles and within the `tight` windows."""
    as_recorded = (events.middle[group] - events.middle[group[0]]).astype(np.float64)
    windows = tight[np.ix_(group, group)]
    of_group = [pair for pair in pairs if pair.i in group]
    if _may_agree(as_recorded, group, of_group, windows):
        return np.asarray(as_recorded)
    return _feasible(_least_squares(group, of_group), windows)


def _may_agree(agreed: Float64, group: Int64, pairs: Sequence[PairOffset], tight: Float64) -> bool:
    """Check whether the clocks of a group may agree: no window or estimate contradicts it."""
    if np.any(agreed[:, None] - agreed[None, :] > tight):
        return False
    offset = dict(zip(group.tolist(), agreed.tolist(), strict=True))
    squares: dict[int, list[float]] = defaultdict(list)
    for pair in pairs:
        square = ((offset[pair.j] - offset[pair.i] - pair.estimate) / pair.doubt) ** 2
        squares[pair.i].append(square)
        squares[pair.j].append(square)
    return all(np.mean(each) <= AGREES**2 for each in squares.values())


def _least_squares(group: Int64, pairs: Sequence[PairOffset]) -> Float64:
    """Fit the offsets of a group of hosts, against the first of them, to the estimates."""
    row = {host: i for i, host in enumerate(group.tolist())}
    laplacian, right = np.zeros((len(group), len(group))), np.zeros(len(group))
    for pair in pairs:
        if pair.i in row:
            i, j, weight = row[pair.i], row[pair.j], pair.doubt**-2
            laplacian[[i, j], [i, j]] += weight
            laplacian[[i, j], [j, i]] -= weight
            right[[i, j]] += (-weight * pair.estimate, weight * pair.estimate)
    if len(group) == 1:
        return np.zeros(1)
    scale = laplacian.diagonal().max()
    matrix, values = laplacian[1:, 1:] / scale, right[1:] / scale
    try:
        rest = np.linalg.solve(matrix, values)
    except np.linalg.LinAlgError:  # weights that differ by more than a float64 can tell
        rest = np.linalg.lstsq(matrix, values, rcond=None)[0]
    return np.concatenate([np.zeros(1), rest])


def _feasible(offsets: Float64, tight: Float64) -> Float64:
    """Find offsets (n,) within all windows, on the straight way from the windows' middles to `offsets`.

    The middles of the windows against any one host satisfy all windows, because these are shortest
    paths; so does their mean over all hosts.
    """
    middles = ((tight - tight.T) / 2).mean(axis=1)
    wanted = offsets[:, None] - offsets[None, :]
    between = middles[:, None] - middles[None, :]
    outside = wanted > tight
    if not outside.any():
        return offsets
    share = ((tight - between)[outside] / (wanted - between)[outside]).min()
    return np.asarray(middles + max(float(share), 0.0) * (offsets - middles))


def _whole(events: Occurrences, groups: Sequence[Int64], offsets: Float64, tight: Float64) -> Float64:
    """Round offsets, as added to timestamps, to whole microseconds where the windows leave room; else to ns.

    Most traces have whole microseconds. They are counted from one host of each group, whichever is first.
    """
    whole = np.zeros(len(offsets))
    for group in groups:
        hub = group[events.middle[group].argmin()]
        rough = (events.middle[group] - events.middle[hub]).astype(np.float64)
        exact = np.rint(offsets[group] - offsets[hub])
        rounded = rough + 1000 * np.rint((exact - rough) / 1000)
        windows = tight[np.ix_(group, group)]
        width = (windows + windows.T)[~np.eye(len(group), dtype=np.bool_)]
        fits = np.all(width >= ROUNDED_FROM_NS) and np.all(rounded[:, None] - rounded[None, :] <= windows)
        whole[group] = rounded if fits else exact
    return whole


def _clocks(
    events: Occurrences,
    compared: Mask,
    groups: Sequence[Int64],
    offsets: Float64,
    bounds: Float64 | None,
) -> list[Clock]:
    """Make the clocks, each against the first host of its group; `offsets` (n,) are relative to the middles.

    `bounds` (n, n) are windows that hold the truth all through the recording; None for no bounds.
    """
    first = np.zeros(len(offsets), np.int64)
    for group in groups:
        first[group] = group[0]
    relative = np.rint(offsets - offsets[first]).astype(np.int64)
    before, _ = _out_of_order(events, compared, events.middle - events.middle[first])
    after, _ = _out_of_order(events, compared, relative)
    far = np.zeros(len(offsets))
    if bounds is not None:
        of = np.arange(len(offsets))
        far = np.ceil(np.maximum(bounds[of, first] - relative, relative + bounds[first, of]))
        far = np.where(np.isfinite(far), far, 0.0)  # no operation ties it, but it is the same clock
    return [
        Clock(
            offset_ns=int(relative[i] + events.middle[first[i]] - events.middle[i]),
            bound_ns=int(far[i]) if bounds is not None and first[i] == 0 else None,
            anchors=int(events.there[i].sum()),
            violations_before=int(before[i].sum() + before[:, i].sum()),
            violations_after=int(after[i].sum() + after[:, i].sum()),
            is_tied=bool(first[i] == 0),
            group=i if bounds is None else int(first[i]),
        )
        for i in range(len(offsets))
    ]


def _out_of_order(events: Occurrences, compared: Mask, shift: Int64) -> tuple[Int64, Int64]:
    """Count how often host i begins an operation after j has ended it (n, n), and by how much at most.

    `shift` (n,) is what is added to the hosts' times, relative to their middles.
    """
    n = len(shift)
    begin, end = events.begin + shift[:, None], events.end + shift[:, None]
    count, most = np.zeros((2, n, n), np.int64)
    for i in range(n):
        others = np.flatnonzero(compared[i])
        both = events.there[others] & events.there[i] & events.all_wait
        late = np.where(both, begin[i] - end[others], 0)
        count[i, others], most[i, others] = (late > 0).sum(axis=1), late.max(axis=1, initial=0)
    return count, most


# ---- a job's clocks


def shifted(trace: Trace, clock: Clock) -> Trace:
    """Move a trace to the clock that `clock` relates its own to."""
    if not clock.offset_ns:
        return trace
    points = replace(trace.points, ts_ns=trace.points.ts_ns + clock.offset_ns)
    return replace(trace, ts_ns=trace.ts_ns + clock.offset_ns, points=points)


def aligned(
    names: Sequence[str],
    hosts: Sequence[int],
    points: Sequence[SyncPoints],
    spans: Sequence[tuple[int, int]],
    machines: Sequence[str],
) -> tuple[Sequence[Clock], list[str]]:
    """Estimate the clock of each host, and write remarks on them.

    The parameters are of n ranks: name, host (0, 1, …), sync points, begin and end, and machine.
    """
    members: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for i, host in enumerate(hosts):
        members[host].append(i)
    alignment = align(
        [merged(points[i] for i in ranks) for ranks in members],
        [(min(spans[i][0] for i in ranks), max(spans[i][1] for i in ranks)) for ranks in members],
        [machines[ranks[0]] for ranks in members],
    )
    labels = [names[ranks[0]] if len(ranks) == 1 else names[ranks[0]].partition(".")[0] for ranks in members]
    clocks = dict(zip(labels, alignment.clocks, strict=True))
    moved = [f"{name} by {_by(clock)}" for name, clock in clocks.items() if clock.offset_ns]
    kept_ns = max((clock.bound_ns or 0 for clock in clocks.values() if not clock.offset_ns), default=0)
    return alignment.clocks, [
        *([f"clocks moved: {listed(moved)}"] if moved else []),
        *([f"clocks agree within ±{in_ms(kept_ns)}"] if kept_ns else []),
        *doubts(labels, alignment),
    ]


def doubts(names: Sequence[str], alignment: Alignment) -> list[str]:
    """Write notes on clocks that nothing ties to the first, that contradict each other, or that drift."""
    loose = [name for name, clock in zip(names[1:], alignment.clocks[1:], strict=True) if not clock.is_tied]
    adrift = [name for name, clock in zip(names, alignment.clocks, strict=True) if clock.violations_after]
    lines: list[str] = []
    if loose:
        text = f"no common operation ties the clock of {listed(loose)} to the others"
        lines.append(Note(text, NoteKind.UNALIGNED))
    if alignment.contradicting:
        pair = " and ".join(names[host] for host in alignment.contradicting)
        text = (
            f"no offsets make every operation possible: {pair} contradict each other by "
            f"{in_digits(alignment.contradiction_ns / 1e3)} µs (did a clock jump, or are these several jobs?)"
        )
        lines.append(Note(text, NoteKind.UNALIGNED))
    elif adrift:
        lines.append(f"the clocks of {listed(adrift)} drift: no constant offset orders all operations")
    return lines


def _by(clock: Clock) -> str:
    offset = f"{in_digits(clock.offset_us, sign='+')} µs"
    return offset if clock.bound_us is None else f"{offset} (±{in_digits(clock.bound_us)})"
