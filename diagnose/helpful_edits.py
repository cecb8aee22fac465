"""The edits that make a job's steps shortest: those of the findings, and others, judged by one forecast."""

from __future__ import annotations

from collections.abc import Iterator

from dag_utils import LoadedSteps, by_name, choose_step, critical_path, named_path
from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.finding import edit
from diagnose.finding_thresholds import FASTER, NEGLIGIBLE
from errors import AnalyzeError
from parallel import progress as bars
from replay.edit import EditRequest
from replay.forecast import Forecast, Forecasts

Edits = tuple[EditRequest, ...]

#: So many parts of the critical path, the largest, are made a little faster.
_PARTS = 5
#: Edits that mean something in a job of any system.
_OF_ANY_JOB = ("bandwidth=2", "schedule=priority", "straggler=none", "straggler=mean", "gap=even")


def helpful_edits(loaded: LoadedSteps, progress: bool | None = None) -> dict[Edits, Forecast]:
    """Return the forecasts of the edits that save anything for certain, the largest saving first."""
    diagnosis = diagnose(loaded)
    view = diagnosis.view
    assert view is not None  # of recorded steps
    forecasts = Forecasts(view.job, view.rows)
    requests = list(dict.fromkeys(_candidates(diagnosis, loaded)))
    found: dict[Edits, Forecast] = {}
    with bars.bar(len(requests), "edits", what="replaying", enabled=progress) as bar:
        for request in requests:
            bar.update()
            try:
                forecast = forecasts.of(request)
            except AnalyzeError:  # this job has nothing of the kind
                continue
            alike = any(abs(one.after_ns - forecast.after_ns) < 1 for one in found.values())
            if forecast.saved_ns >= NEGLIGIBLE * forecast.before_ns and forecast.is_certain and not alike:
                found[request] = forecast
    return dict(sorted(found.items(), key=lambda one: -one[1].saved_ns))


def _candidates(diagnosis: Diagnosis, loaded: LoadedSteps) -> Iterator[Edits]:
    """Yield the edits of findings, those for any job, and a little less time for most of the path."""
    yield from (tuple(one.change) for one in diagnosis.findings if one.change)
    yield from ((EditRequest.of(text),) for text in _OF_ANY_JOB)
    recording = loaded.recording
    path = named_path(recording, critical_path(recording.steps[choose_step(recording)]))
    several = len(recording.owners) > 1
    for share in by_name(path)[:_PARTS]:
        names = (share.owner if several else "", share.cat, share.name)
        yield from ((edit(name, 1 - FASTER),) for name in names if name)
