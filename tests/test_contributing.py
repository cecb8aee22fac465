"""The recipes of CONTRIBUTING.md: their minimal examples work as they stand there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import system_laws

import dialects
import options
from conftest import REPO, run_cli
from diagnose import diagnosis
from replay import edits
from traces import readers

#: What the examples take for granted.
_IMPORTS = """
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
import dialects
from arrays.numbering import numbered
from dialects import Need, Role, System
from dialects.masks import by_cat
from dialects.owners import SHARED, Owned, split_by_slices
from dialects.steps import Steps, spans
from formats.columns import Trace, Track
from traces.readers import Decoding, Reader
from argparse import Namespace, _ArgumentGroup
from result import Column, Result, Table
from collections.abc import Iterator
from diagnose.finding import Finding, Skipped, edit
from diagnose.job_view import JobView
from dialects.roles import Phase
from replay.edit import Edit, EditRequest, Guess, Job
from replay.even_work import scaled
from replay.selection import as_ratio
"""


def example(title: str) -> dict[str, Any]:
    """Return what the example in the section of that title defines."""
    text = (REPO / "CONTRIBUTING.md").read_text()
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    exec(_IMPORTS + "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)), names)
    return names


@pytest.fixture
def mill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a system, registered."""
    system = example("How to add a system")["Mill"]()
    monkeypatch.setattr(dialects, "SYSTEMS", (system, *dialects.SYSTEMS))
    monkeypatch.setattr(dialects, "_BY_NAME", {**dialects._BY_NAME, system.name: system})


def write_mill(path: Path, first_device: int = 0) -> Path:
    """Write three steps of 100 us of two devices: 40 and 60 us of computation, then a reduction."""
    events: list[dict[str, Any]] = []

    def add(name: str, begin: float, us: float, tid: int, cat: str = "", **args: int) -> None:
        events.append({"ph": "X", "pid": 1, "tid": tid, "name": name, "cat": cat, "ts": begin, "dur": us,
                       "args": args})  # fmt: skip

    for number in range(3):
        begin = 100 * number
        add("loop", begin, 99, 0, "host", step=number + 7)
        for device in (0, 1):
            add("launch", begin + 1 + device, 1, 0, "host")
            add("matmul", begin + 5, 40 + 20 * device, 1 + device, device=first_device + device)
            add("all-reduce", begin + 70, 20, 1 + device, device=first_device + device)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.usefixtures("mill")
def test_the_example_of_a_system_keeps_its_laws(tmp_path: Path) -> None:
    system_laws.check_system(write_mill(tmp_path / "host.json"), ["rank0", "rank1"], tmp_path)


@pytest.mark.usefixtures("mill")
def test_hosts_with_several_ranks_each_keep_the_laws_too(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    write_mill(tmp_path / "job" / "host_a.json")
    write_mill(tmp_path / "job" / "host_b.json", first_device=2)
    system_laws.check_system(tmp_path / "job", ["rank0", "rank1", "rank2", "rank3"], tmp_path)


@pytest.mark.usefixtures("mill")
def test_what_ranks_of_a_host_share_is_counted_once(tmp_path: Path) -> None:
    path = write_mill(tmp_path / "host.json")
    rows = system_laws.answer("--option", "statistic", "--path", path)["operations"]
    counts = {row["name"]: row["count"] for row in rows}
    assert counts == {
        "host0.loop": 3, "host0.launch": 6, "rank0.matmul": 3, "rank0.all-reduce": 3, "rank1.matmul": 3,
        "rank1.all-reduce": 3,
    }  # fmt: skip


def test_the_example_of_an_option_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("longest")
    module.__dict__.update(example("How to add an option"))
    monkeypatch.setitem(sys.modules, "options.longest", module)
    monkeypatch.setitem(options.MODULES, "longest", "options.longest")
    slices = [("a", 0, 1000), ("b", 1000, 3000), ("c", 4000, 2000)]
    events = [{"ph": "X", "pid": 0, "tid": 0, "name": n, "ts": at, "dur": us} for n, at, us in slices]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "rank1.json").write_text(json.dumps({"traceEvents": events[:1]}))
    found = system_laws.answer("--option", "longest", "--path", tmp_path)
    assert found["ranks"] == [
        {"rank": "rank0", "name": "b", "dur_ms": 3.0},
        {"rank": "rank1", "name": "a", "dur_ms": 1.0},
    ]
    assert len(system_laws.answer("--option", "longest", "--path", tmp_path, "--at_least", 2)["ranks"]) == 1
    assert run_cli("--option", "longest", "--path", tmp_path, "--sort")[0] == 2  # a flag that it does not use
    assert "the longest slice of each rank" in run_cli("--help")[1]


def test_the_example_of_a_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS", (example("How to add a reader")["MILL"], *readers.READERS))
    path = tmp_path / "trace.mill"
    path.write_text("MILL1\nt0\tadd\t1000\t500\nt0\tadd\t2000\t1500\nt1\tmul\t0\t7\n")
    (add, mul) = system_laws.answer("--option", "statistic", "--path", path)["operations"]
    assert (add["name"], add["count"], add["avg_ms"]) == ("add", 2, 0.001)
    assert (mul["name"], mul["count"]) == ("mul", 1)
    assert run_cli("--option", "statistic", "--path", tmp_path)[0] == 0


def test_the_example_of_an_edit_is_answered_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("compression")
    module.__dict__.update(example("How to add an edit"))
    monkeypatch.setattr("replay.edits.EDITS", (module, *edits.EDITS))
    words = ("--option", "replay", "--path", REPO / "examples" / "lenet", "--sub_option", "whatif")
    code, out, err = run_cli(*words, "--set", "compression=0.5", "--set", "Comm=0.5", "--format", "json")
    assert code == 0, err
    compressed, shorter, _ = json.loads(out)["whatif"]
    assert compressed["after_ms"] == shorter["after_ms"] < compressed["before_ms"]
    assert "compression=R" in run_cli(*words, "--set", "help")[1]


def test_the_example_of_a_finding_is_told_with_its_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = example("How to add a finding")["long_backward"]
    row = diagnosis.Detector(diagnosis.Level.SYMPTOM, detector, ("hot_operation",))
    monkeypatch.setattr(diagnosis, "DETECTORS", (row,))
    code, out, err = run_cli("--path", REPO / "examples" / "lenet", "--format", "json")
    assert code == 0, err
    (finding,) = json.loads(out)["findings"]
    assert (finding["change"], finding["gain_ms"]["mid"] > 0) == ("BW=0.9", True)
