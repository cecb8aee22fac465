"""The chart of a step: every event where it was, the path through them, and what is left out of many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from analyzer.cli import step_timeline as timelines
from analyzer.cli.step_timeline import step_timeline
from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Edge, Meeting, Transfer
from analyzer.report.result import Timeline, key_of, stretch_key
from make import rank_steps, recording

MS = 1_000_000


def late_rank(work: str = "work") -> Recording:
    """Both compute, then reduce together: rank0 is ready at 10 ms, rank1 at 70; the transfer takes 5."""
    meetings = [Meeting("reduce", 1, enters=True, leaves=True)]
    ranks = [
        rank_steps(f"rank{i}", {work: (0, ready * MS), "reduce": (ready * MS, 75 * MS)}, [Edge(0, 1)],
                   bounds=(0, 75 * MS), meetings=meetings)
        for i, ready in enumerate((10, 70))
    ]  # fmt: skip
    return recording(*ranks)


def drawn(job: Recording, **settings: object) -> Timeline:
    step = job.steps[0]
    return step_timeline("Step", job, step, critical_path(step), **settings)  # type: ignore[arg-type]


def test_every_event_is_where_it_was_and_the_path_goes_through_who_was_waited_for() -> None:
    chart = drawn(late_rank())
    assert [(span.lane, span.name, span.start_ms, span.dur_ms) for span in chart.spans] == [
        ("rank0 computation", "work", 0, 10), ("rank0 computation", "reduce", 10, 65),
        ("rank1 computation", "work", 0, 70), ("rank1 computation", "reduce", 70, 5),
    ]  # fmt: skip
    stops = [(chart.spans[part.on].lane, part.name, part.start_ms, part.dur_ms) for part in chart.path]
    assert stops == [("rank1 computation", "work", 0, 70), ("rank0 computation", "reduce", 70, 5)]
    assert chart.path[0].keys == (key_of("rank1", "work"), stretch_key(0))
    assert chart.spans[2].keys == (key_of("rank1", "work"),)


def test_a_communication_is_drawn_as_its_parts() -> None:
    rank = rank_steps(
        "rank0", {"Comm.x": (0, 9), "Comm.x.PUSH": (0, 5), "Comm.x.PULL": (5, 10)}, bounds=(0, 10)
    )
    whole, *parts = rank.operations
    made = [part._replace(role=Role.COMM, transfer=Transfer("Comm.x", part.name[-4:])) for part in parts]
    chart = drawn(recording(replace(rank, operations=[whole._replace(role=Role.WHOLE_COMM), *made])))
    assert [(span.lane, span.group) for span in chart.spans] == [("PUSH", "PUSH"), ("PULL", "PULL")]
    assert chart.spans[0].keys == (key_of("rank0", "Comm.x"), key_of("rank0", "Comm.x.PUSH"))


def many_ranks(ends: list[int], **settings: object) -> Timeline:
    """Return the timeline of ranks that work so many milliseconds from the begin of the step."""
    return drawn(recording(*(
        rank_steps(f"rank{i}", {"work": (0, end * MS)}, bounds=(0, end * MS)) for i, end in enumerate(ends)
    )), **settings)  # fmt: skip


def test_of_many_ranks_those_that_are_named_those_on_the_path_and_the_most_different_are_drawn() -> None:
    # rank 37 ends last, rank 0 is named; the median rank works 20.5 ms: seven more at each end differ most
    ends = [i + 1 for i in range(40)]
    ends[37] = 100
    chart = many_ranks(ends, first=["rank0"])
    assert [span.lane for span in chart.spans] == [
        f"rank{i} computation" for i in (*range(8), *range(32, 40))
    ]
    assert "16 of 40 ranks" in chart.note


def test_of_many_boxes_the_shortest_beside_the_path_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MOST_BOXES", 10)
    events = {f"op{i}": (i * MS, i * MS + (i + 1) * 1000) for i in range(100)}
    chart = drawn(recording(rank_steps("rank0", events, bounds=(0, 100 * MS))))
    assert [span.name for span in chart.spans] == [f"op{i}" for i in range(90, 100)]
    assert chart.note.startswith("90 boxes are left out")
