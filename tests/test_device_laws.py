"""Laws of a step on a device, on recorded jobs and on made ones with known times.

A faster host saves at most the time in which the busiest stream of the device is idle; with all kernels k
times as long a step takes at least k times the work of that stream; steps add up to the time between
completions; every option has the same steps.

Options agree on the time in which a device computed and communicated (`statistic`, `compare`, busy and
exposed shares in `diagnose`), and on the critical path (`critical`, `replay`, its shares in `diagnose`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exposed_transfers import exposed_ns

from analyzer.answers.diagnose.diagnosis import diagnose
from analyzer.answers.diagnose.steps.detectors.device import _peaks, busy_share
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.model.figures.job_figures import Wanted, load_figures
from analyzer.model.graph.critical_path import CATS, critical_path
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.kineto.kineto_steps import COUNTS, FILLS
from conftest import ask, few
from dag_utils import LoadedSteps, load_steps
from make import write
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts
from replay.runs import replayed_ns
from replay.selection import Selection
from replay.whatif.scaling import changed
from trace_utils import Request, read_ranks

#: Recorded jobs of one rank whose launches are recorded; the first four in each run of the suite.
RECORDED = (
    "gpu-hta-ns-resolution", "gpu-hta-simple-add-nosteps", "gpu-kineto-v1.9/num_workers_0",
    "gpu-tracelens-sglang-decode-mi300", "gpu-hta-amd-mi250", "gpu-hta-critical-simple_add/trace",
    "gpu-hta-triton", "gpu-param-resnet", "gpu-tracelens-resnet-ckpt-mi300-rank0of8",
    "gpu-hta-2of128/trace/sampled_rank-0.json.gz", "gpu-hta-rank0of16", "gpu-kineto-autograd-api-old",
    "gpu-param-dlrm-8ranks/trace/worker0_step_12.1694128201545.pt.trace.json.gz",
    "gpu-tracelens-ddp-mi300-rank0of8", "gpu-tracelens-qwen-h100-vs-mi300/h100",
    "gpu-tracelens-xdit-flux-mi300", "h200-truth/busy_llama", "gpu-hta-rank1of2-memory",
)  # fmt: skip
#: Jobs with a step that fills the device's queue.
FILL_THE_QUEUE = {"gpu-hta-ns-resolution", "gpu-kineto-v1.9/num_workers_0"}

#: Accuracy of recorded times of host and device, as a share of a step.
_ALMOST = 0.002
#: In a graph, work begins no earlier than its launch, and a copy from pageable memory ends with its call.
_ROUNDED_NS = 2_000


class Made:
    """A recording of one host thread and one device, its times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        self.free: dict[int, float] = {7: 0.0, 8: 0.0}
        self.launches = 0

    def add(self, name: str, cat: str, begin: float, end: float, tid: int = 1, **args: Any) -> None:
        pid = 0 if cat in ("kernel", "gpu_memcpy") else 10
        event = {"name": name, "cat": cat, "ph": "X", "pid": pid, "tid": tid, "args": args}
        self.events.append({**event, "ts": round(begin, 3), "dur": round(end - begin, 3)})

    def launch(
        self, host: float, device: float, n: int = 1, stream: int = 7, name: str = "kernel", over: float = -1
    ) -> None:
        """Let a call of `host` microseconds launch n kernels (one call: a graph) of `device` each.

        With `over` it returns `over` after they are done.
        """
        self.launches += 1
        call = "cudaLaunchKernel" if n == 1 else "cudaGraphLaunch"
        begin = self.now + host
        if over >= 0:
            host += device + over
        self.add(call, "cuda_runtime", self.now, self.now + host, correlation=self.launches)
        for _ in range(n):
            begin = max(begin, self.free[stream])
            args = {"correlation": self.launches, "stream": stream}
            self.add(name, "kernel", begin, begin + device, stream, **args)
            self.free[stream] = begin = begin + device
        self.now += host

    def wait(self, name: str, cat: str, late: float = 0.0, **args: Any) -> None:
        """Let the host wait until all of its work is done, and `late` longer."""
        over = max(self.now, *self.free.values()) + late
        self.add(name, cat, self.now, over, **args)
        self.now = over

    def copy(self, took: float = 20, way: str = "DtoH (Device -> Pageable)") -> None:
        """Copy from or to pageable memory, which blocks until the queue is empty."""
        self.launches += 1
        begin = max(self.now + 5, self.free[7])
        over = begin + took
        args = {"correlation": self.launches, "stream": 7}
        self.add(f"Memcpy {way}", "gpu_memcpy", begin, over, 7, **args)
        self.add("cudaMemcpyAsync", "cuda_runtime", self.now, over + 5, correlation=self.launches)
        self.free[7], self.now = over, over + 5

    def steps(self, n: int, pause: float = 1.0) -> Iterator[int]:
        """Mark each turn of a loop as a step that ends a `pause` after the host's last call."""
        for number in range(1, n + 1):
            begin = self.now
            yield number
            self.now += pause
            self.add(f"ProfilerStep#{number}", "user_annotation", begin, self.now)

    def write(self, directory: Path, **header: Any) -> Path:
        header = {"schemaVersion": 1, "deviceProperties": [{}], **header}
        return write(directory / "rank0.pt.trace.json", self.events, **header).parent


def ahead(job: Made) -> None:
    for _ in range(20):
        job.launch(5, 50)


def starving(job: Made) -> None:
    for _ in range(20):
        job.launch(50, 5)


def polling(job: Made) -> None:
    ahead(job)
    job.wait("poll", "user_annotation", late=40)


def blocking_copy(job: Made) -> None:
    ahead(job)
    job.copy()
    job.now += 30  # while the device is idle


def copy_in(job: Made) -> None:
    job.copy(1000, "HtoD (Pageable -> Device)")
    ahead(job)


def blocking_launches(job: Made) -> None:
    for _ in range(20):
        job.launch(5, 50, over=2)


def two_streams(job: Made) -> None:
    for _ in range(10):
        job.launch(5, 40)
        job.launch(5, 30, stream=8)


def graph(job: Made) -> None:
    job.launch(20, 2, n=500)


_STEPS = (ahead, starving, polling, blocking_copy, copy_in, blocking_launches, two_streams, graph)
MADE = {step.__name__: step for step in _STEPS}


def made(directory: Path, name: str, steps: int = 6, leftover: float = 0.0) -> Path:
    """Write a job of some steps, all alike, whose device is busy with a `leftover` at first."""
    job = Made()
    if leftover:
        job.add("kernel", "kernel", 0, leftover, 7, correlation=999_999, stream=7)
        job.free[7] = leftover
    for _ in job.steps(steps):
        MADE[name](job)
    return job.write(directory)


def loaded(path: Path, *, sizes: bool = True) -> LoadedSteps:
    return load_steps([path], Request(jobs=1, progress=False), sizes=sizes)


def recording_of(path: Path) -> Recording:
    return loaded(path, sizes=False).recording


def lengths_us(recording: Recording) -> list[float]:
    """Measure each step of the first owner."""
    return [float(step.next_ns[0] - step.begin_ns[0]) / 1000 for step in recording.bounds]


def replayed_us(recording: Recording, chosen: Mask, factor: float) -> Float64:
    """Replay each step with `factor` times the work in `chosen` operations."""
    edited = changed(recording, Selection(chosen, np.zeros(len(recording.owners), np.bool_)), factor)
    longest: Int64 = replayed_ns(edited, recording.whole_steps).max(axis=1)
    return longest / 1000


def stretch(recording: Recording, chosen: Mask, factor: float) -> float:
    """Compare the job with `factor` times the work in `chosen` operations to the recorded one."""
    recorded_ns = replayed_ns(recording, recording.whole_steps).max(axis=1)
    return float(1000 * replayed_us(recording, chosen, factor).mean() / recorded_ns.mean())


def busiest(recording: Recording) -> float:
    """Compute the share of the steps in which the busiest stream works."""
    busy_ns = [0]
    for track in {operation.track for operation in recording.operations if operation.on_device}:
        on_track = np.array(
            [operation.on_device and operation.track == track for operation in recording.operations]
        )
        busy_ns.append(0)
        for step in (recording.steps[row] for row in recording.whole_steps):
            events = on_track[step.operation]
            ran = union(step.start_ns[events], step.end_ns[events])
            until_ns = step.next_ns[:1] if step.next_ns[0] >= 0 else step.end_ns.max(keepdims=True)
            busy_ns[-1] += int(clipped_lengths(ran, step.begin_ns[:1], until_ns)[0])
    return max(busy_ns) / float(replayed_ns(recording, recording.whole_steps).sum())


def assert_lawful(path: Path) -> Recording:
    view = JobView(loaded(path))
    assert_one_clock(path, view)
    recording = view.recording
    device, busy = on_device(recording), busiest(recording)
    for factor in (0.5, 0.001):
        assert 1 - stretch(recording, ~device, factor) <= 1 - busy + _ALMOST
    for factor in (2.0, 4.0):
        assert stretch(recording, device, factor) >= factor * busy - _ALMOST
    for row in recording.whole_steps if recording.has_steps else ():  # a host that goes on is cut
        step = recording.steps[row]
        assert step.end_ns[~device[step.operation]].max(initial=0) <= step.next_ns[0]
    bounds = [recording.bounds[row] for row in recording.whole_steps]
    for before, after in pairwise(bounds):
        if after.number == before.number + 1:
            assert before.next_ns == after.begin_ns
    return recording


def on_device(recording: Recording) -> Mask:
    return recording.which(lambda operation: operation.on_device)


def ran_ns(step: StepGraph, chosen: Mask, owner: int = 0) -> int:
    """Measure the time in which any of the `chosen` operations ran in a step of one rank."""
    events = chosen[step.operation] & (step.owner == owner)
    ran = union(step.start_ns[events], step.end_ns[events])
    bounds = (ns[owner : owner + 1] for ns in (step.begin_ns, step.next_ns))
    return int(clipped_lengths(ran, *bounds)[0])


def assert_one_clock(path: Path, view: JobView) -> None:
    """Check that `statistic`, `diagnose` and the graph agree on each rank, and that they bound the path.

    A path may run through several ranks, and through a host while the device is idle.
    """
    recording, rows = view.recording, view.rows
    device, comm = on_device(recording), view.is_communication
    copies = recording.which(lambda operation: operation.role is Role.COPY)
    ranks = load_figures([path], Wanted(breakdown=True), Request(jobs=1, progress=False)).ranks
    assert [rank.name for rank in ranks] == recording.owners
    on_path, shares = np.zeros(3), []
    exposed = np.zeros((len(rows), len(ranks)))
    for position, row in enumerate(rows):
        step, limits, idles = recording.steps[row], np.zeros(3), np.zeros(len(ranks))
        for owner, rank in enumerate(ranks):
            part, number = rank.breakdown, recording.bounds[row].number
            i = list(part.step).index(number) if number in part.step else 0
            assert part.wall_ns[i] == step.bounds.iteration_ns[owner]
            if not device.any():
                continue
            computed, moved, busy, either = (
                ran_ns(step, chosen, owner)
                for chosen in (device & ~comm & ~copies, comm, device | comm, (device & ~copies) | comm)
            )
            figures = part.compute_ns[i], part.comm_ns[i], part.overlap_ns[i], part.idle_ns[i]
            expected = computed, moved, computed + moved - either, part.wall_ns[i] - busy
            exactly_ns = _ALMOST * part.wall_ns[i] if copies.any() else _ROUNDED_NS
            assert figures == pytest.approx(expected, abs=exactly_ns)
            limits += busy, np.inf, moved
            of_device = device[step.operation] & (step.owner == owner)
            waits = (step.end_ns - step.start_ns - step.work_ns)[of_device].sum()  # in collectives
            idles[owner] = part.idle_ns[i] + waits + exactly_ns
            shares.append(1 - part.idle_ns[i] / part.wall_ns[i])
            exposed[position, owner] = part.exposed_comm_ns[i]
        walked = critical_path(step)
        works = (walked.event >= 0) & (walked.cat == CATS.index(""))
        took = (walked.end_ns - walked.start_ns)[works]
        sums = [int(took[of[walked.operation[works]]].sum()) for of in (device, comm, comm & device)]
        assert not device.any() or (sums <= limits).all()
        is_host = (walked.event >= 0) & ~(works & device[walked.operation])
        of_host = np.bincount(walked.owners, (walked.end_ns - walked.start_ns) * is_host, len(ranks))
        assert not device.any() or (of_host <= idles).all()
        on_path += sums if row in view.path.rows else 0
    if device.any():
        if not (comm & ~device).any():
            assert busy_share(view) == pytest.approx(np.median(shares), abs=_ALMOST)
        assert exposed_ns(view).sum() == pytest.approx(exposed.sum(axis=1).mean(), abs=_ROUNDED_NS)
        means = [view.path_work_ns(of) for of in (device, comm, comm & device)]
        assert means == pytest.approx((on_path / len(view.path.rows)).tolist())


def steps_ms(path: Path) -> list[tuple[int, float]]:
    """Return number and length of the steps as `statistic` has them."""
    rows = ask("statistic", path, "--sub_option", "breakdown")["breakdown"]
    return [(row["step"], row["wall_ms"]) for row in rows if row["step"] is not None]


@pytest.mark.slow
@pytest.mark.parametrize("job", few(4, RECORDED))
def test_recorded_steps_obey_the_laws(shared_data: Path, job: str) -> None:
    recording = assert_lawful(shared_data / "kineto" / job)
    assert sum("fills the device's queue" in note for note in recording.notes) == (job in FILL_THE_QUEUE)
    if recording.has_steps:
        shown = steps_ms(shared_data / "kineto" / job)
        assert [number for number, _ in shown] == [step.number for step in recording.bounds]
        assert [1e3 * ms for _, ms in shown] == pytest.approx(lengths_us(recording), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["gpu-hta-2of128/trace", "gpu-param-dlrm-8ranks/trace"])
def test_options_agree_on_recorded_jobs_of_several_ranks(shared_data: Path, job: str) -> None:
    path = shared_data / "kineto" / job
    assert_one_clock(path, JobView(loaded(path)))


def test_options_agree_on_a_made_job_of_several_ranks(tmp_path: Path) -> None:
    """In each step rank 1 computes for 1,400 µs, rank 0 for 1,000; what they reduce takes both 100 then."""
    jobs = [Made(), Made()]
    for number in range(5):
        for job, kernel_us in zip(jobs, (50, 70), strict=True):
            begin = job.now
            for _ in range(20):
                job.launch(5, kernel_us)
            job.add(f"ProfilerStep#{number}", "user_annotation", begin, job.now)
        over = max(job.free[7] for job in jobs) + 100
        for job in jobs:
            args = {"correlation": 1000 + number, "Collective name": "allreduce", "Seq": number, "stream": 7}
            job.add("cudaLaunchKernel", "cuda_runtime", job.now - 2, job.now - 1, correlation=1000 + number)
            job.add("ncclDevKernel_AllReduce", "kernel", job.free[7], over, 7, **args)
            job.free[7] = job.now = over
    for rank, job in enumerate(jobs):
        job.write(tmp_path / f"rank{rank}", distributedInfo={"rank": rank, "world_size": 2})
    view = JobView(loaded(tmp_path))
    assert_one_clock(tmp_path, view)
    computes = view.recording.which(lambda operation: operation.on_device and operation.is_compute)
    walked = critical_path(view.recording.steps[view.rows[1]])
    works = (walked.event >= 0) & (walked.cat == CATS.index(""))
    works[works] = computes[walked.operation[works]]
    assert (walked.end_ns - walked.start_ns)[works].sum() == 1_400_000


@pytest.mark.parametrize(
    ("name", "cat"), [("ncclDevKernel_AllGather", "kernel"), ("Memcpy PtoP (Device -> Device)", "gpu_memcpy")]
)
def test_options_agree_where_communication_of_the_next_step_begins_in_this_one(
    tmp_path: Path, name: str, cat: str
) -> None:
    """Before the 20 kernels of a step something is gathered for 300 µs, from 150 before the last ones end on.

    So a step takes 150 and the kernels' 1,000, and communication runs for all of the 300 in it.
    """
    for rank in range(2):
        job = Made()
        for number in job.steps(6, pause=0):
            began = max(job.now + 10, job.free[7] - 150)
            job.add("cudaLaunchKernel", "cuda_runtime", job.now, job.now + 5, correlation=1000 + number)
            args = {"correlation": 1000 + number, "Collective name": "allgather", "Seq": number}
            job.add(name, cat, began, began + 300, 8, stream=8, **args)
            job.free[7], job.now = began + 300, job.now + 5
            ahead(job)
        job.write(tmp_path / f"rank{rank}", distributedInfo={"rank": rank, "world_size": 2})
    view = JobView(loaded(tmp_path))
    assert_one_clock(tmp_path, view)
    comm = view.is_communication
    assert [ran_ns(view.recording.steps[row], comm) for row in view.rows[1:-1]] == [300_000] * 3
    steps = [view.recording.bounds[row].iteration_ns[0] for row in view.rows]
    assert steps[1:] == [1_150_000] * 4


@pytest.mark.parametrize("name", MADE)
def test_made_steps_obey_the_laws(tmp_path: Path, name: str) -> None:
    assert_lawful(made(tmp_path / "job", name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ahead", [1000.0] * 5),  # 20 × 50 µs a step, whatever the host does; the first fills the queue
        ("starving", [1005.0, *[1001.0] * 5]),  # 20 launches of 50 µs, 1; the device is done 5 after them
        ("polling", [1046.0] * 6),  # 5 of the first launch, 1000, 40 until the host sees it, 1
        # 5, 1000, the copy's 20, 5 until the call returns, 30 of the host, 1
        ("blocking_copy", [1061.0] * 6),
        ("graph", [1000.0] * 5),
        ("two_streams", [400.0] * 5),
    ],
)
def test_a_step_lasts_from_completion_to_completion(
    tmp_path: Path, name: str, expected: Sequence[float]
) -> None:
    assert lengths_us(recording_of(made(tmp_path / "job", name))) == pytest.approx(expected)
    assert [ms * 1000 for _, ms in steps_ms(tmp_path / "job")] == pytest.approx(expected)


def test_what_a_host_does_between_annotated_steps_is_of_the_step_before(tmp_path: Path) -> None:
    """Annotations are around a launch of 50 µs alone, whose 1,000 the host waits for, and works 80 more."""
    job = Made()
    for _ in range(6):
        begin = job.now
        job.launch(50, 1000)
        job.add("execute_context_0(0)_generation_16(16)", "user_annotation", begin, job.now)
        job.wait("cudaStreamSynchronize", "cuda_runtime")
        job.add("aten::add", "cpu_op", job.now, job.now + 80)
        job.now += 80
    recording = assert_lawful(job.write(tmp_path / "job"))
    lasts = [recording.bounds[row].iteration_ns[0] for row in recording.whole_steps]
    assert lasts == pytest.approx([1_130_000] * 5 + [1_050_000])


def test_a_copy_that_the_host_awaits_since_the_step_before_can_be_saved(tmp_path: Path) -> None:
    """A step is 1,000 of copying, 5 until the first launch is made, and 20 kernels of 50.

    The copy is asked for while the kernels of the step before run; its call lasts for these, too.
    """
    recording = recording_of(made(tmp_path / "job", "copy_in"))
    copies = recording.which(lambda operation: operation.role is Role.COPY)
    for factor, expected in ((0.001, 1_000 + 10), (2.0, 2_000 + 1_010)):
        steps = replayed_us(recording, copies, factor)[1:]
        assert steps == pytest.approx(np.full(len(steps), expected), rel=0.01)


def without_waits(path: Path) -> float:
    """Forecast the saving (µs) of a host that does not wait for its device."""
    job = loaded(path, sizes=False)
    forecasts = Forecasts(Job.of(job), job.recording.whole_steps)
    return forecasts.of([EditRequest("sync", "none")]).saved_ns / 1000


def test_blocking_launches_can_be_saved(tmp_path: Path) -> None:
    """20 times 5 until the launch is made, 50 of its kernel and 2 until it returns are 1,140 and 1.

    Without, the kernels follow each other within 2.
    """
    saved = without_waits(made(tmp_path / "job", "blocking_launches"))
    assert saved == pytest.approx(1_141 - 20 * 52, abs=5)


@pytest.mark.parametrize("name", ["two_streams", "blocking_copy", "starving"])
def test_some_of_many_steps_are_as_they_are_among_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of 40 steps those from 16 to 31 are left out, and what ran in them is not looked at."""
    path = made(tmp_path / "job", name, steps=40)
    every = recording_of(path)
    monkeypatch.setattr("analyzer.model.graph.job_steps._MOST_STEPS", 20)
    some = loaded(path).recording
    assert len(recording_of(path).bounds) == len(every.bounds), "who does not ask for findings gets all"
    numbers = [step.number for step in some.bounds]
    assert numbers == [n for n in range(1 + (name == "two_streams"), 41) if n // 16 % 2 == 0]
    for step in some.steps:
        alike = next(other for other in every.steps if other.number == step.number)
        for column in ("start_ns", "end_ns", "work_ns", "gap_ns", "edges", "begin_ns", "next_ns", "last"):
            assert np.array_equal(getattr(step, column), getattr(alike, column)), (step.number, column)
        names, expected = (
            [recording.operations[i].name for i in of.operation]
            for recording, of in ((some, step), (every, alike))
        )
        assert names == expected


@pytest.mark.parametrize(("n_steps", "steps_ahead"), [(24, 1), (24, 2), (24, 3), (24, 5), (11, 5)])
def test_a_host_that_is_steps_ahead_delays_the_device_if_it_is_slower(
    tmp_path: Path, n_steps: int, steps_ahead: int
) -> None:
    """A step of 20 launches of 5 µs and 20 kernels of 50; the host waits at its begin for an earlier one.

    With launches of 150 µs a step takes the host's 3,001, with kernels of 2.5 its 101; of which it waits 1 in
    the last kernel where it waits for the step just before. That is so as soon as those steps are over whose
    launches the recording has from before its first step. Where these are nearly all, the interval holds it.
    """
    slow_us, fast_us = (3_001, 101) if steps_ahead > 1 else (3_000 + 50, 100 + 2.5)
    job = Made()
    done: list[float] = []
    for number in job.steps(n_steps):
        if number > steps_ahead:
            over = max(job.now, done[number - 1 - steps_ahead])
            job.add("cudaEventSynchronize", "cuda_runtime", job.now, over)
            job.now = over
        ahead(job)
        done.append(job.free[7])
    recording = recording_of(job.write(tmp_path / "job"))
    device = on_device(recording)
    launches = recording.which(lambda operation: operation.role is Role.CALL)
    edits = ((launches, 30.0, slow_us), (device, 0.05, fast_us), (launches, 2.0, 1_000))
    for chosen, factor, expected in edits:
        steps = replayed_us(recording, chosen, factor)[2 * steps_ahead :]
        assert steps == pytest.approx(np.full(len(steps), expected), rel=0.01)
    forecasts = Forecasts(Job(recording), recording.whole_steps)
    for name, value, expected in (("cudaLaunchKernel", "30", slow_us), ("kernel", "0.05", fast_us)):
        forecast = forecasts.of([EditRequest(name, value)])
        least, most = forecast.gain_ns.low_ns, forecast.gain_ns.high_ns
        assert least is not None and most is not None
        assert least <= forecast.before_ns - 1000 * expected <= most
        if n_steps > 3 * steps_ahead:
            assert forecast.after_ns / 1000 == pytest.approx(expected, rel=0.05)


def test_the_first_step_begins_with_its_own_work_and_that_of_the_iteration_before_is_left_out(
    tmp_path: Path,
) -> None:
    recording = recording_of(made(tmp_path / "job", "ahead", leftover=300.0))
    assert [step.number for step in recording.bounds] == [1, 2, 3, 4, 5, 6]
    assert lengths_us(recording) == [1000.0] * 6
    assert recording.notes == ["Ignored a kernel or copy launched before the recording"]


def test_a_step_without_work_that_the_device_overtakes_is_left_out(tmp_path: Path) -> None:
    job = Made()
    for number in job.steps(7):
        if number != 7:
            ahead(job)
        job.add("aten::add", "cpu_op", job.now, job.now + 20)
        job.now += 20
    recording = recording_of(job.write(tmp_path / "job"))
    assert [step.number for step in recording.bounds] == [2, 3, 4, 5, 6]
    assert lengths_us(recording) == [1000.0] * 5
    assert "step 7 is left out: the device completed it no later than the step before" in map(
        str, recording.notes
    )


def test_what_a_stream_waits_for_is_no_work_and_calls_of_any_runtime_wait(tmp_path: Path) -> None:
    """A stream waits 200 for another one, then works for 100; the host waits for that."""
    job = Made()
    for number in job.steps(6, pause=0):
        job.free[7] = job.now + 200
        job.add("event_wait", "mtia_ccp_events", job.now, job.free[7], 7, stream=7)
        job.launch(5, 100)
        job.wait(*(("synchronizeStream", "mtia_runtime") if number % 2 else ("urQueueFinish", "xpu_runtime")))
    path = job.write(tmp_path / "job")
    figures = load_figures([path], Wanted(breakdown=True), Request(jobs=1, progress=False))
    steps = figures.ranks[0].breakdown
    assert {*steps.wall_ns.tolist()} == {300_000} and {*steps.compute_ns.tolist()} == {100_000}
    assert 0 < without_waits(path) < 300


@pytest.mark.parametrize("is_marked", [True, False])
def test_without_launches_steps_are_those_that_the_device_marks(tmp_path: Path, is_marked: bool) -> None:
    """A host is done with six steps after 606 µs, its device after 6,000: that it is ahead nothing tells."""
    job = Made()
    for number in job.steps(6):
        ahead(job)
        if is_marked:
            mark = f"ProfilerStep#{number}", "gpu_user_annotation"
            job.add(*mark, job.free[7] - 1000, job.free[7], 7)
    job.events = [event for event in job.events if event["cat"] != "cuda_runtime"]
    recording = assert_lawful(job.write(tmp_path / "job"))
    assert lengths_us(recording) == ([1_000.0] * 6 if is_marked else [6_000.0])
    assert is_marked or "no steps are found" in str(recording.notes)


def test_memory_is_that_of_the_step_in_which_the_host_takes_it(tmp_path: Path) -> None:
    """All is taken within 606 µs, while the device still runs the first step; that fills its queue."""
    job = Made()
    for number in job.steps(6):
        ahead(job)
        args = {"Device Type": 1, "Total Allocated": number * 10**9}
        job.events.append({"ph": "i", "name": "[memory]", "pid": 10, "tid": 1, "ts": job.now, "args": args})
    path = job.write(tmp_path / "job")
    view = JobView(loaded(path))
    (rank,) = view.loaded.ranks
    assert rank.memory is not None
    assert _peaks(view, 0, rank.memory).tolist() == [2e9, 3e9, 4e9, 5e9, 6e9]


def test_a_saturated_device_decides_how_long_a_step_takes(tmp_path: Path) -> None:
    recording = recording_of(made(tmp_path / "job", "ahead"))
    device = on_device(recording)
    assert stretch(recording, device, 4.0) == pytest.approx(4.0, abs=0.001)
    assert stretch(recording, ~device, 0.5) == 1.0


def test_a_device_that_becomes_the_limit_waits_for_no_launch(tmp_path: Path) -> None:
    """Of 20 launches of 10 µs each hands a kernel of 5 over at its end; kernels of 100 stand in the queue."""
    job = Made()
    for _ in job.steps(12, pause=6):  # in which the last kernel ends
        for _ in range(20):
            job.launch(10, 5)
    recording = recording_of(job.write(tmp_path / "job"))
    kernels = on_device(recording)
    steps = replayed_us(recording, kernels, 20.0)[2:]
    assert steps == pytest.approx(np.full(len(steps), 2_000), abs=1)  # a wait for the launch takes 10


@pytest.mark.slow
@pytest.mark.parametrize("job", few(2, RECORDED))
def test_findings_on_recorded_jobs_obey_the_device(shared_data: Path, job: str) -> None:
    # a host saves no more than the device idles in the breakdown, and no share is above 100 %
    path = shared_data / "kineto" / job
    diagnosis = diagnose(loaded(path))
    idle_ms: dict[str, list[float]] = {}
    for row in ask("statistic", path, "--sub_option", "breakdown")["breakdown"]:
        if row["step"] is not None:
            idle_ms.setdefault(row["rank"], []).append(row["idle_ms"])
    most_ms = max((float(np.mean(of_rank)) for of_rank in idle_ms.values()), default=np.inf)
    for ranked in diagnosis.findings:
        finding = ranked.finding
        if finding.kind in ("host_bound", "host_sync") and ranked.gain is not None:
            assert ranked.gain.mid_ns / 1e6 <= most_ms * (1 + _ALMOST) + 0.01
        percentages = re.findall(r"([\d,.]+) %", f"{finding.title} {finding.cause}")
        assert all(float(number.replace(",", "")) <= 100 for number in percentages)
        assert max(finding.weight, ranked.share or 0.0) <= 1 + _ALMOST


@pytest.mark.slow
@pytest.mark.parametrize("job", few(2, RECORDED))
def test_of_recorded_steps_only_longer_ones_are_left_out_for_filling_the_queue(
    shared_data: Path, job: str
) -> None:
    for rank in read_ranks([shared_data / "kineto" / job], request=Request({Need.STEPS}, jobs=1)).ranks:
        completed = Kineto()._steps_and_tables(rank.made, None)[2]
        if completed is not None and (completed[1] == FILLS).any():
            lengths, why = np.diff(completed[0][:, 1:], axis=1)[:, 0], completed[1]
            assert lengths[why == FILLS].min() > np.median(lengths[why == COUNTS])
