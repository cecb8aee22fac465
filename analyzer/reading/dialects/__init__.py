"""The systems that write traces; `dialects.system.System` lists the questions that each answers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from analyzer.reading.dialects.byteps import BytePS
from analyzer.reading.dialects.chrome import Ascend, Chrome
from analyzer.reading.dialects.composer import Composer
from analyzer.reading.dialects.dasf import Dasf
from analyzer.reading.dialects.dataflow import MXNet, TensorFlow
from analyzer.reading.dialects.flight_recorder import FlightRecorder
from analyzer.reading.dialects.horovod import Horovod
from analyzer.reading.dialects.jax import Jax
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.nsight import Nsight
from analyzer.reading.dialects.owners import listed_sources
from analyzer.reading.dialects.pipeline import Pipeline
from analyzer.reading.dialects.roles import Role, is_communication
from analyzer.reading.dialects.step_log import StepLog
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats import chrome as files
from analyzer.reading.formats.builder import ALL, Builder
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.values import FARTHEST_NS

__all__ = [
    "SYSTEMS", "Need", "Role", "System", "finish", "is_communication", "keys_for", "named", "of", "recognise",
    "recognised",
]  # fmt: skip

#: In the order in which they are tried; the last accepts any trace.
SYSTEMS: Sequence[System] = (
    FlightRecorder(), Composer(), Horovod(), MXNet(), TensorFlow(), Jax(), Nsight(), Ascend(), Kineto(),
    BytePS(), Dasf(), StepLog(), Pipeline(), Chrome(),
)  # fmt: skip
_BY_NAME = {system.name: system for system in SYSTEMS}


def of(trace: Trace) -> System:
    """Look up the system that wrote `trace`, with the user's `--comm` (`Trace.comm`)."""
    return named(trace.dialect, trace.comm)


def keys_for(needs: Iterable[Need]) -> tuple[str, ...]:
    """List the keys of the events' args to decode for `needs` and for `Need.ALWAYS`, in any system."""
    asked = {Need.ALWAYS, *needs}
    if Need.ALL in asked:
        return (ALL,)
    keys = (key for system in SYSTEMS for need in Need if need in asked for key in system.args.get(need, ()))
    return tuple(dict.fromkeys(keys))


def named(name: str, comm: Sequence[str] = ()) -> System:
    """Look up a system by name (`Trace.dialect`); `comm` are further names of communication."""
    system = _BY_NAME[name]
    if comm:
        system = copy.copy(system)
        system.comm = comm
    return system


def recognise(trace: Trace) -> System:
    """Recognise the system that wrote a file by its content; the beginning of a big file is enough.

    A combined file belongs to the system that wrote its sources, whose headers it has.
    """
    sources = listed_sources(trace.header)
    header = {key: value for source in (*sources, trace.header) for key, value in source.items()}
    known = replace(trace, header=header) if sources else trace
    return next(system for system in SYSTEMS if system.recognises(known))


def finish(path: Path, rows: Builder) -> Trace:
    """Make a trace of a file's rows, its times since the epoch if that is known."""
    named = (system for system in SYSTEMS if system.recognises_metadata(rows.metadata))
    return recognised(files.assemble(path, rows, next(named, SYSTEMS[-1]).pairing))


def epoch_ns(system: System, trace: Trace) -> int:
    """Read the offset of a file's times from the epoch in ns; 0 where it is unknown or impossible."""
    base = system.epoch_ns(trace)
    return base if 0 <= base <= FARTHEST_NS else 0


def recognised(raw: Trace) -> Trace:
    """Finish a trace as its system understands it, from the columns as read."""
    system = recognise(raw)
    rank, world_size = system.rank(raw)
    shifted = raw.shifted(epoch_ns(system, raw))
    trace = replace(shifted, dialect=system.name, rank=rank, world_size=world_size)
    return system.finished(system.timed(trace))
