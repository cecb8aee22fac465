"""The calls in a flight recorder's dump: their groups, what is open, and of which rank the dump is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from formats.columns import Trace
from formats.recorder.recorder_dump import TIMES, group_of, kind_of, text_of, whole
from formats.recorder.standing import Call, Group, Lane, Spans, Standing, spans_of

_MOST = 16  # calls of each kind that are kept of a lane, and their places in its order
_MOST_MESSAGES = 64
_MOST_RANKS = 1 << 20
_MOST_FRAMES = 3
#: Collectives that some members may complete before the others have come.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Kinds whose members may give sizes of their own.
_UNEVEN = ("all_to_all", "alltoall", "_v", "coalesced", "gather", "scatter")
_MESSAGE = re.compile(r"(?:send|recv)\D*(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")
_OWN_CODE = re.compile(r"/torch/|/site-packages/|^<")


def standing_of(trace: Trace) -> Standing:
    """Return where the rank stood when it wrote its dump."""
    document = trace.header["recorder"]
    entries, in_group = _with_coalesced(document["entries"], document["groups"])
    groups = groups_of(document)
    lanes: dict[str, Lane] = {}
    messages: list[Call] = []
    with_messages = set()
    calls: dict[str, list[int]] = {}
    for i, (entry, (name, _)) in enumerate(zip(entries, in_group, strict=True)):
        if entry.get("is_p2p"):
            with_messages.add(name)
            if entry["state"] != "completed" and len(messages) < _MOST_MESSAGES:
                messages.append(_call(entries, i, groups))
        else:
            calls.setdefault(name, []).append(i)
    for name, rows in calls.items():
        waiting = [i for i in rows if entries[i]["state"] != "completed"]
        done = [i for i in rows if entries[i]["state"] == "completed"]
        completed = max((_number(entries[i]) for i in done), default=-1)
        lanes[name] = Lane(
            _group(entries[rows[0]], groups),
            max((_number(entries[i]) for i in waiting), default=completed),
            completed,
            [_call(entries, i, groups, i == waiting[0]) for i in waiting[:_MOST]],
            [_call(entries, i, groups, frames=False) for i in done[-_MOST:]],
            len(waiting),
        )
    return Standing(
        groups, lanes, messages, _counters(document, groups), frozenset(with_messages),
        _call(entries, len(entries) - 1, groups) if entries else None, document["last_ns"], len(entries),
        any(entry["state"] == "started" for entry in entries), rank_of(trace)[1],
    )  # fmt: skip


def _with_coalesced(
    entries: Sequence[Any], groups: Sequence[tuple[str, str]]
) -> tuple[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]]:
    """Return the calls of a dump and their groups.

    A call ``coalesced`` follows those that it launches as one; only its own state is kept up to date.
    """
    if not any(kind_of(name) == "coalesced" for name in {str(one.get("profiling_name")) for one in entries}):
        return entries, groups
    found: list[Mapping[str, Any]] = []
    pending: dict[str, list[int]] = {}
    for entry in entries:
        name = group_of(entry)[0]
        if kind_of(entry.get("profiling_name")) != "coalesced":
            pending.setdefault(name, []).append(len(found))
            found.append(entry)
            continue
        numbers = [entry.get(key) for key in ("collective_seq_id", "p2p_seq_id")]
        own = [
            i for i in pending.pop(name, [])
            if [found[i].get(key) for key in ("collective_seq_id", "p2p_seq_id")] == numbers
        ]  # fmt: skip
        shared = {key: entry.get(key) for key in ("state", *TIMES[1:])}
        if own and all(found[i].get("is_p2p") for i in own):
            for i in own:
                found[i] = {**found[i], **shared}
        else:
            found = [one for i, one in enumerate(found) if i not in own]
            pending = {}
            found.append(entry)
    return found, [group_of(entry) for entry in found]


def groups_of(document: Mapping[str, Any]) -> dict[str, Group]:
    """Return the groups of a dump, by name."""
    config = document.get("pg_config")
    found = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(key, str) and isinstance(value, dict):
            ranks = value.get("ranks")
            if isinstance(ranks, list | tuple):
                ranks = ",".join(map(str, map(whole, ranks)))
            found[text_of(key)] = Group(
                text_of(key), text_of(value.get("desc")), _spans(text_of(ranks, None))
            )
    return found


@lru_cache(256)
def _spans(text: str) -> Spans:
    return spans_of([n for n in map(int, re.findall(r"(?<!-)\b\d{1,9}", text)) if n < _MOST_RANKS])


def _group(entry: Mapping[str, Any], groups: Mapping[str, Group]) -> Group:
    name, description = group_of(entry)
    return groups.get(name) or Group(name, description, ())


def _number(entry: Mapping[str, Any]) -> int:
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    return whole(number)


def _call(
    entries: Sequence[Mapping[str, Any]], i: int, groups: Mapping[str, Group], frames: bool = True
) -> Call:
    entry = entries[i]
    group, kind = _group(entry, groups), kind_of(entry.get("profiling_name"))
    peer = None
    if entry.get("is_p2p") and (match := _MESSAGE.search(text_of(entry.get("profiling_name")))):
        place = int(match[2])
        peer = group.members[place] if place < len(group.members) else place if not group.members else None
    sizes = [_sizes(entry.get(key)) for key in ("input_sizes", "output_sizes")]
    bare = kind.strip("_").removesuffix("_base")
    agreed = "" if any(part in kind for part in _UNEVEN) and not _is_even(bare) else _elements(sizes)
    return Call(
        group, kind, _number(entry), i, peer, not is_rooted(kind) and peer is None, agreed,
        ", ".join(_dtypes(entry, "input_dtypes") or _dtypes(entry, "output_dtypes")),
        " -> ".join(dict.fromkeys(", ".join(map(str, one)) for one in sizes if one)),
        whole(entry.get("time_created_ns")), entry["state"] == "started",
        _frames(entry) if frames else (),
    )  # fmt: skip


def is_rooted(kind: str) -> bool:
    """Whether some members of a collective may complete it before the others have come."""
    bare = kind.strip("_")
    return bare.startswith(_ROOTED) and not bare.startswith("reduce_scatter")


def _is_even(bare: str) -> bool:
    return bare in ("all_gather", "reduce_scatter", "allgather")


def _sizes(value: Any) -> list[list[int]]:
    if not isinstance(value, list | tuple):
        return []
    return [[whole(n) for n in one] for one in value if isinstance(one, list | tuple)][:_MOST]


def _elements(sizes: Sequence[Sequence[Sequence[int]]]) -> str:
    """Return how many elements go in and come out: a library sees no shapes."""
    return "->".join(str(sum(math.prod(one) for one in part)) for part in sizes)


def _dtypes(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key)
    return list(dict.fromkeys(map(text_of, value))) if isinstance(value, list | tuple) else []


def _frames(entry: Mapping[str, Any]) -> list[str]:
    """Return the innermost frames, the user's own before those of libraries."""
    frames = entry.get("frames")
    known = [one for one in frames if isinstance(one, dict)] if isinstance(frames, list | tuple) else []
    own = [one for one in known if not _OWN_CODE.search(text_of(one.get("filename")))] or known
    named = [[text_of(one.get(key)) for key in ("name", "filename")] for one in own[:_MOST_FRAMES]]
    return [
        f"{name} ({path.rpartition('/')[2]}:{whole(one.get('line'))})"
        for (name, path), one in zip(named, own, strict=False)
    ]


def _counters(document: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, tuple[int, int]]:
    """Return the last number called and the last one completed of each group, as far as it is told whose.

    Counters go by numbers of the process's own, which entries tie to names of groups. Where there are as many
    counters as groups, both in the order in which they were made, the others follow by their place.
    """
    status = document.get("pg_status")
    status = status if isinstance(status, dict) else {}
    pairs = zip(document["entries"], document["groups"], strict=True)
    tied = {str(number): name for number, name in {(whole(one.get("pg_id")), own[0]) for one, own in pairs}}
    ids = sorted((key for key in map(str, status) if key.isdecimal()), key=int)
    names = sorted((name for name in groups if name.isdecimal()), key=int)
    if len(ids) == len(status) == len(groups) == len(names):
        by_place = dict(zip(ids, names, strict=True))
        if all(by_place.get(key, name) == name for key, name in tied.items()):
            tied = by_place
    found = {}
    for key, value in status.items():
        if isinstance(value, dict) and (name := tied.get(str(key))) is not None:
            counters = [whole(value.get(f"last_{what}_collective")) for what in ("enqueued", "completed")]
            found[name] = (counters[0], counters[1])
    return found


def rank_of(trace: Trace) -> tuple[int | None, str]:
    """Return the rank of a dump, and what tells it: the file's name, else the groups, which all have it."""
    name = Path(trace.path).name
    members = [group.members for group in groups_of(trace.header["recorder"]).values() if group.members]
    found = [
        int(n) for n in re.findall(r"(?i)rank[-_.]?(\d{1,9})", name) or re.findall(r"\d{1,9}", name)[::-1]
    ]
    for rank in found:
        if all(rank in own for own in members):
            return rank, "the file names"
    common = set.intersection(*map(set, members)) if members else set()
    return (common.pop(), "the groups in the dumps") if len(common) == 1 else (None, "")
