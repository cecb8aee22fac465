"""Several ranks in one chrome file, as users ask for them: ``--rank_by``, ``--step_by``, or no word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import ask, run_cli

#: A schedule: for each of two stages when an iteration's passes begin and end (ms).
SLOW = (("forward", 0, 200), ("backward", 400, 900)), (("forward", 210, 400), ("backward", 410, 700))
FAST = (("forward", 0, 150), ("backward", 300, 700)), (("forward", 160, 300), ("backward", 310, 550))


def schedule(path: Path, passes: Any, every: float, *, pids: tuple[int, int] = (0, 1)) -> Path:
    """Write 12 iterations, one `every` so many milliseconds, as pairs of begin and end."""
    events = []
    for iteration in range(12):
        base = every * iteration
        for stage, own in enumerate(passes):
            mark = {"name": "iteration begin", "ph": "i", "ts": 1e3 * base, "pid": pids[stage], "tid": 0}
            events.append({**mark, "args": {"iteration": iteration}})
            for name, begin, end in own:
                both = {"name": name, "pid": pids[stage], "tid": 0}
                args = {"iteration": iteration, "stage": f"stage{stage}"}
                events.append({**both, "ph": "B", "ts": 1e3 * (base + begin), "args": args})
                events.append({**both, "ph": "E", "ts": 1e3 * (base + end), "args": {"pp_rank": stage}})
    path.write_text(json.dumps(events))
    return path


def test_compare_tells_how_much_longer_an_iteration_of_another_schedule_is(tmp_path: Path) -> None:
    fast, slow = schedule(tmp_path / "fast.json", FAST, 714), schedule(tmp_path / "slow.json", SLOW, 955)
    for asked in ((), ("--step_by", "iteration begin"), ("--step_by", "args.iteration", "--rank_by", "pid")):
        found = ask("--option", "compare", "--path", fast, slow, *asked)
        assert found["iteration_ms"] == pytest.approx([714, 955])


def test_an_argument_tells_the_ranks_wherever_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    path = schedule(tmp_path / "job" / "a.json", FAST, 714, pids=(70_000, 70_001))
    asked = ("--option", "statistic", "--sub_option", "breakdown", "--path", path, "--rank_by", "args.stage")
    one, two = (ask(*asked, "--jobs", jobs) for jobs in (1, 2))
    assert one == two
    assert [(rank["rank"], rank["compute_ms"]) for rank in one["ranks"]] == [("rank0", 550), ("rank1", 380)]
    assert [rank["rank"] for rank in ask(*asked[:-2])["ranks"]] == ["rank0"], "process numbers are too large"


def test_a_column_of_a_step_log_tells_whose_a_row_is(tmp_path: Path) -> None:
    """Lane 3 loads 12 ms longer in steps 30 to 59; no column is called after ranks."""
    slow = range(30, 60)
    rows = [
        f"{step},{lane},{100 + 12 * (step in slow)},{2 + 12 * (step in slow and lane == 3)}"
        for step in range(100)
        for lane in range(4)
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,lane,step_ms,load_ms", *rows]))
    for field in ("lane", "args.lane"):
        (found,) = ask("--path", path, "--rank_by", field)["findings"]
        assert (found["scope"]["ranks"], found["scope"]["operations"]) == (["rank3"], ["load"])
    _, _, err = run_cli("--path", path)
    assert "300 rows of steps that were run again; the last of a step holds (--rank_by COLUMN tells" in err
