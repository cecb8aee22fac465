"""Processes and threads of written traces: numbered, named, and in order."""

from __future__ import annotations

import json
from pathlib import Path

from formats.chrome_writer import Places, Process, Slice, write_timeline


def test_numbers_of_threads_that_are_numbers_stay() -> None:
    places = Places()
    pid = places.process("Comm.x", "Comm.x")
    assert pid == 1
    assert places.thread(pid, "786432", "") == 786432
    invented = places.thread(pid, "total", "total")
    assert invented >= 2_000_000_000  # no operating system has such a thread
    assert invented < 1 << 31  # Perfetto reads larger ones as 0
    assert places.thread(pid, "total", "total") == invented
    assert places.thread(places.process("Comm.y", "Comm.y"), "786432", "") == 786432


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


def test_tracks_are_numbered_from_one_and_overlap_gets_a_track_more(tmp_path: Path) -> None:
    slices = [Slice("a", 0, 10), Slice("b", 5, 8)]
    path = tmp_path / "a.json"
    assert write_timeline(path, [Process("host", {"link": slices})], "net") == 2
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {1: "link", 2: "link (2)"}
    assert [(event["name"], event["tid"]) for event in events if event["ph"] == "X"] == [("a", 1), ("b", 2)]
