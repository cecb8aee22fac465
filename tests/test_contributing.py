"""The recipes of CONTRIBUTING.md: their minimal examples work as they stand there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import system_laws

from analyzer.answers.diagnose import diagnosis
from analyzer.base.errors import TraceError
from analyzer.reading import dialects
from analyzer.reading.dialects import Role
from analyzer.reading.dialects.owners import SHARED, split_by_slices
from analyzer.reading.dialects.steps import Step, Steps
from conftest import REPO, ask, run_cli
from replay import edit as edits

#: What the examples take for granted.
_IMPORTS = """
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from analyzer.reading import dialects
from analyzer.base.arrays.numbering import numbered
from analyzer.reading.dialects import Need, Role, System
from analyzer.reading.dialects.roles import by_cat
from analyzer.reading.dialects.owners import SHARED, Owned, split_by_slices
from analyzer.reading.dialects.steps import Steps, spans
from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import Trace, Track
from collections.abc import Iterator
from analyzer.answers.diagnose.steps.job_view import longest_events
from analyzer.answers.diagnose.finding import Finding, Skipped, edit
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.reading.dialects.roles import Phase
from replay.edit import Edit, EditRequest, Job
from replay.usual_times import scaled
from replay.selection import as_ratio
"""


def example(title: str) -> dict[str, Any]:
    """Run the example in the section of that title and return its names."""
    text = (REPO / "CONTRIBUTING.md").read_text()
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    exec(_IMPORTS, names)
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        names["mill"] = SimpleNamespace(**names)  # the module of the block before
        exec(block, names)
    return names


@pytest.fixture
def mill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a system, registered."""
    system = example("Add a system")["Mill"]()
    monkeypatch.setattr(dialects, "SYSTEMS", (system, *dialects.SYSTEMS))
    monkeypatch.setattr(dialects, "_BY_NAME", {**dialects._BY_NAME, system.name: system})


#: An event of a device: its name, begin, and length.
Work = tuple[str, float, float]


def write_mill(
    path: Path, works: Sequence[Sequence[Work]], steps: int, unit_us: float, first: int = 0
) -> Path:
    """Write steps of 100 units of a host and its devices, the `first` of them and so on."""
    events: list[dict[str, Any]] = []

    def add(name: str, begin: float, length: float, tid: int, cat: str = "", **args: int) -> None:
        events.append({"ph": "X", "pid": 1, "tid": tid, "name": name, "cat": cat, "ts": begin * unit_us,
                       "dur": length * unit_us, "args": args})  # fmt: skip

    for number in range(steps):
        begin = 100 * number
        add("loop", begin, 99, 0, "host", step=number + 7)
        for device, work in enumerate(works):
            add("launch", begin + 1 + device, 1, 0, "host")
            for name, after, length in work:
                add(name, begin + after, length, 1 + device, device=first + device)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def write_plain_mill(path: Path, first: int = 0) -> Path:
    """Write three steps of 100 us of two devices: 40 and 60 us of computation, then a reduction."""
    works = [[("matmul", 5, 40 + 20 * device), ("all-reduce", 70, 20)] for device in (0, 1)]
    return write_mill(path, works, steps=3, unit_us=1, first=first)


@pytest.mark.usefixtures("mill")
def test_the_example_of_a_system_keeps_its_laws(tmp_path: Path) -> None:
    system_laws.check_system(write_plain_mill(tmp_path / "host.json"), ["rank0", "rank1"], tmp_path)


@pytest.mark.usefixtures("mill")
def test_hosts_with_several_ranks_each_keep_the_laws_too(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    write_plain_mill(tmp_path / "job" / "host_a.json")
    write_plain_mill(tmp_path / "job" / "host_b.json", first=2)
    system_laws.check_system(tmp_path / "job", ["rank0", "rank1", "rank2", "rank3"], tmp_path)


@pytest.mark.usefixtures("mill")
def test_what_ranks_of_a_host_share_is_counted_once(tmp_path: Path) -> None:
    path = write_plain_mill(tmp_path / "host.json")
    rows = ask("--option", "statistic", "--path", path)["operations"]
    counts = {row["name"]: row["count"] for row in rows}
    assert counts == {
        "host0.loop": 3, "host0.launch": 6, "rank0.matmul": 3, "rank0.all-reduce": 3, "rank1.matmul": 3,
        "rank1.all-reduce": 3,
    }  # fmt: skip


def test_each_law_has_its_test() -> None:
    _, *rows = (REPO / "docs" / "dev" / "laws.md").read_text().split("| --- | --- |")[1].split("\n| ")
    assert rows
    for row in rows:
        tests = re.findall(r"`(tests/[^`]+)::([^`]+)`", row)
        assert tests, row
        assert not [name for path, name in tests if f"def {name}(" not in (REPO / path).read_text()]


def test_the_example_of_an_edit_is_answered_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("compression")
    module.__dict__.update(example("Add an edit"))
    monkeypatch.setitem(sys.modules, "replay.whatif.compression", module)
    row = ("compression", "compression=R", "communication takes R times as long")
    monkeypatch.setattr(edits, "EDITS", (row, *edits.EDITS))
    words = ("--option", "replay", "--path", REPO / "examples" / "lenet", "--sub_option", "whatif")
    compressed, shorter, _ = ask(*words, "--set", "compression=0.5", "--set", "Comm=0.5")["whatif"]
    assert compressed["after_ms"] == shorter["after_ms"] < compressed["before_ms"]
    assert "compression=R" in run_cli(*words, "--set", "help")[1]


def test_the_example_of_a_finding_is_shown_with_its_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = example("Add a finding")["long_backward"]
    monkeypatch.setattr(diagnosis, "DETECTORS", ((), (), (detector,)))
    (finding,) = ask("--path", REPO / "examples" / "lenet")["findings"]
    assert finding["change"] == "BW=0.9"
    assert "no saving is claimed" in finding["caveat"]  # steps of this job vary more than that


def write_late_mill(path: Path) -> Path:
    """Write six steps of 100 ms, in which device 1 computes for 20 ms longer, and device 0 waits for it."""
    works = [
        [("matmul", 3, 50 + late), ("all-reduce", 53 + late, 40 - late), ("add", 93, 6)] for late in (0, 20)
    ]
    return write_mill(path, works, steps=6, unit_us=1e3)


def of_other_field(self: Any, trace: Any) -> Any:
    """Take the device from a field that counts the other way."""
    device = {row: 1 - value for row, value in trace.args["device"].as_dict().items()}
    rows = np.array([device.get(row, SHARED) for row in range(len(trace))])
    return split_by_slices(trace, rows, ranks=range(2))


def of_host_alone(self: Any, trace: Any) -> Any:
    """Give what the devices share to the first one."""
    device = trace.args["device"].as_dict()
    return split_by_slices(trace, np.array([device.get(row, 0) for row in range(len(trace))]), ranks=range(2))


def all_compute(self: Any, trace: Any) -> Any:
    """Forget that a reduction is a collective."""
    return np.full(len(trace), Role.COMPUTE, np.int8)


def moved(begin_ms: float, end_ms: float, unit: int = 1) -> Any:
    """Make a `marked_steps` that is off by some milliseconds, or in another unit."""

    def marked_steps(self: Any, trace: Any) -> Any:
        own = []
        for row, number in sorted(trace.args["step"].as_dict().items()):
            begin_ns, end_ns = int(trace.ts_ns[row]), int(trace.ts_ns[row] + trace.dur_ns[row] // unit)
            own.append(Step(number, begin_ns + round(1e6 * begin_ms), end_ns + round(1e6 * end_ms)))
        return Steps(tuple(own), (), "the loop's numbers")

    return marked_steps


MISTAKES = {
    "the rank of another field": {"split": of_other_field},
    "a shared host is the first rank's": {"split": of_host_alone},
    "a collective is computation": {"recorded_roles": all_compute},
    "a step begins an event too late": {"marked_steps": moved(60, 0)},
    "a step ends an event too early": {"marked_steps": moved(0, -10)},
    "a step is an event late on both sides": {"marked_steps": moved(60, 60)},
    "a key of args is not declared": {"args": {dialects.Need.ALWAYS: ("device",)}},
    "steps are in another unit": {"marked_steps": moved(0, 0, 1_000)},
}


def check_late_mill(tmp_path: Path) -> None:
    path = write_late_mill(tmp_path / "host.json")
    system_laws.loaded.cache_clear()
    system_laws.figures_of.cache_clear()
    system_laws.check_system(path, ["rank0", "rank1"], tmp_path)
    system_laws.check_made(path, "rank1", 20.0)


@pytest.mark.usefixtures("mill")
def test_a_rank_that_is_late_in_the_example_of_a_system_is_named_with_its_cost(tmp_path: Path) -> None:
    check_late_mill(tmp_path)


@pytest.mark.usefixtures("mill")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_dialect_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    for name, wrong in MISTAKES[mistake].items():
        monkeypatch.setattr(type(dialects.SYSTEMS[0]), name, wrong)
    with pytest.raises((AssertionError, KeyError, TraceError)):
        check_late_mill(tmp_path)
