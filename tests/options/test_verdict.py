"""`options.compare.verdict`: the sentence, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.comparison import Comparison, OpChange
from compare.significance import Change
from figures.job_figures import JobFigures
from options.compare.verdict import interval, verdict

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
        "iteration time +12.4 ms (+9.8 %, 95 % CI 9.10–15.6 ms): PUSH +10.9 ms, PULL +1.10 ms"
    )


def test_operations_without_a_category_explain_nothing_by_name() -> None:
    assert verdict(comparison(GREW, category("", 20, 30.9, 0.001), category("PULL", 30, 31.1, 0.01))) == (
        "iteration time +12.4 ms (+9.8 %, 95 % CI 9.10–15.6 ms): PULL +1.10 ms"
    )


def test_a_part_that_may_be_chance_is_called_uncertain() -> None:
    found = comparison(GREW, category("PUSH", 20, 30.9, 0.2))
    assert verdict(found).endswith(": PUSH +10.9 ms (uncertain)")


def test_a_decrease_has_minus_signs() -> None:
    found = comparison(change(138.9, 126.5, -15.6, -9.1, 0.001), category("PUSH", 30.9, 20, 0.001))
    assert verdict(found) == "iteration time −12.4 ms (−8.9 %, 95 % CI −15.6 to −9.10 ms): PUSH −10.9 ms"


def test_chance_is_called_chance() -> None:
    found = comparison(change(100, 101, -3, 5, 0.6), category("PUSH", 20, 21, 0.6))
    assert verdict(found) == "iteration time +1.00 ms (+1.0 %, 95 % CI −3.00 to 5.00 ms): not significant"


def test_the_same_run_is_unchanged() -> None:
    assert verdict(comparison(change(100, 100, -3, 3, 1.0))) == "iteration time unchanged (100 ms)"


def test_too_few_steps_are_said() -> None:
    found = comparison(change(100, 110), category("PUSH", 20, 30, None), steps=(2, 2))
    assert verdict(found) == (
        "iteration time +10.0 ms (+10.0 %, too few steps for a test: 2 and 2, 3 needed): PUSH +10.0 ms"
    )


def test_a_run_without_steps_has_no_iteration_time() -> None:
    found = comparison(Change(None, 5.0 * MS), steps=(0, 4))
    assert verdict(found) == (
        "no iteration time (steps are not marked in the base); no operation of 0 changed significantly"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [(change(0, 1, 9.1, 15.6), "9.10–15.6"), (change(0, 1, -1.5, 2), "−1.50 to 2.00"), (change(0, 1), "")],
)
def test_interval_in_words(found: Change, text: str) -> None:
    assert interval(found) == text
