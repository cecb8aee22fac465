"""A job as detectors see it, each figure computed once: work, paths and meetings, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from analyzer.answers.diagnose.steps.meetings import Arrivals, meetings_of
from analyzer.answers.diagnose.steps.path_times import (
    PathTimes,
    far_longer,
    mean_path_times,
    slow_without_input,
)
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.errors import check_cells
from analyzer.model.graph.step_graph import Recording, StepGraph, job_lengths
from analyzer.reading.dialects.roles import Phase
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import LoadedSteps, critical_path
from replay.edit import Job
from replay.usual_times import stages
from replay.whatif.host import prepares


class JobView:
    """A loaded job; whole steps are its `rows`, columns of owners and operations are as in its recording.

    `recording` is another one in place of the loaded one, in which something was edited; `step_ns` is the
    length of the median step as it was recorded in any case, and `job` as edits ask it. `network` are
    clauses about where transfers spend their time, from captures and logs of servers.
    """

    def __init__(
        self,
        loaded: LoadedSteps,
        recording: Recording | None = None,
        network: str = "",
        job: Job | None = None,
    ) -> None:
        self.loaded, self.network = loaded, network
        self.job = job or Job.of(loaded)
        self.recording = loaded.recording if recording is None else recording

    @cached_property
    def as_recorded(self) -> JobView:
        """The job with the profiler's cost."""
        recorded = self.loaded.recording.recorded
        return self if recorded is None else JobView(replace(self.loaded, recording=recorded))

    # ---- steps

    @cached_property
    def rows(self) -> list[int]:
        """The recorded steps that are whole, without the warm-up."""
        return self.loaded.recording.whole_steps

    @property
    def steps(self) -> Iterator[StepGraph]:
        """The steps that are whole, one after the other: they may be large."""
        return map(self.recording.steps.__getitem__, self.rows)

    @cached_property
    def iteration_ns(self) -> Float64:
        """The length of each whole step, the mean over the owners (steps,); see `StepBounds.mean_ns`."""
        lengths = [self.recording.bounds[row].mean_ns for row in self.rows]
        if not any(lengths):  # edits may leave nothing of a step
            lengths = [critical_path(step).length_ns for step in self.steps]
        return np.array(lengths, np.float64)

    @cached_property
    def step_ns(self) -> float:
        """The recorded length of the median step."""
        recorded = self if self.recording is self.loaded.recording else JobView(self.loaded)
        return float(np.median(recorded.iteration_ns))

    @cached_property
    def job_ns(self) -> Float64:
        """The length of each whole step until its last owner is through (steps,)."""
        return job_ns(self, self.rows)

    @cached_property
    def far_longer(self) -> list[int]:
        """The places among the whole steps of those that took far longer than the others."""
        return far_longer(self)

    @cached_property
    def outliers(self) -> list[int]:
        """The places of the far longer steps that did not just wait for input, as others do as well."""
        return slow_without_input(self, self.far_longer)

    @cached_property
    def stage(self) -> Int64:
        """The stage of the pipeline that each owner (m,) is; all 0 where there is none."""
        return stages(self.recording)

    # ---- operations

    def which(self, accept: Callable[[Operation], object]) -> Mask:
        """Mark the operations (n,) that are accepted."""
        return self.recording.which(accept)

    @cached_property
    def is_input(self) -> Mask:
        """The operations (n,) that load input."""
        return self.which(lambda operation: operation.phase is Phase.INPUT)

    @cached_property
    def is_communication(self) -> Mask:
        """The operations (n,) that move data between ranks."""
        return self.which(lambda operation: operation.is_communication)

    @cached_property
    def is_of_host(self) -> Mask:
        """The operations (n,) that the host of a device runs."""
        return self.which(lambda operation: self.has_device and prepares(operation))

    @cached_property
    def has_device(self) -> bool:
        """Check for recorded device work."""
        return any(operation.on_device for operation in self.recording.operations.kinds)

    @cached_property
    def kind_of(self) -> tuple[list[str], Int64]:
        """The names of operations without their ranks, and the place of each operation's (n,) among them."""
        return self.recording.numbered(lambda operation: operation.main)

    def of_kinds(self, chosen: Mask) -> Mask:
        """Mark the kinds of operations (k,) that are `chosen` (n,); those that are alike are so together."""
        marked = np.zeros(len(self.recording.operations.kinds), np.bool_)
        marked[self.recording.operations.kind[chosen]] = True
        return marked

    def by_name(self, by_kind: Float64) -> Float64:
        """Add up times of kinds of operations (k,) by the names of `kind_of`."""
        names, number = self.kind_of
        of_kind = np.zeros(len(by_kind), np.int64)
        of_kind[self.recording.operations.kind] = number
        return np.bincount(of_kind, by_kind, len(names)).astype(np.float64)

    def longest(self, by_name: Float64, most: int = 3) -> list[str]:
        """Name what takes most of some times, as of `by_name`, the longest first."""
        names = self.kind_of[0]
        return [names[i] for i in np.argsort(-by_name)[:most].tolist() if by_name[i] > 0]

    def largest(self, chosen: Mask) -> tuple[list[str], Mask]:
        """Name the longest of the `chosen` operations (n,) on the path, and mark (n,) those of that name.

        Only what takes any time is named.
        """
        by_name = self.by_name(np.where(self.of_kinds(chosen), self.path.work_ns, 0.0))
        return self.longest(by_name), self.kind_of[1] == (np.argmax(by_name) if by_name.any() else -1)

    # ---- times

    @cached_property
    def work_by_kind(self) -> Float64:
        """The work of all operations of a kind (see `OperationTable`) in each whole step (steps, k)."""
        return _by_kind(self, "work_ns")

    @cached_property
    def gap_by_kind(self) -> Float64:
        """The gaps before all operations of a kind in each whole step (steps, k)."""
        return _by_kind(self, "gap_ns")

    def owner_work_ns(self, chosen: Mask) -> Float64:
        """Return the work of the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return _by_owner(self, self.work_by_kind, chosen)

    def owner_gap_ns(self, chosen: Mask) -> Float64:
        """Return the gaps before the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return _by_owner(self, self.gap_by_kind, chosen)

    @cached_property
    def path(self) -> PathTimes:
        """Work and gaps on the critical paths of the steps, without outliers."""
        usual = [row for index, row in enumerate(self.rows) if index not in self.outliers]
        return mean_path_times(self, usual)

    def path_work_ns(self, chosen: Mask) -> float:
        """Return the work of the `chosen` operations (n,) on the path of a step, the mean over steps.

        The mean, as a saving is one: often some steps hide all of it, and others nothing.
        """
        return float(self.path.work_ns[self.of_kinds(chosen)].sum())

    @cached_property
    def meetings(self) -> list[Arrivals]:
        """The meetings of each whole step."""
        return meetings_of(self.recording, self.rows)


def job_ns(view: JobView, rows: Sequence[int]) -> Float64:
    """Return the length of each of the steps `rows` until its last owner is through, else its mean length."""
    bounds = [view.recording.bounds[row] for row in rows]
    lengths = job_lengths(bounds)
    if not (lengths > 0).any():
        return view.iteration_ns
    return np.where(lengths > 0, lengths, [step.mean_ns for step in bounds])


def names_of(view: JobView, chosen: Mask) -> list[str]:
    """Return the names of the `chosen` operations (n,) without their ranks, sorted."""
    return sorted({operation.main for operation in view.recording.chosen_kinds(chosen)})


def _by_kind(view: JobView, column: str) -> Float64:
    n_events = sum(map(len, view.steps))
    check_cells(view.loaded.files[0].path, len(view.recording.operations.kinds), len(view.rows), n_events)
    return view.recording.by_kind(column, view.rows)


def _by_owner(view: JobView, by_kind: Float64, chosen: Mask) -> Float64:
    chosen_kinds = view.of_kinds(chosen)
    owner = np.array([operation.owner for operation in view.recording.operations.kinds], np.int64)
    n = len(view.recording.owners)
    return np.array([np.bincount(owner, times * chosen_kinds, n) for times in by_kind])
