"""Whose events a file holds, for a system that says it by the names of processes alone."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from system_laws import check_system

from analyzer.reading import dialects
from analyzer.reading.dialects import Need, System
from analyzer.reading.dialects.steps import Steps, steps_by_argument
from analyzer.reading.dialects.system import Metadata
from analyzer.reading.formats.columns import Trace
from make import span, write


class Loom(System):
    """A file for each worker, whose process is called ``loom worker 3``; slices say their step."""

    name = "loom"
    args = MappingProxyType({Need.STEPS: ("step",)})

    def recognises_metadata(self, metadata: Metadata) -> bool:
        return bool(_workers(metadata))

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        workers = _workers(trace.metadata)
        return (workers[0] if len(workers) == 1 else None), None

    def marked_steps(self, trace: Trace) -> Steps:
        return steps_by_argument(trace, "step")


def _workers(metadata: Metadata) -> list[int]:
    """The workers after whom processes are called; in a combined file the source's name comes first."""
    names = [str(one["args"].get("name")) for one in metadata if one["name"] == "process_name"]
    return [int(match[1]) for name in names if (match := re.search(r"loom worker (\d+)", name))]


def write_worker(path: Path, worker: int) -> None:
    """Write four steps of 100 us: so much computation, the longer the higher the worker, then a reduction."""
    named = {"name": f"loom worker {worker}"}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 9, "args": named}]
    for number in range(4):
        for name, begin, end in (("matmul", 0, 10 * worker), ("all-reduce", 10 * worker, 90)):
            events.append(span(name, 100 * number + begin, end - begin, pid=9, tid=1, step=number))
    write(path, events)


def test_what_rank_says_is_said_of_the_sources_of_a_combined_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Loom()
    monkeypatch.setattr(dialects, "SYSTEMS", (system, *dialects.SYSTEMS))
    monkeypatch.setattr(dialects, "_BY_NAME", {**dialects._BY_NAME, system.name: system})
    for worker in (2, 3):
        write_worker(tmp_path / "job" / f"{worker}.json", worker)
    check_system(tmp_path / "job", ["rank2", "rank3"], tmp_path)
