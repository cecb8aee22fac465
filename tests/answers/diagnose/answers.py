"""What a diagnosis of a made job says, in the words that the tests ask for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked, diagnose
from conftest import run_cli
from dag_utils import load_steps, read_partitions
from trace_utils import Request


@cache
def answer(path: Path) -> dict[str, Any]:
    """Return the JSON answer about a recorded job, asked for once."""
    code, out, err = run_cli("--path", path, "--format", "json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def diagnosed(path: Path) -> Diagnosis:
    """Return the diagnosis of the job at a path, loaded as the option does."""
    partitions = read_partitions([path])
    return diagnose(load_steps([path], Request(jobs=1, progress=False), partitions=partitions, sizes=True))


def winning(diagnosis: Diagnosis) -> list[Ranked]:
    """Return the findings of which a replay says what they save, claimed or not."""
    return [one for one in diagnosis.findings if one.estimate is not None]


def kinds(diagnosis: Diagnosis) -> list[str]:
    """Return the kinds of the findings that save something, in their order."""
    return [one.finding.kind for one in winning(diagnosis)]


def titles(diagnosis: Diagnosis, kind: str) -> list[str]:
    """Return what the findings of a kind say is wrong."""
    return [one.finding.title for one in diagnosis.findings if one.finding.kind == kind]


def holds(one: Ranked, amount_ms: float, near: float = 0.1) -> None:
    """The finding's interval holds what is won, and what it says itself is near that, as a share of it."""
    gain = one.estimate
    assert gain is not None
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.low_ns / 1e6 <= amount_ms <= gain.high_ns / 1e6
    assert gain.mid_ns / 1e6 == pytest.approx(amount_ms, rel=near)
