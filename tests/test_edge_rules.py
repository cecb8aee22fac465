"""The rules that connect events: each edge of a path names its own, and each can be switched off."""

from __future__ import annotations

import itertools

import pytest

from accuracy import ablation
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.edge_rules import RULES, Rule
from analyzer.reading.dialects.step_parts import Edge, Meeting
from conftest import REPO, ask
from dag_utils import critical_path
from make import rank_steps, recording, stretches_of

DDP = REPO / "examples" / "ddp-h200"


def test_each_edge_of_a_recorded_path_names_its_rule() -> None:
    path = ask("critical", DDP, "--why")["scopes"][-1]["path"]
    sentences = {rule.sentence: rule.kind.label for rule in RULES}
    for before, after in itertools.pairwise(path):
        # an operation enters its body from its own start, after the gap before it: that is no edge
        is_body = before["cat"] == "gap"
        assert is_body or sentences[after["rule"]] == after["because"], after
    assert {"device", "launch", "synchronise", "group"} <= {stretch["because"] for stretch in path}


def made() -> Recording:
    """Two ranks that compute for 10 and 40 ns, then reduce together until 50 ns."""
    ranks = [
        rank_steps(name, {"BW": (0, ready), "reduce": (ready, 50)}, [Edge(0, 1, rule=Rule.GRAPH)],
                   bounds=(0, 50), meetings=[Meeting("reduce", 1, enters=True, leaves=True)])
        for name, ready in (("rank0", 10), ("rank1", 40))
    ]  # fmt: skip
    return recording(*ranks)


def test_without_its_rule_a_wait_is_work() -> None:
    job = made()
    assert job.steps[0].work_ns.tolist() == [10, 10, 40, 10]
    alone = ablation.without(job, Rule.COLLECTIVE).steps[0]
    assert alone.work_ns.tolist() == [10, 40, 40, 10]
    path = [(stretch.owner, stretch.dur_ns) for stretch in stretches_of(critical_path(alone, [0]))]
    assert path == [(0, 10), (0, 40)]


def test_without_its_rule_a_start_follows_a_gap() -> None:
    assert ablation.without(made(), Rule.GRAPH).steps[0].gap_ns.tolist() == [0, 10, 0, 40]


def test_a_rule_that_no_edge_has_changes_nothing() -> None:
    loaded = ablation.load(DDP)
    for before, after in zip(
        loaded.recording.steps, ablation.without(loaded.recording, Rule.SERVER).steps, strict=True
    ):
        assert before.work_ns.tolist() == after.work_ns.tolist()
        assert before.gap_ns.tolist() == after.gap_ns.tolist()


@pytest.mark.slow
def test_an_ablation_shows_the_answers_that_change(capsys: pytest.CaptureFixture[str]) -> None:
    ablation.main([DDP])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    changed = {row[0].removeprefix("| "): row[3] for row in rows}
    assert "66 % communication" in changed["collective"]  # rank 0's wait, which is not rank 1's lateness
    assert changed["awaited"] == "– |"


@pytest.mark.parametrize("switch", ablation.SWITCHES[len(RULES) :], ids=lambda switch: switch.name)
def test_each_rule_of_replay_is_there_to_switch_off(switch: ablation.Switch) -> None:
    with switch.off(ablation.load(REPO / "examples" / "mlp-raw")) as job:
        assert job.recording.steps
