"""Every finding in every system that records it: found first, with what it wins, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from answers import diagnosed, holds, kinds, winning
from made_cells import CELLS, NOT_RECORDED, SYSTEMS, Cell
from made_jobs import WRITERS, Job

from analyzer.answers.diagnose.diagnosis import further, headline
from analyzer.answers.diagnose.finding import FindingKind
from analyzer.reading import dialects
from conftest import REPO

KINDS = tuple(kind for kind in get_args(FindingKind) if kind != "hang")  # which has no steps: test_hangs
#: Of two systems the findings are those of PyTorch's jobs, told in the same way.
MARKS = {
    **dict.fromkeys(("composer_with_torch", "chrome"), pytest.mark.fuzz),
    **dict.fromkeys(("horovod", "composer"), pytest.mark.slow),
}
EVERY = [
    pytest.param(
        kind,
        system,
        cell,
        id=f"{kind}-{system}{cell.way and f'-{cell.way}'}",
        marks=MARKS.get(system, ()),
    )
    for kind, systems in CELLS.items()
    for system, cells in systems.items()
    for cell in cells
]
#: The host waits at the end of each step, without which what it does before the next would be hidden.
ALSO = {("idle", "device"): ["host_sync"]}


def test_every_kind_and_system_is_tested_or_said_not_to_be_recorded() -> None:
    assert set(CELLS) == set(KINDS)
    for kind in KINDS:
        assert sorted([*CELLS[kind], *NOT_RECORDED.get(kind, set())]) == sorted(SYSTEMS), kind


@pytest.mark.parametrize(("kind", "system", "cell"), EVERY)
def test_the_one_thing_that_is_wrong_is_all_that_is_found(
    tmp_path: Path, kind: str, system: str, cell: Cell
) -> None:
    cell.write(tmp_path / "job")
    diagnosis = diagnosed(tmp_path / "job")
    assert kind in [one.finding.kind for one in diagnosis.findings]
    if cell.won_ms is None:
        assert kinds(diagnosis) == ALSO.get((kind, system), [])
        titles = [one.finding.title for one in diagnosis.findings if one.finding.kind == kind]
        told = f"{headline(diagnosis)} {further(diagnosis)}".lower()
        is_told = any(title.lower() in told for title in titles)
        assert is_told == (kind == "idle")
        return
    assert kinds(diagnosis) == [kind]
    (found,) = winning(diagnosis)
    is_claimed = found.gain is not None and kind != "hot_operation"  # which every job has
    assert (found.finding.title in headline(diagnosis)) == is_claimed
    holds(found, cell.won_ms)


@pytest.mark.parametrize("system", WRITERS)
def test_a_healthy_job_has_no_claims_and_skips_missing_data(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", Job()))
    assert kinds(diagnosis) == []
    assert "nothing stands out" in headline(diagnosis)
    skipped = {one.kind for one in diagnosis.skipped}
    assert diagnosis.view is not None
    never = dialects.named(diagnosis.view.loaded.files[0].dialect).never_shows
    assert never <= set(KINDS)
    assert not never & skipped
    missing = {kind for kind, systems in NOT_RECORDED.items() if system in systems}
    assert missing - {"profiling_overhead"} <= skipped | never  # a warm-up is always looked for
    tested = {kind for kind in never if system in CELLS[kind]}
    assert not tested, "made jobs show these: take them out of the system's `never_shows`"


def test_the_documentation_lists_what_is_tested() -> None:
    text = (REPO / "docs/dev/recorded-jobs.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in row] for row in rows]
    assert head == ["finding", *SYSTEMS.values()]
    told = {row[0]: dict(zip(SYSTEMS, row[1:], strict=True)) for row in body}
    tested = {
        kind.replace("_", " "): {
            system: ", ".join(cell.way or "yes" for cell in CELLS[kind].get(system, [])) for system in SYSTEMS
        }
        for kind in KINDS
    }
    assert told == tested
