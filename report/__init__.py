"""Faces: how a result is shown, one module per face.

A face of standard output has ``write(result, stream, args)``; a face in a file has
``write(result, path)``. To add one: write its module and name it here.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from errors import AnalyzeError, OutputError, UsageError
from result import Result

#: Values of `--format` and the modules that answer.
FORMATS = {"table": "report.text", "json": "report.json", "csv": "report.csv"}
#: Flags that name a file and the modules that write it.
FILES = {"xlsx": "report.xlsx", "html": "report.html"}
#: Suffixes of `Result.picture` and the modules that draw it.
PICTURES = {
    ".html": "report.html",
    **dict.fromkeys((".png", ".svg", ".pdf"), "report.chart_still"),
    **dict.fromkeys((".dot", ".graphml"), "report.graph_still"),
}

#: Suffixes of the files that options read; no face writes such a file.
INPUTS = (".json", ".gz", ".jsonl", ".msgpack", ".gml", ".pcap", ".txt")


def show(result: Result, args: Namespace) -> None:
    """Print `result` on standard output in the chosen format; write the files that were asked for.

    A file that cannot be written does not keep the answer from being printed; it is reported after.

    Raises
    ------
    OutputError
        A file, or standard output, cannot be written.
    UsageError
        A file to be written is one of the inputs.
    """
    for line in result.repairs:
        logging.warning("%s", _one_line(line))
    failed = _write_files(result, args)
    try:
        _print(result, args)
    except BrokenPipeError:  # whoever read our output has enough: only that is no failure
        if failed is None:
            raise
        _abandon(sys.stdout)
    if failed is not None:
        raise failed


def _write_files(result: Result, args: Namespace) -> AnalyzeError | None:
    """Write each file that was asked for; return the first error instead of raising it."""
    failures = [_write_file(result, args, *wanted) for wanted in _wanted_files(result, args)]
    return next(filter(None, failures), None)


def _write_file(result: Result, args: Namespace, flag: str, path: Path, module: str) -> AnalyzeError | None:
    try:
        _check_target(path, args, flag)
        _load(module).write(result, path)
    except AnalyzeError as error:
        return error
    logging.info("wrote %s", path)
    return None


def _wanted_files(result: Result, args: Namespace) -> Iterator[tuple[str, Path, str]]:
    """Yield (flag, path, module that writes it) for each file that was asked for."""
    for face, module in FILES.items():
        wanted = getattr(args, face, None)
        if wanted is not None:
            default: Path = getattr(result, f"{face}_default") or Path(f"{result.option}.{face}")
            yield f"--{face}", default if wanted is True else Path(wanted), module
    if result.picture is not None:
        yield "--output", result.picture, PICTURES.get(result.picture.suffix.lower(), "report.chart_still")


def _print(result: Result, args: Namespace) -> None:
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # names may hold what no encoding can carry
    try:
        _load(FORMATS[args.format]).write(result, stream, args)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon(stream)
        raise OutputError(f"standard output: cannot be written: {error.strerror or error}") from error


def _abandon(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the end of the process does not fail over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_target(path: Path, args: Namespace, flag: str) -> None:
    """Refuse what a file must not replace: a directory, or one of the inputs."""
    if path.is_dir():
        raise OutputError(f"{flag} {path}: is a directory")
    if path.exists() and any(_is_input(path, given) for given in args.path):
        raise UsageError(f"{flag} {path}: is one of the inputs")


def _is_input(path: Path, given: Path) -> bool:
    """Whether the existing file `path` is the input `given`, or trace data in a directory that was given."""
    if given.is_dir():
        return path.suffix.lower() in INPUTS and given.resolve() in path.resolve().parents
    return given.exists() and path.samefile(given)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _load(module: str) -> Any:
    return importlib.import_module(module)
