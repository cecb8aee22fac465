"""What the host does before and between the work of a step: loading input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from replay.whatif.edits import apply

#: Input that takes less than this share of the step's path is as good as hidden.
_LEAST = 0.05
#: Input that takes no time to speak of, in the words of `--set`.
_NO_INPUT = "I/O=0.001"


def slow_input(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps that wait for the loader."""
    if not view.is_input.any():
        yield Skipped("input", "no loading of input is recorded")
        return
    on_path = view.path_work_ns(view.is_input)
    if on_path < _LEAST * view.step_ns:
        return
    recording = view.recording
    names = {
        one.main for one, loads in zip(recording.operations, view.is_input.tolist(), strict=True) if loads
    }
    yield Finding(
        kind="input",
        title="the steps wait for their input",
        cause=f"{on_path / 1e6:.1f} ms a step of the critical path is loading, "
        f"{np.median(on_path / view.iteration_ns):.0%} of the step",
        action="load ahead of time: more workers, prefetching, a faster store, less decoding on the way",
        edit=lambda one: apply(one, [_NO_INPUT]),
        change=_NO_INPUT,
        ranks=recording.owners,
        operations=sorted(names),
        evidence=view.show(view.is_input, 3),
    )
