"""Recognition of flight-recorder dumps, and the names of their columns."""

from __future__ import annotations

import re

_JSON_HEAD = (
    rb'\s*\{\s*"(?:version|entries|pg_config|pg_status|nccl_version|comm_lib_version|nccl_comm_state'
    rb'|rank)"\s*:'
)
_JSON_KEYS = (b'"pg_status"', b'"pg_config"', b'"collective_seq_id"')
#: The columns of a dump: the number of a call, and its bytes in and out.
NUMBER, BYTES = "collective_seq_id", ("input", "output")


def recognises(head: bytes) -> bool:
    """Check whether a file that begins with `head` is a pickle, or a dump in JSON."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return (
        b'"traceEvents"' not in head
        and re.match(_JSON_HEAD, head) is not None
        and any(key in head for key in _JSON_KEYS)
    )
