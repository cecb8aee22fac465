"""A replay written as a trace: in order of time, and read back as what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

from analyzer.cli.replay.replayed import write_synthetic
from make import rank_steps, recording
from replay.runs import simulated


def test_written_events_are_sorted_by_time_on_named_tracks(tmp_path: Path) -> None:
    ranks = [rank_steps(f"rank{i}", {"late": (50, 60), "early": (10, 20)}, bounds=(0, 70)) for i in range(2)]
    result = simulated(recording(*ranks), [0])
    assert write_synthetic(result, tmp_path / "a.json") == 4
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["rank0.early", "rank1.early", "rank0.late", "rank1.late"]
    assert [event["ts"] for event in slices] == [0.010, 0.010, 0.050, 0.050]
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {1: "rank0.rank0", 2: "rank1.rank1"}  # a rank's track is called as the rank here
    assert [processes[event["pid"]] for event in slices] == [processes[1], processes[2]] * 2


def test_times_count_from_the_first_step_which_the_header_states(tmp_path: Path) -> None:
    epoch = 1_700_000_000_000_000_001
    own = rank_steps(
        "rank0", {"a": (epoch + 1, epoch + 2), "b": (epoch + 2, epoch + 4)}, bounds=(epoch, epoch + 4)
    )
    write_synthetic(simulated(recording(own), [0]), tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["baseTimeNanoseconds"] == epoch
    # as float64 since the epoch both would begin at the same time, and b be left out by a viewer
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(event["ts"], event["dur"]) for event in slices] == [(0.001, 0.001), (0.002, 0.002)]
