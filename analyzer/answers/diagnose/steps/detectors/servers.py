"""BytePS's servers: a slow server, pulls that take longer than their bytes, the order of the tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.answers.diagnose.finding import Finding, FindingScope, Skipped, edit
from analyzer.answers.diagnose.steps.detectors.slow_transfers import NO_BYTES, stages_of
from analyzer.answers.diagnose.steps.evidence import longest_events
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.model.graph.step_graph import NO_LINK
from analyzer.reading.dialects.step_parts import Direction
from replay.links import is_sized
from replay.whatif.server_times import beyond_bytes, is_pull, slowest_server

_NO_LINKS = "no links to servers are recorded"


def one_slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find a server that is slower than the others: a busy machine, a slow network card."""
    pace = slowest_server(view.job)
    if pace is None:
        return
    name = pace.server
    yield Finding(
        kind="server",
        title=f"{name} takes {pace.ratio:.1f} times as long for its bytes as {pace.others}",
        cause=f"for {pace.of} {name} needs {in_digits(pace.own)} ms a MB, "
        f"{pace.others} {in_digits(pace.usual)}",
        action=f"look at the machine of {name}: other processes, too few cores or threads "
        "(BYTEPS_SERVER_ENGINE_THREAD), its network card; or give it fewer keys",
        edits=[edit("servers", "even")],
        scope=FindingScope(operations=stages_of(view, lambda part: part.is_sent or part.is_answer)),
        evidence=longest_events(
            view,
            view.which(lambda operation: is_pull(operation) and operation.transfer.server == pace.server),
            3,
        ),
    )


def slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find pulls that take longer than their bytes after the last push: the server's time."""
    recording = view.recording
    if not view.which(is_pull).any():
        yield Skipped("server", _NO_LINKS)
        return
    known = view.job.links
    if known is None or not is_sized(recording):
        yield Skipped("server", f"{NO_BYTES}; BytePS's log has them")
        return
    edited = view.job.apart if recording is view.job.recording else recording
    beyond, pulls = beyond_bytes(edited, known.at_least), edited.which(is_pull)
    steps = map(edited.steps.__getitem__, view.rows)
    late_ns, n_pulls = np.sum([(beyond(step).sum(), pulls[step.operation].sum()) for step in steps], axis=0)
    yield Finding(
        kind="server",
        title="the servers are slower than the network",
        cause=f"after the last push a pull takes {in_ms(late_ns / n_pulls)} more than its bytes need, "
        f"on average{view.network}",
        action="give the servers more cores or threads (BYTEPS_SERVER_ENGINE_THREAD), or use more servers",
        edits=[edit("servers", "none")],
        scope=FindingScope(operations=stages_of(view, lambda part: part.is_answer)),
        evidence=longest_events(
            view, view.which(lambda operation: operation.transfer.direction is Direction.FROM_SERVER), 3
        ),
        caveat="upper bound: assumes servers that take no time",
    )


def priority_inversion(view: JobView) -> Iterator[Finding | Skipped]:
    """Find tensors that the next step needs first and that are sent last."""
    recording = view.recording
    if not recording.links:
        yield Skipped("priority_inversion", _NO_LINKS)
        return
    waited = _overtaken(view)
    if not waited:
        return
    lowest = min(waited)
    first = next(kind.main for kind in recording.operations.kinds if kind.transfer.tensor == lowest)
    share = waited[lowest] / len(view.rows)
    yield Finding(
        kind="priority_inversion",
        title=f"{first} is needed first but waits behind others",
        cause=f"in {in_percent(share)} of the steps a tensor that the next forward pass needs later was sent "
        "before it",
        action="send by priority (BYTEPS_SCHEDULING_CREDIT, smaller partitions)",
        edits=[edit("schedule", "priority")],
        scope=FindingScope(operations=[first]),
        evidence=longest_events(
            view, view.which(lambda operation: operation.main == first and operation.transfer.is_sent), 1
        ),
    )


def _overtaken(view: JobView) -> dict[int, int]:
    """Count the steps in which each tensor waited for one of a higher number on its link."""
    index = view.recording.column(lambda operation: operation.transfer.tensor)
    waited: dict[int, int] = {}
    for step in view.steps:
        moving = np.flatnonzero((step.link != NO_LINK) & (step.end_ns - step.start_ns > step.work_ns))
        late = set()
        for event in moving.tolist():
            same = (step.link == step.link[event]) & (index[step.operation] > index[step.operation[event]])
            same &= (step.end_ns > step.start_ns[event]) & (step.end_ns <= step.end_ns[event])
            if same.any():
                late.add(int(index[step.operation[event]]))
        for tensor in late:
            waited[tensor] = waited.get(tensor, 0) + 1
    return waited
