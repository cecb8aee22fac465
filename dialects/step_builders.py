"""Which module makes a system's step graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dialects.step_parts import RankSteps
from errors import TraceError
from formats.columns import Trace

#: Keys of the events' args that say what waits for what, in any system.
EDGE_ARGS = (
    *("input*", "arg*"),
    *("correlation", "Collective name", "Process Group Name", "Process Group Ranks", "Seq"),
    *("stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "External id", "batch"),
    *("key", "name", "dependencies", "dependents"),
)


@dataclass(frozen=True, slots=True)
class Beside:
    """What lies beside a rank's trace: its graph's edges, and what logs tell of BytePS's partitions."""

    dag_edges: Sequence[tuple[str, str]] = ()  # names of operations
    parameters: Mapping[str, str] = field(default_factory=dict)  # byteps.gradient_<i> -> parameter
    bytes_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> bytes
    server_of: Mapping[int, int] = field(default_factory=dict)  # partition key -> server


def rank_steps(
    name: str, worker: int | None, trace: Trace, beside: Beside, step_by: str | None = None
) -> RankSteps:
    """Return the steps of one rank, by the rules of the system that recorded it.

    Raises
    ------
    TraceError
        No step is recorded in the trace.
    """
    raise TraceError(f"{trace.path}: no step graph of {trace.dialect}")
