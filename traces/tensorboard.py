"""A layout of directories: TensorBoard's profiles, ``<logdir>/plugins/profile/<run>/<host>.*``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from errors import TraceError
from traces.paths import Job, Source, listing, subdirectories

_SUFFIXES = (".trace.json.gz", ".trace.json")
_COPY = "perfetto_trace."  # the trace of a host once more, for another viewer


def find(path: Path, given: Sequence[Path]) -> Job | None:
    """Return the newest run in a directory of TensorBoard or one above it; None where there is none.

    `path` may be a log directory, one in it (``plugins``, ``profile``, a run), or one that holds a log
    directory for each process of a job.

    Raises
    ------
    TraceError
        There are several log directories, whose newest runs have different names; or no trace in a run.
    """
    place = path.resolve()
    if (place.parent.name, place.parent.parent.name) == ("profile", "plugins"):
        return _job(path, [path], [])
    inside = path if (place.name, place.parent.name) == ("profile", "plugins") else path / "profile"
    if inside.is_dir() and (inside is path or place.name == "plugins"):
        profiles = [inside]
    else:
        homes = [path, *subdirectories(path)]
        profiles = [folder for home in homes if (folder := home / "plugins" / "profile").is_dir()]
    runs = [subdirectories(folder) for folder in profiles]
    newest = [own[-1] for own in runs if own]
    if not newest:
        return None
    if len({run.name for run in newest}) > 1:
        names = ", ".join(str(run.parents[2].relative_to(path)) for run in newest)
        raise TraceError(
            f"{path}: several log directories in it hold different runs; give one, or all if they are one "
            f"job: {names}"
        )
    older = [f"{run}: an earlier run, left out; give it to read it" for own in runs for run in own[:-1]]
    return _job(path, newest, older)


def _job(path: Path, runs: Sequence[Path], notes: Sequence[str]) -> Job | None:
    """Return the traces in the directories of runs, one for each host; several hosts are workers."""
    files = [file for run in runs for file in listing(run)]
    traces = [file for file in files if file.name.endswith(_SUFFIXES)]
    copies = [file for file in files if file.name.startswith(_COPY)]
    if not traces:
        raise TraceError(f"{runs[0]}: no trace in this run (<host>.trace.json.gz)")
    again = [f"{file}: a copy of the trace beside it, left out" for file in copies]
    sources = [Source(file, worker=i if len(traces) > 1 else None) for i, file in enumerate(traces)]
    return Job(path, "ranks", sources, [*notes, *again])
