"""Named causes of slow steps, with the events that show them and advice; and the limit of a step.

Calls in every step show a cause of the host, events that other steps hardly have a cause of longer steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from analyzer.answers.diagnose.steps.job_view import JobView, mean_path_times
from analyzer.base.arrays import Float64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.reading.dialects.name_rules import is_launch
from analyzer.reading.dialects.roles import Phase, Role
from analyzer.reading.dialects.step_parts import Operation
from replay.real_step import RealJob


class _Cause(NamedTuple):
    """A cause, the fewest events of a rank in a step that show it, and its advice."""

    shows: Callable[[Operation], object]
    least: float
    title: str  # a clause
    action: str
    counted: str = ""  # the title with the number of events, ``{n}``
    steady: Callable[[Operation], object] | None = None  # other steps have such, and long ones no more


def _has(pattern: str) -> Callable[[Operation], object]:
    search = re.compile(pattern).search
    return lambda operation: search(operation.name)


def _calls(pattern: str) -> Callable[[Operation], object]:
    matches = re.compile(pattern).fullmatch
    return lambda operation: not operation.on_device and matches(operation.name)


#: Times the usual number of events: what shows a cause of long steps is hardly in the others.
_MORE = 4
_SYNCHRONISES = r"(?:cuda|cu|hip)(?:Stream|Event|Device|Ctx)Synchronize(?:_\w+)?|(?:cuda|hip)Memcpy"
#: Of the host, the most specific first; a few calls in a step are no cause.
OF_HOST: Sequence[_Cause] = (
    _Cause(
        lambda operation: operation.phase is Phase.UPDATE and is_launch(operation.name),
        500,
        "the optimizer updates parameter by parameter",
        "update all parameters at once: foreach=True or fused=True for PyTorch's optimizers",
        "the optimizer updates parameter by parameter, with {n:,.0f} launches a step",
    ),
    _Cause(
        _calls("TorchDynamo Cache Lookup"),
        4,
        "torch.compile is interrupted: a step runs many compiled regions (graph breaks)",
        "list the breaks with TORCH_LOGS=graph_breaks, and keep .item(), print and branches on values out of "
        "compiled code",
    ),
    _Cause(
        _calls(_SYNCHRONISES),
        4,
        "calls make the CPU wait for the GPU, so it cannot run ahead",
        "keep values on the device: no .item(), .tolist(), .nonzero(), .cpu() or boolean masks in the loop",
        "{n:,.0f} calls a step make the CPU wait for the GPU, so it cannot run ahead",
    ),
)
#: A launch takes 5 to 10 µs while PyTorch's profiler records it (ns).
_SLOW_LAUNCH_NS = 25_000
_SLOW_HOST = (
    "the host is slow",
    "look for what else runs on the CPU: other threads (the GIL), loaders, few cores, limits of a container",
    "the host is slow: a launch takes {n:,.0f} µs, and 5 to 10 elsewhere",
)
#: Of steps that take longer than the others.
OF_LONG_STEPS: Sequence[_Cause] = (
    _Cause(
        _has(r"(?i)dynamo_timed|inductor_|backend_compile|compile_or_|XlaCompile"),
        1,
        "compile anew",
        "keep shapes the same: pad inputs or sort them into a few sizes, torch._dynamo.mark_dynamic, "
        "dynamic=True; compile each shape before the loop",
    ),
    _Cause(
        _has(r"(?i)garbage collection|gc\.py|gc\.collect"),
        1,
        "collect garbage",
        "gc.disable(), and gc.collect() after every few hundred steps, on all ranks in the same step",
    ),
    _Cause(
        _has(r"(?i)DtoH|save_checkpoint|torch[./]save|serialization\.py.*save"),
        8,
        "copy state to the host, as for a checkpoint",
        "save asynchronously (torch.distributed.checkpoint.async_save), or less often",
    ),
    _Cause(
        lambda operation: operation.phase is Phase.FORWARD and not operation.on_device,
        8,
        "run the model forward without a backward pass, as an evaluation does",
        "evaluate less often or on fewer batches; under torch.inference_mode() batches may be larger",
        steady=lambda operation: operation.phase is Phase.BACKWARD and not operation.on_device,
    ),
)


def causes_of(view: JobView) -> list[str]:
    """List the causes of a job by their titles, without numbers."""
    causes = [shown.title] if (shown := cause_of_host(view)) is not None else []
    if (cause := cause_of_long_steps(view, view.outliers)) is not None:
        causes.append(f"some steps {cause.title}")
    return causes


class _HostCause(NamedTuple):
    """The cause of a slow host, with the operations (n,) that show it."""

    title: str
    action: str
    counted: str  # the title with the number of events in a step
    calls: Mask


def cause_of_host(view: JobView) -> _HostCause | None:
    """Find the cause of a slow host."""
    for cause in OF_HOST:
        chosen = view.which(cause.shows)
        n_events = median(_counts(view, chosen))
        if n_events >= cause.least:
            title = cause.counted or cause.title
            return _HostCause(cause.title, cause.action, title.format(n=n_events), chosen)
    launches = view.which(lambda operation: not operation.on_device and is_launch(operation.name))
    recorded = view.as_recorded.recording
    lasts_ns = [
        (step.end_ns - step.start_ns)[launches[step.operation]]
        for step in map(recorded.steps.__getitem__, view.rows)
    ]
    launch_ns = median(np.concatenate(lasts_ns)) if launches.any() else 0.0
    if launch_ns <= _SLOW_LAUNCH_NS:
        return None
    title, action, counted = _SLOW_HOST
    return _HostCause(title, action, counted.format(n=launch_ns / 1e3), launches)


def synchronises(view: JobView) -> bool:
    """Check for calls in each step that wait for the device."""
    return median(_counts(view, view.which(_calls(_SYNCHRONISES)))) >= 1


def cause_of_long_steps(view: JobView, long: Sequence[int]) -> _Cause | None:
    """Find the cause of the `long` steps, which are indices of whole steps."""
    is_long = np.zeros(len(view.rows), np.bool_)
    is_long[list(long)] = True
    for cause in OF_LONG_STEPS if len(long) else ():
        counts = _counts(view, view.which(cause.shows))
        if counts[is_long].min() < cause.least or counts[is_long].min() <= _MORE * median(counts[~is_long]):
            continue
        if cause.steady is None:
            return cause
        steady = _counts(view, view.which(cause.steady))
        if steady[is_long].max() <= steady[~is_long].max() != 0:
            return cause
    return None


def _counts(view: JobView, chosen: Mask) -> Float64:
    """Count events of the `chosen` operations (n,) in each whole step (steps,), the mean over ranks."""
    counts = [np.count_nonzero(chosen[step.operation]) for step in view.steps]
    return np.array(counts) / len(view.recording.owners)


# ---- the limit

#: Share of the path.
_STILL = 0.4

Limit = Literal["host", "device", "communication", "input", "undecided"]


def limit(view: JobView, real: RealJob | None) -> Limit:
    """Name what has most of the critical path; undecided if host and device may change places.

    They do if the profiler's most or least cost leaves the larger of the two less than `_STILL` of the path.
    """
    if not view.has_device and view.which(lambda op: is_launch(op.name)).any():
        return "undecided"  # kernels were launched, and none recorded
    parts = _parts(view)
    largest = _largest(parts)
    for recording in real.extremes if real is not None and real.step.differs else ():
        extreme = _parts(JobView(view.loaded, recording, job=view.job))
        is_less = extreme.get(largest, 0.0) < _STILL * sum(extreme.values())
        if is_less and {largest, _largest(extreme)} == {"host", "device"}:
            return "undecided"
    return largest


def _largest(parts: Mapping[Limit, float]) -> Limit:
    return max(parts, key=lambda part: parts[part])


def _parts(view: JobView) -> dict[Limit, float]:
    """Add up the time on the path of each part of the machine, in all steps: long ones count as such."""
    path = mean_path_times(view, view.rows) if view.outliers else view.path
    sums: dict[Limit, float] = {"host": float(path.gap_ns.sum())}
    for operation, ns in zip(view.recording.operations.kinds, path.work_ns.tolist(), strict=True):
        part = _part(operation, view.has_device)
        sums[part] = sums.get(part, 0.0) + ns
    return sums


def _part(operation: Operation, has_device: bool) -> Limit:
    """Assign work to a part of the machine; without a recorded device, what computes is the device."""
    if operation.is_communication:
        return "communication"
    if operation.phase is Phase.INPUT:
        return "input"
    if operation.role is Role.UNTRACED:
        return "undecided"
    return "device" if operation.on_device or (operation.is_compute and not has_device) else "host"
