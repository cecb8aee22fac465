"""Where the milliseconds of a distributed training step go: the answers of the command line, for Python.

Each function takes jobs (of `load`, or paths) and the flags of its option as arguments. It returns a `Result`
and prints nothing; where the command line prints an error, it raises `AnalyzeError`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import AnalyzeError

__all__ = [
    "AnalyzeError", "breakdown", "collect", "collectives", "combine", "compare", "compare3d", "critical",
    "diagnose", "graph", "kernels", "load", "replay", "statistic", "whatif",
]  # fmt: skip

if TYPE_CHECKING:
    from analyzer.jobs import _Job
    from analyzer.report.result import Result


def load(*paths: str | Path, **flags: Any) -> _Job:
    """Name the recordings of a job, and the flags that all answers read them with."""
    from analyzer.jobs import job_at

    return job_at(paths, flags)


def _answer(option: str, *jobs: _Job | str | Path, **flags: Any) -> Result:
    from analyzer.jobs import answer

    return answer(option, jobs, flags)


diagnose = partial(_answer, "diagnose")  # what is slow, why, and what to do first
statistic = partial(_answer, "statistic")  # how long each operation takes
breakdown = partial(_answer, "breakdown")  # computation, communication and idle time of each step
collectives = partial(_answer, "collectives")  # size, time and bandwidth of collectives
kernels = partial(_answer, "kernels")  # time of each kind of kernel
critical = partial(_answer, "critical")  # the chain of operations that sets the length of a step
graph = partial(_answer, "graph")  # what waits for what
replay = partial(_answer, "replay")  # the recorded steps, simulated
whatif = partial(_answer, "whatif")  # the step after edits such as "bandwidth=2", which follow the job
compare = partial(_answer, "compare")  # what changed between runs, the base first
compare3d = partial(_answer, "3dcompare")  # many runs side by side
combine = partial(_answer, "combine")  # one timeline of all ranks
collect = partial(_answer, "collect")  # the final traces and the iteration time, from raw files
