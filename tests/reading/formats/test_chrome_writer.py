"""Processes and threads of written traces: numbered, named, and in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analyzer.reading.formats.chrome_writer import Places, Slice, ThreadRow, write_timeline
from analyzer.reading.formats.values import microseconds


def written(path: Path, *rows: ThreadRow) -> list[dict[str, Any]]:
    write_timeline(path / "a.json", rows)
    events: list[dict[str, Any]] = json.loads((path / "a.json").read_text())["traceEvents"]
    return events


def test_kept_thread_numbers_stay() -> None:
    places = Places(["786432", "total", 2])
    pid = places.process("Comm.x", "Comm.x")
    assert pid == 1
    assert places.thread(pid, "786432", "") == 786432
    # a viewer shows the thread first whose number is that of its process; 2 is another's
    assert [places.thread(pid, key, key) for key in ("total", "total", "other")] == [3, 3, 4]
    assert places.thread(places.process("Comm.y", "Comm.y"), "786432", "") == 786432


def test_a_number_that_viewers_cannot_read_is_replaced() -> None:
    places = Places([1 << 31, 17744863269121484553])
    assert places.thread(places.process("a", "a"), 1 << 31, "") == 2


def test_overlapping_slices_go_to_further_threads(tmp_path: Path) -> None:
    #  |0--------10|
    #  |0--5|    |10-12|       touch and nest
    #      |4--------11|       begins in one and ends after it: beside
    #         |6-7|            nests again
    spans = [(0, 10), (0, 5), (4, 11), (6, 7), (10, 12)]
    slices = [Slice(str(i), start, end) for i, (start, end) in enumerate(spans)]
    events = written(tmp_path, ThreadRow("a", "a", "t", "t", slices, nests=True))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    shown = {event["name"]: names[event["tid"]] for event in events if event["ph"] == "X"}
    assert shown == {"0": "t", "1": "t", "2": "t (2)", "3": "t", "4": "t"}


def test_times_are_exact_microseconds() -> None:
    told = [str(bytes(microseconds(ns)), "ascii") for ns in (0, 1_500, 1_700_000_000_000_000_001, -1, -2_000)]
    assert told == ["0", "1.5", "1700000000000000.001", "-0.001", "-2"]


def test_names_and_order_come_first_and_once(tmp_path: Path) -> None:
    told = [
        (event["name"], event["args"])
        for event in written(tmp_path, *[ThreadRow("a", "rank0", None, "", [Slice("x", 0, 1)])] * 2)
        if event["ph"] == "M"
    ]
    assert told == [
        ("process_name", {"name": "rank0"}), ("process_sort_index", {"sort_index": 1}),
        ("thread_name", {"name": "events"}), ("thread_sort_index", {"sort_index": 1}),
    ]  # fmt: skip


def test_inner_slices_follow_to_a_further_thread(tmp_path: Path) -> None:
    slices = [Slice("a", 0, 10), Slice("b", 5, 8, inner=[Slice("c", 6, 7)])]
    events = written(tmp_path, ThreadRow("host", "host", "link", "link", slices))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {2: "link", 3: "link (2)"}  # 1 is the process
    boxes = [(event["name"], event["tid"]) for event in events if event["ph"] == "X"]
    assert boxes == [("a", 2), ("b", 3), ("c", 3)]
