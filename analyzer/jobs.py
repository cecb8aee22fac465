"""Jobs and answers for Python: the command line without output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from analyzer.base.errors import UsageError, missing
from analyzer.cli import WHAT_IF, run
from analyzer.cli.arguments import parse
from analyzer.report.result import Result
from analyzer.report.show import arranged, write_files

_ENDING, _REPEATED = ("help", "version"), ("comm", "set")


class _Job:
    """Recordings by their paths, and the flags with which each answer reads them."""

    def __init__(self, paths: Sequence[Path], flags: Mapping[str, Any]) -> None:
        self.paths, self.flags = paths, flags

    def __repr__(self) -> str:
        return f"<job {', '.join(map(str, self.paths))}>"

    @cached_property
    def _diagnosis(self) -> Result:
        return answer("diagnose", [self], {})

    @property
    def ranks(self) -> list[str]:
        """The names of the ranks, as every option takes them."""
        return list(self._diagnosis.document["ranks"])

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps that a diagnosis is about."""
        return list(self._diagnosis.document["steps"])

    @property
    def notes(self) -> list[str]:
        """Notes on missing and repaired data, and on causes that were not checked."""
        return [*self._diagnosis.repairs, *self._diagnosis.sentences]


def job_at(paths: Sequence[str | Path], flags: Mapping[str, Any]) -> _Job:
    """Name the job at `paths`, which must exist."""
    job = _Job([*map(Path, paths)], flags)
    for path in job.paths:
        if not path.exists():
            raise missing(path)
    return job


def answer(option: str, jobs: Sequence[_Job | str | Path], flags: Mapping[str, Any]) -> Result:
    """Run an option as its command line would, but print nothing."""
    if option == WHAT_IF:
        jobs, flags = jobs[:1], {"set": jobs[1:], **flags}
    loaded = [job if isinstance(job, _Job) else job_at([job], {}) for job in jobs]
    if any(job.flags != loaded[0].flags for job in loaded):
        raise UsageError("the jobs are loaded with different flags")
    paths = [f"--path={path}" for job in loaded for path in job.paths]
    args = parse([option, *paths, *_words({**(loaded[0].flags if loaded else {}), **flags})])
    args.progress = bool(args.progress)
    written: Result = run(args, lambda result, *rest: write_files(arranged(result, args), *rest))
    return written


def _words(flags: Mapping[str, Any]) -> Iterator[str]:
    """Write arguments as flags; several values are a comma list, or repeat the flag."""
    for name, value in flags.items():
        if name in _ENDING:
            raise UsageError(f"{name}: is for the command line only")
        if value is True:
            yield f"--{name}"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            texts = value if name in _REPEATED else [",".join(map(str, value))]
            yield from (f"--{name}={text}" for text in texts)
        elif value is not None and value is not False:
            yield f"--{name}={value}"
