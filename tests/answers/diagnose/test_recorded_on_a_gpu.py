"""Jobs recorded on a GPU under two conditions: what one of them says against what the other one took."""

from __future__ import annotations

from answers import answer

from conftest import REPO, ask

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
