"""A digest: a file with the figures of a job, read instead of its traces."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from analyzer.base.errors import Note, TraceError, UsageError
from analyzer.base.inputs import DIGEST_START
from analyzer.base.outputs.atomic import open_output
from analyzer.model.figures.job_figures import JobFigures, Wanted
from analyzer.reading.formats.stream import ByteStream
from analyzer.reading.formats.values import cleaned

#: The version of the file. Since 4 it has the own time of each operation of a rank.
DIGEST_VERSION = 4
#: The figures in a digest.
IN_DIGEST = Wanted(durations=True, breakdown=True, operations=True, spent=True)


class _Digest(msgspec.Struct):
    """The file: its version, and the figures of the job with the CRC-32 of their text."""

    digest: int
    checksum: int = 0
    job: msgspec.Raw = msgspec.Raw(b"")


def save_digest(path: Path, job: JobFigures) -> None:
    """Write the figures `IN_DIGEST` as one of the command's outputs; see `open_output`."""
    try:
        text = msgspec.json.encode(job, enc_hook=_encoded)
    except UnicodeEncodeError:  # a name may have bytes that are not text
        text = msgspec.json.encode(cleaned(msgspec.to_builtins(job, enc_hook=_encoded)))
    with open_output(path) as stream:
        stream.write(DIGEST_START + f'{DIGEST_VERSION},"checksum":{zlib.crc32(text)},"job":'.encode())
        stream.write(text + b"}\n")


def read_digest(path: Path, step_by: str | None = None, *, steps: bool = True) -> JobFigures:
    """Read the figures of a job from its digest.

    TraceError for a damaged file or another version; UsageError if `steps` matter and were not marked by the
    annotation `step_by`.
    """
    stream = ByteStream(path)
    try:
        digest = msgspec.json.decode(b"".join(stream), type=_Digest)
        if digest.digest != DIGEST_VERSION:
            raise TraceError(
                f"{path}: a digest of version {digest.digest}, and this program reads version "
                f"{DIGEST_VERSION}; save it again with --save"
            )
        if zlib.crc32(digest.job) != digest.checksum:
            raise ValueError("its checksum differs")
        job = msgspec.json.decode(digest.job, type=JobFigures, dec_hook=_decoded)
    except (ValueError, RecursionError) as error:
        why = stream.damage or str(error)
        raise TraceError(f"{path}: a damaged digest ({why}); save it again with --save") from error
    if steps and job.step_by != step_by:
        remedy = "leave out --step_by" if job.step_by is None else f"give --step_by {job.step_by}"
        raise UsageError(f"{path}: its steps were marked differently when it was saved; {remedy}")
    return replace(job, path=path)


def _encoded(value: Any) -> Any:
    """Convert arrays, paths and notes to JSON types; NaN becomes null."""
    if isinstance(value, np.ndarray):
        return {"shape": value.shape, "values": value.ravel().tolist()}
    if isinstance(value, Path | Note):
        return str(value).encode(errors="backslashreplace").decode()
    raise NotImplementedError(f"a {type(value).__name__} in a digest")


def _decoded(kind: Any, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    (dtype,) = get_args(get_args(kind)[1])
    return np.array(value["values"], dtype).reshape(value["shape"])
