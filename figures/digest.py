"""A digest: the file that keeps the figures of a job, so that its traces need not be read again."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
from msgspec.structs import replace

import dialects
from arrays import Int64, NDArray
from dialects import Role
from errors import Note, TraceError, UsageError
from figures.durations import Durations, sketched
from figures.job_figures import JobFigures
from figures.operations_by_step import Operations
from figures.rank_figures import RankFigures, Wanted
from figures.time_by_role import Breakdown, Breakdowns
from formats.stream import ByteStream
from formats.values import cleaned
from outputs.atomic import open_output
from outputs.marks import DIGEST_START

#: The version of the file. Since 2 it has the figures as they are, and one account of a step's time.
DIGEST_VERSION = 2
#: Numbers in a digest are smaller than this, so that any sum of a few of them fits 64 bits.
_MOST = 1 << 62
#: What a digest has.
IN_DIGEST = Wanted(durations=True, breakdown=True, operations=True, spent=True)


def save_digest(path: Path, job: JobFigures) -> None:
    """Write the figures `IN_DIGEST` as one of the command's outputs; see `open_output`."""
    packed = [replace(one, durations=_packed(one.durations)) for one in (*job.ranks, *job.hosts)]
    job = replace(job, ranks=packed[: len(job.ranks)], hosts=packed[len(job.ranks) :])
    try:
        text = msgspec.json.encode(job, enc_hook=_plain)
    except UnicodeEncodeError:  # a name may have bytes that are not text
        text = msgspec.json.encode(cleaned(msgspec.to_builtins(job, enc_hook=_plain)))
    with open_output(path) as stream:
        stream.write(DIGEST_START + str(DIGEST_VERSION).encode() + b"," + text[1:] + b"\n")


def read_digest(path: Path, step_by: str | None = None, *, steps: bool = True) -> JobFigures:
    """Return the figures of the job whose digest is in `path`.

    Raises
    ------
    TraceError
        It is damaged, or of another version of the program.
    UsageError
        Its steps were not marked by the annotation `step_by`, if they matter (`steps`).
    """
    stream = ByteStream(path)
    text = b"".join(stream)
    try:
        version = msgspec.json.decode(text, type=_Head).digest
        if version != DIGEST_VERSION:
            raise TraceError(
                f"{path}: a digest of version {version}, and this program reads version {DIGEST_VERSION}; "
                "write it again with --save"
            )
        job = msgspec.json.decode(text, type=JobFigures, dec_hook=_decoded)
        known = {system.name for system in dialects.SYSTEMS}
        named = {file.dialect for file in job.files} | {one.dialect for one in (*job.ranks, *job.hosts)}
        _require(named <= known, "an unknown system")
        _require(bool(job.files) and any(rank.n_slices > 0 for rank in job.ranks), "it holds no operation")
        job = replace(job, path=path, ranks=[*map(_checked, job.ranks)], hosts=[*map(_checked, job.hosts)])
    except (ValueError, OverflowError, RecursionError) as error:
        why = stream.damage or str(error)
        raise TraceError(f"{path}: a damaged digest ({why}); write it again with --save") from error
    if steps and job.step_by != step_by:
        remedy = "leave out --step_by" if job.step_by is None else f"give --step_by {job.step_by}"
        raise UsageError(f"{path}: its steps were marked differently when it was saved; {remedy}")
    return job


class _Head(msgspec.Struct):
    digest: int


# ---- what JSON has no type for


def _plain(value: Any) -> Any:
    """Return an array as lists, whole numbers without a fraction to be short; paths and notes as text."""
    if isinstance(value, np.ndarray):
        if value.ndim > 1:
            return [_plain(row) for row in value]
        numbers = value.tolist()
        return [int(x) if x.is_integer() else x for x in numbers] if value.dtype.kind == "f" else numbers
    if isinstance(value, Breakdowns):
        return value.rows()
    if isinstance(value, array):
        return [None if number != number else number for number in value]
    if isinstance(value, Path | Note):
        return str(value).encode(errors="backslashreplace").decode()
    raise NotImplementedError(f"a {type(value).__name__} in a digest")


def _decoded(kind: Any, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is Breakdowns:
        rows = msgspec.convert(value, list[Breakdown])
        _require(all(-_MOST < number < _MOST for row in rows for number in row[2:]), "a number out of range")
        _require(len({row.rank for row in rows}) <= 1, "a step of another rank")
        return Breakdowns.of(rows)
    _require(get_origin(kind) is np.ndarray and isinstance(value, list), "a list expected")
    (dtype,) = get_args(get_args(kind)[1])
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError("rows of different lengths") from error
    _require(array.size == 0 or array.dtype.kind in ("iu" if issubclass(dtype, np.integer) else "iuf"),
             "a number expected")  # fmt: skip
    limit = min(_MOST, np.iinfo(dtype).max) if issubclass(dtype, np.integer) else _MOST
    _require(bool((array < limit).all() and (array >= 0).all()), "a number out of range")
    return array.astype(dtype)


def _packed(durations: Durations) -> Durations:
    """Return sketched durations: of each operation the first, and by how much each further one is longer."""
    durations = sketched(durations)
    first, values = durations.start[:-1], durations.value_ns
    more = np.diff(values, prepend=0)
    more[first] = values[first]
    return replace(durations, value_ns=more)


# ---- numbers that must agree with each other


def _checked(rank: RankFigures) -> RankFigures:
    """Return the figures of a rank as they were saved; ValueError where they contradict each other."""
    steps = [*rank.steps.whole, *rank.steps.partial]
    _require(all(step.end_ns >= step.start_ns for step in steps), "a step that ends before it begins")
    numbers = [number for step in steps for number in step]
    numbers += [*rank.category_ns.values()]
    _require(all(-_MOST < number < _MOST for number in numbers), "a number out of range")
    _require(not len(rank.breakdown) or rank.breakdown.rank == rank.name, "a step of another rank")
    if rank.operations is None:
        raise ValueError("operations are missing")
    labels = [step.label for step in rank.steps.whole]
    _require(list(rank.operations.labels) == labels, "steps are missing")
    marked: list[int | None] = [*labels] or ([None] if rank.n_slices else [])
    _require(list(rank.breakdown.step) == marked, "a step is missing")
    operations = _operations(rank.operations, len(labels))
    durations = _durations(rank.durations)
    counted = int(durations.count.sum()) if durations.operations else 0
    _require(rank.n_slices == counted == int(operations.count.sum()), "operations are missing")
    return replace(rank, durations=durations, operations=operations)


def _durations(durations: Durations) -> Durations:
    m, start, weight = len(durations.operations), durations.start, durations.weight
    n = len(durations.value_ns)
    _require(start.shape == (m + 1,) and start[0] == 0 and start[-1] == n, "durations are missing")
    _require(bool((np.diff(start) > 0).all()), "an operation without durations")
    total = np.cumsum(durations.value_ns)
    values: Int64 = total - np.repeat(np.append(0, total)[start[:-1]], np.diff(start))
    _require(n == 0 or 0 <= values.min() <= values.max() < _MOST, "a duration out of range")
    if weight is not None:
        _require(weight.shape == (n,) and int(weight.min(initial=1)) > 0, "a duration of no event")
        _require(float(weight.sum(dtype=np.float64)) < _MOST, "a count out of range")
    durations = replace(durations, value_ns=values)
    for i, known in durations.moments.items():
        _require(0 <= i < m and known.count == durations.count[i], "a sketch of no operation")
        _require(
            all(0 <= number < _MOST**2 for number in msgspec.structs.astuple(known)), "a sum out of range"
        )
    return durations


def _operations(operations: Operations, n_steps: int) -> Operations:
    m, k = len(operations.keys), operations.count.shape[-1] if operations.count.ndim == 2 else 1
    _require(int(operations.role.max(initial=0)) < len(Role), "an unknown role")
    shapes = {"count": (m, k), "total_ns": (m, k), "role": (m,), "spent_ns": (n_steps, m + 1)}
    columns: dict[str, NDArray[Any]] = {name: getattr(operations, name) for name in shapes}
    for name, shape in shapes.items():
        has_shape = columns[name].shape == shape or columns[name].size == 0 == np.prod(shape)
        _require(has_shape, "a table of another size than its operations and steps")
    _require(float(operations.count.sum(dtype=np.float64)) < _MOST, "a count out of range")
    return replace(operations, **{name: columns[name].reshape(shape) for name, shape in shapes.items()})


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
