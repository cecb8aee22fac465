"""The account of a step by the last rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.answers.diagnose.step_logs.step_log_diagnosis import diagnose_step_log
from analyzer.model.figures.job_figures import Wanted, load_figures
from trace_utils import Request


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
