"""The tables of a hang: who waits for whom, and each rank in each group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from analyzer.answers.diagnose.hangs.find_hang import Hang, clock
from analyzer.base.errors import in_words
from analyzer.reading.formats.recorder.standing import Group, Lane, Standing
from analyzer.report.result import Cell, Column, Table

_MOST_GROUPS = 10  # most kinds of groups with a column
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
    """List the wait of each rank, the guilty ranks first, and the progress of each rank in each group."""
    guilty = {rank: root.cause.value for root in reversed(hang.roots) for rank in root.ranks}
    order = sorted({*ranks, *guilty}, key=lambda rank: (rank not in guilty, rank))
    rows: list[list[Cell]] = []
    for rank in order:
        wait, dump = hang.waits.get(rank), ranks.get(rank)
        has_open = dump and (dump.messages or any(lane.n_open for lane in dump.lanes.values()))
        state = "waits" if wait else "calls open" if has_open else "nothing open"
        rows.append([
            rank,
            guilty.get(rank) or state,
            str(wait.call) if wait else "",
            clock(wait.call.at_ns) if wait and wait.call.at_ns > 0 else "",
            in_words(wait.on) + (" (held)" if wait.is_held else "") if wait else "",
            clock(dump.last_ns) if dump and dump.last_ns > 0 else "",
            paths.get(rank, ""),
        ])  # fmt: skip
    return [Table("ranks", "Who waits for whom", _RANKS, rows), _groups(order, ranks)]


def without_date(waits: Table) -> Table:
    """Move the date of all times to a note, so that the table fits a terminal."""
    times = [i for i, column in enumerate(waits.columns) if column.key in ("since", "last")]
    dates = {str(row[i])[:10] for row in waits.rows for i in times if row[i]}
    if len(dates) != 1:
        return waits
    rows = [[str(cell)[11:23] if i in times else cell for i, cell in enumerate(row)] for row in waits.rows]
    return waits._replace(rows=rows, note=f"Times are those of {dates.pop()}, UTC.")


def _groups(order: Sequence[int], ranks: Mapping[int, Standing]) -> Table:
    """List the last completed and the last called collective of each rank, in groups with open calls."""
    last: dict[Group, int] = defaultdict(int)  # called by any member
    open_calls: dict[str, int] = defaultdict(int)
    for lane in (lane for dump in ranks.values() for lane in dump.lanes.values()):
        last[lane.group] = max(last[lane.group], lane.entered)
        open_calls[_kind(lane.group)] += lane.n_open
    with_open = [kind for kind, n in open_calls.items() if n]
    shown = sorted(with_open, key=lambda kind: -open_calls[kind])[:_MOST_GROUPS]
    columns = [Column("rank", "rank", "id"), *(Column(kind, kind) for kind in shown)]
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
