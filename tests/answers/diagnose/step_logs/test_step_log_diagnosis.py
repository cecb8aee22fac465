"""Step logs: the rank that waits least is named, with span, part and cost; nobody in an even job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.answers.diagnose.step_logs.step_log_diagnosis import diagnose_step_log
from analyzer.model.figures.job_figures import Wanted, load_figures
from conftest import REPO, ask, few, run_cli
from trace_utils import Request

N_RANKS, N_STEPS = 4, 120
Times = dict[str, float]


def ms(step: int, rank: int) -> float:
    """Return a little noise, the same in every run: from 0 to 0.6 ms."""
    return (step * 7 + rank * 3) % 7 / 10


def even(step: int, rank: int) -> Times:
    """Return the parts of a step of 100 ms: all meet in comm."""
    own = 80 + ms(step, rank)
    return {"data": 2.0, "compute": own, "comm": 95 - own, "step": 100.0}


def held_up(rank: int, more: Callable[[int], float]) -> Callable[[int, int], Times]:
    """Return the parts of steps in which a rank loads longer by `more`, while the others wait in comm."""

    def times(step: int, of_rank: int) -> Times:
        parts = even(step, of_rank)
        parts["data" if of_rank == rank else "comm"] += more(step)
        return {**parts, "step": 100.0 + more(step)}

    return times


def write(folder: Path, times: Callable[[int, int], Times]) -> Path:
    folder.mkdir()
    for rank in range(N_RANKS):
        rows = [times(step, rank) for step in range(N_STEPS)]
        lines = [",".join(["step", *(name if name == "seq" else f"{name}_ms" for name in rows[0])])]
        lines += [",".join(map(str, (step, *row.values()))) for step, row in enumerate(rows)]
        (folder / f"rank{rank}.csv").write_text("\n".join(lines))
    return folder


def diagnosis(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = ask(path)
    return found


def test_a_trace_given_with_a_log_is_no_rank_of_it(tmp_path: Path) -> None:
    log = write(tmp_path / "job", held_up(1, lambda step: 20.0 * (step > 60)))
    document = ask(log, REPO / "examples/lenet/worker_0/0")
    assert [finding["scope"]["ranks"] for finding in document["findings"]] == [["wk0.rank1"]]


def test_steps_that_vary_alike_on_all_ranks_name_nobody(tmp_path: Path) -> None:
    more = np.random.default_rng(0).exponential(6.0, N_STEPS).round(3).tolist()
    times = held_up(-1, lambda step: more[step])  # no rank has this number
    assert diagnosis(write(tmp_path / "job", times))["findings"] == []


def test_steps_that_a_rank_did_not_log_are_left_out_and_counted(tmp_path: Path) -> None:
    job = write(tmp_path / "job", even)
    lines = (job / "rank2.csv").read_text().split("\n")
    (job / "rank2.csv").write_text("\n".join(lines[: 1 + 50]))
    out = run_cli(job)[1]
    assert "70 steps left out, as not all ranks logged them: rank2 logged 50, others up to 120." in out


def test_a_late_rank_has_its_span_its_part_and_its_cost(tmp_path: Path) -> None:
    """Rank 2 loads 12 ms longer in steps 40 to 69: the others wait in comm, and it waits no longer."""
    times = held_up(2, lambda step: 12 * (40 <= step < 70))
    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert (finding["kind"], finding["scope"]["ranks"]) == ("late_rank", ["rank2"])
    assert (finding["scope"]["from_step"], finding["scope"]["to_step"]) == (40, 69)
    assert finding["scope"]["operations"] == ["data"]
    assert finding["gain_ms"]["mid"] == pytest.approx(12)
    assert finding["lost_s"] == pytest.approx(30 * 0.012)


def test_the_cost_of_a_late_rank_is_the_median_of_its_span(tmp_path: Path) -> None:
    """Rank 2 loads 10, 30, 90, 90 and 20 ms longer in turn: those of 90 alone are no stalls of their own."""
    times = held_up(2, lambda step: (10, 30, 90, 90, 20)[step % 5] * (40 <= step < 90))
    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert (finding["scope"]["from_step"], finding["scope"]["to_step"]) == (40, 89)
    assert finding["gain_ms"]["mid"] == pytest.approx(30)


def test_a_stall_of_another_rank_in_a_span_is_named(tmp_path: Path) -> None:
    """Rank 2 loads 30 ms longer in steps 40 to 89; in steps 20 and 60 rank 0 is 300 ms longer."""
    late = held_up(2, lambda step: 30 * (40 <= step < 90))
    stalling = held_up(0, lambda step: 300 * (step in (20, 60)))

    def times(step: int, rank: int) -> Times:
        both, usual = stalling(step, rank), even(step, rank)
        return {name: ms + both[name] - usual[name] for name, ms in late(step, rank).items()}

    by_kind = {finding["kind"]: finding for finding in diagnosis(write(tmp_path / "job", times))["findings"]}
    stall = by_kind["outlier_steps"]["scope"]
    assert (stall["ranks"], stall["steps"]) == (["rank0"], [20, 60])
    assert by_kind["late_rank"]["lost_s"] == pytest.approx(50 * 0.030, rel=0.02)


def test_slow_steps_as_long_as_stalls_are_one_span(tmp_path: Path) -> None:
    """Rank 2 loads 30 to 50 ms longer in steps 60 to 67; from 40 ms on a step alone would be a stall."""
    more = dict(enumerate((50, 45, 50, 50, 35, 30, 33, 50), 60))
    times = held_up(2, lambda step: more.get(step, 0))
    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert (finding["kind"], finding["scope"]["ranks"]) == ("late_rank", ["rank2"])
    assert (finding["scope"]["from_step"], finding["scope"]["to_step"]) == (60, 67)


def test_a_rank_that_is_late_in_all_steps_is_named(tmp_path: Path) -> None:
    """Rank 2 loads 12 ms longer all the time: it waits 12 ms less than the others."""
    (finding,) = diagnosis(write(tmp_path / "job", held_up(2, lambda _: 12)))["findings"]
    assert finding["title"] == "rank2 is late in all steps: 12.0 ms more in data"
    assert finding["gain_ms"]["mid"] == pytest.approx(12, abs=0.7)  # the noise of `ms`
    assert finding["lost_s"] == pytest.approx(0.012 * N_STEPS, rel=0.06)


@pytest.mark.parametrize(("waits_in", "order"), [("backward", 1), ("update", 1), ("update", -1)])
def test_a_rank_with_less_work_that_waits_is_not_late(tmp_path: Path, waits_in: str, order: int) -> None:
    """Rank 2 is longer in update: the others wait in backward, or it has less to do there, and waits."""
    rng = np.random.default_rng(0)
    backward = rng.normal(70, 1, (N_RANKS, N_STEPS)) * rng.uniform(0.8, 1.2, N_STEPS)
    update = rng.normal(10, 1, (N_RANKS, N_STEPS))
    if waits_in == "backward":
        update[2] += 30
        before = np.roll(update, 1, axis=1)
        backward = (before + backward).max(0) - before
    else:
        backward[2] -= 30
        update = (backward + update).max(0) - backward

    def times(step: int, rank: int) -> Times:
        parts = [("backward", float(backward[rank, step])), ("update", float(update[rank, step]))]
        return {**dict(parts[::order]), "step": parts[0][1] + parts[1][1]}

    findings = diagnosis(write(tmp_path / "job", times))["findings"]
    assert [finding["scope"]["ranks"] for finding in findings] == [["rank2"]] * (waits_in == "backward")


def test_rows_missing_on_single_ranks_are_no_missing_steps(tmp_path: Path) -> None:
    """Each step lacks the row of one rank, or none; rank 1 loads 20 ms longer from step 60 on."""
    folder = write(tmp_path / "job", held_up(1, lambda step: 20 * (step >= 60)))
    for rank, file in enumerate(sorted(folder.iterdir())):
        lines = file.read_text().splitlines()
        rows = [line for step, line in enumerate(lines[1:]) if step % 12 != 3 * rank]
        file.write_text("\n".join([lines[0], *rows]))
    (finding,) = diagnosis(folder)["findings"]
    assert finding["title"] == "rank1 is late from step 60 on: 20.0 ms more in data"


def test_time_between_a_ranks_steps_shows_as_waiting_of_others(tmp_path: Path) -> None:
    """Of all but rank 3 rows are 30 ms longer in steps 50 to 79, and of all but rank 0 in steps 15 and 95."""

    def times(step: int, rank: int) -> Times:
        parts = even(step, rank)
        more = 30.0 * (50 <= step < 80 and rank != 3) + 90 * (step in (15, 95) and rank != 0)
        return {**parts, "comm": parts["comm"] + more, "step": 100 + more}

    late, stalls = diagnosis(write(tmp_path / "job", times))["findings"]
    between = "30.0 ms more in the time between its steps"
    assert late["title"] == f"rank3 is late from step 50 to 79: {between}"
    title = "steps 15 and 95 take up to 90.0 ms longer than the steps around"
    assert stalls["title"] == f"{title}; all other ranks wait for rank0"
    assert stalls["scope"]["ranks"] == []


def test_two_ranks_late_at_the_same_time_are_both_named(tmp_path: Path) -> None:
    """Rank 1 loads 20 ms longer in steps 30 to 69, rank 3 computes 20 ms longer in steps 50 to 89."""

    def times(step: int, rank: int) -> Times:
        parts, late = even(step, rank), {1: (30, 70, "data"), 3: (50, 90, "compute")}
        begin, end, part = late.get(rank, (0, 0, ""))
        if 30 <= step < 90:
            parts[part if begin <= step < end else "comm"] += 20
            parts["step"] += 20
        return parts

    found = [one["scope"] for one in diagnosis(write(tmp_path / "job", times))["findings"]]
    spans = {(*one["ranks"], one["from_step"], one["to_step"]) for one in found}
    assert spans == {("rank1", 30, 69), ("rank3", 50, 89)}


def test_a_rank_slightly_longer_during_another_ranks_delay_is_not_late(tmp_path: Path) -> None:
    """Rank 2 holds up steps 40 to 79 by 30 ms; rank 1 loads 4 ms longer in 42 to 46, of which 1.5 ms show."""

    def times(step: int, rank: int) -> Times:
        parts, short = even(step, rank), 42 <= step < 47
        if 40 <= step < 80:
            parts["compute" if rank == 2 else "comm"] += 12 if rank == 2 else 30
            parts["step"] += 30 + 1.5 * short
            parts["data"] += 4.0 * (short and rank == 1)
            parts["comm"] += 1.5 * short - 4.0 * (short and rank == 1)
        return parts

    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert finding["scope"]["ranks"] == ["rank2"]


def test_time_outside_the_columns_is_named(tmp_path: Path) -> None:
    def times(step: int, rank: int) -> Times:
        parts = even(step, rank)
        if step >= 60:
            parts["step"] += 20
            parts["comm"] += 0 if rank == 1 else 20
        return parts

    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert finding["title"] == "rank1 is late from step 60 on: 20.0 ms more in time outside the log's columns"


def test_where_all_ranks_grow_no_rank_is_named(tmp_path: Path) -> None:
    times = held_up(-1, lambda step: 15 * (30 <= step < 60))  # no rank has this number
    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert (finding["kind"], finding["scope"]["ranks"]) == ("exposed_communication", [])
    assert (finding["scope"]["from_step"], finding["scope"]["to_step"]) == (30, 59)
    assert finding["gain_ms"]["mid"] == pytest.approx(15)


def test_a_single_rank_has_a_span_without_a_culprit(tmp_path: Path) -> None:
    rows = [f"{step},{115 if step >= 60 else 100}" for step in range(N_STEPS)]
    (tmp_path / "log.csv").write_text("\n".join(["step,step_ms", *rows]))
    (finding,) = diagnosis(tmp_path / "log.csv")["findings"]
    assert (
        finding["title"]
        == "steps are longer from step 60 on: 15.0 ms per step, most of it in time outside the log's columns"
    )


def test_a_column_that_changed_on_the_late_rank_is_named(tmp_path: Path) -> None:
    def times(step: int, rank: int) -> Times:
        parts = even(step, rank) | {"seq": 1024}
        if 30 <= step < 60:
            parts |= {"compute": parts["compute"] + 15, "step": 115, "seq": 1408 if rank == 3 else 1024}
        return parts

    (finding,) = diagnosis(write(tmp_path / "job", times))["findings"]
    assert finding["scope"]["ranks"] == ["rank3"]
    assert "seq of rank3 is 1,408 there instead of 1,024" in finding["cause"]


def test_a_ramp_and_a_stall(tmp_path: Path) -> None:
    """Rank 0 grows by 1 ms a step from 20 to 59; rank 1 stalls in step 90."""

    def times(step: int, rank: int) -> Times:
        parts = even(step, rank)
        more, late = (step - 19.0, 0) if 20 <= step < 60 else (200.0, 1) if step == 90 else (0.0, -1)
        parts["data" if rank == late else "comm"] += more
        parts["step"] += more
        return parts

    found = diagnosis(write(tmp_path / "job", times))["findings"]
    titles = [one["title"] for one in found]
    ramp = next(one for one in found if one["scope"]["ranks"] == ["rank0"])
    assert (ramp["scope"]["from_step"], ramp["scope"]["to_step"]) == (pytest.approx(20, abs=1), 59)
    assert "growing to 39.5 ms" in ramp["title"]  # the median of the last two of 40
    assert "rank1 stalls in step 90: 200 ms longer than the steps around" in titles


def test_late_ranks_are_found_beside_a_drift_of_all(tmp_path: Path) -> None:
    """All compute 40 % longer in the end; rank 1 loads 20 ms longer in steps 20 to 39, rank 3 in 70 to 99."""

    def times(step: int, rank: int) -> Times:
        parts = even(step, rank)
        late = 1 if 20 <= step < 40 else 3 if 70 <= step < 100 else None
        parts["compute"] += step / 3
        parts["step"] += step / 3
        if late is not None:
            parts["data" if rank == late else "comm"] += 20
            parts["step"] += 20
        return parts

    found = [one for one in diagnosis(write(tmp_path / "job", times))["findings"] if one["scope"]["ranks"]]
    spans = {(*one["scope"]["ranks"], one["scope"]["from_step"], one["scope"]["to_step"]) for one in found}
    assert spans == {("rank1", 20, 39), ("rank3", 70, 99)}
    assert [one["gain_ms"]["mid"] for one in found] == [pytest.approx(20, abs=2)] * 2


def test_a_long_log_has_mean_figures_and_exact_spans(tmp_path: Path) -> None:
    """2,500 steps are means of four each; a checkpoint of 500 ms every 250 steps is a stall."""
    for rank in range(N_RANKS):
        rows = []
        for step in range(2_500):
            late = 12 * (1_003 <= step < 1_110)
            data, whole = 2 + late * (rank == 1), 100 + late + 500 * (step % 250 == 249)
            rows.append(f"{step},{data},{80 + ms(step, rank)},{whole}")
        (tmp_path / f"rank{rank}.csv").write_text("\n".join(["step,data_ms,compute_ms,step_ms", *rows]))
    late, stalls = diagnosis(tmp_path)["findings"]
    if late["kind"] == "outlier_steps":
        late, stalls = stalls, late
    assert (late["scope"]["ranks"], late["scope"]["operations"]) == (["rank1"], ["data"])
    assert (late["scope"]["from_step"], late["scope"]["to_step"]) == (1_003, 1_109)
    assert late["gain_ms"]["mid"] == pytest.approx(12)
    assert stalls["title"].endswith(" and 5 more take up to 500 ms longer than the steps around")
    found = {(one["name"], one["count"], one["avg_ms"]) for one in ask("statistic", tmp_path)["operations"]}
    of_rank1 = {(name.removeprefix("rank1."), count): avg for name, count, avg in found if "rank1." in name}
    assert of_rank1["step", 2_500] == pytest.approx(100 + 12 * 107 / 2_500 + 500 / 250)
    assert of_rank1["data", 2_500] == pytest.approx(2 + 12 * 107 / 2_500)
    breakdown = ask("statistic", tmp_path, "--sub_option", "breakdown")["breakdown"]
    parts = [one for one in breakdown if one["rank"] == "rank1"]
    assert [one["step"] for one in parts] == list(range(0, 2_500, 4))
    assert parts[250]["wall_ms"] == pytest.approx(100 + 12 / 4)  # of steps 1,000 to 1,003
    assert parts[251]["wall_ms"] == pytest.approx(112)


#: The truth of its README: ranks of the finding, first and last step, and ms a step.
FAULTS = (
    ("a", ["rank7"], 100, 299, 12.4),
    ("e", ["rank7"], 100, 299, None),
    ("b", ["rank7"], 100, 299, 300),
    ("f", ["rank7"], 100, 299, 22),
)


@pytest.mark.parametrize(("name", "ranks", "begin", "last", "cost"), few(2, FAULTS))
def test_injected_faults_of_recorded_logs_are_found(
    shared_data: Path, name: str, ranks: list[str], begin: int, last: int, cost: float | None
) -> None:
    finding = diagnosis(shared_data / "step-logs" / name)["findings"][0]
    assert finding["scope"]["ranks"] == ranks
    assert finding["scope"]["from_step"] == pytest.approx(begin, abs=5)
    assert finding["scope"]["to_step"] == pytest.approx(last, abs=5)
    if cost is not None:
        assert finding["gain_ms"]["mid"] == pytest.approx(cost, rel=0.04)


@pytest.mark.parametrize("name", few(1, ["a-twin", "d", "d-twin"]))
def test_jobs_without_a_fault_name_no_rank(shared_data: Path, name: str) -> None:
    assert not any(one["scope"]["ranks"] for one in diagnosis(shared_data / "step-logs" / name)["findings"])


def test_a_stall_of_one_rank(shared_data: Path) -> None:
    finding = diagnosis(shared_data / "step-logs" / "c")["findings"][0]
    assert (finding["scope"]["ranks"], finding["scope"]["steps"][0]) == (["rank7"], 100)


def test_compare_names_a_change_on_all_ranks(shared_data: Path) -> None:
    logs = shared_data / "step-logs"
    comm = next(
        one for one in ask("compare", logs / "d-twin", logs / "d")["operations"] if one["name"] == "comm"
    )
    assert comm["significant"]
    assert comm["avg_absolute_ms"] == pytest.approx(10.1, abs=0.3)  # 22.4 - 12.3


def test_two_logs_of_a_rank_may_have_different_columns(tmp_path: Path) -> None:
    for part, more in ((0, ""), (1, ', "loss": 0.5')):
        rows = [
            f'{{"step": {n}, "step_ms": 100, "ts": {1_700_000_000 + n}{more}}}'
            for n in (5 * part, 5 * part + 1)
        ]
        (tmp_path / f"rank_0.part{part}.jsonl").write_text("\n".join(rows))
    (figures,) = load_figures([tmp_path], Wanted(rows=True)).ranks
    assert figures.log is not None and figures.log.labels.tolist() == [0, 1, 5, 6]
    assert figures.log.values["loss"].tolist() == pytest.approx([np.nan, np.nan, 0.5, 0.5], nan_ok=True)


def test_the_parts_of_the_frontier_add_up_to_the_step(tmp_path: Path) -> None:
    # rank1 is late by 30 ms in the forward pass; the others wait for it in the backward pass
    rows = [f"{step},{rank},{10},{80 if rank == 1 else 50},{60 if rank == 1 else 90}\n"
            for step in range(12) for rank in range(4)]  # fmt: skip
    path = tmp_path / "a.csv"
    path.write_text("step,rank,load_ms,forward_ms,backward_ms\n" + "".join(rows))
    shares = diagnose_step_log(load_figures([path], Wanted(rows=True), Request(jobs=1))).frontier
    told = {share.part: (share.ns / 1e6, share.rank, share.ahead_ns / 1e6) for share in shares}
    assert told["load"][0] == 10
    assert told["forward"] == (80, "rank1", 30)  # 90 - 10
    assert told["backward"][0] == 60  # 150 - 90, and not the 90 of three ranks
    assert sum(share.ns for share in shares) == pytest.approx(150e6)
    assert sum(share.share for share in shares) == pytest.approx(1)
