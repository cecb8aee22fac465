"""`compare.families`: many small operations hide no large one, and false alarms stay rare."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.compare import simulated
from compare.families import Families, Family, families
from compare.significance import corrected
from dialects import Role


def test_which_operation_is_in_which_family() -> None:
    names = ["BW.a", "BW.tiny", "Comm.x", "Comm.x.PUSH.0", "ncclKernel_AllReduce", "aten::add"]
    of = [Role.COMPUTE, Role.COMPUTE, Role.WHOLE_COMM, Role.COMM, Role.COMM, Role.HOST]
    role = np.array(of, np.int8)
    share = np.array([0.01, 0.0009, 0.5, 0.3, 0.1, 0.2])
    assert families(names, role, share).family.tolist() == [
        Family.COMPUTATION, Family.REST, Family.TRANSFERS, Family.STAGES, Family.TRANSFERS, Family.REST,
    ]  # fmt: skip


def test_operations_of_one_family_and_size_are_corrected_as_usual() -> None:
    p = np.array([0.001, 0.02, 0.5, np.nan])
    alike = Families(np.full(4, int(Family.REST)), np.full(4, 0.1))
    assert alike.corrected(p) == pytest.approx(np.minimum(corrected(p) / 0.9, 1.0), nan_ok=True)


def test_a_thousand_stages_leave_the_p_value_of_a_computation_alone() -> None:
    family = np.array([Family.COMPUTATION] * 2 + [Family.STAGES] * 1000)
    p = np.r_[0.01, 0.5, np.full(1000, 0.5)]
    found = Families(family, np.full(1002, 0.1)).corrected(p)
    # twice for its own family, and its part of the false alarms: 0.8 of 0.8 + 0.06, of which 0.9 are used
    assert found[0] == pytest.approx(0.01 * 2 * 0.86 / 0.8 / 0.9)


@pytest.mark.slow
def test_a_slower_operation_is_found_and_false_alarms_are_rare() -> None:
    rates = simulated(60, by_family=True)
    alone = simulated(60, by_family=False)
    assert rates.found >= 0.3  # 0.4 over many jobs
    assert rates.found > alone.found
    assert rates.false_alarm <= 0.12  # 0.05
