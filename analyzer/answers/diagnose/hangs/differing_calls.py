"""Calls that the members of a group made differently.

The minority is at fault. If the sides are equal, the calls of this number in similar groups (of the same
description and size) decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from analyzer.answers.diagnose.finding import HALF
from analyzer.reading.formats.recorder.standing import DumpedCall, Group, Lane

Key = tuple[str, Sequence[int]]  # a group's name and members
_UNNAMED = ("", "undefined")  # descriptions of groups that were given none


class DifferingCalls:
    """The collectives of all ranks, by group and number; see above."""

    def __init__(self, lanes: Mapping[Key, Mapping[int, Lane]]) -> None:
        self._lanes = lanes
        self._by: dict[tuple[Key, int], dict[str, list[int]]] = {}
        for key in filter(lambda key: key[1], lanes):
            open_numbers = {call.number for lane in lanes[key].values() for call in lane.first}
            by: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
            for rank, call in _calls(lanes[key]):
                if call.number in open_numbers:
                    by[call.number][call.signature].append(rank)
            self._by |= {(key, number): dict(ranks) for number, ranks in by.items() if len(ranks) > 1}

    def __contains__(self, node: object) -> bool:
        """Tell if members made the call of this group and number differently."""
        return node in self._by

    def by_signature(self, key: Key, number: int) -> Mapping[str, Sequence[int]]:
        """Group the members of a differing call by their signatures."""
        return self._by[key, number]

    def from_number(self, key: Key, number: int) -> int | None:
        """Find the first differing call from this one on: a rank that left one out differs later."""
        return min((n for other, n in self._by if other == key and n >= number), default=None)

    def guilty(self, key: Key, number: int) -> Sequence[int]:
        """Find the ranks at fault: all if unknown; () if some have not made the call."""
        by = self._by[key, number]
        sizes = sorted(map(len, by.values()))
        is_whole = sum(sizes) == len(key[1])
        if sizes[-1] > sizes[-2] and (is_whole or sizes[-1] > HALF * len(key[1])):
            return sorted(rank for ranks in by.values() if len(ranks) < sizes[-1] for rank in ranks)
        group = next(iter(self._lanes[key].values())).group
        usual = {call.signature for rank, call in self.alike(group, number).items() if rank not in key[1]}
        if len(usual & by.keys()) == 1:
            return sorted(rank for words, ranks in by.items() if words not in usual for rank in ranks)
        return sorted(rank for ranks in by.values() for rank in ranks) if is_whole else ()

    def alike(self, group: Group, number: int) -> Mapping[int, DumpedCall]:
        """Look up the calls of a number by the ranks of this group and of similar groups."""
        return self._alike.get((_role(group), number), {})

    @cached_property
    def _alike(self) -> Mapping[tuple[object, int], Mapping[int, DumpedCall]]:
        calls: dict[tuple[object, int], dict[int, DumpedCall]] = defaultdict(dict)
        ambiguous = set()  # ranks in two similar groups
        for key in filter(lambda key: key[1], self._lanes):
            for rank, call in _calls(self._lanes[key]):
                of_number = calls[_role(call.group), call.number]
                if rank in of_number:
                    ambiguous.add((_role(call.group), rank))
                of_number[rank] = call
        for role, rank in ambiguous:
            for (other, _), of_number in calls.items():
                if other == role:
                    of_number.pop(rank, None)
        return calls


def _calls(lanes: Mapping[int, Lane]) -> Iterator[tuple[int, DumpedCall]]:
    for rank, lane in lanes.items():
        for call in (*lane.done, *lane.first):
            yield rank, call


def _role(group: Group) -> tuple[object, ...]:
    if group.is_named and group.description not in _UNNAMED:
        return group.description, len(group.members)
    return group.key
