"""The tables and the picture of a hang: each rank in each group, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from diagnose.hang_findings import clock
from diagnose.hangs import Hang
from errors import in_words
from formats.recorder.standing import Group, Lane, Standing
from result import Cell, Column, Network, Table

_MOST_GROUPS = 10  # kinds of groups that have a column
_MOST_NODES = 200
_RANKS = (
    Column("rank", "rank", "id"),
    Column("state", "state"),
    Column("call", "waits in"),
    Column("since", "since"),
    Column("on", "for"),
    Column("last", "last time in the dump"),
    Column("path", "dump"),
)


def hang_tables(hang: Hang, ranks: Mapping[int, Standing], paths: Mapping[int, str]) -> list[Table]:
    """Return each rank's wait, the guilty ranks first, and each rank's place in each group."""
    guilty = _guilty(hang)
    order = sorted({*ranks, *guilty}, key=lambda rank: (rank not in guilty, rank))
    rows: list[list[Cell]] = []
    for rank in order:
        wait, own = hang.waits.get(rank), ranks.get(rank)
        since = wait.call.at_ns if wait else -1
        has_open = own and (own.messages or any(lane.n_open for lane in own.lanes.values()))
        state = "waits" if wait else "calls open" if has_open else "nothing open"
        rows.append([
            rank,
            guilty.get(rank) or state,
            str(wait.call) if wait else "",
            clock(since) if since > 0 else "",
            in_words(wait.on) + (" (held)" if wait.is_held else "") if wait else "",
            clock(own.last_ns) if own and own.last_ns > 0 else "",
            paths.get(rank, ""),
        ])  # fmt: skip
    return [Table("ranks", "Who waits for whom", _RANKS, rows), _groups(order, ranks)]


def _guilty(hang: Hang) -> dict[int, str]:
    return {rank: root.cause.value for root in reversed(hang.roots) for rank in root.ranks}


def _groups(order: Sequence[int], ranks: Mapping[int, Standing]) -> Table:
    """Return for each rank the last collectives that it completed, and called, in groups with open ones."""
    last: dict[Group, int] = defaultdict(int)  # called by any member
    open_calls: dict[str, int] = defaultdict(int)
    for lane in (lane for one in ranks.values() for lane in one.lanes.values()):
        last[lane.group] = max(last[lane.group], lane.entered)
        open_calls[_kind(lane.group)] += lane.n_open
    shown = sorted((kind for kind, n in open_calls.items() if n), key=lambda kind: -open_calls[kind])[
        :_MOST_GROUPS
    ]
    columns = [Column("rank", "rank", "id")]
    columns += [Column(kind, kind) for kind in shown]
    rows: list[list[Cell]] = []
    for rank in order:
        lanes = {_kind(lane.group): lane for lane in ranks[rank].lanes.values()} if rank in ranks else {}
        rows.append([rank, *(_cell(lanes.get(kind), last) for kind in shown)])
    note = "Collectives of each group: completed / called; how many fewer than another member called."
    return Table("groups", "Ranks and groups", columns, rows, note=note)


def _kind(group: Group) -> str:
    return group.description or group.name


def _cell(lane: Lane | None, last: Mapping[Group, int]) -> str:
    if lane is None:
        return ""
    entered, completed = lane.reached(with_counters=lane.entered < 0)
    if entered < 0:
        return ""
    behind = last[lane.group] - entered
    completed = entered - lane.n_open if completed < 0 else completed
    return f"{completed} / {entered}" + (f" ({behind} fewer)" if behind > 0 else "")


def hang_picture(hang: Hang) -> list[Network]:
    """Return who waits for whom: ranks that wait alike are one box, the causes stand at the right."""
    if not hang.roots:
        return []
    import networkx

    guilty = _guilty(hang)
    alike: dict[object, list[int]] = defaultdict(list)
    for rank, wait in hang.waits.items():
        call = wait.call
        key = (tuple(wait.on), call.kind, call.group.description, call.number if call.peer is None else None)
        alike[rank if rank in guilty else key].append(rank)
    for rank in guilty:
        if rank not in hang.waits:
            alike[rank].append(rank)
    boxes = list(alike.values())
    place = {rank: i for i, box in enumerate(boxes) for rank in box}
    edges = sorted({
        (i, place[on], "waits for")
        for i, box in enumerate(boxes)
        if box[0] in hang.waits
        for on in hang.waits[box[0]].on
        if on in place and place[on] != i
    })  # fmt: skip
    roots = [i for i, box in enumerate(boxes) if box[0] in guilty]
    held = {a for a, b, _ in edges if a in roots and b in roots}
    waits_of = networkx.DiGraph([(b, a) for a, b, _ in edges])
    waits_of.add_nodes_from(range(len(boxes)))
    layers = networkx.bfs_layers(waits_of, [i for i in roots if i not in held] or roots)
    depth = dict.fromkeys(range(len(boxes)), 1) | {i: far for far, layer in enumerate(layers) for i in layer}
    kept = sorted(depth, key=lambda i: (depth[i], boxes[i]))[:_MOST_NODES]
    new = {old: i for i, old in enumerate(kept)}
    nodes: list[dict[str, object]] = []
    for far, layer in groupby(kept, key=depth.__getitem__):
        for row, i in enumerate(layer):
            first = hang.waits.get(boxes[i][0])
            nodes.append({
                "label": in_words(boxes[i]),
                "cat": guilty.get(boxes[i][0]) or "waits",
                "x": float(max(depth.values()) - far),
                "y": float(row),
                "dur_ms": None,
                "critical": boxes[i][0] in guilty,
                "waits in": str(first.call) if first else "nothing",
            })  # fmt: skip
    lines = [(new[a], new[b], kind) for a, b, kind in edges if a in new and b in new]
    left = f"{len(boxes) - len(kept)} more boxes are left out. " if len(kept) < len(boxes) else ""
    note = f"{left}An arrow leads from who waits to whom it waits for; the framed ranks are the cause."
    return [Network("Who waits for whom", nodes, lines, note, marked="the cause")]
