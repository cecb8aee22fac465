"""The calls in a flight recorder's dump: their groups, the open calls, and the rank."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import ids_in
from analyzer.base.errors import whole_number
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.recorder.recorder_dump import COMPLETED, Dump, column, shapes_of, text_of, whole
from analyzer.reading.formats.recorder.standing import UNKNOWN, DumpedCall, Group, Lane, Standing
from analyzer.reading.formats.values import FARTHEST_NS

_MOST = 16  # calls of each state that are kept of a lane, and tensors of a call
_MOST_MESSAGES = 64
_MOST_RANKS = 1 << 20
_MOST_LISTED = 1 << 22  # characters or numbers that list the ranks of all groups
_ALL_RANKS, _WORLDS = range(_MOST_RANKS), ("0", "#0")  # the group of all is made first
_MOST_FRAMES = 3
_DEEPEST_STACK = 256
_MOST_KNOWN = 4096
_LAUNCH = "coalesced"
#: Collectives that some members may complete before the others have come.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Kinds whose members may have different sizes.
_UNEVEN = ("all_to_all", "alltoall", "_v", "coalesced", "gather", "scatter")
_EVEN = ("all_gather", "reduce_scatter", "allgather")
_ALL_TO_ALL = re.compile("all_?to_?all")
_MESSAGE = re.compile(r"(?:send|recv)\D*(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")
_LIBRARY = re.compile(r"/torch/|/site-packages/|^<")


def standing_of(trace: Trace) -> Standing:
    """Find the calls that were open when the rank wrote its dump."""
    dump: Dump = trace.header["recorder"]
    groups = groups_of(dump)
    names = [groups.get(name) or Group(name, description, ()) for name, description in dump.groups]
    dump, order, is_launch = _with_launches(dump)
    is_done = dump.state == COMPLETED
    lanes = {name: Lane(group) for name, group in groups.items()}
    calls = np.flatnonzero(~dump.is_message & ~is_launch)
    for index in ids_in(dump.group_id[calls]):
        rows = calls[dump.group_id[calls] == index]
        waiting, done = rows[~is_done[rows]], rows[is_done[rows]]
        completed = int(dump.number[done].max(initial=-1))
        lanes[names[index].name] = Lane(
            names[index],
            int(dump.number[waiting].max(initial=-1)) if len(waiting) else completed,
            completed,
            _calls(dump, names, waiting[:_MOST], order, n_frames=1),
            _calls(dump, names, done[-_MOST:], order, n_frames=0),
            len(waiting),
        )
    for index in ids_in(dump.group_id[dump.is_message]):
        lane = lanes.setdefault(names[index].name, Lane(names[index]))
        lanes[names[index].name] = replace(lane, has_messages=True)
    for name, counted in _counters(dump, groups, lanes).items():
        lanes[name] = replace(lanes[name], counted=counted)
    messages = np.flatnonzero(dump.is_message & ~is_launch & ~is_done)[:_MOST_MESSAGES]
    last = np.arange(len(dump.entries))[-1:]
    created, _, completed = dump.times[:, (dump.times[[0, 2]] > 0).all(axis=0)]
    return Standing(
        lanes,
        _calls(dump, names, messages, order),
        next(iter(_calls(dump, names, last, order)), None),
        int(dump.times.max(initial=-1)),
        dump.written_ns,
        int((completed - created).max(initial=0)),
        rank_of(trace)[1],
        _just_completed_ns(dump),
    )


def _just_completed_ns(dump: Dump) -> int:
    """Find the time of the dump, if a call had completed that the watchdog had not retired yet; else -1.

    The watchdog retires complete calls some times a second; later ones are found while the dump is made.
    """
    is_done = dump.state == COMPLETED
    is_retired = np.array([retired is not False for retired in column(dump.entries, "retired")], np.bool_)
    seen = dump.times[2]
    latest_ns = int(seen[is_done & is_retired].max(initial=-1))
    fresh = seen[is_done & ~is_retired]
    return int(fresh.max()) if 0 < latest_ns < fresh.min(initial=FARTHEST_NS) < FARTHEST_NS else -1


def _with_launches(dump: Dump) -> tuple[Dump, Int64, Mask]:
    """Copy the state and order of coalesced launches to their calls; return dump, order (n,), launches (n,).

    A launch follows its calls, which have its number; only the launch's state is kept up to date.
    """
    state, is_launch = dump.state.copy(), np.zeros(len(dump.entries), np.bool_)
    order = np.arange(len(dump.entries))
    launches: dict[Hashable, int] = {}
    turns = column(dump.entries, "p2p_seq_id") if _LAUNCH in dump.kind else ()
    for i in reversed(range(len(turns))):
        key = (int(dump.group_id[i]), int(dump.number[i]), whole(turns[i]))
        if dump.kind[i] == _LAUNCH:
            launches[key] = i
        elif (launch := launches.get(key)) is not None:
            state[i], order[i], is_launch[launch] = dump.state[launch], launch, True
    return dump._replace(state=state), order, is_launch


def groups_of(dump: Dump) -> dict[str, Group]:
    """Read the groups of a dump, by name."""
    groups, n_listed = {}, 0
    for key, value in dump.config.items():
        if isinstance(key, str) and isinstance(value, dict):
            ranks = value.get("ranks")
            n_listed += len(ranks) if isinstance(ranks, list | tuple | str) else 0
            if n_listed > _MOST_LISTED:  # a small file may have one list in a million groups
                ranks = None
            if isinstance(ranks, list | tuple):
                ranks = str(list(map(whole, ranks)))
            name = text_of(key)
            groups[name] = Group(name, text_of(value.get("desc")), _members(text_of(ranks, None)))
    return groups


@lru_cache(256)
def _members(text: str) -> Sequence[int]:
    """Read the ranks in a text, as a `range` if they are evenly spaced.

    >>> _members("[0, 8, 16]"), _members("[0, 1, 8]"), _members("[5]")
    (range(0, 24, 8), (0, 1, 8), range(5, 6))
    """
    ranks = [n for n in map(int, re.findall(r"(?<!-)\b\d{1,9}", text)) if n < _MOST_RANKS]
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    span = range(ranks[0], ranks[0] + step * len(ranks), step) if ranks and step > 0 else ()
    return span if list(span) == ranks else tuple(ranks)


def _calls(
    dump: Dump, names: Sequence[Group], rows: Int64, order: Int64, *, n_frames: int | None = None
) -> list[DumpedCall]:
    """Convert entries (rows) to calls, the first `n_frames` (else all) with their frames."""
    numbers = rows.tolist()
    n_frames = len(numbers) if n_frames is None else n_frames
    entries = ((number, dump.entries[number]) for number in numbers)
    return [_call(dump, names, i, entry, order, n < n_frames) for n, (i, entry) in enumerate(entries)]


def _call(
    dump: Dump, names: Sequence[Group], i: int, entry: Mapping[str, Any], order: Int64, frames: bool
) -> DumpedCall:
    group, kind = names[int(dump.group_id[i])], dump.kind[i]
    peer = UNKNOWN if dump.is_message[i] else None
    if peer is not None and (match := _MESSAGE.search(text_of(entry.get("profiling_name")))):
        index, members = int(match[2]), group.members or (_ALL_RANKS if group.name in _WORLDS else ())
        peer = members[index] if index < len(members) else UNKNOWN
    of_data = _data_of(kind, entry)
    return DumpedCall(
        group, kind, int(dump.number[i]), int(order[i]), peer, peer is None and not is_rooted(kind),
        *of_data[:2], int(dump.times[0, i]), _frames(entry.get("frames")) if frames else (),
        whole(entry.get("timeout_ms")) * 1_000_000, *of_data[2:],
    )  # fmt: skip


def _data_of(kind: str, entry: Mapping[str, Any]) -> tuple[str, str, int, int]:
    """Describe a call: signature, data, and elements that an all-to-all gives and takes; see `DumpedCall`."""
    dtypes = ", ".join(_texts(entry.get("input_dtypes")) or _texts(entry.get("output_dtypes")))
    sizes = (shapes_of(entry.get(f"{way}_sizes"), _MOST) for way in ("input", "output"))
    return _described(kind, dtypes, tuple(tuple(map(tuple, part)) for part in sizes))


@lru_cache(_MOST_KNOWN)  # most calls have the same data
def _described(
    kind: str, dtypes: str, shapes: Sequence[Sequence[Sequence[int]]]
) -> tuple[str, str, int, int]:
    is_free = any(part in kind for part in _UNEVEN) and kind.strip("_").removesuffix("_base") not in _EVEN
    # a library sees elements, not shapes
    elements = [sum(map(math.prod, part)) for part in shapes]
    words = f"{'->'.join(map(str, elements))} elements"
    parts = [kind, dtypes, "" if is_free or not any(shapes) else words]
    is_known = _ALL_TO_ALL.search(kind) and all(0 < len(part) < _MOST for part in shapes)
    shown = " -> ".join(
        dict.fromkeys(", ".join(str(list(shape)) for shape in part) for part in shapes if part)
    )
    given, taken = elements if is_known else (-1, -1)
    return ", ".join(filter(None, parts)), f"{dtypes} {shown}" if shown else "", given, taken


def is_rooted(kind: str) -> bool:
    """Tell if some members of a collective may complete it before the others have come."""
    bare = kind.strip("_")
    return bare.startswith(_ROOTED) and not bare.startswith("reduce_scatter")


def _texts(value: Any) -> list[str]:
    """List the distinct texts of a list."""
    return list(dict.fromkeys(map(text_of, value[:_MOST]))) if isinstance(value, list | tuple) else []


def _frames(frames: Any) -> list[str]:
    """List the innermost frames: the user's, else those of libraries."""
    frames = frames[:_DEEPEST_STACK] if isinstance(frames, list | tuple) else ()
    known = [
        (text_of(frame.get("name")), text_of(frame.get("filename")), whole(frame.get("line")))
        for frame in frames
        if isinstance(frame, dict)
    ]
    shown = [frame for frame in known if not _LIBRARY.search(frame[1])] or known
    return [f"{name} ({path.rpartition('/')[2]}:{line})" for name, path, line in shown[:_MOST_FRAMES]]


def _counters(dump: Dump, groups: Collection[str], lanes: Collection[str]) -> dict[str, tuple[int, int]]:
    """Find the last number called and the last completed of each group, where its counter is known.

    Counters have numbers of the process, which entries tie to names of groups. If there are as many counters
    as groups, both in the order of their creation, the others follow by that order.
    """
    tied = {}
    for i, (name, _) in enumerate(dump.groups):
        first = int(np.argmax(dump.group_id == i))
        tied[str(whole(dump.entries[first].get("pg_id")))] = name
    status = {str(key): value for key, value in dump.status.items() if isinstance(key, str | int)}
    ids, names = _by_number(status), _by_number(groups)
    if len(ids) == len(status) == len(groups) == len(names):
        by_place = dict(zip(ids, names, strict=True))
        if all(by_place.get(key, name) == name for key, name in tied.items()):
            tied = by_place
    counters = {}
    for key, value in status.items():
        name = tied.get(key, "")
        if isinstance(value, dict) and name in lanes:
            enqueued, completed = (
                value.get("last_enqueued_collective"),
                value.get("last_completed_collective"),
            )
            counters[name] = whole(enqueued), whole(completed)
    return counters


def _by_number(keys: Iterable[str]) -> list[str]:
    """Sort the keys that are whole numbers."""
    return sorted((key for key in keys if whole_number(key) is not None), key=int)


def rank_of(trace: Trace) -> tuple[int | None, str]:
    """Find the rank of a dump, and its source: the file's name, else the one member of all groups."""
    name = Path(trace.path).name
    members = {group.members for group in groups_of(trace.header["recorder"]).values() if group.members}
    numbers = re.findall(r"(?i)rank[-_.]?(\d{1,9})", name) or re.findall(r"\d{1,9}", name)[::-1]
    for rank in map(int, numbers):
        if all(rank in ranks for ranks in members):
            return rank, "the file names"
    common = set.intersection(*map(set, members)) if members else set()
    return (common.pop(), "the groups in the dumps") if len(common) == 1 else (None, "")
