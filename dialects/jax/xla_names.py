"""The names in XLA's profiles: of operations, of waits, and of the profiler's own marks."""

from __future__ import annotations

import re
from functools import lru_cache

from dialects.roles import Role

#: By XLA's names (all-reduce.1), JAX's of the same (psum_invariant.49), and those of NCCL's kernels.
_COMM = re.compile(
    r"%?(?:(?:ragged[-_])?(?:all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all)"
    r"|collective[-_](?:permute|broadcast)|psum|pmax|pmin|pmean|ppermute|pgather|pbroadcast"
    r"|(?:send|recv)(?:-done)?(?![\w-])).*|(?i:.*(?:nccl|rccl).*)"
)
_COPY = re.compile(
    r"%?(?:copy|outfeed)(?:[-_](?:start|done|bitcast|fusion))*(?:[.\s].*)?|mem(?:cpy|set).*", re.IGNORECASE
)
_INPUT = re.compile(r"%?infeed(?:-done)?(?:[.\s].*)?", re.IGNORECASE)
#: The halves of an asynchronous operation: all-gather-start.1, all-gather-done.1.
_HALF = re.compile(r"(.*)-(start|done)(\W.*|)")
_AROUND = re.compile(r"%?(?:while|conditional|call)(?:[.\s].*)?")
_NUMBER = re.compile(r"(?:[._]\d+|\.clone|\.remat\d*)+$")
#: In these each device waits for one other, or for a root, and not for all.
_ONE_WAITS_FOR_ONE = re.compile(r"%?(?:collective[-_](?:permute|broadcast)|ppermute|pbroadcast|send|recv)")

_NOISE = re.compile(r"ThreadpoolListener::.*|end: .*")
_UNTIMED = re.compile(r"PythonRefManager::.*|ThunkExecutor::Execute")
_WAIT = re.compile(
    r"Wait(?:\b.*|For.*)|.*\(wait for completion\)|.*::Await\w*|Rendezvous|EventFDAsyncWorker.*"
    r"|\$\S+ (?:_?block_until_ready|_single_device_array_to_np_array\w*|__array__|_value|wait|acquire|sleep)"
    r"|(?:\S+::)?(?:BlockUntilReady|BlockHostUntilDone|AwaitReady)\w*.*"
)


@lru_cache(maxsize=65536)
def role_of(name: str) -> Role:
    """Return the role of an operation of a device.

    >>> role_of("psum_invariant.49"), role_of("copy-done.3"), role_of("multiply_add_fusion.1")
    (<Role.COMM: 1>, <Role.COPY: 3>, <Role.COMPUTE: 0>)
    """
    if _COMM.fullmatch(name):
        return Role.COMM
    if _COPY.fullmatch(name):
        return Role.COPY
    return Role.INPUT if _INPUT.fullmatch(name) else Role.COMPUTE


def is_around(name: str) -> bool:
    """Whether an operation is a loop, a branch or a call of others."""
    return _AROUND.fullmatch(name) is not None


def halves(name: str) -> tuple[str, bool, bool]:
    """Return the name of the whole operation, and whether the one so called begins and ends it.

    >>> halves("all-gather-start.1"), halves("all-gather.1")
    (('all-gather.1', True, False), ('all-gather.1', True, True))
    """
    match = _HALF.fullmatch(name)
    return (match[1] + match[3], match[2] == "start", match[2] == "done") if match else (name, True, True)


def all_wait(name: str) -> bool:
    """Whether no device ends a collective before all have begun it."""
    return not _ONE_WAITS_FOR_ONE.match(name)


def kind_of(name: str) -> str:
    """Return the name of an operation without its number; all Python functions are of one kind.

    >>> kind_of("loop_fusion.12"), kind_of("$array.py:240 __array__")
    ('loop_fusion', 'python')
    """
    return "python" if name.startswith("$") else _NUMBER.sub("", name)


def is_noise(name: str) -> bool:
    """Whether it stands for the profiler's own work: no time is in it, or that of another slice."""
    return _NOISE.fullmatch(name) is not None


def is_untimed(name: str) -> bool:
    """Whether it only holds the operations of devices, or prepares nothing for them."""
    return _UNTIMED.fullmatch(name) is not None


def is_wait(name: str) -> bool:
    """Whether a thread of the host waits in it for a device, or for another thread."""
    return _WAIT.fullmatch(name) is not None
