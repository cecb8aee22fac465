"""The edits that make a job's steps shortest: those of the findings, and others, judged by one forecast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from analyzer.answers.diagnose.diagnosis import diagnose
from analyzer.answers.diagnose.finding import FASTER, NEGLIGIBLE, edit
from analyzer.base.errors import AnalyzeError
from analyzer.base.parallel import progress_bar
from dag_utils import LoadedSteps, NamedPath, critical_path
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts

#: So many parts of the critical path, the largest, are made a little faster.
_PARTS = 5
#: Edits that mean something in a job of any system.
_OF_ANY_JOB = ("bandwidth=2", "schedule=priority", "straggler=none", "straggler=mean", "gap=even")


class HelpfulEdit(NamedTuple):
    """An edit, or some of one finding, its forecast, and the title of the finding, if it is of one."""

    requests: tuple[EditRequest, ...]
    forecast: Forecast
    finding: str = ""


def helpful_edits(loaded: LoadedSteps, progress: bool | None = None) -> list[HelpfulEdit]:
    """Return the edits that save anything for certain, the largest saving first."""
    forecasts = Forecasts(Job.of(loaded), loaded.recording.whole_steps)
    diagnosis = diagnose(loaded, forecasts=forecasts)
    titles = {
        tuple(candidate.finding.edits): candidate.finding.title
        for candidate in diagnosis.findings
        if candidate.change
    }
    requests = dict.fromkeys([*titles, *((one,) for one in _of_any_job(loaded))])
    found: list[HelpfulEdit] = []
    with progress_bar(len(requests), "edits", what="replaying", enabled=progress) as advance:
        for request in requests:
            advance()
            try:
                one = forecasts.of(request)
            except AnalyzeError:  # this job has nothing of the kind
                continue
            is_new = all(abs(other.forecast.after_ns - one.after_ns) >= 1 for other in found)
            if one.saved_ns >= NEGLIGIBLE * one.before_ns and one.is_certain and is_new:
                found.append(HelpfulEdit(request, one, titles.get(request, "")))
    return sorted(found, key=lambda one: -one.forecast.saved_ns)


def _of_any_job(loaded: LoadedSteps) -> Iterator[EditRequest]:
    yield from map(EditRequest.of, _OF_ANY_JOB)
    recording = loaded.recording
    path = NamedPath.of(recording, critical_path(recording.steps[recording.choose_step()]))
    several = len(recording.owners) > 1
    for share in path.by_name()[:_PARTS]:
        names = (share.owner if several else "", share.kind, share.name)
        yield from (edit(name, 1 - FASTER) for name in names if name)
