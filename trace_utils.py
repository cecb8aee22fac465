"""The one loading helper: finds what a path holds and loads its traces as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from formats.columns import Trace

JobKind = Literal["file", "gpu", "worker", "job", "ranks"]


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file of a job and whose it is.

    `worker` is the worker's index in the job (None: the job has no workers, or only one was given);
    `rank` the local rank of the GPU (BytePS) or the global rank (all others), None where unknown.
    """

    path: Path
    worker: int | None = None
    rank: int | None = None

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>.``, or what of it is known."""
        worker = "" if self.worker is None else f"wk{self.worker}."
        return worker + ("" if self.rank is None else f"rank{self.rank}.")


@dataclass(frozen=True, slots=True)
class GpuDir:
    """A directory in which BytePS or its profiler left the files of one GPU."""

    path: Path
    worker: int | None = None
    rank: int | None = None

    def file(self, name: str) -> Path | None:
        """Return the file called `name` in this directory if it is there."""
        path = self.path / name
        return path if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Job:
    """What a path holds: its trace files, workers in order and ranks as numbers within each."""

    root: Path
    kind: JobKind
    sources: Sequence[Source]
    notes: Sequence[str] = ()  # a line each: missing ranks, empty directories, doubled ranks


def find_job(path: Path) -> Job:
    """Return the traces that `path` holds.

    Raises
    ------
    TraceError
        There is no such path, or nothing under it is a trace.
    """
    raise NotImplementedError


def find_gpus(path: Path) -> list[GpuDir]:
    """Return all GPU directories at or below `path`, workers and ranks in order; [] if none."""
    raise NotImplementedError


def read_trace(path: Path, *, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one trace file, whatever its dialect; see `read_traces`."""
    raise NotImplementedError


def read_traces(
    paths: Sequence[Path],
    *,
    args: Collection[str] = (),
    points: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[Trace]:
    """Load trace files in parallel processes, in the order of `paths`.

    Parameters
    ----------
    args : keys of the events' `args` to decode into `Trace.args` ("input*" means input0, input1, …)
    points : also keep the events that are no slices (`Trace.points`)
    jobs : processes; None means the cores this process may use
    progress : show a bar on standard error; None means only on a terminal

    Raises
    ------
    TraceError
        A file is missing, unreadable, or no trace.
    """
    raise NotImplementedError


def read_document(path: Path) -> dict[str, Any]:
    """Return a small trace file whole: {"traceEvents": [event objects], **other members}.

    For files whose events are needed as objects (`temp.json`, `comm.json`, `io.json`); damage is
    repaired as in `read_trace`, and the phrases are under the key "repairs".
    """
    raise NotImplementedError
