"""The tensors of ps-lite keys, from BytePS's log, `comm.json` and name lists.

A partition key is ``declared_key << 16 | partition``; on the wire the beginning of the server's key
range is added to it.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from analyzer.base.errors import Repairs, TraceError
from analyzer.base.inputs import natural, opened
from analyzer.base.names import OpName, partition_key, split_key
from analyzer.reading.dialects.byteps import GradientNames, read_names
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.gpu_folders import GpuDir, find_gpus, is_gpu_file
from analyzer.reading.traces.paths import listing, subdirectories
from analyzer.reading.traces.readers import read_trace

_DECLARED = re.compile(rb"Declared tensor (\S+), declared key \(not PS key\): (\d{1,18})")
# The numbers have at most the digits that a job can need: a partition has 16 bits of a key.
_PARTITIONED = re.compile(
    rb"(?:\] |\s)(\S+) partitioned to (\d{1,5}) part\(s\), total_len=(\d{1,18}), key_range=\[(\d{1,18}),"
)
_ASSIGNED = re.compile(rb"key (\d{1,18}) assigned to server (\d{1,3})(?!\d)")
_KEY = re.compile(r"-?[0-9]{1,20}")  # the `tid` of a BytePS event, unless it is "total"
_TEXT = {".txt", ".log", ".out", ".err", ""}
_SNIFF = 4096  # bytes in which a binary file shows itself
_LONGEST_LINE = 1 << 16
_MOST_PARTS = 1 << 20  # of all tensors: 4 TB, as BytePS cuts them
_MOST_DEPTH = 4  # directories below the job root in which logs and captures are looked for


class Tensor(Struct):
    """One declared tensor."""

    name: str
    total_bytes: int | None = None
    n_parts: int | None = None


class Keys(Struct):
    """The keys of a job: tensors, their partitions and servers."""

    tensors: dict[int, Tensor] = field(default_factory=dict)  # by declared key
    servers: dict[int, int] = field(default_factory=dict)  # ranks by partition key
    parameters: GradientNames | None = None
    comm: list[tuple[GpuDir, Trace]] = field(default_factory=list)  # the `comm.json` that were read

    def tensor(self, key: int) -> str:
        """Name the tensor of a partition key, or the key itself if the tensor is unknown."""
        tensor = self.tensors.get(split_key(key)[0])
        if tensor is None:
            return f"key {key}"
        return (self.parameters and self.parameters.parameter(tensor.name)) or tensor.name

    def partition_bytes(self) -> dict[int, int]:
        """Compute the bytes of each partition: all but the last of a tensor have the same size."""
        sized = {
            declared: (tensor.total_bytes, tensor.n_parts)
            for declared, tensor in self.tensors.items()
            if tensor.total_bytes and tensor.n_parts
        }
        bound = _bound(sized.values())
        n_bytes: dict[int, int] = {}
        for declared, (total, n_parts) in sized.items():
            full = bound if (n_parts - 1) * bound < total <= n_parts * bound else -(-total // n_parts)
            for part in range(n_parts):
                n_bytes[partition_key(declared, part)] = min(full, total - part * full)
        return n_bytes

    def declare(self, declared: int, name: str) -> Tensor:
        """Look up the tensor of a declared key; add it if it is new."""
        return self.tensors.setdefault(declared, Tensor(name))


def read_keys(root: Path, repairs: Repairs) -> Keys:
    """Read the keys that the files under `root` declare; unusable files become lines of `repairs`."""
    keys = Keys()
    for path in text_files(root):
        with attempt(path, repairs):
            _read_debug_log(lines_of(path), keys)
    if sum(tensor.n_parts or 0 for tensor in keys.tensors.values()) > _MOST_PARTS:
        repairs.add(root, f"logs have more than {_MOST_PARTS:,} partitions of tensors: ignored")
        for tensor in keys.tensors.values():
            tensor.n_parts = None
    home = root.parent if is_gpu_file(root.name) and root.is_file() else root
    for gpu in find_gpus(home):
        with attempt(gpu.path, repairs):
            keys.parameters = keys.parameters or read_names(gpu.path)
        if (comm := gpu.file("comm.json")) is not None:
            with attempt(comm, repairs):
                trace = read_trace(comm)
                _add_comm(trace, keys)
                keys.comm.append((gpu, trace))
                if trace.repairs:
                    repairs.add(comm, "; ".join(trace.repairs))
    return keys


def files_below(root: Path) -> Iterator[Path]:
    """Yield the regular files of a job, and those beside a worker's directory that begin with its name."""
    yield from [root] if root.is_file() else _files(root, _MOST_DEPTH)
    if root.is_dir() and root.name:
        beside = sorted(root.parent.glob(glob.escape(root.name) + ".*"), key=lambda path: natural(path.name))
        yield from (path for path in beside if path.is_file())


def text_files(root: Path) -> Iterator[Path]:
    """Yield the files under `root` that may be logs."""
    return (path for path in files_below(root) if path.suffix.lower() in _TEXT)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log in bounded memory; a binary file has none."""
    with opened(path) as file:
        if b"\0" in file.read(_SNIFF):
            return
        file.seek(0)
        yield from iter(lambda: file.readline(_LONGEST_LINE), b"")


def _files(directory: Path, depth: int) -> Iterator[Path]:
    yield from (path for path in listing(directory) if path.is_file() and not path.name.startswith("."))
    for child in subdirectories(directory) if depth else ():
        yield from _files(child, depth - 1)


@contextlib.contextmanager
def attempt(path: Path, repairs: Repairs) -> Iterator[None]:
    """Turn an error about `path` into a line of `repairs`."""
    try:
        yield
    except TraceError as error:
        repairs.add(error)
    except OSError as error:
        repairs.add(path, f"cannot be read: {error.strerror or error}")


def _bound(sized: Iterable[tuple[int, int]]) -> int:
    """Find the partition size that explains the number of parts of tensors, given as (bytes, parts).

    It is a power of two if possible, else the least possible size; 0 if no tensor was cut.
    """
    cut = [(total, parts) for total, parts in sized if parts > 1]
    least = max((-(-total // parts) for total, parts in cut), default=0)
    most = min((-(-total // (parts - 1)) - 1 for total, parts in cut), default=0)
    power = 1 << (least - 1).bit_length() if least else 0
    return power if power <= most else least


def _read_debug_log(lines: Iterable[bytes], keys: Keys) -> None:
    """Read BytePS's debug log; lines of several threads may run into each other."""
    for line in lines:
        if b"key" not in line:
            continue
        if match := _DECLARED.search(line):
            keys.declare(int(match[2]), match[1].decode("utf-8", "replace"))
        elif match := _PARTITIONED.search(line):
            name = match[1].decode("utf-8", "replace")
            tensor = keys.declare(split_key(int(match[4]))[0], name)
            tensor.n_parts, tensor.total_bytes = int(match[2]), int(match[3])
        elif match := _ASSIGNED.search(line):
            keys.servers[int(match[1])] = int(match[2])


def _add_comm(trace: Trace, keys: Keys) -> None:
    for name_id, track_id in set(zip(trace.name_id.tolist(), trace.track_id.tolist(), strict=True)):
        name, key = OpName.parse(trace.names[name_id]), str(trace.tracks[track_id].tid)
        if name.is_comm and name.label and _KEY.fullmatch(key):
            keys.declare(split_key(int(key) & 0xFFFFFFFF)[0], name.label)  # 32 bits, signed
