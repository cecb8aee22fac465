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


GREW = change(126.5, 138.9, 9.1, 15.6, 0.001)


def test_what_explains_a_change_is_named_largest_first() -> None:
    found = comparison(
        GREW, category("PUSH", 20, 30.9, 0.001), category("PULL", 30, 31.1, 0.01), category("FW", 40, 40, 0.9)
    )
    assert verdict(found) == (
        "Slower: 126 → 139 ms (+9.8 %, 95 % CI +9.10 to +15.6 ms): PUSH +10.9 ms, PULL +1.10 ms"
    )


def test_a_shorter_step_is_faster() -> None:
    found = comparison(change(100, 80, -25, -15, 0.001), category("PUSH", 40, 20, 0.001))
    assert verdict(found) == "Faster: 100 → 80.0 ms (−20.0 %, 95 % CI −25.0 to −15.0 ms): PUSH −20.0 ms"


def test_a_change_within_its_interval_is_not_significant() -> None:
    found = comparison(change(100, 101, -3, 5, 0.6), category("PUSH", 20, 21, 0.6))
    assert verdict(found) == "Not significant: 100 → 101 ms (+1.0 %, 95 % CI −3.00 to +5.00 ms)"


def test_too_few_steps_are_said() -> None:
    found = comparison(change(100, 110), category("PUSH", 20, 30, None), steps=(2, 2))
    assert verdict(found) == (
        "Slower: 100 → 110 ms (+10.0 %, too few steps for a test: 2 and 2, 3 needed): PUSH +10.0 ms"
    )
