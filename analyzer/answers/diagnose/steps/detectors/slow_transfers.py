"""Transfers that take longer than their bytes need: slow links, collectives and servers, small messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from analyzer.answers.diagnose.finding import (
    BYTES_OF_A_RANK,
    HALF,
    LARGE_BYTES,
    MANY_MESSAGES,
    MOST_LATENCY_NS,
    SLOW,
    SLOWEST_LINK_GBS,
    SMALL_BYTES,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
    edit,
)
from analyzer.answers.diagnose.steps.job_view import JobView, longest_events, names_of
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.errors import counted
from analyzer.base.names import brief
from analyzer.base.units import in_digits, in_ms, in_percent
from analyzer.model.graph.step_graph import NO_LINK, StepGraph
from analyzer.reading.dialects.step_parts import Direction, Transfer
from replay.links import is_sized
from replay.whatif.collective_times import LATENCY, MERGED, short_collectives, slow_collectives
from replay.whatif.scaling import GONE
from replay.whatif.server_times import beyond_bytes, is_pull, slowest_server

NO_BYTES = "the bytes of the transfers are not recorded"
NO_COMMUNICATION = "no communication between ranks is recorded"


def stages_of(view: JobView, accept: Callable[[Transfer], bool]) -> list[str]:
    """Return the system's names of the stages of the transfers that are accepted, in their order."""
    transfers = (kind.transfer for kind in view.recording.operations.kinds)
    return list(dict.fromkeys(transfer.stage for transfer in transfers if accept(transfer)))


def slow_links(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the worker whose pushes take longer than those of the same partitions elsewhere."""
    pushes = view.which(lambda operation: operation.transfer.is_sent)
    if not pushes.any() or len(view.recording.owners) < 2:
        yield from _slower_collectives(view)
        return
    ratios = _ratios(view, pushes)
    owner = int(ratios.argmax())
    if ratios[owner] <= SLOW:
        return
    name = view.recording.owners[owner]
    slow = dict.fromkeys(stages_of(view, lambda transfer: transfer.is_sent), float(ratios[owner]))
    pulls = view.which(lambda operation: operation.transfer.is_answer)
    back = float(_ratios(view, pulls)[owner])
    if back > SLOW:
        slow |= dict.fromkeys(stages_of(view, lambda transfer: transfer.is_answer), back)
    yield Finding(
        kind="slow_collective",
        title=f"the link of {name} is slow",
        cause=f"its pushes take {ratios[owner]:.1f} times as long as its peers', its pulls {back:.1f} times; "
        "transfers of the same partitions are compared, without the waiting for the link",
        action="look at its network: speed of the port, errors, other traffic, the path to the servers",
        edits=[edit(f"{name}.{stage}", 1 / ratio) for stage, ratio in slow.items()],
        scope=FindingScope([name], operations=list(slow)),
        evidence=longest_events(view, pushes & view.which(lambda operation: operation.owner == owner), 3),
    )


def _ratios(view: JobView, chosen: Mask) -> Float64:
    """Return the ratio of what `chosen` transfers (n,) of each owner (m,) take to its peers'; 0: none.

    The median over the steps; 0 where the steps differ so much that no link is the cause: where the lower
    quartile is at most its square root.
    """
    n_owners = len(view.recording.owners)
    keys, number = view.recording.numbered(lambda operation: (operation.main, operation.transfer.key))
    is_sent = np.zeros((n_owners, len(keys)), np.bool_)
    for step in view.steps:
        events = chosen[step.operation] & (step.work_ns > 0)
        is_sent[step.owner[events], number[step.operation[events]]] = True
    sending = np.flatnonzero(is_sent.any(axis=1))  # of several GPUs of a worker only one pushes
    by_all = np.flatnonzero(is_sent[sending].all(axis=0))
    alike = chosen & np.isin(number, by_all)
    ratios = np.zeros(n_owners)
    if len(sending) > 1 and alike.any():
        took = [
            np.bincount(step.owner, step.work_ns * alike[step.operation], n_owners)[sending]
            for step in view.steps
        ]
        peers = [np.median(np.delete(took, rank, axis=1), axis=1) for rank in range(len(sending))]
        by_step = np.array(took) / np.maximum(np.transpose(peers), 1)
        low, usual = np.quantile(by_step, [0.25, 0.5], axis=0)
        ratios[sending] = np.where(low**2 > usual, usual, 0.0)
    return ratios


def _slower_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    """Find collectives with less bus bandwidth than any link has, or than others of their kind and size."""
    job = view.job
    if not job.collectives:
        yield Skipped("slow_collective", NO_BYTES if view.is_communication.any() else NO_COMMUNICATION)
        return
    if (finding := _slower_than_links(view)) is not None:
        yield finding
        return
    rates, operations = job.collectives.rates, job.recording.operations
    slow, usual = slow_collectives(job)
    if not len(slow):
        return
    worst = int((rates.bus[slow] / usual).argmin())
    names = [operations[i] for i in rates.operation[slow].tolist()]
    chosen = np.zeros(len(operations), np.bool_)
    chosen[rates.operation[slow]] = True
    n_slow = len(np.unique(rates.turn[slow]))
    yield Finding(
        kind="slow_collective",
        title=f"{counted(n_slow, 'collective')} {'is' if n_slow == 1 else 'are'} slower than others of the "
        f"same size, above all {brief(names[worst].main)}",
        cause=f"its bus bandwidth is {in_digits(float(rates.bus[slow[worst]]))} GB/s where others of its "
        f"kind and size have {in_digits(float(usual[worst]))}",
        action="look at what runs beside it, at the ranks of its group, and at the links between their hosts",
        edits=[edit("collectives", "peers")],
        scope=FindingScope(
            [view.recording.owners[owner] for owner in sorted({operation.owner for operation in names})],
            operations=sorted({operation.main for operation in names}),
        ),
        evidence=longest_events(view, chosen, 3),
        caveat=lacking_ranks(view, or_alone=True),
    )


def lacking_ranks(view: JobView, *, or_alone: bool = False) -> str:
    """Say that ranks without a recording, for which recorded ones may wait, hide the cause; "" for none.

    One rank `or_alone` lacks others, too, if their number is unknown.
    """
    n_ranks, world = len(view.recording.owners), max(rank.world_size or 0 for rank in view.loaded.ranks)
    if world <= n_ranks and not (or_alone and n_ranks == 1):
        return ""
    recorded = f"{n_ranks} of {world} ranks" if world > n_ranks else "one rank"
    return f"with {recorded} recorded, waiting and slow links look alike"


def _slower_than_links(view: JobView) -> Finding | None:
    """Return the finding that even large collectives of devices have far less than any link of a host."""
    operations, known = view.recording.operations, view.job.collectives.rates
    on_device = np.array([operations[i].on_device for i in known.operation.tolist()], np.bool_)
    is_large = on_device & (known.n_bytes >= np.maximum(BYTES_OF_A_RANK * known.n_ranks, LARGE_BYTES))
    large = known.operation[is_large]
    if not len(large):
        return None
    usual_ns, shortest_ns = _work_ns(view, large)
    best = float((known.bus[is_large] * usual_ns / shortest_ns).max())
    if best > HALF * SLOWEST_LINK_GBS:
        return None
    n_bytes = known.n_bytes[is_large]
    largest = int(n_bytes.argmax())
    chosen = np.zeros(len(operations), np.bool_)
    chosen[large] = True
    edits = [edit("bandwidth", f"{8 * SLOWEST_LINK_GBS:.0f}Gbit")]
    if view.job.collectives.latency[chosen].mean() > HALF * usual_ns.mean():
        edits.append(edit("latency", GONE))
    unknown, share = lacking_ranks(view, or_alone=True), view.path_work_ns(chosen) / view.step_ns
    title = f"collectives reach {best:.2g} GB/s on the bus"
    return Finding(
        kind="slow_collective",
        title=f"collectives take {in_percent(share)} of the step; {unknown}" if unknown else title,
        cause=f"{n_bytes[largest] / 1e6:.3g} MB take {in_ms(usual_ns[largest])}, {best:.2g} GB/s on the bus; "
        f"the slowest link between GPUs of a host (PCIe 3.0 x16) carries {SLOWEST_LINK_GBS:.0f} GB/s",
        action=f"{'record all ranks; then ' if unknown else ''}look at what they run over (NCCL_DEBUG=INFO "
        "prints it: a link, shared memory, a network) and at the links (nvidia-smi topo -m, rocm-smi "
        "--showtopo); run nccl-tests there to compare",
        edits=() if unknown else edits,
        scope=FindingScope(operations=sorted({operations[i].main for i in large.tolist()})),
        evidence=longest_events(view, chosen, 3),
        caveat="between hosts a network may carry less",
        look=("statistic", "--sub_option", "collectives"),
        weight=share if unknown else 0.0,
        place=ListPlace.FIRST if unknown and share > HALF else ListPlace.BY_GAIN,
    )


def _work_ns(view: JobView, operations: Int64) -> tuple[Float64, Float64]:
    """Median and shortest work of each of `operations` (k,) over the whole steps, 1 at least."""
    works: dict[int, list[int]] = {i: [] for i in operations.tolist()}
    is_chosen = np.zeros(len(view.recording.operations), np.bool_)
    is_chosen[operations] = True
    for step in view.steps:
        events = is_chosen[step.operation]
        for i, work in zip(step.operation[events].tolist(), step.work_ns[events].tolist(), strict=True):
            works[i].append(work)
    ordered = [sorted(works[i] or [1]) for i in operations.tolist()]
    usual, shortest = np.array([(work[len(work) // 2], work[0]) for work in ordered], np.float64).T
    return np.maximum(usual, 1.0), np.maximum(shortest, 1.0)


def small_messages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find many transfers whose time is latency, not bytes."""
    parts = [operation for operation in view.recording.operations if operation.transfer.key is not None]
    if not view.is_communication.any():
        yield Skipped("small_messages", NO_COMMUNICATION)
        return
    if not parts:
        yield from _short_collectives(view)
        return
    sizes = np.array([part.transfer.n_bytes for part in parts if part.transfer.n_bytes])
    if not len(sizes):
        yield Skipped("small_messages", f"{NO_BYTES}; BytePS's log has them")
        return
    tensors = {(part.owner, part.main) for part in parts}
    per_tensor = len({(part.owner, part.main, part.transfer.key) for part in parts}) / len(tensors)
    if np.median(sizes) > SMALL_BYTES or per_tensor < 2:
        return
    yield Finding(
        kind="small_messages",
        title="partitions are small",
        cause=f"{np.median(sizes) / 1024:,.0f} KiB, {per_tensor:.0f} to a tensor; every partition costs "
        "a request and an answer, whatever its size",
        action=f"raise BYTEPS_PARTITION_BYTES (now about {sizes.max()}), e.g. to {LARGE_BYTES}",
        edits=[edit("partition_bytes", LARGE_BYTES)],
        scope=FindingScope(operations=sorted({part.main for part in parts})[:3]),
        evidence=longest_events(view, view.which(lambda operation: operation.transfer.is_sent), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    short, shortest_ns = short_collectives(view.job)
    if short.sum() < MANY_MESSAGES * len(view.recording.owners):
        return
    has_bytes = any(rank.sizes.n_bytes.any() for rank in view.job.ranks)
    if view.has_device and shortest_ns > MOST_LATENCY_NS and not has_bytes:
        return
    often = float(np.median([_n_turns(step, short) for step in view.steps]))
    if often < MANY_MESSAGES:
        return
    yield Finding(
        kind="small_messages",
        title=f"{often:,.0f} collectives a step are latency, hardly bytes",
        cause=f"where nothing delays them they take at most {LATENCY * shortest_ns / 1e3:.0f} µs each, "
        "not much more than the shortest",
        action="merge them: larger buckets (bucket_cap_mb), a larger fusion buffer, coalesced collectives",
        edits=[edit("collectives", "merged")],
        scope=FindingScope(operations=names_of(view, short)[:3]),
        evidence=longest_events(view, short, 1),
        caveat=f"the gain is for one in {MERGED} of them",
    )


def _n_turns(step: StepGraph, short: Mask) -> float:
    """Count the `short` collectives of a rank in a step, those at once as one; the mean over ranks."""
    by_owner = step.events_by_owner(short)
    return float(np.mean([len(np.unique(step.turns(events))) for events in by_owner]))


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
        caveat="assumes servers that take no time",
        is_upper_bound=True,
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
