"""The peers of an owner, and their usual time."""

from __future__ import annotations

import numpy as np
import pytest

from replay.even_work import peers_of, peers_usual


@pytest.mark.parametrize("group", [[0] * 7, [0, 0, 0, 1, 1, 2, 1], [0, 1, 2, 3, 4, 5, 6], [0, 1]])
def test_peer_medians_agree_with_one_by_one_medians(group: list[int]) -> None:
    time = np.random.default_rng(1).integers(0, 5, (20, len(group))).astype(float)  # with many ties
    of_each = [
        np.median(time[:, peers_of(owner, [], np.array(group))], axis=1) for owner in range(len(group))
    ]
    assert peers_usual(time, np.array(group)).T.tolist() == np.array(of_each).tolist()
