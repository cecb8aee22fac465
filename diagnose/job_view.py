"""A job as detectors see it, each figure computed once: work, paths and meetings, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.change_points import LEAST_STEPS
from arrays.intervals import stretches
from arrays.numbering import unique
from dag.step_graph import Bool, Recording, StepGraph, job_lengths
from dag_utils import CATS, GAP, CriticalPath, LoadedSteps, choose_step, critical_path, gap_covers
from diagnose.finding import Evidence
from diagnose.finding_thresholds import HALF, LAUNCH_NS, NEARLY_ALL, NOTICEABLE, SPIKY
from diagnose.meetings import Arrivals, meetings_of
from dialects.kernel_kinds import OTHER, kernel_kind
from dialects.roles import Phase, Role
from dialects.step_parts import Operation, Transfer
from figures.operations_by_step import check_cells
from figures.time_by_role import outliers
from replay.edit import Job
from replay.even_work import begun_by_owners, done_by_all, is_own_work
from replay.even_work import stages as pipeline
from replay.whatif.host import PYTHON_NS, prepares

#: Steps whose critical paths are walked at most; more of steps that are short, so many events.
_MOST_PATHS, _MOST_EVENTS = 20, 300_000


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
    def rows(self) -> list[int]:
        """The recorded steps that are whole, without the warm-up."""
        return self.loaded.recording.whole_steps

    @property
    def steps(self) -> Iterator[StepGraph]:
        """The steps that are whole, one after the other: they may be large."""
        return map(self.recording.steps.__getitem__, self.rows)

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the whole steps."""
        return [self.loaded.recording.bounds[row].number for row in self.rows]

    @cached_property
    def iteration_ns(self) -> Float64:
        """How long each whole step took, the mean over the owners (steps,); see `StepBounds.mean_ns`."""
        lengths = [
            self.recording.bounds[row].mean_ns for row in self.rows
        ]  # edits may leave nothing of a step
        if not any(lengths):
            lengths = [critical_path(step).length_ns for step in self.steps]
        return np.array(lengths, np.float64)

    @property
    def is_recorded(self) -> bool:
        """Whether the job is looked at as it was recorded, not without something that was found already."""
        return self.recording is self.loaded.recording

    @cached_property
    def step_ns(self) -> float:
        """The recorded length of the median step."""
        return self.left_ns if self.is_recorded else JobView(self.loaded).step_ns

    @cached_property
    def left_ns(self) -> float:
        """The length of the median step without what was found already."""
        return float(np.median(self.iteration_ns))

    @cached_property
    def every_job_ns(self) -> Float64:
        """How long the job took for each whole step, the warm-up too, until its last owner was through."""
        bounds = [self.recording.bounds[row] for row in self.loaded.recording.every_whole_step]
        lengths = job_lengths(bounds)
        if not (lengths > 0).any():
            return self.iteration_ns
        return np.where(lengths > 0, lengths, [one.mean_ns for one in bounds])

    @property
    def job_ns(self) -> Float64:
        """How long the job took for each whole step (steps,), until its last owner was through."""
        return self.every_job_ns[-len(self.rows) :]

    @cached_property
    def far_longer(self) -> list[int]:
        """Which of the whole steps took far longer than the others.

        Where gradients are accumulated, only every n-th step updates the model, and takes longer
        because it does. So steps that do and that do not are compared among themselves. Many in a row are a
        change of the level.
        """
        if not outliers(self.job_ns).any():
            return []
        is_update = self.which(lambda one: one.phase is Phase.UPDATE)
        updates = np.array([is_update[step.operation].any() for step in self.steps], np.bool_)
        alike = (np.flatnonzero(updates == which) for which in (False, True))
        is_far = np.zeros(len(self.rows), np.bool_)
        for one in alike:
            is_far[one[outliers(self.job_ns[one])]] = True
        for begin, end in stretches(is_far).tolist():
            is_far[begin:end] &= end - begin < LEAST_STEPS
        places: list[int] = np.flatnonzero(is_far).tolist()
        return places

    @property
    def lacks_ranks(self) -> bool:
        """Whether ranks of the job are not recorded, for which those that are may wait."""
        world = max(one.world_size or 0 for one in self.loaded.ranks)
        return len(self.recording.owners) == 1 or world > len(self.recording.owners)

    @cached_property
    def stage(self) -> Int64:
        """The stage of the pipeline that each owner (m,) is; all 0 where there is none."""
        return pipeline(self.recording)

    # ---- operations

    def which(self, accept: Callable[[Operation], object]) -> Bool:
        """Return which operations (n,) are accepted."""
        return self.recording.which(accept)

    @cached_property
    def is_input(self) -> Bool:
        """Which operations (n,) load input."""
        return self.which(lambda one: one.phase is Phase.INPUT)

    @cached_property
    def is_communication(self) -> Bool:
        """Which operations (n,) move data between ranks."""
        return self.which(lambda one: one.is_communication)

    @property
    def is_own(self) -> Bool:
        """Which operations (n,) are a rank's own work: computation and input, no communication."""
        return ~self.is_communication

    @cached_property
    def is_begun(self) -> Bool:
        """Which operations (n,) an owner begins itself: it is the owner that is behind in a gap before them.

        Of a tensor's partitions, which it hands over together, that is the first.
        """
        begun, seen = begun_by_owners(self.recording), set[tuple[int, str, str]]()
        for i in np.flatnonzero(begun & self.is_communication).tolist():
            one = self.recording.operations[i]
            tensor = one.owner, one.main, one.transfer.stage
            begun[i] = one.transfer.key is None or tensor not in seen
            seen.add(tensor)
        return begun

    @cached_property
    def is_compared(self) -> Bool:
        """Which operations (n,) are own work of a kind that every owner has: others cannot be compared.

        Nor can BytePS's STEP, in which the wait for communication lies.
        """
        return is_own_work(self.recording) & done_by_all(self.recording)

    @cached_property
    def kind_of(self) -> tuple[list[str], Int64]:
        """The names of operations without their ranks, and which of them each operation (n,) has."""
        return self.recording.numbered(lambda one: one.main)

    def stages(self, accept: Callable[[Transfer], bool]) -> list[str]:
        """Return the system's names of the stages of the transfers that are accepted, in their order."""
        transfers = (one.transfer for one in self.recording.table.kinds)
        return list(dict.fromkeys(part.stage for part in transfers if accept(part)))

    def mains(self, chosen: Bool) -> list[str]:
        """Return the names of the `chosen` operations (n,) without their ranks, sorted."""
        names, kind = self.kind_of
        return sorted(names[i] for i in unique(kind[chosen]).tolist())

    def largest(self, chosen: Bool) -> tuple[list[str], Bool]:
        """Return the longest of the `chosen` operations (n,) on the path, and which (n,) the first is.

        The longest comes first; only what takes any time is named.
        """
        by_name = self.by_name(np.where(self.of_kinds(chosen), self.path_work_by_kind, 0.0))
        return self.longest(by_name), self.kind_of[1] == (np.argmax(by_name) if by_name.any() else -1)

    def longest(self, by_name: Float64, most: int = 3) -> list[str]:
        """Return the names that take most of some times, as of `by_name`, the longest first."""
        names = self.kind_of[0]
        return [names[i] for i in np.argsort(-by_name)[:most].tolist() if by_name[i] > 0]

    def by_name(self, by_kind: Float64) -> Float64:
        """Return some times of kinds of operations (k,) added up by the names of `kind_of`."""
        names, number = self.kind_of
        of_kind = np.zeros(len(by_kind), np.int64)
        of_kind[self.recording.table.kind] = number
        return np.bincount(of_kind, by_kind, len(names)).astype(np.float64)

    def owner_work_ns(self, chosen: Bool) -> Float64:
        """Return the work of the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return self._by_owner(self.work_by_kind, chosen)

    def owner_gap_ns(self, chosen: Bool) -> Float64:
        """Return the gaps before the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
        return self._by_owner(self.gap_by_kind, chosen)

    def _by_owner(self, by_kind: Float64, chosen: Bool) -> Float64:
        chosen_kinds = self.of_kinds(chosen)
        owner = np.array([one.owner for one in self.recording.table.kinds], np.int64)
        n = len(self.recording.owners)
        return np.array([np.bincount(owner, times * chosen_kinds, n) for times in by_kind])

    def of_kinds(self, chosen: Bool) -> Bool:
        """Return which kinds of operations (k,) are `chosen` (n,); those that are alike are so together."""
        found = np.zeros(len(self.recording.table.kinds), np.bool_)
        found[self.recording.table.kind[chosen]] = True
        return found

    @cached_property
    def work_by_kind(self) -> Float64:
        """The work of all operations of a kind (see `OperationTable`) in each whole step (steps, k)."""
        return self._sums("work_ns")

    @cached_property
    def gap_by_kind(self) -> Float64:
        """The gaps before all operations of a kind in each whole step (steps, k)."""
        return self._sums("gap_ns")

    def _sums(self, column: str) -> Float64:
        n_events = sum(map(len, self.steps))
        check_cells(self.loaded.files[0].path, len(self.recording.table.kinds), len(self.rows), n_events)
        return self.recording.by_kind(column, self.rows)

    def start_up_ns(self, chosen: Bool) -> float:
        """Return the work of the one event of the `chosen` operations (n,) that is start-up; 0 without one.

        It takes nearly all of their time, or is the first and takes far longer than any other.
        """
        works = [step.work_ns[chosen[step.operation]] for step in self.steps]
        ordered = np.sort(np.concatenate(works))
        first = next((row for row, work in zip(self.rows, works, strict=True) if len(work)), None)
        if first is None:
            return 0.0
        step = self.recording.steps[first]
        events = np.flatnonzero(chosen[step.operation])
        is_first = step.work_ns[events[step.start_ns[events].argmin()]] == ordered[-1]
        is_alone = ordered[-1] > NEARLY_ALL * ordered.sum()
        is_far_longer = len(ordered) > 1 and ordered[-1] > SPIKY * ordered[-2]
        return float(ordered[-1]) if is_alone or (is_first and is_far_longer) else 0.0

    # ---- paths

    @cached_property
    def path_rows(self) -> list[int]:
        """The whole steps whose paths are walked: all, or some of many.

        Outlier steps are a finding of their own, but for those that wait for input, which others do as well.
        """
        apart = {self.rows[place] for place in self.far_longer if not self.waits_for_input(place)}
        return self._some([row for row in self.rows if row not in apart])

    def _some(self, rows: Sequence[int]) -> list[int]:
        """Return at most so many of some steps that walking their paths does not take long."""
        events = sum(len(self.recording.steps[row]) for row in rows[:_MOST_PATHS])
        most = max(_MOST_PATHS, _MOST_EVENTS * _MOST_PATHS // max(events, 1))
        places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))
        return [rows[i] for i in places]

    @cached_property
    def _path_ns(self) -> tuple[Float64, Float64]:
        """Work and gaps on the paths by kind of operation (paths, k + 1); the last column is of none."""
        work, gaps = zip(*map(self._walked, self.path_rows), strict=True)
        return np.array(work), np.array(gaps)

    def _walked(self, row: int) -> tuple[Float64, Float64]:
        """Return work and gaps on the path of a step by kind of operation (k + 1,); the last is of none.

        Short gaps of a device's host are its work.
        """
        n, kind = len(self.recording.table.kinds), self.recording.table.kind
        step = self.recording.steps[row]
        path = critical_path(step)
        of = np.append(kind, n)[np.append(step.operation, -1)[path.event]]  # a step may have no event at all
        lasts, is_python = path.end_ns - path.start_ns, self._is_python(step, path)
        work, gaps = (
            np.bincount(of[chosen], lasts[chosen], n + 1).astype(np.float64)
            for chosen in (
                (path.cat == CATS.index("")) | is_python,
                (path.cat == CATS.index(GAP)) & ~is_python,
            )
        )
        return work, gaps

    def _is_python(self, step: StepGraph, path: CriticalPath) -> Bool:
        """Return which stretches of a path are gaps of a host so short that just Python ran there."""
        of_host = self._is_of_host[np.append(step.operation, 0)[path.event]]
        is_gap: Bool = of_host & (path.event >= 0) & (path.cat == CATS.index(GAP))
        return is_gap & (path.end_ns - path.start_ns < min(PYTHON_NS, NOTICEABLE * self.step_ns))

    @cached_property
    def _is_of_host(self) -> Bool:
        """Which operations (n,) the host of a device runs."""
        return self.which(lambda one: self.has_device and prepares(one))

    def path_work_ns(self, chosen: Bool) -> float:
        """Return the work of the `chosen` operations (n,) on the path of a step, the mean over steps.

        The mean, as a saving is one: often some steps hide all of it, and others nothing.
        """
        return float(self.path_work_by_kind[self.of_kinds(chosen)].sum())

    def waits_for_input(self, place: int) -> bool:
        """Whether most of what a whole step takes longer than the usual one is loading on its path."""
        more = self.job_ns[place] - np.median(self.job_ns)
        return bool(self._loading_ns(self.rows[place]) - self._usual_loading_ns >= HALF * more)

    @cached_property
    def _usual_loading_ns(self) -> float:
        far = {self.rows[place] for place in self.far_longer}
        rows = self._some([row for row in self.rows if row not in far])
        return float(np.median([self._loading_ns(row) for row in rows]))

    def _loading_ns(self, row: int) -> float:
        return float(self._walked(row)[0][:-1][self.of_kinds(self.is_input)].sum())

    def kernel_kind(self, i: int) -> str:
        """Return the kind of kernel of the kind of operation `i`; "" for other work and other kernels."""
        one = self.recording.table.kinds[i]
        kind = kernel_kind(one.name) if one.is_kernel and one.role is not Role.COPY else OTHER
        return "" if kind == OTHER else kind

    def largest_part(self) -> tuple[str, float]:
        """Return what takes the largest part of the critical path, in words, and its share."""
        parts = {"gaps": float(self.path_gaps_by_kind.sum())}
        for kind, ns in zip(self.recording.table.kinds, self.path_work_by_kind.tolist(), strict=True):
            purpose = self._purpose(kind)
            parts[purpose] = parts.get(purpose, 0.0) + ns
        what = max(parts, key=lambda purpose: parts[purpose])
        return what, parts[what] / max(sum(parts.values()), 1.0)

    def _purpose(self, one: Operation) -> str:
        if one.is_communication:
            return "communication"
        if one.phase is Phase.INPUT:
            return "loading of input"
        if self._only_surrounds(one):
            return "gaps"
        if one.on_device or one.role is Role.COPY:
            return "work of the device"
        return "work of the host" if self.has_device else "computation"

    @cached_property
    def path_work_by_kind(self) -> Float64:
        """The work of each kind of operation (k,) on the path of a step, the mean over steps."""
        mean: Float64 = self._path_ns[0][:, :-1].mean(axis=0)
        return mean

    def path_idle_ns(self) -> tuple[float, float]:
        """Return how long nothing ran on a step's path, and what share of it that is; means over steps.

        Those are gaps, and the own time of what only surrounds other operations.
        """
        work, gaps = self._path_ns
        idle = float((gaps.sum(axis=1) + work[:, :-1][:, self.is_frame].sum(axis=1)).mean())
        return idle, idle / max(float((work.sum(axis=1) + gaps.sum(axis=1)).mean()), 1.0)

    @cached_property
    def path_covers_ns(self) -> dict[tuple[str, bool], float]:
        """The time on the path in which nothing ran, by what covers it; means over steps.

        Of each its name, and whether the host only waits in it. What nothing covers is not in it.
        """
        covers: dict[tuple[str, bool], float] = {}
        surrounds = np.array([one.is_span for one in self.recording.table.kinds], np.bool_) & self.is_frame
        within = self.by_name(np.where(surrounds, self.path_work_by_kind, 0.0))
        for place in np.flatnonzero(within).tolist():
            covers[self.kind_of[0][place], False] = float(within[place])
        for row in self.path_rows:
            step = self.recording.steps[row]
            path = critical_path(step)
            is_python = self._is_python(step, path)
            for at, cover in gap_covers(self.recording, path).items():
                if is_python[at]:
                    continue
                took = float(path.end_ns[at] - path.start_ns[at]) / len(self.path_rows)
                covers[cover] = covers.get(cover, 0.0) + took
        return covers

    @cached_property
    def path_pauses_ns(self) -> float:
        """How long the path is between works of a device, the mean over steps.

        Those are gaps so short that the device just goes on from one to the next.
        """
        on_device = self.which(lambda one: one.on_device)
        took_ns = 0
        for row in self.path_rows:
            step = self.recording.steps[row]
            path = critical_path(step)
            of_device = (path.event >= 0) & on_device[np.append(step.operation, 0)[path.event]]
            lasts = path.end_ns - path.start_ns
            pauses = of_device & np.append(False, of_device[:-1])[: len(lasts)]
            pauses &= (path.cat == CATS.index(GAP)) & (lasts < LAUNCH_NS)
            took_ns += int(lasts[pauses].sum())
        return took_ns / len(self.path_rows)

    @cached_property
    def is_frame(self) -> Bool:
        """Which kinds of operations (k,) only surround others."""
        return np.array([self._only_surrounds(one) for one in self.recording.table.kinds], np.bool_)

    def _only_surrounds(self, one: Operation) -> bool:
        """Whether an operation only surrounds others; in annotations the host of a device works."""
        return one.role is Role.FRAME or (one.is_span and not self.has_device)

    @cached_property
    def has_device(self) -> bool:
        """Whether work of a device is recorded."""
        return any(one.on_device for one in self.recording.table.kinds)

    @cached_property
    def path_gaps_by_kind(self) -> Float64:
        """The gaps before each kind of operation, and before none (k + 1,), on the path; means over steps."""
        mean: Float64 = self._path_ns[1].mean(axis=0)
        return mean

    # ---- meetings

    @cached_property
    def meetings(self) -> list[Arrivals]:
        """The meetings of each whole step."""
        return meetings_of(self.recording, self.rows)

    def last_arrivals(
        self, *, of_own_step: bool = False, among: Sequence[int] = ()
    ) -> list[tuple[Int64, Int64]]:
        """Return for each whole step who came last to each meeting, and how long after the one before.

        `of_own_step`: last as counted from the end of its own step before. A rank that is served last ends,
        and begins, its steps later than the others, without being slow. `among`: only those to which one of
        these owners comes; () for all.
        """
        found = []
        tails = np.array([step.tail_ns for step in self.recording.steps])
        for row, one in zip(self.rows, self.meetings, strict=True):
            step = self.recording.steps[row]
            before_ns = tails[row - 1] if row else np.median(tails, axis=0)
            since = (step.begin_ns - before_ns).astype(np.int64)
            at_ns = one.at_ns - since[one.owner] if of_own_step else one.at_ns
            order = np.lexsort((at_ns, one.meeting))
            after_ns = np.diff(at_ns[order], prepend=0)
            is_last = np.append(np.diff(one.meeting[order]) != 0, np.ones(min(len(order), 1), np.bool_))
            if len(among):
                is_last &= np.isin(one.meeting[order], one.meeting[np.isin(one.owner, among)])
            found.append((one.owner[order[is_last]], after_ns[is_last]))
        return found

    # ---- evidence

    @cached_property
    def usual_step(self) -> StepGraph:
        """The step of median length."""
        return self.recording.steps[choose_step(self.recording)]

    def step_with_much(self, chosen: Bool) -> StepGraph:
        """Return the step in which the `chosen` operations (n,) work as in the median one, or just longer."""
        work = self.work_by_kind[:, self.of_kinds(chosen)].sum(axis=1)
        much = np.flatnonzero(work >= np.median(work))
        return self.recording.steps[self.rows[int(much[np.argmin(work[much])])]]

    def show(self, chosen: Bool, most: int = 1, step: StepGraph | None = None) -> list[Evidence]:
        """Return the longest events of the `chosen` operations (n,) in a step (the one of median length)."""
        step = self.usual_step if step is None else step
        events = np.flatnonzero(chosen[step.operation])
        longest = events[np.argsort(-step.work_ns[events], kind="stable")][:most]
        return [self.event(step, int(event)) for event in longest]

    def show_gaps(self, chosen: Bool, most: int) -> list[Evidence]:
        """Return the longest gaps before the `chosen` operations (n,) in the step of median length."""
        step = self.usual_step
        events = np.flatnonzero(chosen[step.operation])
        longest = events[np.argsort(-step.gap_ns[events], kind="stable")][:most]
        return [self.gap_before(step, int(event)) for event in longest]

    def gap_before(self, step: StepGraph, event: int) -> Evidence:
        """Return the gap before an event of a step as evidence."""
        shown, gap_ns = self.event(step, event), int(step.gap_ns[event])
        end_ns, start_ns = int(step.start_ns[event]), shown.start_ns - gap_ns
        ran = self._which_ran(int(step.owner[event]), end_ns - gap_ns, end_ns)
        return replace(shown, name=f"the gap before {shown.name}{ran}", start_ns=start_ns, dur_ns=gap_ns)

    def _which_ran(self, owner: int, begin_ns: int, end_ns: int) -> str:
        """Name the Python function that ran between two instants, in words; "" where nothing tells."""
        frames = self.loaded.ranks[owner].frames
        ran = frames.during(begin_ns, end_ns)[0] if frames is not None else ""
        return f", in which {ran} ran" if ran else ""

    def tail(self, step: StepGraph, owner: int) -> Evidence:
        """Return the time between an owner's last event of a step and the next step as evidence."""
        tail_ns, end_ns = int(step.tail_ns[owner]), int(step.next_ns[owner])
        start_ns = int(step.last_end_ns[owner] - step.begin_ns[owner])
        path, rank = self.loaded.ranks[owner].path, self.recording.owners[owner]
        name = f"the gap before the next step{self._which_ran(owner, end_ns - tail_ns, end_ns)}"
        return Evidence(path, rank, step.number, name, start_ns, tail_ns)

    def event(self, step: StepGraph, event: int) -> Evidence:
        """Return one event of a step as evidence."""
        owner = int(step.owner[event])
        return Evidence(
            path=self.loaded.ranks[owner].path,
            rank=self.recording.owners[owner],
            step=step.number,
            name=self.recording.operations[int(step.operation[event])].label,
            start_ns=int(step.start_ns[event] - step.begin_ns[owner]),
            dur_ns=int(step.end_ns[event] - step.start_ns[event]),
        )


def longest_awaited(arrivals: Sequence[tuple[Int64, Int64]]) -> Int64:
    """Return who was waited for longest in each step with a meeting; `arrivals` as of `last_arrivals`."""
    found = [np.bincount(who, after_ns).argmax() for who, after_ns in arrivals if len(who)]
    return np.array(found, np.int64)
