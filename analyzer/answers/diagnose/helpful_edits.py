"""The edits that shorten a job's steps most: those of the findings, and others, by one forecast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from analyzer.answers.diagnose.diagnosis import diagnose, is_claimed
from analyzer.answers.diagnose.finding import FASTER, NEGLIGIBLE, edit
from analyzer.base.errors import AnalyzeError
from analyzer.base.parallel import progress_bar
from dag_utils import LoadedSteps, NamedPath, critical_path
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts

#: Largest parts of the critical path to make a little faster.
_PARTS = 5
#: Edits for a job of any system.
_OF_ANY_JOB = ("bandwidth=2", "schedule=priority", "straggler=none", "straggler=mean", "gap=even")


class HelpfulEdit(NamedTuple):
    """An edit, or several of one finding, with forecast and the title of the finding."""

    requests: tuple[EditRequest, ...]
    forecast: Forecast
    finding: str = ""


def helpful_edits(loaded: LoadedSteps, progress: bool | None = None) -> list[HelpfulEdit]:
    """List the edits with a significant saving, the largest first."""
    forecasts = Forecasts(Job.of(loaded), loaded.recording.whole_steps)
    diagnosis = diagnose(loaded, forecasts=forecasts)
    titles = {
        tuple(candidate.finding.edits): candidate.finding.title
        for candidate in diagnosis.findings
        if candidate.change
    }
    requests = dict.fromkeys([*titles, *((request,) for request in _of_any_job(loaded))])
    helpful: list[HelpfulEdit] = []
    with progress_bar(len(requests), "edits", what="replaying", enabled=progress) as advance:
        for request in requests:
            advance()
            try:
                forecast = forecasts.of(request)
            except AnalyzeError:  # this job has nothing of the kind
                continue
            is_new = all(abs(other.forecast.after_ns - forecast.after_ns) >= 1 for other in helpful)
            is_certain = forecast.is_certain and is_claimed(forecast.gain_ns)
            if forecast.saved_ns >= NEGLIGIBLE * forecast.before_ns and is_certain and is_new:
                helpful.append(HelpfulEdit(request, forecast, titles.get(request, "")))
    return sorted(helpful, key=lambda edit: -edit.forecast.saved_ns)


def _of_any_job(loaded: LoadedSteps) -> Iterator[EditRequest]:
    yield from map(EditRequest.of, _OF_ANY_JOB)
    recording = loaded.recording
    path = NamedPath.of(recording, critical_path(recording.steps[recording.choose_step()]))
    several = len(recording.owners) > 1
    for share in path.by_name()[:_PARTS]:
        names = (share.owner if several else "", share.kind, share.name)
        yield from (edit(name, 1 - FASTER) for name in names if name)
