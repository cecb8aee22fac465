"""The diagnosis of a job: every detector is asked, the findings are ranked by what a replay says is won."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct, field

from arrays import Float64
from dag_utils import LoadedSteps
from diagnose.detectors.capture import capture_quality
from diagnose.detectors.device import allocations, computes_on_device, copies, host_bound, host_sync, idle
from diagnose.detectors.exposed import exposed_communication, idle_stages, slow_input
from diagnose.detectors.late_ranks import late_ranks, uneven_work
from diagnose.detectors.memory import memory
from diagnose.detectors.negotiations import negotiation
from diagnose.detectors.operations import hot_operation, outlier_steps, slow_callbacks
from diagnose.detectors.overhead import profiling_overhead
from diagnose.detectors.servers import one_slow_server, priority_inversion, slow_server
from diagnose.detectors.slow_transfers import slow_links
from diagnose.detectors.small_messages import small_messages
from diagnose.finding import Finding, Skipped
from diagnose.finding_thresholds import ALIKE, FAR_MORE, HALF, LIMIT, NEGLIGIBLE
from diagnose.job_view import JobView
from replay.edit import EditRequest
from replay.forecast import Forecast, Forecasts, Gain
from result import in_ms

#: Findings that the headline names.
_NAMED = 2


class Level(IntEnum):
    """How general a finding is. What a more specific one explains is not claimed again by a general one."""

    RANK = 0  # one rank, or one step, stands out
    CAUSE = 1  # something that all ranks do
    SYMPTOM = 2  # what is left when the causes are gone


Detector = Callable[[JobView], Iterator[Finding | Skipped]]
_DETECTORS: Sequence[tuple[Level, Detector]] = (
    (Level.RANK, late_ranks),
    (Level.RANK, one_slow_server),
    (Level.RANK, outlier_steps),
    (Level.RANK, idle),
    (Level.RANK, idle_stages),
    (Level.RANK, profiling_overhead),
    (Level.RANK, memory),
    (Level.RANK, capture_quality),
    (Level.CAUSE, uneven_work),
    (Level.CAUSE, slow_input),
    (Level.CAUSE, slow_callbacks),
    (Level.CAUSE, slow_links),
    (Level.CAUSE, small_messages),
    (Level.CAUSE, slow_server),
    (Level.CAUSE, priority_inversion),
    (Level.CAUSE, negotiation),
    (Level.CAUSE, allocations),
    (Level.CAUSE, host_sync),
    (Level.CAUSE, copies),
    (Level.SYMPTOM, host_bound),
    (Level.SYMPTOM, exposed_communication),
    (Level.SYMPTOM, hot_operation),
)


class Ranked(Struct, frozen=True):
    """A finding and its saving.

    Attributes
    ----------
    gain : the saving, None where nothing is claimed; `share` of the mean step
    after_above_ns : the saving that is left when those before it are done already
    change : the edits whose gain this is: what a what-if with them answers; () where the gain is only what
        more specific findings leave
    """

    finding: Finding
    gain: Gain | None = None
    share: float | None = None
    after_above_ns: float | None = None
    change: Sequence[EditRequest] = ()


class Diagnosis(Struct, frozen=True):
    """The findings in a job, the most rewarding first; `small` ones save too little to be shown."""

    findings: Sequence[Ranked]
    skipped: Sequence[Skipped]
    small: int
    iteration_ns: Float64  # (steps,) without the warm-up
    job_ns: Float64  # (every step,) until the last rank was through, as of `JobView.every_job_ns`
    numbers: Sequence[int]  # of every step
    ranks: Sequence[str]
    one_step: str  # what a step is called at the begin of a sentence
    view: JobView | None = None  # of the job as it was recorded; None where only figures of it are known
    limit: str = ""  # words of the headline: what makes up most of the path


#: The detectors that need no more than `summed_steps`.
OF_FIGURES = frozenset((late_ranks, outlier_steps, idle, uneven_work, exposed_communication, hot_operation))


def diagnose(
    loaded: LoadedSteps, network: str = "", *, detectors: Collection[Detector] | None = None
) -> Diagnosis:
    """Return the diagnosis of a job.

    What stands out (a rank, a step) is looked for first; the causes that all ranks share in the job
    without that; the symptoms in the job without either. So nothing is claimed twice, and a general finding
    (communication is not hidden) is about what the specific ones leave. `network` are clauses about where
    transfers spend their time, from captures and logs of servers; `detectors` those to ask, None: all.
    """
    view = JobView(loaded, network=network)
    search = _Search(Forecasts(view.job, view.rows))
    for level in Level:
        above = search.edits
        looked_at = view
        if above:
            looked_at = JobView(loaded, search.forecasts.as_simulated(above), network, view.job)
        for of_level, detect in _DETECTORS:
            if of_level == level and (detectors is None or detect in detectors):
                search.judge(detect(looked_at), above)
    return Diagnosis(
        findings=_ranked(search),
        skipped=search.skipped,
        small=search.small,
        iteration_ns=view.iteration_ns,
        job_ns=view.every_job_ns,
        numbers=[view.recording.bounds[row].number for row in view.recording.every_whole_step],
        ranks=view.recording.owners,
        one_step=view.recording.one_step,
        view=view,
        limit=_limit(view),
    )


class _Search(Struct):
    """Findings so far, and the edits that remove them from the job."""

    forecasts: Forecasts
    edits: tuple[EditRequest, ...] = ()
    known: list[tuple[Finding, Forecast | None]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    small: int = 0

    def judge(self, found: Iterable[Finding | Skipped], above: Sequence[EditRequest]) -> None:
        """Keep findings that win something after the edits `above`, and still do without the others."""
        for one in found:
            if isinstance(one, Skipped):
                self.skipped.append(one)
            elif not one.edits:
                self.known.append((one, None))
            elif (forecast := self._forecast(one, above)) is not None:
                self.known.append((one, forecast))
                self.edits = (*self.edits, *one.edits)

    def _forecast(self, finding: Finding, above: Sequence[EditRequest]) -> Forecast | None:
        """Return the saving of a finding; None, and count it, if that is too little or may be chance.

        It is the saving of its edits alone; where the more specific findings `above` have most of that, or it
        shows only without them, what they leave.
        """
        alone, after = self.forecasts.of(finding.edits), self.forecasts.of(finding.edits, above)
        least_ns = max(NEGLIGIBLE, finding.least_share) * alone.before_ns
        if after.saved_ns >= least_ns and after.is_certain:
            left = self.forecasts.of(finding.edits, self.edits)
            if left.saved_ns >= max(least_ns, HALF * after.saved_ns):
                is_alike = least_ns <= alone.saved_ns <= ALIKE * after.saved_ns
                return alone if is_alike else after
        self.small += after.saved_ns > 0
        return None


def _ranked(search: _Search) -> list[Ranked]:
    """Return the findings by their savings, each with the saving left when those before it are done."""
    order = sorted(
        search.known,
        key=lambda one: (not one[0].leads, -(one[1].saved_ns if one[1] else 0.0), -one[0].weight),
    )
    ranked: list[Ranked] = []
    done: tuple[EditRequest, ...] = ()
    for finding, forecast in order:
        if forecast is None:
            ranked.append(Ranked(finding))
            continue
        left_ns = search.forecasts.of(finding.edits, done).saved_ns
        change = () if forecast.scale else finding.edits
        share = forecast.gain_ns.mid_ns / search.forecasts.of(finding.edits).before_ns
        ranked.append(Ranked(finding, forecast.gain_ns, share, max(left_ns, 0.0), change))
        done = (*done, *finding.edits)
    return ranked


def headline(diagnosis: Diagnosis) -> str:
    """Return one sentence: how long a step takes, why, and how much can be saved.

    Of the largest savings, those in every step come before those in some steps, which may not happen
    again, unless these are far larger.
    """
    usual, mean = float(np.median(diagnosis.iteration_ns)), float(diagnosis.iteration_ns.mean())
    on_average = f" ({in_ms(mean, unit='')} on average)" if abs(mean - usual) > NEGLIGIBLE * usual else ""
    step = f"{diagnosis.one_step} takes {in_ms(usual)}{on_average}{diagnosis.limit}"
    winning = [one for one in diagnosis.findings if one.gain is not None]
    if not winning:
        found = [one.finding for one in diagnosis.findings]
        on_path = [
            one
            for one in found
            if one.kind == "idle" or (one.kind == "profiling_overhead" and one.operations)
        ]
        known = f": {on_path[0].title}; nothing else" if on_path else "; nothing"
        return f"{step}{known} stands out that would make it 1 % shorter."
    named = sorted(winning[:_NAMED], key=_sure_ns, reverse=True)
    leading = [one.finding.title for one in diagnosis.findings if one.finding.leads]
    return f"{step}: {'; then '.join([*leading, *map(_with_gain, named)][:_NAMED])}."


def _sure_ns(one: Ranked) -> float:
    """Return the saving of a finding; one that happened in some steps only counts in part."""
    assert one.gain is not None
    return one.gain.mid_ns / (FAR_MORE if one.finding.kind == "outlier_steps" else 1)


def _limit(view: JobView) -> str:
    """Return a clause if computation of a device makes up most of the critical path; else ""."""
    share = view.path_share(view.which(computes_on_device))
    return f", and the device is the limit ({share:.0%} of the critical path)" if share > LIMIT else ""


def _with_gain(one: Ranked) -> str:
    assert one.gain is not None
    assert one.share is not None
    return f"{one.finding.title} ({in_ms(one.gain.mid_ns)} or {one.share:.0%} to save)"
