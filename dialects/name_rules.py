"""Rules that tell the role of a slice by its name, for several systems; each rule once."""

from __future__ import annotations

import re
from functools import lru_cache

#: XLA writes a hyphen, and calls it a broadcast when one rank repeats a value along an axis.
_COLLECTIVE = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective[-_]?permute|nccl"
    r"|broadcast(?!\.\d|_in_dim|\w*fusion)",
    re.IGNORECASE,
)
_COLLECTIVE_CAT = re.compile(r"comm(?:unication)?|collective", re.IGNORECASE)
#: What may be a collective though the rule of its system does not say so.
_LIKE_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem|nccl|rccl|hccl|nvshmem|"
    r"deep_?ep",
    re.IGNORECASE,
)
#: PyTorch's annotations around what a library does.
_LIBRARY_CALL = re.compile(r"(?:gloo|nccl|rccl|oneccl|hccl|mpi|ucc|xccl):")
#: What passes activations and gradients from one stage of a pipeline to the next.
_POINT_TO_POINT = re.compile(r"send|recv|p2p|pp[-_]?comm", re.IGNORECASE)
_WAIT = re.compile(
    r"(?:.*[\s.:])?(?:_?wait\w*|acquire|sleep|select|e?poll|accept|recv\w*|wait_for\w*)(?: \(.*| of .*)?"
    r"|.*\bqueue\b.*\bget\b.*",
    re.IGNORECASE,
)
_MAY_WAIT = re.compile(r"wait|synchronize|thread.*join|acquire", re.IGNORECASE)


def is_collective(name: str, cat: str) -> bool:
    """Whether a slice of that name and category moves data between ranks, if its system does not say."""
    return bool(_COLLECTIVE.search(name) or _COLLECTIVE_CAT.fullmatch(cat))


def is_like_collective(name: str) -> bool:
    """Whether that name looks like a collective's, whatever the rule of its system says."""
    return bool(_LIKE_COLLECTIVE.search(name))


def is_library_call(name: str) -> bool:
    """Whether a library carries out what PyTorch annotates so (``gloo:all_reduce``)."""
    return bool(_LIBRARY_CALL.match(name))


def is_point_to_point(name: str) -> bool:
    """Whether an operation of that name may pass data from one rank to one other."""
    return bool(_POINT_TO_POINT.search(name))


@lru_cache(maxsize=65536)  # ranks have the same names
def is_wait(name: str) -> bool:
    """Whether a call of that name does nothing but wait: for another thread, or for time to pass."""
    return bool(_WAIT.fullmatch(name))


def may_wait(name: str) -> bool:
    """Whether a call of that name may have waited, beside its work, for what ended while it ran."""
    return bool(_MAY_WAIT.search(name))
