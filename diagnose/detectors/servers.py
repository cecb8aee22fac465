"""BytePS's servers: one that is slow, pulls that take longer than their bytes, the order of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.numbering import unique
from dag.step_graph import NO_LINK, Recording, StepGraph
from dag_utils import by_link
from diagnose.detectors.slow_transfers import NO_BYTES
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.step_parts import Operation
from replay.whatif.bandwidth import is_sized, link_rate
from replay.whatif.edits import apply
from replay.whatif.even_work import scaled
from replay.whatif.messages import as_messages
from result import in_ms

#: A server is slow if three quarters of its pulls take this many times what three quarters of the others' do.
_SLOWER = 1.2
#: Pulls and partitions of one size class that it takes to know what a server takes for them.
_PULLS, _PARTITIONS = 8, 2
#: Smaller partitions than this share of the largest tell of messages, not of bytes.
_LARGE = 0.2
#: A server that holds this many times the bytes of the mean one has too many.
_UNEVEN = 1.5
_NO_LINKS = "no links to servers are recorded"


class _Pace(NamedTuple):
    """What a server takes for a byte, and what the others take for one of pulls of that size (ns)."""

    server: str
    others: str
    own: float
    usual: float

    @property
    def ratio(self) -> float:
        return self.own / self.usual


def one_slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the server that takes longer than the others: a machine that is busy, a slow network card."""
    pace = _slowest(view)
    if pace is None:
        return
    name = pace.server
    yield Finding(
        kind="server",
        title=f"{name} takes {pace.ratio:.1f} times as long for its bytes as {pace.others}",
        cause="of pulls of one size that are answered one right after another, its own take "
        f"{pace.own:.1f} ms for a MB, those of {pace.others} {pace.usual:.1f}",
        action=f"look at the machine of {name}: other processes, too few cores or threads "
        "(BYTEPS_SERVER_ENGINE_THREAD), its network card; or give it fewer keys",
        edit=lambda one: _as_fast_as_others(one, pace),
        ranks=view.recording.owners,
        operations=view.stages(lambda part: part.is_sent or part.is_answer),
        evidence=view.show(view.which(lambda one: _is_pull(one) and one.transfer.server == pace.server), 3),
        queued_ns=view.path_work_ns(view.is_communication),
    )


def _slowest(view: JobView) -> _Pace | None:
    """Return the server that surely takes longer than any other; None where none does or can be compared.

    Compared are pulls of one size class, of those answered right after another: these wait for nothing else.
    """
    recording = view.recording
    servers, of_operation = recording.numbered(lambda one: one.transfer.server if _is_pull(one) else "")
    known = link_rate(recording) if len(servers) > 2 and is_sized(recording) else None
    if known is None:  # or there is but one server, and "" for all that is not a pull
        return None
    operation, work = _answered_in_a_row(view)
    server, key = of_operation[operation], recording.column(lambda one: one.transfer.key or 0)[operation]
    n_bytes = recording.column(lambda one: one.transfer.n_bytes)[operation]
    at_least_1 = np.maximum(n_bytes, 1)
    # what is quicker than its bytes waited elsewhere, together with the one before it
    per_byte = np.maximum(work / at_least_1, 1 / known.carried)
    size = np.where(n_bytes > _LARGE * n_bytes.max(initial=0), np.rint(np.log2(at_least_1)), -1)
    paces: dict[int, Float64] = {}
    for one_size in unique(size[size >= 0]):
        found: dict[int, Float64] = {}
        for one in unique(server).tolist():
            mine = (size == one_size) & (server == one)
            if mine.sum() >= _PULLS and len(unique(key[mine])) >= _PARTITIONS:
                found[one] = np.quantile(per_byte[mine], [0.25, 0.5, 0.75])
        for one, (low, own, _) in found.items():
            others = np.array([of for other, of in found.items() if other != one])
            if len(others):
                total = n_bytes[(size == one_size) & (server == one)].sum()
                usual, high = np.median(others[:, 1]), others[:, 2].max()
                paces[one] = paces.get(one, np.zeros(5)) + total * np.array([1, low, own, usual, high])
    for one, sums in paces.items():
        _, low, own, usual, high = sums / sums[0]
        if low > _SLOWER * high:
            rest = [other for i, other in enumerate(servers) if other and i != one]
            return _Pace(servers[one], rest[0] if len(rest) == 1 else "the others", own, usual)
    return None


def _answered_in_a_row(view: JobView) -> tuple[Int64, Int64]:
    """Return the operation and the work (ns) of each pull that was answered right after another (k,)."""
    pulls = view.which(_is_pull)
    operations, work = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for step in view.steps:
        for served in by_link(step):
            begin, end = (step.end_ns - step.work_ns)[served], step.end_ns[served]
            chosen = served[1:][(begin[1:] <= end[:-1]) & pulls[step.operation[served[1:]]]]
            operations.append(step.operation[chosen])
            work.append(step.work_ns[chosen])
    return np.concatenate(operations), np.concatenate(work)


def _as_fast_as_others(recording: Recording, pace: _Pace) -> Recording:
    """Return the recording in which a server answers, and takes what is pushed, in the usual time."""
    known = link_rate(recording)
    if known is not None:
        recording = as_messages(recording, known.likely, by_bytes=False)
    keys = {one.transfer.key for one in recording.table.kinds if one.transfer.server == pace.server}
    takes = recording.which(lambda one: one.transfer.is_acknowledgement and one.transfer.key in keys)
    answers = recording.which(lambda one: _is_pull(one) and one.transfer.server == pace.server)
    return scaled(recording, np.where(takes | answers, 1 / pace.ratio, 1.0))


def slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find pulls that take longer than their bytes although everything was pushed: the server's own time."""
    recording = view.recording
    pulls = view.which(_is_pull)
    if not pulls.any():
        yield Skipped("server", _NO_LINKS)
        return
    known = link_rate(recording) if is_sized(recording) else None
    if known is None:
        yield Skipped("server", f"{NO_BYTES}; BytePS's log has them")
        return
    rate = known.carried
    wire = recording.column(lambda one: one.transfer.n_bytes) / rate
    beyond = []
    for step in view.steps:
        mine = pulls[step.operation]
        beyond.append(np.maximum(step.work_ns - wire[step.operation], 0)[mine].sum() / len(recording.owners))
    usual = float(np.median(beyond))
    uneven = _uneven_servers(view)
    yield Finding(
        kind="server",
        title=f"the servers take {in_ms(usual)} a step of each worker beyond the time of the bytes",
        cause="pulls end that much after the last push and the time that their bytes need"
        + uneven
        + view.network,
        action="give the servers more cores or threads (BYTEPS_SERVER_ENGINE_THREAD), or use more servers",
        edit=lambda one: _as_fast_as_wire(one, rate),
        ranks=recording.owners,
        operations=view.stages(lambda part: part.is_answer),
        evidence=view.show(pulls, 3),
        caveat="an upper bound: servers that take no time at all",
    )


def _is_pull(one: Operation) -> bool:
    return one.transfer.is_answer


def _uneven_servers(view: JobView) -> str:
    """Return how uneven the bytes lie on the servers, as words that end a cause; "" where they are even."""
    load: dict[str, int] = {}
    for one in view.recording.operations:
        if _is_pull(one) and one.owner == 0:
            load[one.transfer.server] = load.get(one.transfer.server, 0) + one.transfer.n_bytes
    if len(load) < 2 or max(load.values()) < _UNEVEN * np.mean(list(load.values())):
        return ""
    most = max(load, key=lambda server: load[server])
    return f"; {most} holds {load[most] / sum(load.values()):.0%} of the bytes"


def _as_fast_as_wire(recording: Recording, rate: float) -> Recording:
    """Return the recording in which pulls take no longer than their bytes at `rate` (bytes/ns)."""
    pulls = recording.which(_is_pull)
    wire_ns = recording.column(lambda one: one.transfer.n_bytes) / rate

    def edited(step: StepGraph) -> StepGraph:
        least = np.minimum(step.work_ns, np.rint(wire_ns[step.operation])).astype(np.int64)
        return replace(step, work_ns=np.where(pulls[step.operation], least, step.work_ns))

    return recording.edited(edited)


def priority_inversion(view: JobView) -> Iterator[Finding | Skipped]:
    """Find tensors that the next step needs first and that are sent last."""
    if not view.recording.links:
        yield Skipped("priority_inversion", _NO_LINKS)
        return
    late = _overtaken(view)
    if late is None:
        return
    first, share = late
    yield Finding(
        kind="priority_inversion",
        title=f"{first} is needed first but waits behind others",
        cause=f"in {share:.0%} of the steps one that the next forward pass needs later was sent before it",
        action="send by priority (BYTEPS_SCHEDULING_CREDIT, smaller partitions)",
        edit=lambda one: apply(one, ["schedule=priority"]),
        change="schedule=priority",
        ranks=view.recording.owners,
        operations=[first],
        evidence=view.show(view.which(lambda one: one.main == first and one.transfer.is_sent), 1),
    )


def _overtaken(view: JobView) -> tuple[str, float] | None:
    """Return the tensor of the lowest index that waited for another on its link, and in how many steps."""
    recording = view.recording
    index = recording.column(lambda one: one.transfer.tensor)
    waited: dict[int, int] = {}
    for step in view.steps:
        moving = np.flatnonzero((step.link != NO_LINK) & (step.end_ns - step.start_ns > step.work_ns))
        late = set()
        for event in moving.tolist():
            same = (step.link == step.link[event]) & (index[step.operation] > index[step.operation[event]])
            same &= (step.end_ns > step.start_ns[event]) & (step.end_ns <= step.end_ns[event])
            if same.any():
                late.add(int(index[step.operation[event]]))
        for one in late:
            waited[one] = waited.get(one, 0) + 1
    if not waited:
        return None
    lowest = min(waited)
    name = next(one.main for one in recording.table.kinds if one.transfer.tensor == lowest)
    return name, waited[lowest] / len(view.rows)
