"""A job's trace files, the rank, worker and host of each, and the parts of file names that say so."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from analyzer.base.errors import Note, NoteKind, TraceError, in_words, listed
from analyzer.base.inputs import natural, short_names
from analyzer.reading.formats.other_files import TABLE, foreign, named
from analyzer.reading.formats.stream import ByteStream

#: Recordings and their companions that no option reads beside a job, by their names.
_UNREAD = (
    (r"perfetto_trace\.json(\.gz)?", "the same profile as the .trace.json.gz beside it"),
    (
        r"(comm_detail|nccl_rank_graph|bps_comm_aligned)\.json(\.gz)?|(nccl_graph|ip_to_rank|key_dict)\.txt",
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


JobKind = Literal["file", "gpu", "worker", "job", "ranks"]

#: Files that this program and dPRO write beside their inputs; a directory's traces are the others.
PRODUCTS = ("combined", "synthetic", "comm_timeline", "server_timeline", "bps_comm_aligned")

_RANK_IN_NAME = r"(?i)rank[-_.=\[(]?(\d+)"
#: In front of the only number in which the names of files differ: it counts something else than ranks.
_NO_RANK = re.compile(
    r"(?i)(?:step|iter(?:ation)?|epoch|cycle|part|chunk|run|try|attempt|seed|v(?:ersion)?)[-_.]?$"
)
_NUMBER = re.compile(r"(\d+)")
_RANK_IN_HEAD = (
    rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b|'
    rb'"name"\s*:\s*"global_rank"[^{}]*"args"\s*:\s*\{\s*"value"\s*:\s*(\d{1,9})\b'
)
_PICKLE = b"\x80"
_MAY_BE_READ = os.R_OK | os.X_OK
_MOST_RANKS = 1 << 20  # a larger world is taken for damage, not for ranks that are missing


class Source(Struct, frozen=True):
    """One trace file of a job and whose it is.

    `worker` is the worker's index in the job (None: the job has no workers, or only one was given);
    `rank` the local rank of the GPU (BytePS) or the global rank (all others), None where unknown. A `host`
    is not a rank: it has what several ranks of a file share. The files `more` continue the trace.
    """

    path: Path
    worker: int | None = None
    rank: int | None = None
    raw: Path | None = None  # the GPU's directory, where a final trace is still to be collected there
    host: int | None = None
    more: Sequence[Path] = ()

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>.`` as far as that is known; ``host<i>.`` of a host."""
        worker = "" if self.worker is None else f"wk{self.worker}."
        if self.host is not None:
            return f"{worker}host{self.host}."
        return worker + ("" if self.rank is None else f"rank{self.rank}.")

    @property
    def order(self) -> tuple[bool, int, int]:
        """A sort key: by worker and rank, those that are not known last."""
        return self.rank is None, self.worker or 0, self.rank or 0

    @property
    def is_known(self) -> bool:
        """Whether it is known which rank, or which host, it is of."""
        return self.rank is not None or self.host is not None


class JobFiles(Struct, frozen=True):
    """The trace files under a path, workers in order and ranks as numbers within each."""

    root: Path
    kind: JobKind
    sources: Sequence[Source]
    notes: Sequence[str] = ()  # a line each: missing ranks, empty directories, doubled ranks
    reported: Sequence[Path] = ()  # directories with traces that the notes name as left out

    @property
    def has_gpus(self) -> bool:
        """Whether each source lies in a GPU's directory."""
        return self.kind in ("gpu", "worker", "job")

    def rank_notes(self, ranks: Sequence[int], world: int = 0) -> list[str]:
        """Name the ranks that several files claim, and the missing ones of `world`."""
        return rank_notes(self.root, ranks, world)

    def owner_of(self, source: Source) -> Path:
        """Return the path that names the host of a source: the directory of its worker, else its file."""
        if self.kind == "gpu":
            return self.root
        return source.path.parent.parent if self.has_gpus and self.root.is_dir() else source.path

    @property
    def hosts(self) -> list[int]:
        """The host of each source: the GPUs of a worker share one, and so do the ranks of a file."""
        workers = [source.worker or 0 for source in self.sources]
        by_worker = self.has_gpus or any(workers)
        owners: list[Any] = sorted(set(workers)) if by_worker else [source.path for source in self.sources]
        number = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
        return [number[owner] for owner in (workers if by_worker else owners)]


def rank_notes(
    whose: object, ranks: Sequence[int], world: int = 0, kind: str = "rank", sources: str = "files"
) -> list[str]:
    """Return a line for the ranks that several sources claim, and one for the missing ones of `world`."""
    notes: list[str] = []
    if doubled := sorted(rank for rank, n in Counter(ranks).items() if n > 1):
        notes.append(missing_note(f"{whose}: {in_words(doubled, kind)} claimed by several {sources}"))
    world = max(world, max(ranks, default=-1) + 1)
    if ranks and world <= _MOST_RANKS and (missing := sorted(set(range(world)) - set(ranks))):
        notes.append(missing_note(f"{whose}: {in_words(missing, kind)} of {world} missing"))
    return notes


def missing_note(text: str) -> Note:
    """Return a note on a rank, a file or a directory that is missing, empty, or there twice."""
    return Note(text, NoteKind.MISSING)


def empty_notes(path: Path, found: Sequence[Path]) -> list[str]:
    """Name the directories without any file that lie beside those `found` below `path`, or their parents."""
    inside = [folder for each in found for folder in each.parents if path in (folder, *folder.parents)]
    known = {*found, *inside}
    return [
        missing_note(f"{child}: an empty directory, left out")
        for folder in dict.fromkeys(inside)
        for child in subdirectories(folder)
        if child not in known and not any(names for _, _, names in os.walk(child))
    ]


def head_of(path: Path, most: int | None = None) -> bytes:
    """Return the beginning of a file's content, unpacked, up to 1 MiB, or to `most` if it is not packed."""
    return next(iter(ByteStream(path, stop=most)), b"")


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's or directory's name states (``rank3``, ``rank_3``)."""
    match = re.search(_RANK_IN_NAME, path.name)
    return int(match[1]) if match else None


def ranks_in_names(names: Sequence[str]) -> list[int]:
    """Ranks of files by the only number in which their names differ, if it is a set of ranks; else [].

    A set of ranks has no number twice, and leaves no more numbers out than it has. One that counts from 1
    is none: rank 0 is not missing there.

    >>> ranks_in_names(["TP-1.json", "TP-0.json"]), ranks_in_names(["r0-a.json", "r1-b.json"])
    ([1, 0], [])
    >>> ranks_in_names(["t_1.json", "t_2.json"]), ranks_in_names(["step_0.json", "step_1.json"])
    ([], [])
    """
    parts = [_NUMBER.split(name) for name in names]
    if len(names) < 2 or len({tuple(part[::2]) for part in parts}) > 1:
        return []
    columns = list(zip(*parts, strict=True))
    differing = [i for i in range(1, len(columns), 2) if len(set(columns[i])) > 1]
    if len(differing) != 1 or _NO_RANK.search(columns[differing[0] - 1][0]):
        return []
    ranks = [int(text) for text in columns[differing[0]]]
    is_set = len(set(ranks)) == len(ranks) and max(ranks) < 2 * len(ranks)
    return ranks if is_set and sorted(ranks) != [*range(1, len(ranks) + 1)] else []


def rank_in_head(path: Path) -> int | None:
    """Return the rank that PyTorch or Composer wrote at the beginning of a trace; of a pickle nobody does."""
    if head_of(path, len(_PICKLE)) == _PICKLE:
        return None
    match = re.search(_RANK_IN_HEAD, head_of(path))
    return int(match[1] or match[2]) if match else None


def subdirectories(path: Path) -> list[Path]:
    """Return the directories in a directory that may be read, but for hidden ones and links upwards."""
    children = [child for child in listing(path) if child.is_dir() and not child.name.startswith(".")]
    return [
        child
        for child in children
        if os.access(child, _MAY_BE_READ) and not (child.is_symlink() and _is_above(child, path))
    ]


def _is_above(link: Path, path: Path) -> bool:
    target = os.path.realpath(link)
    return os.path.commonpath([target, os.path.realpath(path)]) == target


def listing(path: Path) -> list[Path]:
    """Return the files and directories in a directory, numbers in names in the order of numbers.

    `skipped_notes` names what else is there; a directory that may not be read seems to be empty.
    """
    return sorted(
        (Path(entry) for entry in _entries(path) if _is_usual(entry)), key=lambda p: natural(p.name)
    )


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _is_usual(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() or entry.is_dir()
    except OSError:  # a loop of links, or beyond what may be looked at
        return False


def skipped_notes(path: Path) -> list[str]:
    """Name what is in a directory and cannot be read: pipes, devices, broken links, closed directories."""
    notes = []
    for entry in _entries(path):
        if not _is_usual(entry):
            notes.append(missing_note(f"{entry.path}: neither a file nor a directory, left out"))
        elif entry.is_dir() and not os.access(entry, _MAY_BE_READ):
            notes.append(missing_note(f"{entry.path}: may not be read (permission denied), left out"))
    return sorted(notes)
