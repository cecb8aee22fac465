"""The clocks of hosts, from the traces of their ranks."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.model.clocks.offsets import Alignment, align
from analyzer.reading import dialects
from analyzer.reading.dialects.recorded_collectives import merged
from analyzer.reading.formats.columns import Trace


def align_job(traces: Sequence[Trace], hosts: Sequence[int]) -> Alignment:
    """Estimate the clocks of hosts against the first one's; `hosts` (n,) are the traces' hosts, from 0."""
    by_host = [[t for t, h in zip(traces, hosts, strict=True) if h == host] for host in range(max(hosts) + 1)]
    points = [merged(dialects.of(trace).sync_points(trace) for trace in each) for each in by_host]
    spans = [
        (min(int(t.ts_ns.min()) for t in each), max(int(t.end_ns.max()) for t in each)) for each in by_host
    ]
    return align(points, spans)
