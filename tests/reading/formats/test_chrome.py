"""Chrome traces as columns, with the begins and ends of slices."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.reading.formats import chrome, native
from analyzer.reading.formats.builder import Builder, pair
from analyzer.reading.formats.event import EndRule

Row = tuple[str, int, int]  # B or E, track, ts


def pairs(
    rows: list[Row], names: list[int] | None = None, rule: EndRule = EndRule.NESTED
) -> tuple[list[tuple[int, int]], int, int]:
    begin, end = pair(
        np.array([row[0] == "B" for row in rows], np.bool_),
        np.array([row[1] for row in rows], np.int32),
        np.array([row[2] for row in rows], np.int64),
        np.array(names or [0] * len(rows), np.int32),
        rule,
    )
    n_begins = sum(row[0] == "B" for row in rows)
    alone = n_begins - len(begin), len(rows) - n_begins - len(end)
    return list(zip(begin.tolist(), end.tolist(), strict=True)), *alone


def by_hand(rows: list[Row]) -> tuple[list[tuple[int, int]], int, int]:
    """The definition, for rows in time order: a stack for each track."""
    stacks: dict[int, list[int]] = {}
    found, unopened = [], 0
    for i, (phase, track, _) in enumerate(rows):
        stack = stacks.setdefault(track, [])
        if phase == "B":
            stack.append(i)
        elif stack:
            found.append((stack.pop(), i))
        else:
            unopened += 1
    return sorted(found), sum(map(len, stacks.values())), unopened


def test_pairs_out_of_time_order_with_a_shared_instant() -> None:
    # file order: [5, 7] then [3, 5]; each E right behind its B
    assert pairs([("B", 0, 5), ("E", 0, 7), ("B", 0, 3), ("E", 0, 5)]) == ([(0, 1), (2, 3)], 0, 0)


@given(st.lists(st.tuples(st.sampled_from("BE"), st.integers(0, 1), st.integers(0, 3)), max_size=40))
def test_by_name_agrees_with_a_search_of_the_stack(events: list[tuple[str, int, int]]) -> None:
    stacks: dict[int, list[int]] = {}
    expected = []
    for row, (phase, track, name) in enumerate(events):
        stack = stacks.setdefault(track, [])
        if phase == "B":
            stack.append(row)
        elif fitting := [begin for begin in stack if events[begin][2] == name]:
            stack.remove(fitting[-1])
            expected.append((fitting[-1], row))
    rows: list[Row] = [(phase, track, row) for row, (phase, track, _) in enumerate(events)]
    names = [name for _, _, name in events]
    assert not events or pairs(rows, names, EndRule.NESTED_BY_NAME)[0] == sorted(expected)


@given(
    st.lists(st.tuples(st.sampled_from("BE"), st.integers(0, 2), st.integers(0, 3)), max_size=40).map(
        lambda rows: [(p, t, ts) for (p, t, _), ts in zip(rows, np.cumsum([r[2] for r in rows]), strict=True)]
    )
)
def test_agrees_with_a_stack_on_files_in_time_order(rows: list[Row]) -> None:
    assert pairs(rows) == by_hand(rows)


def test_an_adjacent_end_closes_its_begin_despite_overlap() -> None:
    rows: list[Row] = [("B", 1, 0), ("E", 1, 9), ("B", 1, 2), ("E", 1, 5)]
    assert pairs(rows, rule=EndRule.NEIGHBOURS) == ([(0, 1), (2, 3)], 0, 0)


def test_begins_without_an_adjacent_end_nest() -> None:
    rows: list[Row] = [("B", 1, 0), ("B", 2, 1), ("E", 1, 3), ("E", 2, 4), ("B", 1, 5), ("E", 3, 6)]
    assert pairs(rows, rule=EndRule.NEIGHBOURS) == ([(0, 2), (1, 3)], 1, 1)


@given(st.lists(st.integers(0, 2), max_size=20))
def test_neighbours_and_nesting_agree_where_nothing_overlaps(tracks: list[int]) -> None:
    rows: list[Row] = [
        (phase, track, 2 * i + k) for i, track in enumerate(tracks) for k, phase in enumerate("BE")
    ]
    assert pairs(rows, rule=EndRule.NEIGHBOURS) == pairs(rows)


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_a_decoder_does_not_outlive_its_file(tmp_path: Path, scan: bool) -> None:
    if scan and native.library() is None:
        pytest.skip("no compiler")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]))
    gc.collect()
    gc.disable()  # as good as disabled it is in a process that reads hundreds of files
    try:
        chrome.read_rows(path, scan=scan)
        assert not [builder for builder in gc.get_objects() if type(builder) is Builder]
    finally:
        gc.enable()
