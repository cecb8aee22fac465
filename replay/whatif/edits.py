"""What-if: edits of a recording, as a user writes them (``BW=0.8``, ``rank1.FW=1.5``, ``bandwidth=2``, …)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.intervals import union
from dag.step_graph import Bool, Recording, StepGraph
from dialects.roles import Phase, Role
from dialects.step_parts import Joint, Kind, narrow_ns
from errors import UsageError, whole_number
from formats.columns import Trace, Track
from replay.whatif.bandwidth import LinkRate, at_rate, is_sized, link_rate, times, times_faster, with_sizes
from replay.whatif.even_work import evened, pausing_as_peers
from replay.whatif.messages import as_messages
from replay.whatif.partition import at_partition_bytes, changed_tensors
from replay.whatif.selection import Selection, named_owners, of_stage, select
from replay.whatif.straggler import at_mean_work, stragglers, without_stragglers

Edit = Callable[[Recording], Recording]

#: What ``straggler=`` takes.
_STRAGGLERS: dict[str, Edit] = {"none": without_stragglers, "even": evened, "mean": at_mean_work}

_ADDED = re.compile(r"\+([0-9]+(?:\.[0-9]+)?)(s|ms|us)")
_UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMG])bit(?:/s)?", re.IGNORECASE)
_BITS = {"K": 1e3, "M": 1e6, "G": 1e9}
_STAGE = re.compile(r"stage(\d{1,18})(?:\.(.+))?", re.DOTALL)
_MOST_TIMES = 1_000_000  # that work can become longer or shorter: its nanoseconds still fit into 64 bits
_MOST_ADDED_NS = 86_400e9
_LEAST_RATE = 1e-6  # bytes per nanosecond
#: Edits are made in this order, whatever order they are given in: what there is before how long it takes.
_ORDER = ("partition_bytes", "schedule", "straggler", "bandwidth")


class Guess(NamedTuple):
    """What is taken for true of that which a recording does not tell."""

    rate: Callable[[LinkRate], float] = lambda found: found.likely  # of the links
    waits_stay: bool = False  # whether unexplained waits do not change with the bandwidth
    part: float = 0.5  # the quantile of what small partitions cost that stands for each
    same_server: bool = False  # whether new partitions go where the recorded ones at their place did


_LIKELY = Guess()


class Links:
    """What the links of a recording carry, worked out once for any number of edits of it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @cached_property
    def rate(self) -> LinkRate | None:
        """What `link_rate` says of the recording."""
        return link_rate(self.recording)

    @cached_property
    def sized(self) -> tuple[Recording, LinkRate | None]:
        """The recording with the sizes of partitions, and its rate."""
        sized = with_sizes(self.recording)
        return sized, link_rate(sized)


def apply(
    recording: Recording,
    edits: Iterable[str],
    traces: Sequence[Trace] = (),
    *,
    guess: Guess = _LIKELY,
    links: Links | None = None,
) -> Recording:
    """Return the recording with all `edits` made; `traces` are those it was made of, one per owner.

    `guess` is what is taken for true of what the recording does not tell. What an edit takes from the
    recording (the rate of the links, whom a name means) is that of the recording as it is, not of what
    other edits made of it.

    Raises
    ------
    UsageError
        An edit that is none, a value out of range, or a name that no operation has.
    """
    texts = list(edits)
    if links is None or links.recording is not recording:
        links = Links(recording)
    parsed = [(_rank(text), parse(text, recording, traces, guess, links)) for text in texts]
    apart = {text.rpartition("=")[0] for text in texts if _takes_apart(text, links, guess)}
    if apart:
        sized, found = links.sized
        if found is not None:
            recording = as_messages(sized, guess.rate(found), by_bytes="partition_bytes" in apart)
    for _, edit in sorted(parsed, key=lambda pair: pair[0]):
        recording = edit(recording)
    return recording


def _rank(text: str) -> int:
    name = text.rpartition("=")[0]
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _takes_apart(text: str, links: Links, guess: Guess = _LIKELY) -> bool:
    """Whether an edit changes what waits for whom on a link.

    That do faster ones, other partitions and, where links are full, computation of another length. On slower
    links nobody is made to wait for more than he did.
    """
    name, _, value = text.rpartition("=")
    recording = links.recording
    if name == "partition_bytes":
        return bool(changed_tensors(recording, int(value)))
    if name == "straggler":
        return bool(value == "none" and stragglers(recording)) and _has_full_links(links)
    if name != "bandwidth":
        timed = name not in ("schedule", "drop") and value != "peers" and _change(text, value) != Change()
        return timed and _has_full_links(links)
    if target := _absolute(value):
        found = links.rate
        return times(target, None if found is None else guess.rate(found)) > 1
    return float(value) > 1


def _has_full_links(links: Links) -> bool:
    """Whether links are the limit for long, of transfers whose bytes are known."""
    if not links.recording.links or not is_sized(links.recording):
        return False
    return links.rate is not None and links.rate.is_told


def bounds(
    recording: Recording, edits: Sequence[str], traces: Sequence[Trace] = (), links: Links | None = None
) -> list[Edit]:
    """Return the edits with other guesses at what the recording does not tell; [] where it tells all.

    Raises as `apply`.

    That is the rate of links that never were the limit, whether waits that nothing explains are for bytes,
    what a partition costs, and where new ones go.
    """
    links = links or Links(recording)
    for text in edits:
        parse(text, recording, traces, links=links)  # refuses what is none
    found, guesses = links.rate, []
    names = {text.rpartition("=")[0] for text in edits}
    if "bandwidth" in names and found is not None and not found.is_told:
        guesses += [Guess(rate=lambda one: one.at_least), Guess(rate=lambda one: one.at_most)]
    apart = {text.rpartition("=")[0] for text in edits if _takes_apart(text, links)}
    if "bandwidth" in apart and found is not None:
        guesses.append(Guess(waits_stay=True))
    if "partition_bytes" in apart:
        guesses += [Guess(part=0.1), Guess(part=0.9), Guess(same_server=True)]
    return [partial(apply, edits=edits, traces=traces, guess=guess, links=links) for guess in guesses]


def parse(
    text: str,
    recording: Recording,
    traces: Sequence[Trace] = (),
    guess: Guess = _LIKELY,
    links: Links | None = None,
) -> Edit:
    """Return the edit of `recording` that `text` (``name=value``) describes; `guess` as in `apply`."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise UsageError(f"--set {text}: an edit is name=value, e.g. BW=0.8, bandwidth=2, schedule=priority")
    if name == "bandwidth":
        found = (links or Links(recording)).rate
        return _bandwidth(text, value, None if found is None else guess.rate(found), guess.waits_stay)
    if name == "partition_bytes":
        if not whole_number(value):
            raise UsageError(f"--set {text}: {value} is not a number of bytes above 0")
        found = (links or Links(recording)).rate
        rate = None if found is None else guess.rate(found)
        cut = partial(at_partition_bytes, part=guess.part, same_server=guess.same_server)
        return partial(cut, n_bytes=int(value), rate=rate)
    if name == "schedule":
        if value not in ("priority", "fifo"):
            raise UsageError(f"--set {text}: a schedule is priority or fifo")
        return partial(rescheduled, by_priority=value == "priority")
    if name == "straggler":
        if value not in _STRAGGLERS:
            raise UsageError(f"--set {text}: straggler has the values none, even and mean")
        return _STRAGGLERS[value]
    if name == "drop":
        return _drop(recording, value, text, traces)
    if value == "peers":
        return partial(pausing_as_peers, late=_pausing(recording, name, text))
    change = _change(text, value)
    _select(recording, name, text)  # a name that is none is refused before anything is simulated
    return lambda edited: changed(edited, _select(edited, name, text), change)


def _pausing(recording: Recording, name: str, text: str) -> list[int]:
    """Return the owners whom ``rank<r>,rank<s>.gap`` means."""
    ranks, _, what = name.rpartition(".")
    if what != "gap":
        raise UsageError(f"--set {text}: only gaps are made as those of peers, e.g. rank1.gap=peers")
    late = np.zeros(len(recording.owners), np.bool_)
    for one in ranks.split(","):
        owners, rest = named_owners(recording, one)
        if rest or not one or not owners.any():
            raise UsageError(f"--set {text}: no such rank; there are {', '.join(recording.owners)}")
        late |= owners
    if late.all():
        raise UsageError(f"--set {text}: no rank is left to compare with")
    owners_late: list[int] = np.flatnonzero(late).tolist()
    return owners_late


def _select(recording: Recording, name: str, text: str) -> Selection:
    if stage := _STAGE.fullmatch(name):
        return of_stage(recording, int(stage[1]), stage[2], text)
    return select(recording, name, text)


def _change(text: str, value: str) -> Change:
    """Return the change of a duration that `value` means: ``1.5`` (times), ``+400ms``, ``+20us``, ``+1s``."""
    added = _ADDED.fullmatch(value)
    if added is None:
        return Change(factor=_ratio(text, value))
    added_ns = float(added[1]) * _UNITS_NS[added[2]]
    if abs(added_ns) > _MOST_ADDED_NS:
        raise UsageError(f"--set {text}: more than a day")
    return Change(added_ns=round(added_ns))


def _ratio(text: str, value: str) -> float:
    try:
        ratio = float(value)
    except ValueError:
        raise UsageError(f"--set {text}: {value} is not a number") from None
    return checked_ratio(f"--set {text}", ratio)


def checked_ratio(flag: str, ratio: float) -> float:
    """Return `ratio`, which the user gave with `flag`, if it can be one; else `UsageError`."""
    if not 1 / _MOST_TIMES <= ratio <= _MOST_TIMES:
        raise UsageError(
            f"{flag}: a ratio must be above 0 (1 changes nothing), from 1/{_MOST_TIMES:,} to {_MOST_TIMES:,}"
        )
    return ratio


def _bandwidth(text: str, value: str, rate: float | None, waits_stay: bool) -> Edit:
    """Return the edit to so many times the links' `rate` (bytes/ns), or to ``200Mbit`` a second."""
    target = _absolute(value)
    if target is None:
        return partial(times_faster, factor=_ratio(text, value), rate=rate, waits_stay=waits_stay)
    if target < _LEAST_RATE:
        raise UsageError(f"--set {text}: a bandwidth must be above 0, and at least 8 Kbit")
    return partial(at_rate, target=target, rate=rate, waits_stay=waits_stay)


def _absolute(value: str) -> float | None:
    """Return a bandwidth in bytes per nanosecond; None for a ratio."""
    absolute = _RATE.fullmatch(value)
    return None if absolute is None else float(absolute[1]) * _BITS[absolute[2].upper()] / 8 / 1e9


# ---- edits of the times


class Change(NamedTuple):
    """A change of work: times `factor`, and `added_ns` more in each step of each owner."""

    factor: float = 1.0
    added_ns: int = 0


def changed(recording: Recording, chosen: Selection, change: Change) -> Recording:
    """Return the recording with the work of what is `chosen` changed.

    What is added comes once in a step and owner, before the first that is chosen; an operation that is
    recorded in pieces is not delayed by each.
    """
    share = forward_share(recording) if chosen.tails.any() else 1.0
    partly = 1 + share * (change.factor - 1)

    def edited(step: StepGraph) -> StepGraph:
        events = chosen.events(step)
        work = _times(step.work_ns, change.factor, events)
        first = _first_of_owner(step, events)
        work[first] += change.added_ns
        tail = _times(step.tail_ns, partly, chosen.tails)
        late = chosen.tails.copy()
        late[step.owner[first]] = False
        tail[late] += change.added_ns
        return replace(step, work_ns=narrow_ns(work), tail_ns=tail)

    return recording.edited(edited)


def _times(time_ns: Int64, factor: float, chosen: Bool) -> Int64:
    return np.where(chosen, np.rint(time_ns * factor), time_ns).astype(np.int64)


def _first_of_owner(step: StepGraph, chosen: Bool) -> Int64:
    """Return of the `chosen` events (n,) the one of each owner that starts first."""
    events = np.flatnonzero(chosen)
    events = events[np.lexsort((step.start_ns[events], step.owner[events]))]
    return events[np.unique(step.owner[events], return_index=True)[1]]


def forward_share(recording: Recording) -> float:
    """Return how much of the time between a step's communication and the next gradient is forward pass.

    As the owners whose operations were traced show it; 1 where none was.
    """
    untraced = {one.owner for one in recording.table.kinds if one.role is Role.UNTRACED}
    forward = recording.which(lambda one: one.phase is Phase.FORWARD)
    gradient = recording.which(lambda one: one.is_communication and one.transfer.key is None)
    work = total = 0
    for step in recording.steps:
        for owner in set(range(len(recording.owners))) - untraced:
            mine = step.owner == owner
            gradients = step.start_ns[mine & gradient[step.operation]]
            if len(gradients):
                work += int(step.work_ns[mine & forward[step.operation]].sum())
                total += int(gradients.min() - step.begin_ns[owner] + step.tail_ns[owner])
    return min(work / total, 1.0) if work and total else 1.0


def rescheduled(recording: Recording, *, by_priority: bool) -> Recording:
    """Return the recording with links that serve by tensor index, or who is ready first, not as recorded."""
    priority = recording.column(lambda one: max(one.transfer.tensor, 0))

    def served(step: StepGraph) -> StepGraph:
        turn = priority[step.operation] * by_priority
        return replace(step, turn=turn, overtaken=np.empty((0, 2), np.int64))

    return recording.edited(served)


# ---- taking away: operations, and annotations (spans around others, which need not be events themselves)


def _drop(recording: Recording, name: str, text: str, traces: Sequence[Trace]) -> Edit:
    """Return the edit that takes away what is called `name`, all it contains, and gaps before and in it."""
    spans = _spans_of(recording, traces, name)
    if not spans:
        select(recording, name, text)

    def without(edited: Recording) -> Recording:
        chosen = select(edited, name, text, may_be_nothing=bool(spans))

        def left(step: StepGraph) -> StepGraph:
            gone = _contained(edited, chosen, spans, step)
            in_gap, in_tail = _in_gaps(edited, spans, step)
            work, gap = (np.where(gone, 0, column) for column in (step.work_ns, step.gap_ns - in_gap))
            tail = np.maximum(step.tail_ns - in_tail, 0)
            return replace(step, work_ns=work, gap_ns=narrow_ns(gap), tail_ns=tail)

        return edited.edited(left)

    return without


class _Spans(NamedTuple):
    """When a name was open on one track of an owner: k spans, in order."""

    owner: int
    track: Track
    start_ns: Int64
    end_ns: Int64

    def open_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return for how long of each interval (n,) the name was open."""
        start, end = union(self.start_ns, self.end_ns)
        if not len(start):
            return np.zeros_like(start_ns)
        origin = int(start[0])  # times since an epoch would not be exact
        edges = np.stack([start, end], axis=1).reshape(-1) - origin
        open_until = np.append(0, np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)))
        before = np.interp(start_ns - origin, edges, open_until)
        found: Int64 = np.rint(np.interp(end_ns - origin, edges, open_until) - before).astype(np.int64)
        return found


def _spans_of(recording: Recording, traces: Sequence[Trace], name: str) -> list[_Spans]:
    """Return the spans of the slices called `name` (with or without its rank) in the owners' traces."""
    owners, bare = named_owners(recording, name)
    found = []
    for owner, trace in enumerate(traces):
        called = name if name in trace.names else bare if owners[owner] else ""
        if called not in trace.names:
            continue
        rows = np.flatnonzero(trace.name_id == trace.names.index(called))
        for track in np.unique(trace.track_id[rows]).tolist():
            mine = rows[trace.track_id[rows] == track]
            start = trace.ts_ns[mine]
            found.append(_Spans(owner, trace.tracks[track], start, start + trace.dur_ns[mine]))
    return found


def _tracks(recording: Recording, step: StepGraph) -> tuple[dict[tuple[int, Track], int], Int64]:
    """Return the numbers of the owners' tracks, and on which of them each event of a step (n,) ran."""
    tracks, of_operation = recording.numbered(lambda one: (one.owner, one.track))
    return {track: i for i, track in enumerate(tracks)}, of_operation[step.operation]


def _in_gaps(recording: Recording, spans: Sequence[_Spans], step: StepGraph) -> tuple[Int64, Int64]:
    """Return for how long spans were open in the gap before each event (n,) and in each owner's tail (m,).

    In a gap that begins or ends on the span's own thread; what another thread, or a device, does meanwhile
    is not a part of it.
    """
    in_gap, in_tail = np.zeros(len(step), np.int64), np.zeros(len(step.tail_ns), np.int64)
    on_host = ~recording.which(lambda one: one.on_device)[step.operation]
    to_head = step.edges[step.edges[:, 2] < Joint.END_TO_BODY]
    number, track = _tracks(recording, step)
    for one in spans:
        is_here = track == number.get((one.owner, one.track), -1)
        begins_here = np.zeros(len(step), np.bool_)
        begins_here[to_head[is_here[to_head[:, 0]], 1]] = True
        events = np.flatnonzero(is_here | (begins_here & on_host & (step.owner == one.owner)))
        start = step.start_ns[events]
        in_gap[events] += one.open_ns(start - step.gap_ns[events], start)
        end = step.last_end_ns[one.owner, None]
        in_tail[one.owner] += int(one.open_ns(end, end + step.tail_ns[one.owner])[0])
    return np.minimum(in_gap, step.gap_ns), in_tail


def _contained(recording: Recording, chosen: Selection, spans: Sequence[_Spans], step: StepGraph) -> Bool:
    """Return the events of a step (n,) that are `chosen`, run inside one or inside a span, or follow.

    What is launched from inside, or is a part of what is inside, follows. Inside is on the same track or
    thread. (A span of the trace may begin a little later than the step graph has its first event.)
    """
    number, track = _tracks(recording, step)
    found = chosen.events(step)
    for here in np.unique(track[found]).tolist():
        outer, events = np.flatnonzero(found & (track == here)), np.flatnonzero(track == here)
        inside = _within(step.start_ns[outer], step.end_ns[outer], step.start_ns[events], step.end_ns[events])
        found[events[inside]] = True
    middle = (step.start_ns + step.end_ns) // 2
    for one in spans:
        events = np.flatnonzero(track == number.get((one.owner, one.track), -1))
        found[events[_within(one.start_ns, one.end_ns, middle[events], middle[events] + 1)]] = True
    follow = step.edges[np.isin(step.edges[:, 3], (Kind.LAUNCH, Kind.PART))]
    while True:
        more = follow[found[follow[:, 0]] & ~found[follow[:, 1]], 1]
        if len(more) == 0:
            return found
        found[more] = True


def _within(outer_start: Int64, outer_end: Int64, start: Int64, end: Int64) -> Bool:
    """Return which intervals (n,) lie within one of the outer intervals (k,)."""
    order = np.argsort(outer_start, kind="stable")
    latest_end = np.maximum.accumulate(outer_end[order])
    before = np.searchsorted(outer_start[order], start, side="right") - 1
    return (before >= 0) & (end <= latest_end[np.maximum(before, 0)])
