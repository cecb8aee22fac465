"""Laws for the traces of every system; tests of a new system call `check_system` on small recordings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.model.figures.job_figures import JobFigures, Wanted, load_figures
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role, System
from analyzer.reading.dialects.roles import Phase
from analyzer.reading.dialects.step_parts import RankTrace
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.ranks import Ranks
from conftest import ask, run_cli
from dag_utils import load_steps
from trace_utils import Request, read_ranks

#: Figures with steps as a breakdown, `compare` and a digest ask for them.
_ASKED = (
    Wanted(breakdown=True), Wanted(operations=True, spent=True),
    Wanted(durations=True, breakdown=True, operations=True, spent=True),
)  # fmt: skip
#: What a system is asked, and for what the args of the trace were decoded then.
_QUESTIONS: Sequence[tuple[Any, ...]] = (
    ("roles", False, Need.STEPS),
    ("find_steps", False, Need.STEPS),
    ("sync_points", False, Need.SYNC, Need.STEPS),
    ("rank_steps", True, Need.STEPS, Need.EDGES, Need.SYNC),
    ("collectives", True, Need.SIZES, Need.SYNC, Need.STEPS),
)
_WORKS = (Role.COMPUTE, Role.COMM, Role.COPY)


def check_system(job: Path, ranks: Sequence[str], tmp_path: Path) -> None:
    """Check all laws on a recorded job that has steps, and whose ranks have these names."""
    assert loaded(job).names == list(ranks), "the ranks that the recording is split into"
    check_args(job)
    check_labels(job)
    check_step(job)
    check_busy(job)
    check_comm(job)
    check_met(job)
    check_combined(job, tmp_path)


def check_made(job: Path, late: str, late_ms: float) -> None:
    """Check the laws of a recording made by hand, all of whose work is in its steps.

    In each step one rank works so much longer than the others, which wait for it in a collective.
    """
    for trace in loaded(job).made:
        works = np.isin(dialects.of(trace).roles(trace), _WORKS)
        steps = dialects.of(trace).find_steps(trace).whole
        is_in = [(trace.ts_ns >= one.start_ns) & (trace.end_ns <= one.end_ns) for one in steps]
        assert (np.sum(is_in, axis=0)[works] == 1).all(), (
            f"{trace.path}: work that lies in no step, or in two"
        )
    check_together(job)
    begins, ends = (
        np.array(
            [[getattr(one, side) for one in dialects.of(trace).find_steps(trace).whole]
             for trace in loaded(job).made]
        )
        for side in ("start_ns", "end_ns")
    )  # fmt: skip
    assert (begins.max(axis=0) < ends.min(axis=0)).all(), "ranks' steps of one number lie apart: see epoch_ns"
    found = [one for one in ask("--path", job)["findings"] if one["kind"] == "late_rank"]
    assert [one["scope"]["ranks"] for one in found] == [[late]], "the late rank is not the one that is named"
    assert abs(found[0]["gain_ms"]["mid"] / late_ms - 1) < 0.1, f"{found[0]['gain_ms']} instead of {late_ms}"
    for rank in figures_of(job, Wanted(breakdown=True)).ranks:
        is_exposed = rank.breakdown.exposed_comm_ns >= 0.9e6 * late_ms
        assert rank.name == late or is_exposed.all(), f"{rank.name}: work, by its role, hides its wait"


def check_together(job: Path) -> None:
    """What a system says that ranks do together, all of them do."""
    traces = read_ranks([job], request=Request({Need.SYNC}, points=True, jobs=1, progress=False)).made
    system = type(dialects.of(traces[0]))
    if system.sync_part is not System.sync_part:
        keys = [set(dialects.of(trace).sync_points(trace)) for trace in traces]
        assert set.intersection(*keys), "no sync point is common to all ranks: may_synchronise, sync_part"
    if system.collectives is not System.collectives:
        rows = ask("statistic", job, "--sub_option", "collectives")["collectives"]
        apart = [row["kind"] for row in rows if row["waiting_ms"] is None]
        assert not apart, f"{apart}: no rank has the other ranks' part in it: the key in `collectives`"


def check_args(job: Path) -> None:
    """A system answers the same of all args of the events as of those that it declares for the question."""
    whole = read_ranks([job], request=Request({Need.ALL}, points=True, jobs=1, progress=False))
    assert whole.names == loaded(job).names, "a key that tells ranks apart is not declared for Need.ALWAYS"
    anybodys = dialects.keys_for(set(Need) - {Need.ALL})
    for rank, trace, usual in zip(whole.names, whole.made, loaded(job).made, strict=True):
        system = dialects.of(trace)
        for question, is_of_rank, *needs in _QUESTIONS:
            keys = [key for need in (Need.ALWAYS, *needs) for key in system.args.get(need, ())]
            rule = re.compile("|".join(re.escape(key).replace(r"\*", r"\d*") for key in keys))
            known = {
                name: column
                for name, column in trace.args.items()
                if rule.fullmatch(name) or (name in usual.args and name not in anybodys)  # which `split` adds
            }
            all_keys, declared = (
                _plain(getattr(system, question)(RankTrace(rank, one) if is_of_rank else one))
                for one in (trace, replace(trace, args=known))
            )
            is_alike = all_keys == declared
            assert is_alike, f"{system.name}.{question} reads a key of args not declared for {needs}"


def _plain(value: Any) -> Any:
    """Return a value that can be compared."""
    match value:
        case np.ndarray():
            return value.tolist()
        case Struct():
            return [_plain(getattr(value, name)) for name in value.__struct_fields__]
        case Sequence() if not isinstance(value, str):
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


def check_met(job: Path) -> None:
    """Ranks that communicate in a step hold each other up in its graph, whatever their parts are called.

    Of the communications of one name all are matched or none. What runs forward also runs back, and what
    loads input is of that phase.
    """
    recording = load_steps([job], Request(jobs=1, progress=False)).recording
    phases = {one.phase for one in recording.operations.kinds}
    assert Phase.FORWARD not in phases or Phase.BACKWARD in phases, "a forward pass without a backward one"
    is_partial = Phase.FORWARD not in phases and Phase.UPDATE in phases
    assert not is_partial, "an update without a forward pass"  # Python's stacks may tell a loader
    for one in recording.operations.kinds:
        # where the host does the work, what loads is work as well
        loads = {Role.INPUT, Role.COMPUTE} if one.phase is Phase.INPUT else {*Role} - {Role.INPUT}
        assert one.role in loads, f"{one.name}: its phase is {one.phase}, and its role {one.role}"
    if len(recording.owners) == 1:
        return
    communicates = recording.which(lambda one: one.is_communication)
    _, name = recording.numbered(lambda one: (one.owner, one.name))
    is_hub = recording.which(lambda one: one.role is Role.MEETING)
    met: dict[int, set[bool]] = {}
    for row in recording.whole_steps:
        step = recording.steps[row]
        source, target = step.edges[:, :2].T
        hub = is_hub[step.operation]
        across = (step.owner[source] != step.owner[target]) | hub[source] | hub[target]
        is_met = np.zeros(len(step), np.bool_)
        is_met[step.edges[across, :2].ravel()] = True
        events = np.flatnonzero(communicates[step.operation] & ~hub)
        for event in events.tolist():
            met.setdefault(int(name[step.operation[event]]), set()).add(bool(is_met[event]))
        owners = {*step.owner[events].tolist()}
        tied = {*step.owner[np.flatnonzero(is_met)].tolist()}
        assert len(owners) < 2 or owners <= tied, f"step {step.number}: {owners - tied} meet nobody"
    assert not [one for one in met.values() if len(one) > 1], "some of a name are matched, and some are not"


@lru_cache(maxsize=2)
def loaded(job: Path) -> Ranks[Trace]:
    """Return the traces of a job's ranks, read once for all laws."""
    return read_ranks([job], request=Request(jobs=1, progress=False))


@lru_cache(maxsize=len(_ASKED))
def figures_of(job: Path, wanted: Wanted) -> JobFigures:
    """Return the figures of a job."""
    return load_figures([job], wanted, Request(jobs=1, progress=False))


def check_labels(job: Path) -> None:
    """Steps have the same labels under every option; the options on graphs take those of all ranks."""
    found = [figures_of(job, wanted) for wanted in _ASKED]
    labels = [[[step.label for step in rank.steps.whole] for rank in one.ranks] for one in found]
    assert labels == [labels[0]] * len(labels), "numbers of steps differ under `statistic` and its variants"
    common = set.intersection(*({*own} for own in labels[0] if own)) if any(labels[0]) else {1}
    for sizes in (False, True):  # `diagnose` asks for the sizes of messages, `critical` and `replay` do not
        recording = load_steps([job], Request(jobs=1, progress=False), sizes=sizes).recording
        numbers = [step.number for step in recording.bounds]
        assert numbers == sorted(common), "numbers of steps differ between `statistic` and graphs, or descend"


def check_step(job: Path) -> None:
    """A step's critical path is as long as the step; replayed with its own gaps it takes as long, too."""
    critical = ask("--option", "critical", "--path", job)
    path = critical["scopes"][-1]["path"]
    sum_ms = sum(part["dur_ms"] for part in path)
    assert abs(sum_ms - critical["iteration_ms"]) < 1e-6, "the critical path is not as long as the step"
    assert abs(ask("--option", "replay", "--path", job, "--output", "-")["error"]) < 1e-9, "replayed"


def check_busy(job: Path) -> None:
    """No track works longer than its wall time, and no step of a rank is spent on more than it took."""
    for trace in loaded(job).made:
        for track, busy_ns, wall_ns in busy_tracks(trace.own):
            assert busy_ns <= wall_ns, f"{trace.path}: {trace.tracks[track]} works longer than it lasts"
    for rank in figures_of(job, Wanted(breakdown=True)).ranks:
        step = rank.breakdown
        assert (step.compute_ns + step.comm_ns - step.overlap_ns + step.idle_ns <= step.wall_ns).all()


def check_comm(job: Path) -> None:
    """What the user says is communication is so, and nothing else becomes it but what it calls."""
    plain = loaded(job)
    roles = [dialects.of(trace).roles(trace) for trace in plain.made]
    rank = next(i for i, own in enumerate(roles) if np.isin(own, (*_WORKS, Role.WAIT)).any())
    named = plain.made[rank].name_id[np.isin(roles[rank], (Role.COMPUTE, Role.WAIT, Role.COMM))][-1]
    name = plain.made[rank].names[named]
    told = read_ranks([job], request=Request(comm=(name, "no such name"), jobs=1, progress=False))
    assert [line for line in told.repairs if "no such name" in line]
    assert not [line for line in told.repairs if repr(name) in line]
    for trace, before in zip(told.made, roles, strict=True):
        after = dialects.of(trace).roles(trace)
        is_named = np.array([name in one for one in trace.names], np.bool_)[trace.name_id]
        works = np.isin(before, (Role.COMPUTE, Role.WAIT, Role.COMM))
        assert (after[is_named & works] == Role.COMM).all()
        assert set(after[after != before].tolist()) <= {Role.COMM, Role.IDLE}


def busy_tracks(trace: Trace) -> list[tuple[int, int, int]]:
    """Each track with the work of its outermost slices and its wall time (ns)."""
    works = np.isin(dialects.of(trace).roles(trace), _WORKS) if len(trace) else np.zeros(0, np.bool_)
    tracks = []
    for track in sorted({*trace.track_id[works].tolist()}):
        rows = np.flatnonzero(works & (trace.track_id == track))
        spans = sorted(zip(trace.ts_ns[rows].tolist(), (-trace.end_ns[rows]).tolist(), strict=True))
        busy_ns, end_ns = 0, spans[0][0]
        for begin, minus_end in spans:
            if -minus_end > end_ns:  # else it lies in one before
                busy_ns, end_ns = busy_ns - minus_end - begin, -minus_end
        tracks.append((track, busy_ns, end_ns - spans[0][0]))
    return tracks


def check_combined(job: Path, tmp_path: Path) -> None:
    """A combined file has the ranks of the job, each with its own slices."""
    output = tmp_path / "combined.json"
    code, _, errors = run_cli("--option", "combine", "--path", job, "--output", output)
    assert code == 0, errors
    before, after = loaded(job), loaded(output)
    assert after.names == before.names
    assert [len(trace.own) for trace in after.made] == [len(trace.own) for trace in before.made]
