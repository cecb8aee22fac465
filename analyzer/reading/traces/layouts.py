"""Layouts of directories, and several paths as one job.

Those of BytePS have a module of their own (`gpu_folders`). Here are the layouts with a file for each rank:
TensorBoard's profiles, Ascend's, dumps, and any others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from analyzer.base.errors import TraceError, listed
from analyzer.base.inputs import absent, is_digest, is_marked, natural, short_names, unreadable
from analyzer.reading.formats.event import fragment_start
from analyzer.reading.formats.file_kinds import foreign
from analyzer.reading.formats.stream import find_file
from analyzer.reading.traces.gpu_folders import find_gpu_folders, gpu_sources, is_gpu_file, local_rank
from analyzer.reading.traces.paths import (
    MERGED,
    PRODUCTS,
    JobFiles,
    Source,
    empty_notes,
    foreign_files,
    head_of,
    listing,
    missing_note,
    rank_in_head,
    rank_in_name,
    ranks_in_names,
    skipped_notes,
    subdirectories,
    unread_notes,
)
from analyzer.reading.traces.readers import (
    CHROME,
    Holds,
    holding,
    is_dump,
    known_reader,
    may_be_read,
    reader_of,
)

#: Folders that are searched for traces beside the job's: 0.1 s of every run, if they are full. With 25 or
#: 100 the result is the same for recorded jobs.
_MOST_SEARCHED = 50
_JOB_SUFFIX = r"\.(gml|pcap|pcapng|cap|txt|log|out|err|msgpack)\d*$"  # tcpdump numbers its files
_PROFILES = (".trace.json.gz", ".trace.json")
#: PyTorch's name of a recording: its worker (by default host and process), and the time.
_OF_A_PROCESS = re.compile(r"(.+)\.\d{10,19}\.pt\.trace\.json(?:\.gz)?")


def find_profiles(path: Path, given: Sequence[Path]) -> JobFiles | None:
    """Find the newest run in a directory of TensorBoard or above; None if there is none.

    `path` may be a log directory, a directory in it (``plugins``, ``profile``, a run), or a directory with a
    log directory for each process of a job.

    TraceError if several log directories have newest runs of different names, or a run has no trace.
    """
    names = path.resolve().parts
    if names[-3:-1] == ("plugins", "profile"):
        return _profiles(path, [path], [])
    if names[-2:] == ("plugins", "profile"):
        profiles = [path]
    elif names[-1:] == ("plugins",) and (path / "profile").is_dir():
        profiles = [path / "profile"]
    else:
        homes = [path, *subdirectories(path)]
        profiles = [folder for home in homes if (folder := home / "plugins" / "profile").is_dir()]
    runs = [folders for profile in profiles if (folders := subdirectories(profile))]
    newest = [folders[-1] for folders in runs]
    if not newest:
        return None
    if len({run.name for run in newest}) > 1:
        logs = ", ".join(str(run.parents[2].relative_to(path)) for run in newest)
        raise TraceError(
            f"{path}: several log directories in it hold different runs; give one, or all if they are one "
            f"job: {logs}"
        )
    return _profiles(path, newest, [run for folders in runs for run in folders[:-1]])


def _profiles(path: Path, runs: Sequence[Path], older: Sequence[Path]) -> JobFiles | None:
    """List the traces in the directories of runs, one for each host; several hosts are workers."""
    files = [file for run in runs for file in listing(run) if file.is_file()]
    traces = [file for file in files if file.name.endswith(_PROFILES)]
    if not traces:
        raise TraceError(f"{runs[0]}: no trace in this run (<host>.trace.json.gz)")
    sources = [Source(file, worker=i if len(traces) > 1 else None) for i, file in enumerate(traces)]
    notes = [f"{run}: an earlier run, left out; give it to read it" for run in older]
    return JobFiles(path, "ranks", sources, notes, older)


_MOST_FOLDERS = 1000  # that are searched for a hint


def find_rank_files(path: Path, given: Sequence[Path]) -> JobFiles:
    """Find the rank files in `path` or its directories, or else this program's own files there."""
    files, products, below, notes = _find_files(path, steps=False)
    if not files:
        files, products, below, notes = _find_files(path, steps=True)
    rank_of = {file: rank_in_name(file) if file.parent == path else rank_of_file(file) for file in files}
    if len({file.parent for file in files}) > 1 and not _all_differ(rank_of):
        rank_of = {file: rank_in_head(file) for file in files}
        if not _all_differ(rank_of):
            folders = list(dict.fromkeys(file.parent for file in files))
            raise TraceError(
                f"{path}: several directories in it hold traces of the same ranks, or of unknown ones: "
                f"{listed(short_names(folders))}; give one, e.g. {folders[0]}, or all if "
                "they are one job"
            )
    if files:
        again = [file for file in (*products, *below) if file.name.startswith(MERGED)]
        notes += [f"{file}: the files of all ranks once more, left out" for file in again]
    # a file of replay was made from another one
    files = files or [file for file in products if not file.name.startswith("synthetic.")] or products
    if not files:
        if other := foreign_files(path):
            raise TraceError(other)
        deeper = holding(path, _MOST_FOLDERS)
        remedy = f"; give the directories below it that hold some: {deeper}" if deeper else ""
        left = f" ({listed([note.removeprefix(f'{path}/') for note in notes])})" if notes else ""
        raise TraceError(f"{path}: no trace in this directory{left}{remedy}")
    dumps: dict[Path, list[Path]] = {}
    is_ranked = any(rank_of.get(file) is not None for file in files)
    if len(files) > 1 and not is_ranked:
        dumps = _continued(files)
        if len(dumps) < len(files):
            joined = [file.name for first, more in dumps.items() if more for file in (first, *more)]
            notes.append(f"{files[0].parent}: dumps that continue each other are joined: {listed(joined, 4)}")
        files = [*dumps]
    if len(files) == 1:
        rank_of = {files[0]: rank_of_file(files[0])}
    elif not is_ranked:
        rank_of |= _by_process(files, notes) or ranks_of_names(files)
    sources = [Source(file, rank=rank_of.get(file), more=dumps.get(file, ())) for file in files]
    return JobFiles(path, "ranks", sorted(sources, key=lambda source: source.order), notes)


def _by_process(files: Sequence[Path], notes: list[str]) -> dict[Path, int]:
    """Count PyTorch's processes in the files' names, if a process has several files; note the ranks."""
    named = [_OF_A_PROCESS.fullmatch(file.name) for file in files]
    processes = [match[1] for match in named if match]
    places = {name: index for index, name in enumerate(dict.fromkeys(processes))}
    if len(processes) < len(files) or len(places) == len(files):
        return {}
    if len(places) > 1:
        taken = listed([f"rank{index} is {name}" for name, index in places.items()], 4)
        notes.append(
            f"{files[0].parent}: ranks by the order of processes, as nothing else tells them: {taken}"
        )
    return {file: places[name] for file, name in zip(files, processes, strict=True)}


def _continued(files: Sequence[Path]) -> dict[Path, list[Path]]:
    """Map each file that begins like a trace to the files without a beginning after it in its folder."""
    dumps: dict[Path, list[Path]] = {}
    for file in files:
        first = next(reversed(dumps), file)
        if first is not file and first.parent == file.parent and fragment_start(head_of(file)) is not None:
            dumps[first].append(file)
        else:
            dumps[file] = []
    return dumps


def ranks_of_names(files: Sequence[Path]) -> dict[Path, int]:
    """Ranks by the only number in which the files' names differ; {} if traces have their ranks in them."""
    ranks = ranks_in_names([file.name for file in files])
    if not ranks or rank_in_head(files[0]) is not None:
        return {}
    return dict(zip(files, ranks, strict=True))


def _find_files(path: Path, *, steps: bool) -> tuple[list[Path], list[Path], list[Path], list[str]]:
    """Find the traces in `path` or else its directories; with `steps`, step logs, too.

    Also the files that this program or Composer's merger made of others, in `path` and below; and notes.
    """
    products: list[Path] = []
    below: list[Path] = []
    notes: list[str] = []
    files = _rank_files(path, notes, products, steps)
    if not files:
        children = {child: _rank_files(child, notes, below, steps) for child in subdirectories(path)}
        notes += empty_notes(path, [child for child, of_child in children.items() if of_child])
        files = [file for of_child in children.values() for file in of_child]
    return files, products, below, notes


def _rank_files(path: Path, notes: list[str], products: list[Path], steps: bool) -> list[Path]:
    """List the trace files in `path`, in natural order; other files go to `notes` and `products`."""
    traces: list[Path] = []
    for file in listing(path):
        if not file.is_file() or not may_be_read(file.name, steps=steps):
            continue
        if file.stat().st_size == 0:
            notes.append(missing_note(f"{file}: an empty file, left out"))
        elif file.name.split(".")[0] in PRODUCTS or is_marked(file):
            if not is_digest(file):
                products.append(file)
        else:
            try:
                reader = known_reader(file)
            except TraceError as error:
                reason = str(error).removeprefix(str(file.absolute()))
                notes.append(missing_note(f"{file}{reason}, left out"))
                continue
            if reader is None:
                kind = foreign(head_of(file))
                notes.append(f"{file}: not a trace{kind and f': {kind}'}, left out")
            elif steps or reader.holds != "steps":
                (products if file.name.startswith(MERGED) else traces).append(file)
    return traces


def rank_of_file(path: Path) -> int | None:
    """Read the rank in a file's name, else in its directory's, or in that of the target of a link."""
    homes = (Path(os.path.abspath(path)).parent, path.resolve().parent)
    of_gpu = [local_rank(home.name) for home in homes if is_gpu_file(path.name)]
    of_home = [rank_in_name(home) for home in homes if path.name.split(".")[0] not in PRODUCTS]
    return next((rank for rank in (*of_gpu, rank_in_name(path), *of_home) if rank is not None), None)


def _all_differ(rank_of: Mapping[Path, int | None]) -> bool:
    return None not in rank_of.values() and len(set(rank_of.values())) == len(rank_of)


_TRIED = 16  # a directory of dumps has one among so many files


def find_dumps(path: Path, given: Sequence[Path]) -> JobFiles | None:
    """Find the dumps in `path`; None if none of its first files is one."""
    files = [file for file in listing(path) if file.is_file() and not file.name.startswith(".")]
    if not any(map(is_dump, files[:_TRIED])):
        return None
    dumps = [file for file in files if is_dump(file)]
    empty = [file for file in files if file.stat().st_size == 0]
    notes: list[str] = [missing_note(f"{file}: an empty file, left out") for file in empty]
    if others := len(files) - len(dumps) - len(empty):
        notes.append(
            f"{path}: {others} of its files {'is not a dump' if others == 1 else 'are not dumps'}, left out"
        )
    return JobFiles(path, "ranks", [Source(file) for file in dumps], notes)


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
    for folder in sorted(filter(traces.get, folders), key=lambda folder: folder.name.split("_")[-3]):
        owner = _owner_of(folder)
        if owner in newest:
            notes.append(f"{newest[owner]}: an earlier run, left out; give it to read it")
        newest[owner] = folder
    ordered = sorted(newest, key=lambda owner: (isinstance(owner, str), natural(str(owner))))
    sources = [
        Source(trace, rank=owner if isinstance(owner, int) else index if len(newest) > 1 else None)
        for index, owner in enumerate(ordered)
        if (trace := traces[newest[owner]]) is not None
    ]
    return JobFiles(path, "ranks", sources, notes, [folder / _OUTPUT for folder in folders])


def _owner_of(folder: Path) -> int | str:
    """Take the rank that the profiler wrote beside the trace, else the name of its process."""
    matches = (match for file in listing(folder) if (match := _INFO.fullmatch(file.name)))
    match = next(matches, None)
    return int(match[1]) if match else folder.name.rsplit("_", 3)[0]


#: Finds the job in a directory of this layout; None for any other. The second argument: all paths given.
Layout = Callable[[Path, Sequence[Path]], JobFiles | None]
#: In the order of their use; the last takes every directory.
LAYOUTS: Sequence[Layout] = (
    find_gpu_folders, find_profiles, find_ascend_folders, find_dumps, find_rank_files,
)  # fmt: skip


def find_job(path: Path, given: Sequence[Path] = ()) -> JobFiles:
    """Find the traces of `path`, one of the paths `given`.

    TraceError if there is no such path, or no trace under it.
    """
    if not path.exists():
        raise absent(path)
    if path.is_file():
        if path.suffix == ".gml":
            raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
        if is_digest(path):
            raise TraceError(f"{path}: a digest, which holds no single events; give the traces it is of")
        return JobFiles(path, "file", [Source(path, rank=rank_of_file(path))])
    if not path.is_dir():
        raise TraceError(f"{path}: neither a file nor a directory")
    try:
        os.scandir(path).close()
    except OSError as error:
        raise unreadable(path, error) from error
    job = next(job for find in LAYOUTS if (job := find(path, given)) is not None)
    homes = dict.fromkeys(source.path.parent for source in job.sources)
    notes = [*job.notes, *(note for home in dict.fromkeys([path, *homes]) for note in skipped_notes(home))]
    notes += unread_notes(path, _MOST_SEARCHED, {source.path for source in job.sources})
    others = {other for other in given if other != path}
    if left := holding(path, _MOST_SEARCHED, {*homes, *others, *job.reported}):
        notes.append(f"{path}: traces in {left} are not read; pass them as well if they belong to the job")
    return replace(job, notes=notes)


def held_by(paths: Sequence[Path]) -> Holds:
    """Find the kind of the first recording at `paths`; TraceError as of `find_job`."""
    reader = reader_of(head_of(find_job(paths[0], paths).sources[0].path))
    return "events" if reader is None else reader.holds


def check_chrome(path: Path) -> None:
    """Raise TraceError for a trace of another format than chrome's."""
    if not path.exists():
        raise absent(path)
    reader = reader_of(head_of(path))
    if reader is not None and reader is not CHROME:
        raise TraceError(f"{path}: {reader.what}; combine takes chrome-trace files only")


def find_paths(paths: Sequence[Path]) -> JobFiles:
    """Find several paths as one job, without reading it.

    Files are ranks, GPU directories side by side the GPUs of one worker, other directories workers, in the
    order given. Traces of several GPU directories count as the directories. TraceError as of `find_job`.
    """
    jobs = [find_job(path, paths) for path in paths]
    if len(jobs) == 1:
        return jobs[0]
    kinds, root = {job.kind for job in jobs}, jobs[0].root
    if kinds == {"file"} and (sources := gpu_sources([job.root for job in jobs])):
        return JobFiles(root, "job" if sources[0].worker is not None else "worker", sources)
    notes = [note for job in jobs for note in job.notes]
    sources = [source for job in jobs for source in job.sources]
    if not any(source.is_known for source in sources) and len({s.path.parent for s in sources}) == 1:
        ranks = ranks_of_names([source.path for source in sources])
        sources = [replace(source, rank=ranks.get(source.path)) for source in sources]
    if kinds <= {"file", "ranks"}:
        return JobFiles(root, "file" if jobs[0].kind == "file" else "ranks", sources, notes)
    sources = [replace(s, rank=local_rank(s.path.parent.name) if s.rank is None else s.rank) for s in sources]
    if kinds == {"gpu"} and len({job.root.resolve().parent for job in jobs}) == 1:
        return JobFiles(root.parent, "worker", sources, notes)
    offset = 0
    of_workers: list[Source] = []
    for job in jobs:
        workers = [source.worker or 0 for source in job.sources]
        for worker in workers:
            of_workers.append(replace(sources[len(of_workers)], worker=offset + worker))
        offset += max(workers) + 1
    return JobFiles(root, "job", of_workers, notes)


def is_input(file: Path, given: Sequence[Path]) -> bool:
    """Check whether an option with the paths `given` may read the existing `file`.

    It may read the files given, the traces of directories given, and graphs, captures, logs and files of
    BytePS in or below these or beside a file given.
    """
    return any(path.exists() and _is_input_of(file, path) for path in given)


def _is_input_of(file: Path, path: Path) -> bool:
    if path.is_file():
        return file.samefile(path) or (path.resolve().parent == file.resolve().parent and _is_job_file(file))
    if path.resolve() in file.resolve().parents and _is_job_file(file):
        return True
    try:
        return any(file.samefile(source.path) for source in find_job(path).sources)
    except (TraceError, OSError):
        return False


def _is_job_file(path: Path) -> bool:
    name = path.resolve().name.lower()
    return is_gpu_file(name) or re.search(_JOB_SUFFIX, name.removesuffix(".gz")) is not None
