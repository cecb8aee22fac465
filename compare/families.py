"""Families of operations whose p-values are corrected together, so that many small ones hide no large one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct

from arrays import Float64, NDArray
from compare.significance import corrected
from compare.thresholds import CAUTION, WORTH_TESTING
from dialects import Role
from opname import OpName


class Family(IntEnum):
    """The family of an operation, whose p-values are corrected together."""

    COMPUTATION = 0  # that takes a part of the step worth speaking of
    TRANSFERS = 1  # whole communications
    STAGES = 2  # parts of communications: several for every transfer
    REST = 3


#: The share of false alarms that each family may have; of those without operations, the others get it.
_SHARE = {Family.COMPUTATION: 0.8, Family.TRANSFERS: 0.1, Family.STAGES: 0.06, Family.REST: 0.04}


class Families(Struct, frozen=True):
    """The `Family` and the share of the step of each of m operations."""

    family: NDArray[np.int64]
    share_of_step: Float64

    def corrected(self, p: Float64) -> Float64:
        """Return p-values (m,) corrected by Benjamini and Hochberg within each family; NaN stay NaN.

        Before, each is divided by a weight: that of its family, and within it one that grows with the
        square root of what the operation takes of a step. Weights that are 1 on average, and do not
        look at the difference, cost no more false alarms (Genovese, Roeder, Wasserman, Biometrika 2006).
        """
        tested = np.isfinite(p)
        present = [which for which in Family if (tested & (self.family == which)).any()]
        whole = sum(_SHARE[which] for which in present)
        result = np.full(len(p), np.nan)
        for which in present:
            own = tested & (self.family == which)
            size = np.sqrt(np.maximum(self.share_of_step[own], 1e-9))
            weighted = np.minimum(p[own] * size.mean() / size, 1.0)
            result[own] = np.minimum(corrected(weighted) * whole / (_SHARE[which] * CAUTION), 1.0)
        return result


def families(names: Sequence[str], role: NDArray[np.int8], share_of_step: Float64) -> Families:
    """Return the family of each of m operations, by name and the first role (m,) of its events.

    `share_of_step` (m,) is what its events last together, as a share of the step.
    """
    found = np.full(len(names), int(Family.REST))
    found[(role == Role.COMPUTE) & (share_of_step >= WORTH_TESTING)] = Family.COMPUTATION
    found[np.isin(role, (Role.COMM, Role.COPY))] = Family.TRANSFERS
    for i, op in enumerate(map(OpName.parse, names)):
        if op.is_comm:
            found[i] = Family.TRANSFERS if op.queue is None else Family.STAGES
    return Families(found, share_of_step)
