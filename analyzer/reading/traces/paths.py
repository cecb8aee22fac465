"""A job's trace files, and the rank, worker and host of each."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from analyzer.base.errors import Note, NoteKind, TraceError, in_words, listed
from analyzer.base.inputs import natural, short_names
from analyzer.reading.formats.file_kinds import foreign, named
from analyzer.reading.formats.stream import ByteStream

#: Files beside a job that no option reads, by their names.
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
_MOST_FILES = 64  # files of a folder without a trace whose kind is looked up
_SHOWN = 3


def unread_notes(path: Path, most_folders: int, known: Collection[Path]) -> list[str]:
    """Name the files of known kinds below `path` that are not read, besides the files `known`."""
    kinds: dict[str, list[Path]] = {}
    for folder, _, names in itertools.islice(os.walk(path), most_folders):
        for name in names:
            kind = named(name) or next((kind for rule, kind in _UNREAD if re.fullmatch(rule, name)), "")
            if kind and Path(folder, name) not in known:
                kinds.setdefault(kind, []).append(Path(folder, name))
    notes = []
    for kind, files in kinds.items():
        ordered = sorted(files, key=lambda file: natural(str(file)))
        shown = [*dict.fromkeys(file.name for file in ordered)]
        if len(shown) == len(files):
            shown = [str(file.relative_to(path)) for file in ordered]
        notes.append(f"{path}: not read: {listed(shown, _SHOWN + 2)} ({kind})")
    return notes


def foreign_files(path: Path) -> str:
    """Name the kind of the files in a folder without any trace; "" if they are of several kinds."""
    files = [file for file in listing(path) if file.is_file()]
    kinds: dict[str, list[Path]] = {}
    for file in files[:_MOST_FILES]:
        kind = named(file.name)
        if not kind and file.name.endswith(_FOREIGN_SUFFIXES):
            with contextlib.suppress(TraceError):
                kind = foreign(head_of(file, most=1 << 16))
        if kind:
            kinds.setdefault(kind, []).append(file)
    if len(kinds) != 1:
        return ""
    ((kind, files),) = kinds.items()
    names = str(files[0]) if len(files) == 1 else f"{path}: {listed(short_names(files), _SHOWN)}"
    return f"{names}: not a trace: {kind}"


JobKind = Literal["file", "gpu", "worker", "job", "ranks"]

#: Files that this program and dPRO write beside their inputs; they are not a directory's traces.
PRODUCTS = ("combined", "synthetic", "comm_timeline", "server_timeline", "bps_comm_aligned")

#: Composer's file of all ranks, beside the ranks' own.
MERGED = "merged_trace"

_RANK_IN_NAME = r"(?i)rank[-_.=\[(]?(\d+)"
#: Before the only number in which names of files differ: the number is no rank.
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
_MOST_RANKS = 1 << 20  # a larger world size is damaged


class Source(Struct, frozen=True):
    """One trace file of a job, and its owner."""

    path: Path
    worker: int | None = None  # index in the job; None: the job has no workers, or only one was given
    rank: int | None = None  # the GPU's local rank (BytePS), else the global rank; None: unknown
    raw: Path | None = None  # the GPU's directory, if the final trace is missing there
    host: int | None = None  # not a rank: the slices that several ranks of a file share
    more: Sequence[Path] = ()  # files that continue the trace

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>.`` without unknown parts; ``host<i>.`` for a host."""
        worker = "" if self.worker is None else f"wk{self.worker}."
        if self.host is not None:
            return f"{worker}host{self.host}."
        return worker + ("" if self.rank is None else f"rank{self.rank}.")

    @property
    def order(self) -> tuple[bool, int, int]:
        """A sort key: by worker and rank, unknown ones last."""
        return self.rank is None, self.worker or 0, self.rank or 0

    @property
    def is_known(self) -> bool:
        """Check for a known rank or host."""
        return self.rank is not None or self.host is not None


class JobFiles(Struct, frozen=True):
    """The trace files under a path, in order of workers and ranks."""

    root: Path
    kind: JobKind
    sources: Sequence[Source]
    notes: Sequence[str] = ()  # a line each: missing ranks, empty directories, doubled ranks
    reported: Sequence[Path] = ()  # directories with traces that the notes name as left out

    @property
    def has_gpus(self) -> bool:
        """Check that each source lies in a GPU's directory."""
        return self.kind in ("gpu", "worker", "job")

    def rank_notes(self, ranks: Sequence[int], world: int = 0) -> list[str]:
        """Name the ranks that several files claim, and the missing ones of `world`."""
        return rank_notes(self.root, ranks, world)

    def owner_of(self, source: Source) -> Path:
        """Path that names the host of a source: its worker's directory, else its file."""
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
    """Note the ranks that several sources claim, and the missing ranks of `world`."""
    notes: list[str] = []
    if doubled := sorted(rank for rank, n in Counter(ranks).items() if n > 1):
        notes.append(missing_note(f"{whose}: {in_words(doubled, kind)} claimed by several {sources}"))
    world = max(world, max(ranks, default=-1) + 1)
    if ranks and world <= _MOST_RANKS and (missing := sorted(set(range(world)) - set(ranks))):
        notes.append(missing_note(f"{whose}: {in_words(missing, kind)} of {world} missing"))
    return notes


def missing_note(text: str) -> Note:
    """Make a note on a rank, a file or a directory that is missing, empty, or doubled."""
    return Note(text, NoteKind.MISSING)


def empty_notes(path: Path, found: Sequence[Path]) -> list[str]:
    """Name the directories without any file beside the directories `found` below `path`, or their parents."""
    inside = [folder for home in found for folder in home.parents if path in (folder, *folder.parents)]
    known = {*found, *inside}
    return [
        missing_note(f"{child}: an empty directory, left out")
        for folder in dict.fromkeys(inside)
        for child in subdirectories(folder)
        if child not in known and not any(names for _, _, names in os.walk(child))
    ]


def head_of(path: Path, most: int | None = None) -> bytes:
    """Read the beginning of a file's content, unpacked, up to 1 MiB, or to `most` if it is not packed."""
    return next(iter(ByteStream(path, stop=most)), b"")


def rank_in_name(path: Path) -> int | None:
    """Read the rank in a file's or directory's name (``rank3``, ``rank_3``)."""
    match = re.search(_RANK_IN_NAME, path.name)
    return int(match[1]) if match else None


def ranks_in_names(names: Sequence[str]) -> list[int]:
    """Ranks of files by the only number in which their names differ, if it is a set of ranks; else [].

    A set of ranks has no number twice, and at most as many gaps as numbers. Numbers from 1 on are no ranks.

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
    """Read the rank that PyTorch or Composer wrote at the beginning of a trace; a pickle has none there."""
    if head_of(path, len(_PICKLE)) == _PICKLE:
        return None
    match = re.search(_RANK_IN_HEAD, head_of(path))
    return int(match[1] or match[2]) if match else None


def subdirectories(path: Path) -> list[Path]:
    """List the readable directories in a directory, without hidden ones and links upwards."""
    above = (path.resolve(), *path.resolve().parents)
    children = [child for child in listing(path) if child.is_dir() and not child.name.startswith(".")]
    return [
        child
        for child in children
        if os.access(child, _MAY_BE_READ) and not (child.is_symlink() and child.resolve() in above)
    ]


def listing(path: Path) -> list[Path]:
    """List the files and directories in a directory, in natural order; none if it may not be read.

    `skipped_notes` names all other entries.
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
    except OSError:  # a loop of links, or no permission
        return False


def skipped_notes(path: Path) -> list[str]:
    """Name the unreadable entries of a directory: pipes, devices, broken links, closed directories."""
    notes = []
    for entry in _entries(path):
        if not _is_usual(entry):
            notes.append(missing_note(f"{entry.path}: neither a file nor a directory, left out"))
        elif entry.is_dir() and not os.access(entry, _MAY_BE_READ):
            notes.append(missing_note(f"{entry.path}: may not be read (permission denied), left out"))
    return sorted(notes)
