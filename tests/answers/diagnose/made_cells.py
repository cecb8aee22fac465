"""For each kind of finding and each system jobs in which just that is wrong, and why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from made_jobs import CALL, WRITERS, DeviceStep, Job, device, iteration_ms
from made_transfers import Partitions, batches, cycles, gloo, nccl, reductions, slices

JOB, DEVICE, PARTITIONS = Job(), DeviceStep(), Partitions()
BY_NEED = replace(PARTITIONS, large=20, small=10, small_kib=512, small_ms=0.2, small_pull=0.2, servers=2)

#: What the systems are called in docs/dev/recorded-jobs.md.
SYSTEMS = {
    "kineto": "PyTorch",
    "device": "with a device",
    "byteps": "BytePS",
    "horovod": "Horovod",
    "composer": "Composer",
    "composer_with_torch": "Composer with PyTorch's profiler",
    "chrome": "any other",
}
WITH_WORK = [system for system in WRITERS if system != "horovod"]  # whose traces have the ranks' own work


@dataclass(frozen=True, slots=True)
class Cell:
    """A job in which one thing is wrong, and what it wins to have it right (ms a step; None: not claimed).

    `way` says in which of several ways it is wrong.
    """

    write: Callable[[Path], object]
    won_ms: float | None = None
    way: str = ""


def made(system: str, won_ms: float | None, way: str = "", **more: Any) -> Cell:
    """Return a job of a system that is healthy but for `more`."""
    return Cell(lambda path: WRITERS[system](path, replace(JOB, **more)), won_ms, way)


def late_by_work(system: str) -> Cell:
    """Return a job of which one rank computes 30 ms longer."""
    more = [0.0, 30.0, 0.0, 0.0]
    won_ms = iteration_ms(replace(JOB, more_forward=more)) - iteration_ms(JOB)
    return made(system, won_ms, "work", more_forward=more)


def on_device(won_ms: float | None, way: str = "", **more: Any) -> Cell:
    """Return steps of one rank with a device."""
    return Cell(lambda path: device(path, replace(DEVICE, **more)), won_ms, way)


def with_bytes(job: Partitions, healthy: Partitions, way: str = "", **more: Any) -> Cell:
    """Return a BytePS job with the log of its partitions; what it wins is how much longer its steps are."""
    wrong = replace(job, **more)
    return Cell(wrong.write, wrong.step_ms() - healthy.step_ms(), way)


#: One of five reductions of the same size takes 12 ms instead of 1.
ONE_IS_SLOW = [1.0, 1.0, 1.0, 12.0, 1.0]
#: 60 reductions of 0.1 ms, of which six would do.
SHORT, SMALL, MERGED_MS = [0.1] * 60, [64 << 10] * 60, 54 * 0.1


def transfers(write: Callable[..., Path], times: Sequence[float], won_ms: float, **more: Any) -> Cell:
    """Return a job that reduces several times in each step, for so long."""
    return Cell(lambda path: write(path, times, **more), won_ms)


CELLS: dict[str, dict[str, list[Cell]]] = {
    "late_rank": {
        system: [
            late_by_work(system),
            made(system, 25.0, "pause", more_pause=25.0),
            *([made(system, 20.0, "input", more_load=[0.0, 20.0, 0.0, 0.0])] * (system in WITH_WORK)),
        ]
        for system in WRITERS
    },
    "uneven_work": {
        system: [made(system, 30.0 - 15.0, more_forward=[0.0, 10.0, 20.0, 30.0])] for system in WITH_WORK
    },
    "exposed_communication": {
        system: [
            # one rank of four has 20 ms more: 15 more than their mean; negotiations tell only who was first
            made(system, 20.0 if system == "horovod" else 15.0, "waiting in turn", more_in_turn=20.0),
            # a timeline of Horovod has no computation, so no saving is claimed for transfers
            *([made(system, 40.0, "transfers", transfer=40.0)] * (system not in ("composer", "horovod"))),
        ]
        for system in WRITERS
    },
    "slow_collective": {
        "byteps": [with_bytes(PARTITIONS, PARTITIONS, "links", push=(0.2, 3.0))],
        "device": [transfers(nccl, ONE_IS_SLOW, 11.0)],
        "kineto": [transfers(gloo, ONE_IS_SLOW, 11.0)],
        "horovod": [transfers(reductions, ONE_IS_SLOW, 11.0)],
    },
    "small_messages": {
        # merged they would take one's time and that of 256 KiB
        "byteps": [
            with_bytes(PARTITIONS, replace(PARTITIONS, small=1, small_ms=0.7, small_pull=0.35), small=64)
        ],
        "device": [transfers(nccl, SHORT, MERGED_MS, compute=60.0, n_bytes=SMALL)],
        "kineto": [transfers(gloo, SHORT, MERGED_MS, compute=60.0, n_bytes=SMALL)],
        "horovod": [transfers(reductions, SHORT, MERGED_MS, compute=60.0, n_bytes=SMALL)],
        "composer_with_torch": [transfers(batches, SHORT, MERGED_MS, compute=60.0)],
        "chrome": [transfers(slices, SHORT, MERGED_MS, compute=60.0)],
    },
    "server": {"byteps": [with_bytes(PARTITIONS, PARTITIONS, pull=2.2)]},
    "priority_inversion": {"byteps": [with_bytes(BY_NEED, BY_NEED, small_first=True)]},
    "input": {system: [made(system, 15.0, load=15.0)] for system in WITH_WORK if system != "chrome"},
    # the device needs 40 x 0.05 = 2 ms for what the host launches in 40 x 0.5, and waits 0.01 for
    "host_bound": {"device": [on_device(40 * 0.5 + 0.01 - 40 * 0.05, launch=0.5, kernel=0.05)]},
    # after every 4 kernels the host waits, and computes 1 ms before it launches again: 10 times a step
    "host_sync": {"device": [on_device(10 * (CALL + 0.01 + 1.0 + 0.05), sync_every=4, think=1.0)]},
    "copies": {"device": [on_device(12.0, copy=12.0)]},
    "idle": {system: [made(system, None, pause=15.0)] for system in WITH_WORK},
    "hot_operation": {
        # 85 % of 60 ms; what is claimed is a tenth of it
        system: [made(system, 0.1 * 0.85 * 60.0, forward=60.0, hot=0.85)]
        for system in WITH_WORK
        if system != "composer"
    },
    "outlier_steps": {
        # one of the whole steps: where only their ends are marked, the first is not whole
        system: [
            made(system, 200.0 / (JOB.steps - (system in ("byteps", "horovod"))), more_in_step=(4, 200.0))
        ]
        for system in WRITERS
    },
    "profiling_overhead": {
        system: [made(system, None, "warm-up", more_in_step=(0, 200.0), backward=60.0)]
        for system in WITH_WORK
    },
    "memory": {
        "device": [
            on_device(None, "peak", peak_gb=[39.0] * 8),
            # as of "host_sync": after every 4 kernels memory is freed, which waits, and allocated for 1 ms
            on_device(10 * (CALL + 0.01 + 1.0 + 0.05), "allocation", sync_every=4, think=1.0, allocates=True),
        ]
    },
    "negotiation": {"horovod": [Cell(lambda path: cycles(path, wait=3.0), 4 * 3.0)]},
    "capture_quality": {system: [made(system, None, steps=3)] for system in WRITERS},
}

#: What a system does not record, or what none of its traces can have.
NOT_RECORDED: dict[str, set[str]] = {
    "uneven_work": {"horovod"},
    "slow_collective": {"composer", "composer_with_torch", "chrome"},
    "small_messages": {"composer"},
    "server": set(WRITERS) - {"byteps"},
    "priority_inversion": set(WRITERS) - {"byteps"},
    "input": {"horovod", "chrome"},
    "host_bound": set(WRITERS) - {"device"},
    "host_sync": set(WRITERS) - {"device"},
    "copies": set(WRITERS) - {"device"},
    "idle": {"horovod"},
    "hot_operation": {"horovod", "composer"},
    "profiling_overhead": {"horovod"},
    "memory": set(WRITERS) - {"device"},
    "negotiation": set(WRITERS) - {"horovod"},
}
