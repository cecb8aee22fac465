"""`--group_by`: a row for each operation over all ranks, and the ranks on which it is slowest and fastest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from conftest import ask, run_cli
from make import span, write


def statistic(*args: object) -> dict[str, Any]:
    document: dict[str, Any] = ask("statistic", *args)
    return document


def job(root: Path, n_ranks: int = 3) -> Path:
    """Ranks whose operation a takes 1000 µs times (rank + 1), twice; rank 1 has an operation b of its own."""
    for rank in range(n_ranks):
        each = 1000 * (rank + 1)
        events = [span("a", 0, each, "op"), span("a", 1e6, each, "op")]
        events += [span("b", 2e6, 500, "op")] if rank == 1 else []
        write(root / f"rank{rank}.json", events)
    return root


def test_an_operation_is_summed_over_the_ranks(tmp_path: Path) -> None:
    found = statistic("--path", job(tmp_path), "--group_by", "operation")["operations"]
    a, b = found
    assert (a["name"], a["count"], a["total_ms"], a["min_ms"], a["max_ms"]) == ("a", 6, 12, 1, 3)
    assert a["avg_ms"] == pytest.approx(2)
    assert a["var_ms2"] == pytest.approx(2 / 3)  # of 1, 1, 2, 2, 3, 3
    assert (a["p50_ms"], b["p50_ms"]) == (None, 0.5), "percentiles are those of one rank"
    assert (a["ranks"], a["slowest_rank"], a["slowest_avg_ms"], a["fastest_avg_ms"]) == (3, "rank2", 3, 1)
    assert (b["name"], b["count"], b["ranks"], b["slowest_rank"]) == ("b", 1, 1, "rank1")
    assert b["slowest_avg_ms"] == b["fastest_avg_ms"] == 0.5


def test_by_rank_is_the_default(tmp_path: Path) -> None:
    path = job(tmp_path)
    assert statistic("--path", path) == statistic("--path", path, "--group_by", "rank")
    assert statistic("--path", path)["operations"][0]["name"] == "rank0.a"


def test_a_category_names_its_operation_without_a_rank(tmp_path: Path) -> None:
    (cat,) = statistic("--path", job(tmp_path), "--group_by", "operation")["categories"]
    assert (cat["count"], cat["total_ms"], cat["max_name"], cat["max_avg_ms"]) == (7, 12.5, "a", 2)


def test_one_rank_alone(tmp_path: Path) -> None:
    path = job(tmp_path) / "rank2.json"
    (a,) = statistic("--path", path, "--group_by", "operation")["operations"]
    assert (a["ranks"], a["slowest_rank"], a["avg_ms"]) == (1, "rank2", 3)


@pytest.mark.slow
@pytest.mark.parametrize(("n_ranks", "rows"), [(16, 17), (17, 2)])
def test_a_terminal_shows_more_than_sixteen_ranks_by_operation(
    tmp_path: Path, n_ranks: int, rows: int
) -> None:
    path = job(tmp_path, n_ranks)
    _, out, _ = run_cli("--option", "statistic", "--path", path, "--full")
    table = out.split("Operations\n")[1].split("Categories\n")[0]
    assert sum(" op " in line for line in table.splitlines()) == rows
    assert ("Over 17 ranks; --group_by rank" in out) == (n_ranks == 17)
    _, asked, _ = run_cli("--option", "statistic", "--path", path, "--full", "--group_by", "rank")
    assert "rank0.a" in asked
    _, out, _ = run_cli("--option", "statistic", "--path", path, "--format", "csv")
    assert len(list(csv.DictReader(out.splitlines()))) == n_ranks + 1  # files stay by rank
    assert len(statistic("--path", path)["operations"]) == n_ranks + 1


def test_it_has_no_effect_on_variants(tmp_path: Path) -> None:
    path = job(tmp_path)
    words = ("--option", "statistic", "--path", path, "--sub_option", "breakdown", "--group_by", "rank")
    code, _, err = run_cli(*words)
    assert code == 2 and "--group_by has no effect" in err
