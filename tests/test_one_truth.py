"""One step has one critical path, whichever option names it, and it runs through whoever was waited for."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from exposed_transfers import exposed_ns
from msgspec.structs import replace

from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.units import in_ms
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from conftest import ask, few, run_cli
from dag_utils import LoadedSteps, critical_path, load_steps
from replay.runs import simulated
from trace_utils import Request

pytestmark = pytest.mark.slow

JOBS = (
    "horovod/2ranks-slow-rank1/trace", "composer/ws2-slow-rank1/trace", "kineto/gpu-hta-rank0of16/trace",
    "dasf/two-hosts-4workers/trace",
    "byteps/fork_lenet_straggler", "byteps/fork_lenet_2w2g", "byteps/master_torch_cnn_2w1s",
    "kineto/ddp2-gloo-slow-rank1/trace", "kineto/gpu-param-dlrm-8ranks/trace",
)  # fmt: skip

#: Devices that are behind their host, that wait for it, and whose communication runs beside all else.
DEVICES = (
    "kineto/gpu-hta-ns-resolution", "kineto/gpu-tracelens-xdit-flux-mi300",
    "kineto/gpu-tracelens-resnet-ckpt-mi300-rank0of8",
)  # fmt: skip


@functools.cache
def loaded(path: Path) -> LoadedSteps:
    """Return the steps of a job as `diagnose` loads them, once for the tests of this file."""
    return load_steps([path], Request(jobs=1, progress=False), sizes=True)


@pytest.mark.parametrize("job", few(5, ["lenet", *JOBS[:3], *DEVICES, *JOBS[3:], "lenet-100mbit"]))
def test_critical_and_replay_name_the_same_path(path: Path) -> None:
    replayed = ask("--option", "replay", "--path", path, "--output", "-")
    number = replayed["critical_step"]
    stretches = ask("--option", "critical", "--path", path, "--step", number)["scopes"][-1]["path"]
    assert len(stretches) > 1
    assert [(s["name"], s["cat"], s["dur_ms"]) for s in replayed["critical_path"]] == [
        (s["name"], s["cat"], pytest.approx(s["dur_ms"], abs=1e-6)) for s in stretches
    ]


def stretched(recording: Recording, row: int, event: int, by_ns: int) -> StepGraph:
    """The step as it would have been recorded had one event worked longer."""
    work = recording.steps[row].work_ns.astype(np.int64)
    work[event] += by_ns
    steps = list(recording.steps)
    steps[row] = replace(steps[row], work_ns=work)
    return simulated(replace(recording, steps=steps), [row]).step(0)


@pytest.mark.parametrize("job", few(4, ["lenet", *JOBS]))
def test_a_rank_that_works_longer_is_on_the_path_with_all_of_that(path: Path) -> None:
    recording = loaded(path).recording
    row = recording.whole_steps[len(recording.whole_steps) // 2]
    step = recording.steps[row]
    by_ns = int(max(step.bounds.iteration_ns.max(), 10_000_000))
    for owner in range(len(recording.owners)):
        computes = np.array([recording.operations[i].is_compute for i in step.operation.tolist()])
        own = np.flatnonzero((step.owner == owner) & computes)
        held_up = [event for event in own.tolist() if (step.edges[:, 0] == event).any()]
        if not held_up:
            continue
        event = max(held_up, key=lambda one: int(step.work_ns[one]))
        longer = stretched(recording, row, event, by_ns)
        found, until = critical_path(longer), longer.end_ns[event]  # a device may work beside it
        works = (found.event == event) & found.is_work | (found.rule == Rule.BUSY)
        since = np.maximum(found.start_ns, until - longer.work_ns[event])
        worked = (np.minimum(found.end_ns, until) - since).clip(0)[works].sum()
        assert worked == int(step.work_ns[event]) + by_ns


def exposed_of_each_rank(path: Path, *more: object) -> dict[str, float]:
    """What `statistic` says of each rank: communication that nothing hides, ms of an average step."""
    rows = ask("statistic", path, "--sub_option", "breakdown", *more)["ranks"]
    return {row["rank"]: row["exposed_comm_ms"] for row in rows}


@pytest.mark.parametrize(
    "job", few(4, ["lenet-100mbit", *(job for job in JOBS if not job.startswith("dasf")), "lenet"])
)
def test_exposed_communication_is_one_number(path: Path, tmp_path: Path) -> None:
    digest = tmp_path / "job.digest.json"
    known = exposed_of_each_rank(path, "--save", digest)
    assert exposed_of_each_rank(digest) == known
    view = JobView(loaded(path))
    owner = view.recording.column(lambda one: one.owner)
    by_owner = np.bincount(owner, exposed_ns(view), len(view.recording.owners)) / 1e6
    assert dict(zip(view.recording.owners, by_owner, strict=True)) == pytest.approx(known, rel=1e-3)


#: Jobs with a warm-up, with pauses between their steps, of one step of ranks that begin at different times,
#: and a step log.
LENGTHS = (
    "jax/two_proc", "composer/ws2/trace", "kineto/gpu-param-dlrm-8ranks/trace", "step-logs/a",
    "kineto/ddp2-gloo-two-cycles/trace", "byteps/fork_lenet_2w2g", "horovod/2ranks-base/trace",
)  # fmt: skip


def lengths_of(path: Path, tmp_path: Path) -> dict[str, float]:
    """What each option says of the length of a step, ms: the mean of its steps, and of these of its ranks."""
    told = {}
    words = {
        "diagnose": (), "breakdown": ("--sub_option", "breakdown"), "replay": ("--output", "-"),
        "compare": (path,), "3dcompare": (path, "--output", tmp_path / "a.svg"), "critical": (),
    }  # fmt: skip
    for name, more in words.items():
        option = "statistic" if name == "breakdown" else name
        code, out, err = run_cli("--option", option, "--path", path, *more, "--format", "json")
        if code:
            assert "a step log holds no single events" in err or "has no single events" in err, err
            continue
        told[name] = json.loads(out)
    ranks = told["breakdown"]["ranks"]
    found = {
        "diagnose": told["diagnose"]["iteration_ms"]["mean"],
        "breakdown": sum(one["mean_ms"] for one in ranks) / len(ranks),
        "compare": told["compare"]["iteration_ms"][1],
        "3dcompare": told["3dcompare"]["iteration_ms"][0],
    }
    if "replay" in told:
        found["replay"] = told["replay"]["measured_ms"]
        assert told["critical"]["iteration_ms"] == pytest.approx(told["critical"]["scopes"][-1]["length_ms"])
    for name in ("diagnose", "breakdown"):
        assert f" takes {in_ms(1e6 * found['diagnose'])}" in told[name]["headline"]
    return found


@pytest.mark.parametrize("job", few(2, ["lenet", *LENGTHS]))
def test_a_step_has_one_length(path: Path, tmp_path: Path) -> None:
    found = lengths_of(path, tmp_path)
    assert found == pytest.approx(dict.fromkeys(found, found["diagnose"]))
