"""Switch off one rule at a time and print what changes in the answers about recorded jobs.

    PYTHONPATH=.:tests python3 -m accuracy ablation [JOB ...]

The rules are those that connect events (`edge_rules.RULES`) and those by which replay forecasts. Of each the
first finding of `diagnose` and the critical path of the usual step are printed where they change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from msgspec.structs import replace

from analyzer.answers.diagnose.diagnosis import diagnose, headline
from analyzer.base.errors import AnalyzeError
from analyzer.base.units import in_percent
from analyzer.model.graph.join_ranks import fitted
from analyzer.model.graph.step_graph import NO_LINK, Recording, StepGraph
from analyzer.reading.dialects.edge_rules import RULES, Rule
from analyzer.reading.dialects.roles import Role
from dag_utils import LoadedSteps, NamedPath, critical_path, load_steps, read_partitions
from trace_utils import Request

_ROOT = Path(__file__).resolve().parents[2]
#: Jobs of all systems; the first ones are in the repository.
JOBS = (
    *(_ROOT / "examples" / name for name in (
        "ddp-h200", "gloo-h200/base", "jax-h200/base", "lenet", "mlp-raw",
    )),
    *(_ROOT.parent / "shared" / "data" / name for name in (
        "kineto/ddp2-gloo-slow-rank1/trace", "kineto/gpu-hta-2of128/trace",
        "kineto/gpu-param-dlrm-8ranks/trace", "pipeline/straggler-ST", "horovod/2ranks-slow-rank1/trace",
        "composer/ws2-torch/trace", "byteps/fork_lenet_2w2g", "dasf/two-hosts-4workers/trace",
    )),
)  # fmt: skip


class Switch(NamedTuple):
    """A rule, and the job without it while a context lasts."""

    name: str
    sentence: str
    off: Callable[[LoadedSteps], AbstractContextManager[LoadedSteps]]


class Answers(NamedTuple):
    """The headline of `diagnose`, and the largest shares of the critical path of the usual step."""

    finding: str
    path: str


def _edges_switch(rule: Rule) -> Switch:
    def off(loaded: LoadedSteps) -> AbstractContextManager[LoadedSteps]:
        return nullcontext(replace(loaded, recording=without(loaded.recording, rule)))

    return Switch(rule.name.lower(), rule.sentence, off)


def _replay_switch(name: str, sentence: str, target: str, instead: Any) -> Switch:
    """Put `instead` for the name `target` of a module of replay."""

    @contextmanager
    def off(loaded: LoadedSteps) -> Iterator[LoadedSteps]:
        with mock.patch(target, instead):
            yield loaded

    return Switch(name, sentence, off)


#: One loop goes over all of them.
SWITCHES = (
    *map(_edges_switch, RULES),
    _replay_switch("messages", "transfers are messages", "replay.edit.as_messages", lambda job, _: job),
    _replay_switch("rounds", "steps go round three times", "replay.forecast._ROUNDS", 1),
    _replay_switch("rhythms", "workers may find another rhythm", "replay.forecast._STARTS", ()),
    _replay_switch("usual_gaps", "gaps are at most the usual ones", "replay.usual_times.UsualGaps.capped",
                   lambda gaps, row, step: step),
    _replay_switch("local_servers", "servers may be on a worker's machine", "replay.links.local_servers",
                   lambda recording: {}),
    _replay_switch("slow_nodes", "nodes may have limits of their own", "replay.links._slow_nodes",
                   lambda recording, sides: {}),
)  # fmt: skip


def without(recording: Recording, rule: Rule) -> Recording:
    """Leave out the edges of a rule; works, gaps and waits follow from the others."""
    is_meeting = recording.which(lambda operation: operation.role is Role.MEETING)
    return recording.edited(lambda step: _without(step, rule, int((~is_meeting[step.operation]).sum())))


def _without(step: StepGraph, rule: Rule, n_recorded: int) -> StepGraph:
    kept = step.edges[:, 3] != rule
    link = np.full_like(step.link, NO_LINK) if rule is Rule.LINK else step.link
    owner = step.owner[step.last]
    last = [step.last[owner == number] for number in range(len(step.begin_ns))]
    return fitted(replace(step, edges=step.edges[kept], link=link), last, n_recorded)


def answers(loaded: LoadedSteps) -> Answers:
    """Ask for the headline, and for the shares of the usual step's critical path."""
    recording = loaded.recording
    step = recording.steps[recording.choose_step()]
    sums = NamedPath.of(recording, critical_path(step)).by_category()
    length_ns = max(sum(sums.values()), 1)
    shares = [f"{in_percent(ns / length_ns)} {name}" for name, ns in list(sums.items())[:3]]
    return Answers(headline(diagnose(loaded)), ", ".join(shares))


def answers_or_error(loaded: LoadedSteps) -> Answers:
    """Ask a job that may be impossible without the rule."""
    try:
        return answers(loaded)
    except (ArithmeticError, LookupError, ValueError, AnalyzeError) as error:
        return Answers(f"none: {type(error).__name__}", "none")


def n_edges(loaded: LoadedSteps) -> Counter[str]:
    """Count the edges of each rule in all steps of a job."""
    count: Counter[str] = Counter()
    for step in loaded.recording.steps:
        used = np.bincount(step.edges[:, 3], minlength=len(RULES)).tolist()
        count.update({rule.name.lower(): n for rule, n in zip(RULES, used, strict=True) if n})
        count["link"] += int((step.link != NO_LINK).sum())
    return +count


def load(path: Path) -> LoadedSteps:
    """Load a job as `diagnose` does."""
    return load_steps([path], Request(progress=False), partitions=read_partitions([path]), sizes=True)


def table(jobs: Sequence[Path]) -> Iterator[str]:
    """Yield a table for each job, with a row for each rule that changes an answer, and what no job needs."""
    needed: set[str] = set()
    used: set[str] = set()
    for path in jobs:
        loaded = load(path)
        count, usual = n_edges(loaded), answers(loaded)
        used |= {*count}
        yield f"\n## {path}\n\n{usual.finding}\n\nPath: {usual.path}\n"
        yield "| left out | edges | first finding | path |"
        yield "| --- | --: | --- | --- |"
        for switch in SWITCHES:
            if switch.name.upper() in Rule.__members__ and not count[switch.name]:
                continue
            with switch.off(loaded) as job:
                changed = answers_or_error(job)
            if changed != usual:
                needed.add(switch.name)
                cells = (new if new != old else "–" for new, old in zip(changed, usual, strict=True))
                yield f"| {switch.name} | {count[switch.name] or '–'} | {' | '.join(cells)} |"
    names = {switch.name for switch in SWITCHES}
    idle = {rule.name.lower() for rule in RULES} - used
    yield f"\nWithout effect in these jobs: {', '.join(sorted(names - needed - idle)) or 'none'}."
    yield f"Without an edge in them: {', '.join(sorted(idle)) or 'none'}."


def main(jobs: Sequence[Path]) -> None:
    """Print the tables of some jobs, or of all that are here."""
    print("# Each rule left out alone")
    for line in table(jobs or [path for path in JOBS if path.exists()]):
        print(line, flush=True)
