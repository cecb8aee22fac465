"""`cli.compare.verdict`: the sentence, word for word."""

from __future__ import annotations

from pathlib import Path

from analyzer.answers.compare.comparison import Comparison, OpChange
from analyzer.answers.compare.significance import Change
from analyzer.cli.compare.verdict import verdict
from analyzer.model.figures.job_figures import JobFigures

MS = 1_000_000


def change(
    a: float, b: float, low: float | None = None, high: float | None = None, p: float | None = None
) -> Change:
    """A change with its figures in milliseconds."""
    low_ns, high_ns = (None if value is None else value * MS for value in (low, high))
    return Change(a * MS, b * MS, low_ns, high_ns, p)


def category(name: str, a: float, b: float, p: float | None) -> OpChange:
    return OpChange(name, name, name, (10, 10), change(a, b), change(a, b, p=p))


def comparison(iteration: Change, *categories: OpChange, steps: tuple[int, int] = (10, 10)) -> Comparison:
    a, b = (JobFigures(Path(name), (), (), ()) for name in ("a", "b"))
    return Comparison(a, b, ("base", "new"), (), ((), ()), categories, iteration, steps, ())


def test_a_change_within_its_interval_is_not_significant() -> None:
    found = comparison(change(100, 101, -3, 5, 0.6), category("PUSH", 20, 21, 0.6))
    assert verdict(found) == "Not significant: 100 → 101 ms (+1.0 %, 95 % CI −3.00 to +5.00 ms)"


def test_too_few_steps_are_said() -> None:
    found = comparison(change(100, 110), category("PUSH", 20, 30, None), steps=(2, 2))
    assert verdict(found) == (
        "Slower: 100 → 110 ms (+10.0 %, too few steps for a test: 2 and 2, 3 needed): PUSH +10.0 ms"
    )
