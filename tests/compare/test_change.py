"""`compare.change`: a quantity in two runs."""

from __future__ import annotations

import numpy as np
import pytest

from compare.change import Change, changes
from compare.significance import sample


def test_difference_and_share_are_of_the_base() -> None:
    change = Change(200.0, 250.0)
    assert (change.ns, change.relative) == (50.0, 0.25)


def test_from_nothing_has_no_share_and_nothing_to_nothing_none() -> None:
    assert Change(0.0, 5.0).relative is None
    assert Change(0.0, 0.0).relative == 0.0
    assert Change(None, 5.0).ns is None


def test_what_is_not_tested_does_not_dilute_the_rest() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(10, 1, (20, 6)), rng.normal(10, 1, (20, 6))
    b[0] += 3
    only_first = np.arange(20) == 0
    alone = changes(sample(a[:1]), sample(b[:1]))[0]
    first, *others = changes(sample(a), sample(b), tested=only_first)
    assert first.p == pytest.approx(alone.p)
    assert {other.p for other in others} == {None}
