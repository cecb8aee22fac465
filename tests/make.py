"""Small traces and steps written by hand, for any test that needs one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from hypothesis import strategies as st

from analyzer.model.graph.critical_path import CATS, CriticalPath, critical_path
from analyzer.model.graph.dag import Dag
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.step_parts import Edge, Meeting, Operation, RankStep, RankSteps, Transfer
from analyzer.reading.formats.columns import ArgColumn, Trace, Track


def trace_of(
    rows: Sequence[tuple[str, Track, int, int]],
    dialect: str,
    cats: Sequence[str] = (),
    args: Mapping[str, Mapping[int, object]] | None = None,
) -> Trace:
    """Return a trace of slices: name, track, begin and length (ns); `args` by key, then row."""
    names = list(dict.fromkeys(name for name, *_ in rows))
    tracks = list(dict.fromkeys(track for _, track, *_ in rows))
    of_row = cats or [""] * len(rows)
    distinct = list(dict.fromkeys(of_row))
    return Trace(
        path="made.json", dialect=dialect, names=names, cats=distinct, tracks=tracks,
        name_id=np.array([names.index(name) for name, *_ in rows], np.int32),
        cat_id=np.array([distinct.index(cat) for cat in of_row], np.int32),
        track_id=np.array([tracks.index(track) for _, track, *_ in rows], np.int32),
        ts_ns=np.array([begin for *_, begin, _ in rows], np.int64),
        dur_ns=np.array([length for *_, length in rows], np.int64),
        args={
            key: ArgColumn(np.array(list(values), np.int64), list(values.values()))
            for key, values in (args or {}).items()
        },
    )  # fmt: skip


def rank_steps(
    name: str,
    events: Mapping[str, tuple[int, int]],
    edges: Sequence[Edge] = (),
    *,
    bounds: tuple[int, int],
    meetings: Sequence[Meeting] = (),
    links: Mapping[str, str] | None = None,
    number: int = 1,
) -> RankSteps:
    """Return one step of one rank: its events by name with start and end (ns), numbered in that order."""
    operations = [
        Operation(event, "", Track(name, 0), transfer=Transfer(link=(links or {}).get(event, "")))
        for event in events
    ]
    times = np.array(list(events.values()), np.int64).reshape(-1, 2)
    step = RankStep.of(number, bounds, np.arange(len(events)), times, edges, meetings)
    return RankSteps(name, operations, [step])


def recording(*ranks: RankSteps) -> Recording:
    """Return the ranks joined."""
    return join(ranks)


@st.composite
def random_dags(draw: st.DrawFn) -> Dag:
    """Graphs of up to 12 operations whose edges lead from lower to higher numbers."""
    n = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    edges = {(min(a, b), max(a, b)) for a, b in pairs if a != b}
    return Dag.of([str(i) for i in range(n)], [""] * n, durations, sorted(edges))


#: The DAG of one layer with one gradient, as the profiler writes it: a cycle, STEP to the first FW.
GML = """graph [
  directed 1
  node [ id 0 label "FW.a" ]
  node [ id 1 label "BW.a" ]
  node [ id 2 label "Comm.w" ]
  node [ id 3 label "STEP" ]
  edge [ source 0 target 1 ]
  edge [ source 1 target 2 ]
  edge [ source 2 target 3 ]
  edge [ source 3 target 0 ]
]
"""


def write_gpu(directory: Path, gml: str, events: list[dict[str, Any]]) -> Path:
    """Write a GPU directory with a DAG and a final trace of these events."""
    directory.mkdir(parents=True)
    (directory / "dag.gml").write_text(gml)
    document = json.dumps({"traceEvents": events})
    (directory / "bps_trace_local_rank0_2step.json").write_text(document)
    return directory


def x(name: str, tid: str, ts: float, dur: float, cat: str = "operator") -> dict[str, Any]:
    """Return a complete event as the profiler writes it; times in microseconds."""
    return {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": tid, "ts": ts, "dur": dur}


def span(
    name: str, ts: float, dur: float, cat: str = "", pid: object = 0, tid: object = 0, **args: Any
) -> dict[str, Any]:
    """Return a complete event of any chrome trace; times in microseconds."""
    event = {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "pid": pid, "tid": tid}
    return {**event, "args": args} if args else event


def comm(tensor: str, stage: str, key: int, ts: float, dur: float) -> dict[str, Any]:
    """Return a stage of BytePS's communication; its partition is the track."""
    return span(f"Comm.{tensor}.{stage}", ts, dur, "Comm", f"Comm.{tensor}", str(key))


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    """Return a step as PyTorch's profiler marks it."""
    return span(f"ProfilerStep#{number}", ts, dur, "user_annotation")


def write(path: Path, events: Sequence[Mapping[str, Any]], **header: Any) -> Path:
    """Write a trace of these events."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": list(events), **header}), encoding="utf-8")
    return path


def two_workers(root: Path) -> Path:
    """Write a job of two workers with two ranks each; the second worker's pushes take twice as long."""
    for worker in (0, 1):
        for rank in (0, 1):
            write(root / f"worker_{worker}" / str(rank) / "comm.json",
                  [comm("w", "PUSH", 1, ts, 10 * (worker + 1)) for ts in (0, 100, 200)])  # fmt: skip
    return root


DASF_KEY = "('sum-0a1b2c3d', 1, 2)"


def dasf_bytes(*records: dict[str, Any]) -> bytes:
    """Return the bytes of a DASF database that holds `records`."""
    bodies = [msgspec.msgpack.encode(record) for record in records]
    return b"".join(len(body).to_bytes(8, "big") + body for body in bodies)


def dasf_compute(end_s: float, dur_s: float, **args: Any) -> dict[str, Any]:
    """Return DASF's record of a task."""
    record = dasf_event("Compute", "X", end_s, args={"key": DASF_KEY, "name": "sum", **args})
    return record | {"duration": dur_s}


def dasf_event(name: str, phase: str, at_s: float, args: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one record of DASF."""
    where = {"process_id": "vm", "thread_id": "worker-vm-0"}
    return {"name": name, "timestamp": at_s, "phase": phase, **where, "args": args or {}}


class Stretch(NamedTuple):
    """A stretch of a critical path; see `CriticalPath`."""

    event: int
    owner: int
    cat: str
    start_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


def stretches_of(path: CriticalPath) -> list[Stretch]:
    """The stretches as records."""
    columns = (path.event, path.owners, path.cat, path.start_ns, path.end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Stretch(event, owner, CATS[cat], start, end) for event, owner, cat, start, end in rows]


def path_of(recording: Recording, row: int = 0) -> list[tuple[str, str, int]]:
    """The critical path of a step: operation, category and length (µs) of each stretch."""
    step = recording.steps[row]
    return [
        (recording.name_of(step, one.event) if one.event >= 0 else "", one.cat, one.dur_ns // 1000)
        for one in stretches_of(critical_path(step))
    ]
