"""Rules that tell the role of a slice by its name, for several systems; each rule once."""

from __future__ import annotations

import re
from functools import lru_cache

#: XLA writes a hyphen, and calls it a broadcast when one rank repeats a value along an axis.
_COLLECTIVE = (
    r"(?i)all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective[-_]?permute|nccl"
    r"|broadcast(?!\.\d|_in_dim|\w*fusion)"
)
_COLLECTIVE_CAT = r"(?i)comm(?:unication)?|collective"
#: PyTorch's annotations around what a library does.
_LIBRARY_CALL = r"(?:gloo|nccl|rccl|oneccl|hccl|mpi|ucc|xccl|mccl|cncl|bkcl):"
#: What passes activations and gradients from one stage of a pipeline to the next.
_POINT_TO_POINT = r"(?i)send|recv|p2p|pp[-_]?comm"
#: What moves between workers and parameter servers: by TensorFlow, and by MXNet's KVStore.
_SERVER_TRANSFER = r"_(?:Host)?(?:Send|Recv)|KVStore\w*(?:Push|Pull)\w*"
#: Operators that update parameters: TensorFlow's, and MXNet's.
_UPDATE = r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*|\w+_update(?:_phase[12])?"
_WAIT = (
    r"(?i)(?:.*[\s.:])?(?:_?wait\w*|acquire|sleep|select|e?poll|accept|recv\w*|wait_for\w*)(?: \(.*| of .*)?"
    r"|.*\bqueue\b.*\bget\b.*"
)
#: Calls of CUDA's and HIP's runtimes and drivers: cudaLaunchKernelExC, hipExtModuleLaunchKernel, …
_LAUNCH = r"(?:cu|cuda|hip)\w*Launch\w*Kernel\w*"
#: From the first to the second call of a stream, launches are written into a graph and run nothing.
_CAPTURE_BEGIN = r"(?:cu|cuda|hip)StreamBeginCapture\w*"
_CAPTURE_END = r"(?:cu|cuda|hip)StreamEndCapture\w*"
_MAY_WAIT = r"(?i)wait|synchronize|thread.*join|acquire"


def is_collective(name: str, cat: str) -> bool:
    """Whether a slice of that name and category moves data between ranks, if its system does not say."""
    return bool(re.search(_COLLECTIVE, name) or re.fullmatch(_COLLECTIVE_CAT, cat))


def is_server_transfer(name: str) -> bool:
    """Whether an operation moves data between a worker and a parameter server.

    >>> is_server_transfer("_Recv"), is_server_transfer("KVStoreDistDefaultPush"), is_server_transfer("Push")
    (True, True, False)
    """
    return re.fullmatch(_SERVER_TRANSFER, name) is not None


def is_parameter_update(name: str) -> bool:
    """Whether an operator updates parameters.

    >>> is_parameter_update("sgd_mom_update"), is_parameter_update("ResourceApplyAdam")
    (True, True)
    """
    return re.fullmatch(_UPDATE, name) is not None


def is_library_call(name: str) -> bool:
    """Whether a library carries out what PyTorch annotates so (``gloo:all_reduce``)."""
    return bool(re.match(_LIBRARY_CALL, name))


def is_point_to_point(name: str) -> bool:
    """Whether an operation of that name may pass data from one rank to one other."""
    return bool(re.search(_POINT_TO_POINT, name))


@lru_cache(maxsize=65536)  # ranks have the same names
def is_wait(name: str) -> bool:
    """Whether a call of that name does nothing but wait: for another thread, or for time to pass."""
    return bool(re.fullmatch(_WAIT, name))


def may_wait(name: str) -> bool:
    """Whether a call of that name may have waited, beside its work, for what ended while it ran."""
    return bool(re.search(_MAY_WAIT, name))


def is_launch(name: str) -> bool:
    """Whether a call of that name launches one kernel; a graph's launch has as many as the graph."""
    return bool(re.fullmatch(_LAUNCH, name))


def is_capture_begin(name: str) -> bool:
    """Whether a call of that name begins to record launches into a graph."""
    return re.fullmatch(_CAPTURE_BEGIN, name) is not None


def is_capture_end(name: str) -> bool:
    """Whether a call of that name ends the recording of launches into a graph."""
    return re.fullmatch(_CAPTURE_END, name) is not None
