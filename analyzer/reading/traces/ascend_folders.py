"""A layout of directories: one for each recording of a rank, as torch_npu's profiler leaves them.

``<host>_<pid>_<time>_ascend_pt`` holds ``profiler_info_<rank>.json`` and, in ``ASCEND_PROFILER_OUTPUT``,
``trace_view.json`` beside tables made from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from analyzer.base.inputs import natural
from analyzer.reading.formats.stream import find_file
from analyzer.reading.traces.paths import JobFiles, Source, listing, missing_note, subdirectories

_FOLDER = re.compile(r"(.+)_(\d+)_ascend_pt")  # host and process, time
_OUTPUT, _TRACE = "ASCEND_PROFILER_OUTPUT", "trace_view.json"
_INFO = re.compile(r"profiler_info_(\d{1,9})\.json")


def find_ascend_folders(path: Path, given: Sequence[Path]) -> JobFiles | None:
    """Find the newest recording of each rank at or below `path`; None where there is no such folder."""
    homes = [path] if _FOLDER.fullmatch(path.name) else subdirectories(path)
    folders = [folder for folder in homes if _FOLDER.fullmatch(folder.name)]
    traces = {folder: find_file(folder / _OUTPUT, _TRACE) for folder in folders}
    if not any(traces.values()):
        return None
    notes: list[str] = [
        missing_note(f"{folder}: no {_OUTPUT}/{_TRACE}") for folder in folders if traces[folder] is None
    ]
    newest: dict[int | str, Path] = {}
    for folder in sorted((folder for folder in folders if traces[folder]), key=_time_of):
        owner = _owner_of(folder)
        if owner in newest:
            notes.append(f"{newest[owner]}: an earlier run, left out; give it to read it")
        newest[owner] = folder
    ordered = sorted(newest, key=lambda owner: (str(owner) == owner, natural(str(owner))))
    sources = [
        Source(trace, rank=owner if isinstance(owner, int) else place if len(newest) > 1 else None)
        for place, owner in enumerate(ordered)
        if (trace := traces[newest[owner]]) is not None
    ]
    return JobFiles(path, "ranks", sources, notes, [folder / _OUTPUT for folder in folders])


def _owner_of(folder: Path) -> int | str:
    """Take the rank that the profiler wrote beside the trace, else the name of its process."""
    ranks = (match for file in listing(folder) if (match := _INFO.fullmatch(file.name)))
    match, name = next(ranks, None), _FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else name[1] if name else folder.name


def _time_of(folder: Path) -> str:
    match = _FOLDER.fullmatch(folder.name)
    return match[2] if match else ""
