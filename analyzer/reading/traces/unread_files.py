"""Files below a given path that are not read: a line for each kind."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from analyzer.base.errors import TraceError, listed
from analyzer.base.inputs import natural, short_names
from analyzer.reading.formats.other_files import TABLE, foreign, named
from analyzer.reading.traces.paths import head_of, listing, subdirectories

#: Recordings and their companions that no option reads beside a job, by their names.
_UNREAD = (
    (r"perfetto_trace\.json(\.gz)?", "the same profile as the .trace.json.gz beside it"),
    (
        r"(comm_detail|nccl_rank_graph)\.json(\.gz)?|(nccl_graph|ip_to_rank|key_dict)\.txt",
        "files of dPRO beside the ranks' recordings",
    ),
)
_FOREIGN_SUFFIXES = (
    ".prof", ".pt", ".safetensors", ".parquet", ".db", ".et", ".html", ".txt", ".json", ".csv", ".pb",
    ".rpd", ".nvvp", ".pickle", ".sqlite",
)  # fmt: skip
_MOST_FILES = 64  # of a folder without a trace, of which it is looked up what they are
_SHOWN = 3


def unread_notes(path: Path, most_folders: int, known: Collection[Path]) -> list[str]:
    """Name the files of known kinds below `path` that are not read; `known` are those that are."""
    kinds: dict[str, list[Path]] = {}
    for file in _files_below(path, most_folders):
        if file not in known and (kind := _kind(file.name)):
            kinds.setdefault(kind, []).append(file)
    notes = []
    for kind, files in kinds.items():
        ordered = sorted(files, key=lambda file: natural(str(file)))
        names = dict.fromkeys(file.name for file in ordered)
        shown = list(names) if len(names) < len(files) else [str(file.relative_to(path)) for file in ordered]
        notes.append(f"{path}: not read: {listed(shown, _SHOWN + 2)} ({kind})")
    return notes


def _kind(name: str) -> str:
    return named(name) or next((kind for rule, kind in _UNREAD if re.fullmatch(rule, name)), "")


def _files_below(path: Path, most_folders: int) -> Iterator[Path]:
    for folder, _, names in itertools.islice(os.walk(path), most_folders):
        yield from (Path(folder, name) for name in names)


def foreign_files(path: Path) -> str:
    """Say what the files in a folder without any trace are, if they are of one kind; "" if not."""
    if _is_mlflow_store(path):
        return f"{path}: not a trace: {TABLE}"
    files = [file for file in listing(path) if file.is_file()]
    kinds: dict[str, list[Path]] = {}
    for file in files[:_MOST_FILES]:
        if kind := named(file.name) or _content(file):
            kinds.setdefault(kind, []).append(file)
    if len(kinds) != 1:
        return ""
    ((kind, own),) = kinds.items()
    names = str(own[0]) if len(own) == 1 else f"{path}: {listed(short_names(own), _SHOWN)}"
    return f"{names}: not a trace: {kind}"


def _content(file: Path) -> str:
    """Say what a file is by its content; "" for one that may be read, or that is nothing known."""
    if not file.name.endswith(_FOREIGN_SUFFIXES):
        return ""
    try:
        return foreign(head_of(file, most=1 << 16))
    except TraceError:
        return ""


def _is_mlflow_store(path: Path) -> bool:
    """Whether a folder is MLflow's: each experiment, and each run in it, has a ``meta.yaml``."""
    homes = [path, *subdirectories(path)]
    return any((home / "meta.yaml").is_file() for home in homes) and (
        path.resolve().name == "mlruns"
        or any((home / "metrics").is_dir() for home in homes)
        or any((run / "meta.yaml").is_file() for home in homes[1:] for run in subdirectories(home))
    )
