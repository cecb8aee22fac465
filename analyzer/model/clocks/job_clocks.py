"""The traces of a job on one clock."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from analyzer.base.errors import Note, NoteKind, listed
from analyzer.base.units import in_digits, in_ms
from analyzer.model.clocks.offsets import Alignment, Clock, align
from analyzer.reading.dialects.recorded_collectives import SyncPoints, merged
from analyzer.reading.formats.columns import Trace


def shifted(trace: Trace, clock: Clock) -> Trace:
    """Return a trace with its times on the clock that `clock` relates its own to."""
    if not clock.offset_ns:
        return trace
    points = replace(trace.points, ts_ns=trace.points.ts_ns + clock.offset_ns)
    return replace(trace, ts_ns=trace.ts_ns + clock.offset_ns, points=points)


def aligned(
    names: Sequence[str],
    hosts: Sequence[int],
    points: Sequence[SyncPoints],
    spans: Sequence[tuple[int, int]],
    machines: Sequence[str],
) -> tuple[Sequence[Clock], list[str]]:
    """Return the clock of each host, and remarks on them.

    The parameters are of n ranks: name, host (0, 1, …), sync points, begin and end, and machine.
    """
    members: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for i, host in enumerate(hosts):
        members[host].append(i)
    alignment = align(
        [merged(points[i] for i in ranks) for ranks in members],
        [(min(spans[i][0] for i in ranks), max(spans[i][1] for i in ranks)) for ranks in members],
        [machines[ranks[0]] for ranks in members],
    )
    labels = [names[ranks[0]] if len(ranks) == 1 else names[ranks[0]].partition(".")[0] for ranks in members]
    return alignment.clocks, remarks(labels, alignment)


def remarks(names: Sequence[str], alignment: Alignment) -> list[str]:
    """Return remarks on the hosts' clocks: by how much they were moved, how well they are known, `doubts`."""
    clocks = dict(zip(names, alignment.clocks, strict=True))
    moved = [f"{name} by {_by(clock)}" for name, clock in clocks.items() if clock.offset_ns]
    kept_ns = max((clock.bound_ns or 0 for clock in clocks.values() if not clock.offset_ns), default=0)
    return [
        *([f"clocks moved: {listed(moved)}"] if moved else []),
        *([f"clocks agree within ±{in_ms(kept_ns)}"] if kept_ns else []),
        *doubts(names, alignment),
    ]


def doubts(names: Sequence[str], alignment: Alignment) -> list[str]:
    """Return notes on clocks that nothing ties to the first, that contradict each other, or that drift."""
    loose = [name for name, clock in zip(names[1:], alignment.clocks[1:], strict=True) if not clock.is_tied]
    adrift = [name for name, clock in zip(names, alignment.clocks, strict=True) if clock.violations_after]
    lines: list[str] = []
    if loose:
        text = f"no common operation ties the clock of {listed(loose)} to the others"
        lines.append(Note(text, NoteKind.UNALIGNED))
    if alignment.contradicting:
        pair = " and ".join(names[host] for host in alignment.contradicting)
        text = (
            f"no offsets make every operation possible: {pair} contradict each other by "
            f"{in_digits(alignment.contradiction_ns / 1e3)} µs (did a clock jump, or are these several jobs?)"
        )
        lines.append(Note(text, NoteKind.UNALIGNED))
    elif adrift:
        lines.append(f"the clocks of {listed(adrift)} drift: no constant offset orders all operations")
    return lines


def _by(clock: Clock) -> str:
    offset = f"{in_digits(clock.offset_us, sign='+')} µs"
    return offset if clock.bound_us is None else f"{offset} (±{in_digits(clock.bound_us)})"
