"""From a digest to what statistics and comparisons work on, with every number checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dialects
from dialects.steps import Step, Steps
from errors import UsageError
from figures.breakdown import Breakdown
from figures.digest_file import (
    DurationsEntry,
    JobDigest,
    Number,
    OperationsEntry,
    RankEntry,
    read_digest,
    unusable,
)
from figures.durations import Durations, Moments
from figures.exposure import IGNORED
from figures.job_figures import JobFigures, RankFigures
from figures.rank_operations import OpKey, Rank, RankExposure, RankOperations
from figures.run_table import MeasuredRun
from traces.outlines import TraceFile, repair_lines
from traces.paths import Source

_MOST_NS = 1 << 62
_MOST_EVENTS = 1 << 53


def read_figures(path: Path, step_by: str | None = None, *, steps: bool = True) -> JobFigures:
    """Return what `statistic` tells of the job whose digest is in `path`.

    Raises TraceError where it is damaged or of another version, and UsageError where its steps were not
    marked by the annotation `step_by`, if they matter (`steps`).
    """
    digest = _read(path, step_by, steps=steps)
    try:
        sources, files, repairs = _job(digest)
        ranks = [_figures(entry, source) for entry, source in zip(digest.ranks, sources, strict=True)]
        return JobFigures(files, repairs, ranks, digest.sentence)
    except (ValueError, OverflowError) as error:
        raise unusable(path, str(error)) from error


def read_run(path: Path, step_by: str | None = None, *, steps: bool = True) -> MeasuredRun:
    """Return the run whose digest is in `path`; errors as for `read_figures`."""
    digest = _read(path, step_by, steps=steps)
    try:
        sources, _, repairs = _job(digest)
        ranks = [_kept(entry, source) for entry, source in zip(digest.ranks, sources, strict=True)]
        return MeasuredRun(path, ranks, repairs)
    except (ValueError, OverflowError) as error:
        raise unusable(path, str(error)) from error


def _read(path: Path, step_by: str | None, *, steps: bool) -> JobDigest:
    digest = read_digest(path)
    if steps and digest.step_by != step_by:
        remedy = "leave out --step_by" if digest.step_by is None else f"give --step_by {digest.step_by}"
        raise UsageError(f"{path}: its steps were marked otherwise when it was saved; {remedy}")
    return digest


def _job(digest: JobDigest) -> tuple[list[Source], list[TraceFile], list[str]]:
    """Return whose the ranks are, the files that were read, and what was repaired in them or is missing."""
    _require(bool(digest.files) and any(entry.slices > 0 for entry in digest.ranks), "it holds no operation")
    known = {system.name for system in dialects.SYSTEMS}
    named = {file.dialect for file in digest.files} | {entry.dialect for entry in digest.ranks}
    _require(named <= known, "an unknown system")
    sources = [Source(Path(entry.path), entry.worker, entry.rank) for entry in digest.ranks]
    files = [
        TraceFile(Path(file.path), file.dialect, file.phases, file.ranks, file.repairs)
        for file in digest.files
    ]
    return sources, files, repair_lines(digest.notes, files)


def _figures(entry: RankEntry, source: Source) -> RankFigures:
    return RankFigures(
        source,
        entry.name,
        entry.slices,
        _durations(entry.durations),
        entry.category_ns,
        [Breakdown(entry.name, *row) for row in entry.breakdown],
        entry.rule,
    )


def _durations(entry: DurationsEntry) -> Durations:
    m = len(entry.names)
    _require(m == len(entry.cats) == len(entry.values_ns) and all(entry.values_ns), "durations are missing")
    _require(all(0 <= i < m for i in entry.sketches), "a sketch of no operation")
    lengths = [len(values) for values in entry.values_ns]
    for values in entry.values_ns:
        _require(min(values) >= 0 and sum(values) < _MOST_NS, "a duration out of range")
    value = np.concatenate([np.zeros(0, np.int64), *(np.cumsum(values) for values in entry.values_ns)])
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    operations = list(zip(entry.names, entry.cats, strict=True))
    if not entry.sketches:
        return Durations(operations, value, start)
    weight = np.ones(len(value), np.int64)
    moments = {}
    for i, sketch in entry.sketches.items():
        _require(len(sketch.weights) == lengths[i] and min(sketch.weights) > 0, "weights are missing")
        n = sum(sketch.weights)
        _require(n < _MOST_EVENTS, "a count out of range")
        weight[start[i] : start[i + 1]] = sketch.weights
        total, squares = int(sketch.total_ns), int(sketch.squares_ns2)
        _require(0 <= total < _MOST_NS**2 and 0 <= squares < _MOST_NS**3, "a sum out of range")
        moments[i] = Moments(n, total, squares, sketch.min_ns, sketch.max_ns)
    return Durations(operations, value, start, weight, moments)


def _kept(entry: RankEntry, source: Source) -> Rank:
    own = entry.operations
    whole, partial = ([Step(*bounds) for bounds in part] for part in entry.steps[:2])
    m, k = len(own.names), len(own.count[0]) if own.count else 1
    _require(m == len(own.cats) == len(own.shapes), "operations are missing")
    _require(all(step.end_ns >= step.start_ns for step in whole), "a step that ends before it begins")
    keys = [OpKey(name, cat) for name, cat in zip(own.names, own.cats, strict=True)]
    count = _matrix(own.count, m, k).astype(np.int64)
    _require(count.sum(dtype=np.float64) < _MOST_EVENTS, "a count out of range")
    operations = RankOperations(keys, count, _matrix(own.total_ns, m, k), _matrix([own.place], 1, m)[0])
    exposure = _exposure(own, m, len(whole))
    shapes = [frozenset(known) for known in own.shapes]
    steps = Steps(tuple(whole), tuple(partial), entry.steps[2])
    return Rank(source, entry.dialect, entry.slices, steps, operations, exposure, entry.late_ns, shapes)


def _exposure(own: OperationsEntry, m: int, n_steps: int) -> RankExposure:
    layer = _matrix([own.layer], 1, m)[0].astype(np.int64)
    _require(bool((layer <= IGNORED).all()), "an unknown layer")
    _require(len(own.is_comm) == m, "operations are missing")
    return RankExposure(layer, np.array(own.is_comm, np.bool_), _matrix(own.spent_ns, n_steps, m + 1))


def _matrix(rows: Sequence[Sequence[Number]], n_rows: int, n_columns: int) -> NDArray[np.float64]:
    """Return numbers that are none below 0 as (n_rows, n_columns)."""
    fits = len(rows) == n_rows and all(len(row) == n_columns for row in rows)
    _require(fits, "a table of another size than its operations and steps")
    found = np.array(rows, np.float64).reshape(n_rows, n_columns)
    _require(bool((found >= 0).all()), "a number below 0")
    return found


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
