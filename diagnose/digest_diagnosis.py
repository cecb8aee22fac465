"""The diagnosis of a job of which only figures are known: detectors that need no more, on summed steps."""

from __future__ import annotations

from typing import get_args

from msgspec.structs import replace

import dialects
from diagnose.diagnosis import DETECTORS, Diagnosis, diagnose
from diagnose.finding import BREAKDOWN, Finding, FindingKind, Skipped
from diagnose.step_log_diagnosis import diagnose_step_log
from diagnose.summed_steps import summed_steps
from figures.job_figures import JobFigures
from figures.time_by_role import NOTHING

_CAVEAT = "from the sums of a digest"
#: What readers should know of any diagnosis of a digest.
NOTE = "Digests have no single events: each rank is taken to work first in a step, then all communicate."


def diagnose_figures(job: JobFigures) -> Diagnosis:
    """Return the diagnosis of a job of which only figures are known; raises as `summed_steps`."""
    if not dialects.named(job.files[0].dialect).has_events:
        return diagnose_step_log(job)
    steps = summed_steps(job)
    asked = [one for one in DETECTORS if one.of_figures]
    found = diagnose(steps, detectors=asked)
    never: set[str] = {"hang", *dialects.named(steps.files[0].dialect).never_shows}  # as it has steps
    examined = never.union(*(one.kinds for one in asked))
    reason = "a digest holds no single events; give the traces"
    skipped = [Skipped(kind, reason) for kind in get_args(FindingKind) if kind not in examined]
    findings = [replace(one, finding=_of_digest(one.finding), change=()) for one in found.findings]
    return replace(found, findings=findings, skipped=[*found.skipped, *skipped], view=None)


def _of_digest(finding: Finding) -> Finding:
    """Return a finding without events of the summed steps, and the command that shows more instead."""
    caveat = f"{finding.caveat}; {_CAVEAT}" if finding.caveat else _CAVEAT
    found = replace(finding, evidence=(), caveat=caveat, look=BREAKDOWN)
    if NOTHING not in finding.operations:
        return found
    operations = [name for name in finding.operations if name != NOTHING]
    cause = "what ran then is not in the digest" if finding.kind == "idle" else finding.cause
    return replace(found, operations=operations, cause=cause)
