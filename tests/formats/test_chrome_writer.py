"""Processes and threads of written traces: numbered, named, and in order."""

from __future__ import annotations

import json
from pathlib import Path

from formats.chrome_writer import Places, Process, Slice, write_timeline
from formats.times import microseconds


def test_numbers_of_threads_that_are_kept_stay() -> None:
    places = Places(["786432", "total", 2])
    pid = places.process("Comm.x", "Comm.x")
    assert pid == 1
    assert places.thread(pid, "786432", "").tid == 786432
    # a viewer shows the thread first whose number is that of its process; 2 is another's
    invented = places.thread(pid, "total", "total")
    assert invented.tid == 3
    assert places.thread(pid, "total", "total") == invented
    assert places.thread(pid, "other", "other").tid == 4
    assert places.thread(places.process("Comm.y", "Comm.y"), "786432", "").tid == 786432


def test_a_number_that_viewers_cannot_read_is_replaced() -> None:
    places = Places([1 << 31, 17744863269121484553])
    assert places.thread(places.process("a", "a"), 1 << 31, "").tid == 2


def test_slices_of_a_thread_nest_or_go_beside_it() -> None:
    places = Places()
    thread = places.thread(places.process("a", "a"), "t", "t")
    #  |0--------10|
    #  |0--5|    |10-12|       touch and nest
    #      |4--------11|       begins in one and ends after it: beside
    #         |6-7|            nests again
    found = places.nested([thread], [0] * 5, [0, 0, 4, 6, 10], [10, 5, 11, 7, 12])
    beside = found[2]
    assert found == [thread, thread, beside, thread, thread]
    assert (beside.pid, beside.name) == (thread.pid, "t (2)")


def test_times_are_exact_microseconds() -> None:
    told = [str(bytes(microseconds(ns)), "ascii") for ns in (0, 1_500, 1_700_000_000_000_000_001, -1, -2_000)]
    assert told == ["0", "1.5", "1700000000000000.001", "-0.001", "-2"]


def test_names_and_order_are_told_once() -> None:
    places = Places()
    places.thread(places.process("a", "rank0"), None, "")
    told = [(event["name"], event["args"]) for event in places.names()]
    assert told == [
        ("process_name", {"name": "rank0"}), ("process_sort_index", {"sort_index": 1}),
        ("thread_name", {"name": "events"}), ("thread_sort_index", {"sort_index": 1}),
    ]  # fmt: skip
    places.thread(places.process("a", "rank0"), None, "")
    assert places.names() == []


def test_tracks_are_numbered_in_order_and_overlap_gets_a_track_more(tmp_path: Path) -> None:
    slices = [Slice("a", 0, 10), Slice("b", 5, 8)]
    path = tmp_path / "a.json"
    assert write_timeline(path, [Process("host", {"link": slices})], "net") == 2
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {2: "link", 3: "link (2)"}  # 1 is the process
    assert [(event["name"], event["tid"]) for event in events if event["ph"] == "X"] == [("a", 2), ("b", 3)]
