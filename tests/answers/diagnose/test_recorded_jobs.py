"""Recorded jobs of which is known what is wrong with them: it stands in the headline."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from answers import answer

from conftest import REPO, ask, few, run_cli

pytestmark = pytest.mark.slow


#: Of each recorded job what is known to be wrong, as the headline begins after the length of the step.
KNOWN = {
    "kineto/gpu-hta-ns-resolution": "; nothing stands out",
    "kineto/gpu-tracelens-sglang-decode-mi300": ": the host waits 98 % of the step in hipMemcpyWithStream",
    "kineto/gpu-tracelens-timesformer-h100": ": 56 % of the step is inside preprocess",
    "kineto/gpu-param-resnet": ": the steps wait for their input; up to 160 ms (49 %)",
    "horovod/2ranks-slow-rank1": ": rank1 is late in negotiations",
    # what was done to this one is not in its recording: the loader works ahead, and both ranks load alike
    "composer/ws2-slow-rank1": "; no single cause stands out",
    "kineto/ddp2-gloo-slow-rank1": ": rank1 is late by ",
    "byteps/fork_lenet_straggler": ": wk1.rank0 is late by ",
    "byteps/fork_lenet_slownet": ": communication is not overlapped",
    "kineto/gpu-param-dlrm-8ranks": ": 10 calls a step make the CPU wait for the GPU",
    "kineto/gpu-hta-rank1of2-memory": ": the device spends 41 % of its time on fp32",
    "kineto/gpu-tracelens-resnet-ckpt-mi300-rank0of8": ": collectives take 83 % of the step; with 1 of 8",
    "kineto/gpu-tracelens-qwen-h100-vs-mi300/h100": ": the device spends 54 % of its time on elementwise",
    "jax/h200-recompiles": ": steps 18 and 21 take much longer than the others: they compile anew",
    "kineto/gpu-hta-rank0of16": ": the host waits 35 % of the step in cudaMemcpyAsync for work not",
}


@pytest.mark.parametrize("job", KNOWN)
def test_what_is_wrong_stands_first_in_the_headline(shared_data: Path, job: str) -> None:
    headline = answer(shared_data / job)["headline"]
    takes = r"(?:A (?:\w+ )?step|The recording) takes [\d,.]+ ms(?: while profiled,[^:]*)?"
    assert re.match(takes + re.escape(KNOWN[job]), headline)


@pytest.mark.parametrize("job", KNOWN)
def test_the_documentation_quotes_the_headline(shared_data: Path, job: str) -> None:
    page = (REPO / "docs/dev/recorded-jobs.md").read_text().replace("\n> ", " ").replace("\n", " ")
    assert answer(shared_data / job)["headline"] in page


def test_the_operation_that_is_slow_on_a_rank_is_named(shared_data: Path) -> None:
    assert "in enumerate(DataLoader)" in answer(shared_data / "kineto/ddp2-gloo-slow-rank1")["headline"]


@pytest.mark.parametrize(
    ("slow", "base", "slept_ms"),
    [
        ("kineto/ddp2-gloo-slow-rank1", "kineto/ddp2-gloo-base", 400.0),
        ("horovod/2ranks-slow-rank1", "horovod/2ranks-base", 80.0),
    ],
)
def test_the_interval_of_a_late_rank_holds_what_was_done_to_it(
    shared_data: Path, slow: str, base: str, slept_ms: float
) -> None:
    found = answer(shared_data / slow)
    (late,) = [one for one in found["findings"] if one["kind"] == "late_rank"]
    longer_ms = found["iteration_ms"]["median"] - answer(shared_data / base)["iteration_ms"]["median"]
    for truth_ms in (slept_ms, longer_ms):
        assert late["gain_ms"]["low"] <= truth_ms <= late["gain_ms"]["high"]


@pytest.mark.parametrize(
    "job",
    few(4, [
        "horovod/2ranks-base", "composer/ws2", "byteps/master_torch_cnn_2w1s", "kineto/ddp2-gloo-base",
        "byteps/fork_lenet_base", "byteps/fork_lenet_2w2g", "byteps/fork_resnet50_2w1s",
        "horovod/2ranks-cycles", "kineto/ddp4-gloo-base", "kineto/ddp2-gloo-two-cycles",
    ]),
)  # fmt: skip
def test_ranks_that_do_the_same_are_not_called_late_slow_or_uneven(shared_data: Path, job: str) -> None:
    kinds = {finding["kind"] for finding in answer(shared_data / job)["findings"]}
    assert kinds & {"late_rank", "uneven_work", "slow_collective"} == set()


def test_a_verdict_from_one_of_two_ranks_says_so(shared_data: Path) -> None:
    found = answer(shared_data / "kineto/gpu-hta-rank1of2-memory")["findings"]
    (flaw,) = [one for one in found if one["kind"] == "capture_quality"]
    assert flaw["title"].endswith("rank 0 of 2 missing")


def test_csv_has_what_a_script_would_post() -> None:
    job = REPO / "examples" / "lenet-100mbit"
    code, out, _ = run_cli("--path", job, "--format", "csv")
    assert code == 0
    rows = [*csv.DictReader(out.splitlines())]
    told = [(one["title"], one["action"], one["command"]) for one in answer(job)["findings"]]
    assert [(row["title"], row["action"], row["command"]) for row in rows] == told


_DDP = REPO / "examples/ddp-h200"
_GLOO = REPO / "examples/gloo-h200"
_JAX = REPO / "examples/jax-h200"
#: Milliseconds of a step of the same job, recorded a second before, in which rank 1 loads as fast as rank 0.
_DDP_WITHOUT_MS = 28.18


def test_the_loader_of_a_rank_is_named_with_what_it_costs() -> None:
    document = ask("diagnose", _DDP, "--as_recorded")
    finding = document["findings"][0]
    assert (finding["kind"], finding["scope"]["ranks"]) == ("late_rank", ["rank1"])
    assert "enumerate(DataLoader)" in finding["title"]
    cost_ms = document["iteration_ms"]["mean"] - _DDP_WITHOUT_MS
    assert finding["gain_ms"]["low"] <= cost_ms <= finding["gain_ms"]["high"]


def test_a_job_without_its_straggler_is_foreseen() -> None:
    (found,) = ask("whatif", _DDP, "straggler=none", "--as_recorded")["whatif"]
    low, high = found["interval_ms"]
    assert low <= _DDP_WITHOUT_MS <= high
    assert abs(found["after_ms"] / _DDP_WITHOUT_MS - 1) < 0.02


def test_a_rank_that_runs_python_before_its_step_is_named_where_gloo_moves_a_devices_gradients() -> None:
    """The other rank waits in its collectives, in whose threads nothing is recorded meanwhile."""
    base, slow = answer(_GLOO / "base"), answer(_GLOO / "tokenise")
    assert base["findings"][0]["kind"] == "exposed_communication"
    finding = slow["findings"][0]
    assert (finding["kind"], finding["scope"]["ranks"]) == ("late_rank", ["rank1"])
    cost_ms = slow["iteration_ms"]["mean"] - base["iteration_ms"]["mean"]
    assert finding["gain_ms"]["low"] <= cost_ms <= finding["gain_ms"]["high"]
    assert abs(finding["gain_ms"]["mid"] / cost_ms - 1) < 0.1
    exposed: dict[str, list[float]] = {"rank0": [], "rank1": []}
    for row in ask("statistic", _GLOO / "tokenise", "--sub_option", "breakdown")["breakdown"]:
        exposed[row["rank"]].append(row["exposed_comm_ms"])
    assert min(exposed["rank0"]) > 40 > 16 > max(exposed["rank1"])


def test_what_the_device_of_jax_waits_for_is_named_with_what_it_costs() -> None:
    """The loader of one of two recordings sleeps for 30 ms in each step."""
    base, loader = answer(_JAX / "base"), answer(_JAX / "loader")
    finding = loader["findings"][0]
    cost_ms = loader["iteration_ms"]["mean"] - base["iteration_ms"]["mean"]
    assert "sleep" in finding["title"]
    assert finding["gain_ms"]["low"] <= cost_ms <= finding["gain_ms"]["high"]
    assert abs(finding["gain_ms"]["mid"] - cost_ms) < 1.0


def test_compare_names_what_jax_sleeps_in_as_diagnose_does() -> None:
    document = ask("compare", _JAX / "base", _JAX / "loader")
    most = max(document["operations"], key=lambda one: abs(one["explained_ms"] or 0.0))
    assert "sleep" in most["name"] and most["significant"]
    assert abs(most["explained_ms"] / (document["iteration_ms"][1] - document["iteration_ms"][0]) - 1) < 0.02
    assert "sleep" in document["verdict"]
