"""The diagnosis of a job: every detector is asked, the findings are ranked by what a replay says is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.answers.diagnose.finding import (
    ALIKE,
    EVERY_RANK,
    FAR_MORE,
    HALF,
    NEGLIGIBLE,
    Finding,
    ListPlace,
    Skipped,
)
from analyzer.answers.diagnose.steps.causes import Limit, limit
from analyzer.answers.diagnose.steps.detectors import (
    device,
    dominant_kernels,
    exposed,
    late_ranks,
    one_off,
    operations,
    slow_transfers,
)
from analyzer.answers.diagnose.steps.job_view import JobView, job_ns
from analyzer.base.arrays import Float64
from analyzer.base.errors import UsageError, as_sentence, counted
from analyzer.base.units import in_ms, in_percent, in_range
from analyzer.reading import dialects
from dag_utils import LoadedSteps
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts, Gain
from replay.real_step import RealJob, RealStep

if TYPE_CHECKING:
    from analyzer.answers.diagnose.step_logs.log_steps import FrontierPart

_NO_STEPS = np.empty(0, np.float64)


#: By how general their findings are: what a more specific one explains is not claimed again by a general one.
DETECTORS: Sequence[Sequence[Callable[[JobView], Iterable[Finding | Skipped]]]] = (
    (  # one rank, or one step, stands out
        late_ranks.late_ranks,
        slow_transfers.one_slow_server,
        slow_transfers.slow_links,
        operations.outlier_steps,
        operations.slower_span,
        operations.start_up,
        one_off.graph_capture,
        one_off.profiler_cost,
        dominant_kernels.dominant_kernels,
        exposed.idle,
        exposed.idle_stages,
        device.memory,
        one_off.capture_quality,
    ),
    (  # causes that all ranks share
        late_ranks.uneven_work,
        exposed.slow_input,
        slow_transfers.small_messages,
        slow_transfers.slow_server,
        slow_transfers.priority_inversion,
        exposed.negotiation,
        device.allocations,
        device.long_operation,
        device.copies,
        device.host_sync,
    ),
    (  # symptoms: what is left when the causes are gone
        device.host_bound,
        exposed.exposed_communication,
        operations.hot_operation,
    ),
)


#: Kinds of findings about the host of a device.
_OF_THE_HOST = frozenset(("host_bound", "host_sync"))


#: Said in the first lines if the profiler's cost decides what limits the step.
UNDECIDED = (
    "whether the host or the device is the limit without the profiler, this recording cannot tell: time the "
    "loop without it, and give --real_step MS"
)


class Ranked(Struct, frozen=True):
    """A finding and its saving.

    Attributes
    ----------
    estimate : what a replay says is saved; None where it was not asked. `gain` has it where it is claimed
    share : of the mean step, of a saving that is claimed
    after_above_ns : the saving that is left when those before it are done already
    change : the edits whose gain this is: what a what-if with them answers; () where the gain is only what
        more specific findings leave
    """

    finding: Finding
    estimate: Gain | None = None
    share: float | None = None
    after_above_ns: float | None = None
    change: Sequence[EditRequest] = ()

    @property
    def gain(self) -> Gain | None:
        """The saving that is claimed; None where there is none, or its interval includes zero."""
        return self.estimate if self.estimate is not None and is_claimed(self.estimate) else None


class Diagnosis(Struct, frozen=True):
    """The findings in a job, the most rewarding first; `small` ones save too little to be shown."""

    findings: Sequence[Ranked]
    skipped: Sequence[Skipped]
    ranks: Sequence[str]
    small: int = 0
    iteration_ns: Float64 = _NO_STEPS  # (steps,) without the warm-up
    job_ns: Float64 = _NO_STEPS  # (every step,) until the last rank was through
    numbers: Sequence[int] = ()  # of every step
    one_step: str = ""  # what a step is called at the start of a sentence
    real: RealStep | None = None  # the step without the profiler; None where only figures of a job are known
    limit: Limit | None = None
    view: JobView | None = None  # of the job as it was recorded; None where only figures of it are known
    #: Numbers of steps, and (ranks, these) the most that a part of them is longer than the median rank's.
    excess: tuple[Sequence[int], Float64] | None = None
    answer: str = ""  # the headline where it is not about steps
    frontier: Sequence[FrontierPart] = ()  # of a step log: the parts that add up to the step
    notes: Sequence[str] = ()  # on what of the recording the diagnosis leaves out


def diagnose(
    loaded: LoadedSteps,
    network: str = "",
    *,
    real: RealJob | None = None,
    forecasts: Forecasts | None = None,
) -> Diagnosis:
    """Diagnose a job.

    What stands out (a rank, a step) is looked for first; the causes that all ranks share in the job
    without that; the symptoms in the job without either. So nothing is claimed twice, and a general finding
    (communication is not hidden) is about what the specific ones leave. `network` are clauses about where
    transfers spend their time, from captures and logs of servers; `real` says what the profiler costs, which
    `loaded` is without then; `forecasts` are those of the job, if known.
    """
    forecasts = forecasts or Forecasts(Job.of(loaded), loaded.recording.whole_steps)
    view = JobView(loaded, network=network, job=forecasts.job)
    limited_by = limit(view, real)
    search = _Search(loaded, forecasts, limited_by == "undecided")
    if view.has_device:
        search.idle_ns = max(device.device_idle_ns(view) - one_off.not_of_the_job_ns(view), 0.0)
    for level in DETECTORS:
        above = search.edits
        edited = JobView(loaded, search.forecasts.as_simulated(above), network, view.job) if above else view
        for detector in level:
            results = detector(edited)
            search.judge(map(_without_others, results) if above else results, above)
    recording = view.as_recorded.recording
    never = dialects.named(loaded.files[0].dialect).never_shows
    return Diagnosis(
        findings=_ranked(search, float(view.iteration_ns.mean())),
        skipped=[skipped for skipped in search.skipped if skipped.kind not in never],
        small=search.small,
        iteration_ns=view.as_recorded.iteration_ns,
        job_ns=job_ns(view.as_recorded, recording.every_whole_step),
        numbers=[recording.bounds[row].number for row in recording.every_whole_step],
        ranks=recording.owners,
        one_step=recording.one_step,
        real=real.step if real is not None else None,
        limit=limited_by,
        view=view,
    )


def _without_others(result: Finding | Skipped) -> Finding | Skipped:
    """Say that the numbers of a finding are those of the job without the findings before."""
    if isinstance(result, Skipped):
        return result
    caveat = "once the specific causes are fixed"
    return replace(result, caveat="; ".join(filter(None, (result.caveat, caveat))))


class _Search(Struct):
    """Findings so far, and the edits that remove them from the job."""

    loaded: LoadedSteps
    forecasts: Forecasts
    is_undecided: bool  # as of `limit`
    idle_ns: float = math.inf  # of a device in a step of the job: what a finding about its host saves at most
    edits: tuple[EditRequest, ...] = ()
    known: list[tuple[Finding, Forecast | None]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    small: int = 0

    def most_ns(self, finding: Finding) -> float:
        """Limit the saving of a finding: a device that idles less is not faster for a faster host."""
        return self.idle_ns if finding.kind in _OF_THE_HOST else math.inf

    def judge(self, results: Iterable[Finding | Skipped], above: Sequence[EditRequest]) -> None:
        """Keep findings that save something after the edits `above`, and still do without the others."""
        for result in results:
            if isinstance(result, Skipped):
                self.skipped.append(result)
            elif why := self._unknown(result):
                if result.compares_ranks and not any(source.is_known for source in self.loaded.job.sources):
                    continue  # files in their order: maybe two runs
                is_known = any(finding.compares_ranks for finding, _ in self.known)
                if not (result.compares_ranks and is_known) or result.kind == "late_rank":
                    unknown = replace(result, edits=(), caveat=f"no saving is claimed: {why}")
                    self.known.append((replace(unknown, place=ListPlace.BY_GAIN), None))
            elif not result.edits:
                place = ListPlace.BY_GAIN if self._is_of_a_rank(result) else result.place
                self.known.append((replace(result, place=place), None))
            elif (forecast := self._forecast(result, above)) is not None:
                # Where most of the simulated saving is not the job's, nothing is claimed of the rest.
                if self.most_ns(result) < max(NEGLIGIBLE * forecast.before_ns, HALF * forecast.saved_ns):
                    self.small += 1
                    continue
                self.known.append((result, forecast))
                self.edits = (*self.edits, *result.edits)
            elif result.place is ListPlace.FIRST:
                self.known.append((replace(result, edits=()), None))

    def _unknown(self, finding: Finding) -> str:
        """Say why the saving of a finding is not known; '' if it is."""
        if finding.compares_ranks:
            return self.loaded.recording.untied(finding.scope.ranks)
        is_of_host = self.is_undecided and finding.kind in _OF_THE_HOST
        return "without the profiler the device may be the limit" if is_of_host else ""

    def _is_of_a_rank(self, finding: Finding) -> bool:
        """Check whether most of a finding's time belongs to a late rank, which has a finding of its own."""
        return any(
            forecast.saved_ns > HALF * finding.weight * forecast.before_ns
            for other, forecast in self.known
            if forecast is not None and other.kind == "late_rank"
        )

    def _forecast(self, finding: Finding, above: Sequence[EditRequest]) -> Forecast | None:
        """Return the saving of a finding; None, and count it, if that is too little or not significant.

        It is the saving of its edits alone; where the more specific findings `above` have most of that, or it
        shows only without them, what they leave.
        """
        try:
            alone, after = self.forecasts.of(finding.edits), self.forecasts.of(finding.edits, above)
        except UsageError:  # nobody asked for this edit: a job of damaged events may lack what it is about
            return None
        least_ns = NEGLIGIBLE * alone.before_ns
        if after.saved_ns >= least_ns and after.is_certain:
            left = self.forecasts.of(finding.edits, self.edits)
            if left.saved_ns >= max(least_ns, HALF * after.saved_ns):
                is_alike = least_ns <= alone.saved_ns <= ALIKE * after.saved_ns
                return alone if is_alike else after
        self.small += after.saved_ns > 0
        return None


def _ranked(search: _Search, step_ns: float) -> list[Ranked]:
    """Sort the findings, each with the saving left when those before it are done.

    Savings are shares of the mean step of the headline, `step_ns`; of a finding about some steps, of these.
    """
    ranked: list[Ranked] = []
    done: tuple[EditRequest, ...] = ()
    owners = search.forecasts.job.recording.owners

    for finding, forecast in sorted(
        search.known, key=lambda known: _order(known[0], known[1], search.most_ns(known[0]))
    ):
        if finding.scope.ranks is EVERY_RANK:
            finding = replace(finding, scope=replace(finding.scope, ranks=owners))
        if forecast is None:
            ranked.append(Ranked(finding))
            continue
        most_ns = search.most_ns(finding)
        gain = forecast.gain_ns.at_most(most_ns)
        left_ns = search.forecasts.of(finding.edits, done).saved_ns if done else gain.mid_ns
        change = () if forecast.scale or forecast.saved_ns > most_ns else finding.edits
        share = gain.mid_ns / step_ns if is_claimed(gain) else None
        ranked.append(Ranked(finding, gain, share, min(max(left_ns, 0.0), most_ns), change))
        done = (*done, *finding.edits)
    return ranked


def is_claimed(gain: Gain) -> bool:
    """Check that the interval of a saving, if there is one, is above zero: only then is it claimed."""
    return gain.low_ns is None or gain.low_ns > 0


def _order(finding: Finding, forecast: Forecast | None, most_ns: float = math.inf) -> tuple[bool, int, float]:
    """Return the sort key of a finding: list, headline and charts have one order.

    What is most of the step leads; savings come before what claims none, and that before assumed savings,
    which every job has. Steps that may not happen again count in part.
    """
    follows = finding.place is not ListPlace.FIRST
    if forecast is None:
        return follows, 2 if finding.weight else 4, -finding.weight
    saved_ns = min(forecast.saved_ns, most_ns)
    if finding.place is ListPlace.LAST:
        return follows, 3, -saved_ns
    sure_ns = saved_ns / (FAR_MORE if finding.kind == "outlier_steps" else 1)
    if not is_claimed(forecast.gain_ns):
        return follows, 2, -sure_ns / forecast.before_ns
    return follows, 1, -sure_ns


def headline(diagnosis: Diagnosis) -> str:
    """Say in one sentence how long a step takes, and the first finding."""
    if diagnosis.answer:
        return diagnosis.answer
    lasts_ns = float(diagnosis.iteration_ns.mean())
    step = f"{diagnosis.one_step} takes {in_ms(lasts_ns)}"
    if (real := diagnosis.real) is not None and real.differs:
        lasts_ns = real.mid_ns
        known = f" ({in_range(real.low_ns, real.high_ns)})" if real.high_ns > real.low_ns else ""
        about = "about " if known else ""
        step += f" while profiled, {about}{in_ms(real.mid_ns)} without the profiler{known}"
    main = _main(diagnosis)
    if main and not _is_vague(main[0]):
        return f"{step}: {_with_gain(main[0])}."
    view = diagnosis.view
    if view is not None and view.has_device and (idle_ns := device.device_idle_ns(view)) > HALF * lasts_ns:
        return f"{step}: the device is idle {in_percent(idle_ns / lasts_ns)} of it."
    return f"{step}; {'no single cause' if main else 'nothing'} stands out."


def further(diagnosis: Diagnosis) -> str:
    """Say after the headline how steps differ, and the second finding."""
    if diagnosis.answer:
        return ""
    lasts = diagnosis.iteration_ns
    n_steps = counted(len(lasts), diagnosis.one_step.split(" ", 1)[1])
    lengths = in_range(lasts.min(), lasts.max())
    of = f" of {lengths}" if in_ms(lasts.min()) != in_ms(lasts.max()) else ""
    is_slowed = diagnosis.real is not None and diagnosis.real.differs
    profiled = " while profiled" if of and is_slowed else ""
    steps = [f"{counted(len(diagnosis.ranks), 'rank')}, {n_steps}{of}{profiled}"]
    if diagnosis.view is not None and (unaligned := diagnosis.view.recording.untied(diagnosis.ranks)):
        steps.append(f"who waits for whom is not known: {unaligned}")
    if diagnosis.limit == "undecided" and is_slowed:
        steps.append(UNDECIDED)
    main = _main(diagnosis)
    following = main[:1] if main and _is_vague(main[0]) else main[1:2]
    return " ".join(map(as_sentence, [*steps, *map(_with_gain, following)]))


def _is_vague(ranked: Ranked) -> bool:
    """Recognise a finding that says where less than half of the step goes, and names no cause."""
    finding = ranked.finding
    is_symptom = finding.kind in ("idle", "exposed_communication") and finding.place is ListPlace.BY_GAIN
    return is_symptom and ranked.gain is None and finding.weight <= HALF


def _main(diagnosis: Diagnosis) -> list[Ranked]:
    """Return the findings for the first lines: those that save something for sure, then the heaviest."""
    saving = [
        ranked
        for ranked in diagnosis.findings
        if ranked.finding.place is ListPlace.FIRST
        or (ranked.gain and ranked.finding.place is ListPlace.BY_GAIN)
    ]
    heavy = [ranked for ranked in diagnosis.findings if ranked.finding.weight and _is_on_path(ranked.finding)]
    return [*saving, *(ranked for ranked in heavy if ranked not in saving)]


def _is_on_path(finding: Finding) -> bool:
    """Select findings without a saving that say where the path's time goes, or since when it is longer."""
    return finding.kind == "idle" or finding.scope.span is not None or bool(finding.scope.operations)


def _with_gain(ranked: Ranked) -> str:
    finding = ranked.finding
    if ranked.gain is None or ranked.share is None:
        return finding.title
    saved = f"up to {in_ms(ranked.gain.mid_ns)} ({in_percent(ranked.share)})"
    of_these = " of each of these steps" if finding.scope.span and not finding.scope.steps else ""
    return f"{finding.title}; {saved}{of_these} can be saved"
