"""A job as detectors see it, each figure computed once: work, paths and meetings, step by step.

Also recorded events and gaps that show a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.answers.diagnose.finding import CHANCE, HALF, MOST_STEPS, MUCH, Evidence
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.change_points import LEAST_STEPS
from analyzer.base.arrays.distributions import FEWEST, outliers, student_cdf
from analyzer.base.arrays.intervals import stretches
from analyzer.base.arrays.numbering import connected, unique
from analyzer.base.errors import check_cells
from analyzer.model.graph.step_graph import Recording, StepGraph, job_lengths
from analyzer.reading.dialects.edge_rules import EdgeKind, Rule, kinds_of
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Operation
from dag_utils import CriticalPath, LoadedSteps, critical_path
from replay.edit import Job
from replay.usual_times import stages
from replay.whatif.host import PYTHON, prepares


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
        """The indices of whole steps that took far longer than the others.

        With accumulated gradients only every n-th step updates the model, and takes longer. So steps with and
        without an update are compared among themselves. Many in a row are a change of the level.
        """
        if not outliers(self.job_ns).any():
            return []
        is_update = self.which(lambda operation: operation.phase is Phase.UPDATE)
        updates = np.array([is_update[step.operation].any() for step in self.steps], np.bool_)
        is_far = np.zeros(len(self.rows), np.bool_)
        for indices in (np.flatnonzero(~updates), np.flatnonzero(updates)):
            is_far[indices[outliers(self.job_ns[indices])]] = True
        for begin, end in stretches(is_far).tolist():
            is_far[begin:end] &= end - begin < LEAST_STEPS
        far: list[int] = np.flatnonzero(is_far).tolist()
        return far

    @cached_property
    def outliers(self) -> list[int]:
        """The indices of the far longer steps that did not just wait for input, as others do as well."""
        if not self.far_longer:
            return []

        def loading_ns(row: int) -> float:
            return float(_times_of(self, row)[0][:-1][self.of_kinds(self.is_input)].sum())

        usual = _some_rows(self, [row for i, row in enumerate(self.rows) if i not in self.far_longer])
        usual_ns = float(np.median([loading_ns(row) for row in usual]))
        more_ns = self.job_ns - np.median(self.job_ns)
        return [i for i in self.far_longer if loading_ns(self.rows[i]) - usual_ns < HALF * more_ns[i]]

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
        return self._by_kind("work_ns")

    @cached_property
    def gap_by_kind(self) -> Float64:
        """The gaps before all operations of a kind in each whole step (steps, k)."""
        return self._by_kind("gap_ns")

    def _by_kind(self, column: str) -> Float64:
        n_events = sum(map(len, self.steps))
        check_cells(self.loaded.files[0].path, len(self.recording.operations.kinds), len(self.rows), n_events)
        return self.recording.by_kind(column, self.rows)

    def owner_work_ns(self, chosen: Mask) -> Float64:
        """Return the work of the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return self._by_owner(self.work_by_kind, chosen)

    def owner_gap_ns(self, chosen: Mask) -> Float64:
        """Return the gaps before the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return self._by_owner(self.gap_by_kind, chosen)

    def _by_owner(self, by_kind: Float64, chosen: Mask) -> Float64:
        owner = np.array([operation.owner for operation in self.recording.operations.kinds], np.int64)
        times = by_kind * self.of_kinds(chosen)
        return np.array([np.bincount(owner, of_step, len(self.recording.owners)) for of_step in times])

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
        recording = self.recording
        is_meeting = self.which(lambda operation: operation.role is Role.MEETING)
        number = recording.numbered(lambda operation: (operation.main, operation.transfer.key))[1]
        pieces = np.where(self.which(lambda operation: operation.transfer.key is not None), number, -1)
        return [_meetings(len(recording.owners), step, pieces, is_meeting) for step in self.steps]


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


#: Critical paths to walk: so many, or if steps are short, paths of steps with so many events.
_MOST_PATHS, _MOST_EVENTS = 20, 300_000


class PathTimes(Struct, frozen=True):
    """Work of each kind of operation on the path of a step, and gaps before it; the mean over `rows`."""

    rows: Sequence[int]
    work_ns: Float64  # (k,)
    gap_ns: Float64  # (k + 1,), the last before no operation
    beside_ns: float  # the host decides while its device works, which the path follows then


def mean_path_times(view: JobView, rows: Sequence[int]) -> PathTimes:
    """Average the paths of the steps `rows`, or of a sample."""
    rows = _some_rows(view, rows)
    work, gaps, beside = np.mean([_times_of(view, row) for row in rows], axis=0)
    return PathTimes(rows, work[:-1], gaps, beside.sum())


def _some_rows(view: JobView, rows: Sequence[int]) -> list[int]:
    """Sample steps so that walking their paths does not take long."""
    events = sum(len(view.recording.steps[row]) for row in rows[:_MOST_PATHS])
    most = max(_MOST_PATHS, _MOST_EVENTS * _MOST_PATHS // max(events, 1))
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))
    return [rows[i] for i in places]


def _times_of(view: JobView, row: int) -> tuple[Float64, Float64, Float64]:
    """Add up work, gaps and work beside a host on the path of a step by kind (k + 1,); the last is of none.

    Short gaps of a device's host are its work.
    """
    n, kind = len(view.recording.operations.kinds), view.recording.operations.kind
    step = view.recording.steps[row]
    path = critical_path(step)
    kinds = np.append(kind, n)[np.append(step.operation, -1)[path.event]]  # a step may have no event
    lasts, is_python = path.end_ns - path.start_ns, is_python_gap(view, step, path)
    is_work = path.is_work | is_python
    is_gap = path.is_gap & ~is_python
    work, gaps, beside = (
        np.bincount(kinds[chosen], lasts[chosen], n + 1).astype(np.float64)
        for chosen in (is_work, is_gap, path.rule == Rule.BUSY)
    )
    return work, gaps, beside


def is_python_gap(view: JobView, step: StepGraph, path: CriticalPath) -> Mask:
    """Mask the stretches of a path that are gaps of a host so short that only Python ran."""
    of_host = view.is_of_host[np.append(step.operation, 0)[path.event]]
    is_gap: Mask = of_host & (path.event >= 0) & path.is_gap
    return is_gap & (path.end_ns - path.start_ns < PYTHON * view.step_ns)


class Arrivals(Struct, frozen=True):
    """The k arrivals of ranks at the meetings of one step."""

    meeting: Int64  # (k,) from 0
    owner: Int64
    event: Int64
    at_ns: Int64  # begin of the event


def _meetings(n_owners: int, step: StepGraph, piece_of: Int64, is_meeting: Mask) -> Arrivals:
    """Find the meetings of a step: events that edges between owners connect, or one partition's pushes.

    `piece_of` (n,) is the partition of each operation, equal on all ranks, or -1.
    """
    edges = step.edges[np.isin(kinds_of(step.edges), (EdgeKind.GROUP, EdgeKind.MESSAGE))]
    meets = is_meeting[step.operation[edges[:, :2]]].any(axis=1)
    edges = edges[(step.owner[edges[:, 0]] != step.owner[edges[:, 1]]) | meets]
    source, target = edges[:, 0], edges[:, 1]
    pieces = piece_of[step.operation[source]]
    order = np.argsort(pieces, kind="stable")
    alike = (pieces[order[1:]] == pieces[order[:-1]]) & (pieces[order[1:]] >= 0)
    tails = np.concatenate([source, source[order[1:][alike]]])
    heads = np.concatenate([target, source[order[:-1][alike]]])
    events, index = np.unique(np.concatenate([tails, heads]), return_inverse=True)
    part = connected(len(events), *index.reshape(2, -1))
    source = unique(source[~is_meeting[step.operation[source]]])
    part, owner = part[np.searchsorted(events, source)], step.owner[source]
    arrivals = np.column_stack([part, owner, source, step.start_ns[source]])
    arrivals = arrivals[np.lexsort((source, owner, part))]
    cell = arrivals[:, 0] * n_owners + arrivals[:, 1]
    by_time = np.lexsort((arrivals[:, 3], cell))
    first = by_time[np.append(np.ones(min(len(cell), 1), np.bool_), np.diff(cell[by_time]) != 0)]
    arrivals = arrivals[first]  # GPUs of a worker reduce together, and broadcast together later
    meeting = np.unique(arrivals[:, 0], return_inverse=True)[1].reshape(-1)
    return Arrivals(meeting, arrivals[:, 1], arrivals[:, 2], arrivals[:, 3])


#: The last owner at each meeting of a step, and its delay after the one before (ns).
LastArrivals: TypeAlias = tuple[Int64, Int64]


def last_arrivals(
    view: JobView, *, of_own_step: bool = False, among: Sequence[int] = ()
) -> list[LastArrivals]:
    """List the last arrivals of each whole step, at meetings with an owner of `among` if given.

    `of_own_step`: count from the end of the owner's step before. A rank that is served last ends, and begins,
    its steps later than the others without being slow.
    """
    last = []
    tails = np.array([step.tail_ns for step in view.recording.steps])
    for row, met in zip(view.rows, view.meetings, strict=True):
        step = view.recording.steps[row]
        before_ns = tails[row - 1] if row else np.median(tails, axis=0)
        since = (step.begin_ns - before_ns).astype(np.int64)
        at_ns = met.at_ns - since[met.owner] if of_own_step else met.at_ns
        order = np.lexsort((at_ns, met.meeting))
        after_ns = np.diff(at_ns[order], prepend=0)
        is_last = np.append(np.diff(met.meeting[order]) != 0, np.ones(min(len(order), 1), np.bool_))
        if len(among):
            is_last &= np.isin(met.meeting[order], met.meeting[np.isin(met.owner, among)])
        last.append((met.owner[order[is_last]], after_ns[is_last]))
    return last


def longest_awaited(arrivals: Sequence[LastArrivals]) -> Int64:
    """Find the owner that was awaited longest in each step with a meeting."""
    awaited = [np.bincount(owner, after_ns).argmax() for owner, after_ns in arrivals if len(owner)]
    return np.array(awaited, np.int64)


def is_no_chance(excess: Float64, ratio: float, n_owners: int, *, always_most: bool = False) -> bool:
    """Tell if a rank's excess (steps,) over its peers, `ratio` times in the median step, is real.

    By a t-test over all `n_owners`, or if the ratio is large in most steps. With few steps: if the ratio is
    large, or if a rank would hardly have the most in all of them by chance.
    """
    if len(excess) < FEWEST:
        is_luck = float(n_owners) ** (1 - len(excess)) >= CHANCE
        return bool((excess > 0).all() and (ratio > MUCH or (always_most and not is_luck)))
    if ratio > MUCH and (excess > 0).mean() >= MOST_STEPS:
        return True
    return surely_positive(excess, CHANCE / n_owners)


def surely_positive(values: Float64, chance: float) -> bool:
    """Test if the mean of the values (n,) is above 0, with this probability of error."""
    if np.ptp(values) == 0:
        return bool(values[0] > 0)
    n = len(values)
    t = float(values.mean() / (values.std(ddof=1) / n**0.5))
    return student_cdf(n - 1, -t) < chance


def longest_events(
    view: JobView, chosen: Mask, most: int = 1, step: StepGraph | None = None
) -> list[Evidence]:
    """List the longest events of the `chosen` operations (n,) in a step (default: of median length)."""
    step = usual_step(view) if step is None else step
    return [event_of(view, step, event) for event in _longest(step, step.work_ns, chosen, most)]


def longest_gaps(view: JobView, chosen: Mask) -> list[Evidence]:
    """List the three longest gaps before the `chosen` operations (n,) in the step of median length."""
    step = usual_step(view)
    return [gap_before(view, step, event) for event in _longest(step, step.gap_ns, chosen, 3)]


def _longest(step: StepGraph, times: Int64, chosen: Mask, most: int) -> list[int]:
    events = np.flatnonzero(chosen[step.operation])
    longest: list[int] = events[np.argsort(-times[events], kind="stable")][:most].tolist()
    return longest


def usual_step(view: JobView) -> StepGraph:
    """Choose the step of median length."""
    return view.recording.steps[view.recording.choose_step()]


def busy_step(view: JobView, chosen: Mask) -> StepGraph:
    """Choose the step in which the `chosen` operations (n,) work as in the median one, or just longer."""
    work = view.work_by_kind[:, view.of_kinds(chosen)].sum(axis=1)
    much = np.flatnonzero(work >= np.median(work))
    return view.recording.steps[view.rows[int(much[np.argmin(work[much])])]]


def event_of(view: JobView, step: StepGraph, event: int) -> Evidence:
    """Describe an event of a step, with its recorded times."""
    step = view.recording.recorded_step(step)
    owner = int(step.owner[event])
    return Evidence(
        path=view.loaded.ranks[owner].path,
        rank=view.recording.owners[owner],
        step=step.number,
        name=view.recording.operations[int(step.operation[event])].label,
        start_ns=int(step.start_ns[event] - step.begin_ns[owner]),
        dur_ns=int(step.end_ns[event] - step.start_ns[event]),
    )


def gap_before(view: JobView, step: StepGraph, event: int) -> Evidence:
    """Describe the gap before an event of a step."""
    step = view.recording.recorded_step(step)
    after, gap_ns = event_of(view, step, event), int(step.gap_ns[event])
    end_ns, start_ns = int(step.start_ns[event]), after.start_ns - gap_ns
    function = _function_during(view, int(step.owner[event]), end_ns - gap_ns, end_ns)
    return replace(after, name=f"the gap before {after.name}{function}", start_ns=start_ns, dur_ns=gap_ns)


def tail_of(view: JobView, step: StepGraph, owner: int) -> Evidence:
    """Describe the time between an owner's last event of a step and the next step."""
    step = view.recording.recorded_step(step)
    tail_ns, end_ns = int(step.tail_ns[owner]), int(step.next_ns[owner])
    start_ns = int(step.last_end_ns[owner] - step.begin_ns[owner])
    path, rank = view.loaded.ranks[owner].path, view.recording.owners[owner]
    name = f"the gap before the next step{_function_during(view, owner, end_ns - tail_ns, end_ns)}"
    return Evidence(path, rank, step.number, name, start_ns, tail_ns)


def _function_during(view: JobView, owner: int, begin_ns: int, end_ns: int) -> str:
    """Name the Python function that ran between two instants, in words; "" where none is recorded."""
    frames = view.loaded.ranks[owner].frames
    function = frames.during(begin_ns, end_ns)[0] if frames is not None else ""
    return f", in which {function} ran" if function else ""
