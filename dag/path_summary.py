"""A critical path in words: its stretches named, and the same summed by name and by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dag.critical_path import NO_EVENT, CriticalPath, Stretch
from dag.step_graph import Recording, StepGraph
from dialects.step_parts import GAP, WAIT, Kind, Operation
from result import Cell, Column, Table

#: Category of what moves data between ranks, where the recording's own does not say so.
COMMUNICATION = "communication"

_LABELS = [kind.label for kind in Kind]


_WHAT = (
    Column("name", "operation"),
    Column("cat", "category"),
    Column("rank", "rank", value=lambda item: item.owner),
)
#: Columns of a `NameShare`.
BY_NAME = (
    *_WHAT,
    Column("count", "count", "int", minor=2, value=lambda share: share.stretches),
    Column("ms", "on the path (ms)", "float", value=lambda share: share.ns / 1e6),
    Column("share", "share", "percent", 1),
)
#: Columns of a `PathItem`.
PATH = (
    *_WHAT,
    Column("ts_ms", "after the step's start (ms)", "float", value=lambda item: item.start_ns / 1e6),
    Column("dur_ms", "on the path (ms)", "float", value=lambda item: item.dur_ns / 1e6),
    Column("because", "after", minor=1),
)


class PathItem(NamedTuple):
    """One stretch of a path, named."""

    name: str  # without the owner
    cat: str
    owner: str
    start_ns: int  # from the begin of the step
    dur_ns: int
    because: str  # why the path entered it: the kind of the edge; "" for its begin


class NameShare(NamedTuple):
    """What one operation of one owner adds to a path."""

    name: str
    cat: str
    owner: str
    stretches: int
    ns: int
    share: float  # of the path


def path_items(
    recording: Recording, step: StepGraph, path: CriticalPath, *, parts: bool = False
) -> list[PathItem]:
    """Return the stretches of a path in time order; their times add up to its length.

    Without `parts`, the partitions and stages of a communication that follow each other are one stretch.
    """
    items: list[PathItem] = []
    begin = int(step.begin_ns[path.owner])
    for stretch in path.stretches:
        item = path_item(recording, step, stretch, begin, parts=parts)
        if items and items[-1][:3] == item[:3]:
            items[-1] = items[-1]._replace(dur_ns=items[-1].dur_ns + item.dur_ns)
        else:
            items.append(item)
    return items


def by_name(items: Iterable[PathItem]) -> list[NameShare]:
    """Return the path summed by operation and owner, the largest first."""
    count, ns = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for item in items:
        count[item[:3]] += 1
        ns[item[:3]] += item.dur_ns
    length = max(ns.total(), 1)
    shares = [NameShare(*key, count[key], ns[key], ns[key] / length) for key in ns]
    return sorted(shares, key=lambda share: -share.ns)


def records(items: Iterable[PathItem], *, owned: bool) -> list[dict[str, Cell]]:
    """Return the path for JSON; where several ranks have one (`owned`), operations are named with theirs."""
    name = Column("name", "", value=lambda item: f"{item.owner}.{item.name}" if owned else item.name)
    return Table.of("path", "", (name, *PATH[1:]), items).records()


def by_category(items: Iterable[PathItem]) -> dict[str, int]:
    """Return the nanoseconds of the path per category, the largest first."""
    sums: Counter[str] = Counter()
    for item in items:
        sums[item.cat] += item.dur_ns
    return dict(sums.most_common())


def headline(recording: Recording, step: StepGraph, path: CriticalPath, items: Sequence[PathItem]) -> str:
    """Return one sentence: how long the step is, and what makes it so."""
    sums: Counter[tuple[str, str]] = Counter()
    for item in items:
        sums[item.cat, item.owner] += item.dur_ns
    ranked = sums.most_common(3)
    largest = [(key, ns) for key, ns in ranked if 100 * ns >= path.length_ns] or ranked[:1]
    several = len(recording.owners) > 1
    shares = [
        f"{ns / max(path.length_ns, 1):.0%} {_WORDS.get(cat, cat)}" + (f" on {owner}" if several else "")
        for (cat, owner), ns in largest
    ]
    ends = f" and ends last on {recording.owners[path.owner]}" if several else ""
    length = f"{path.length_ns / 1e6:.1f} ms"
    return f"Step {step.number} takes {length}{ends}; its critical path is {_listed(shares)}."


_WORDS = {GAP: "time in which nothing was recorded", WAIT: "waiting for other ranks", "": "other"}


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def path_item(
    recording: Recording, step: StepGraph, stretch: Stretch, begin: int, *, parts: bool
) -> PathItem:
    """Return one stretch named; `begin` (ns) is that of the path's step, `parts` as for `path_items`."""
    owner = recording.owners[stretch.owner]
    because = "" if stretch.kind < 0 else _LABELS[stretch.kind]
    times = (stretch.start_ns - begin, stretch.dur_ns)
    if stretch.event == NO_EVENT:
        where = "before the step" if stretch.start_ns == begin else "before the next step"
        return PathItem(where, GAP, owner, *times, because)
    operation = recording.operations[int(step.operation[stretch.event])]
    name = operation.label if parts else operation.main
    if stretch.cat == GAP:
        return PathItem(f"before {name}", GAP, owner, *times, because)
    if stretch.cat == WAIT:
        return PathItem(f"{name} waits for another rank", WAIT, owner, *times, because)
    return PathItem(name, category(operation), owner, *times, because)


def category(operation: Operation) -> str:
    """Return what an operation is counted under: the recording's category, or that it communicates."""
    return COMMUNICATION if operation.is_communication and operation.cat != "Comm" else operation.cat
