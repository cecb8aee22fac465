"""A slow, plain reading of traces by dictionaries, to compare the product with."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Slice = tuple[str, str, Any, Any, Fraction, Fraction]  # name, cat, pid, tid, ts, dur in us


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def load_events(path: Path) -> list[Event]:
    """All events of a whole file, numbers exact."""
    document = json.loads(content(path), parse_float=Decimal)
    return document["traceEvents"] if isinstance(document, dict) else document  # type: ignore[no-any-return]


def slices(events: list[Event]) -> list[Slice]:
    """X events and B/E pairs, by a stack for each (pid, tid) over the events in time order.

    MXNet's profiler writes each E right behind its B, whatever overlaps.
    """
    by_name = any(event["name"] == "clock_sync_timestamp_us" for event in events if event["ph"] == "M")
    found: list[tuple[int, Slice]] = []
    if not any(event["ph"] in "XBE" for event in events):  # begins and ends of asynchronous spans share an id
        by_name, phases = True, {"b": "B", "e": "E"}
        events = [{**e, "ph": phases.get(e["ph"], e["ph"]), "tid": e.get("id")} for e in events]
    if is_mxnet(events):
        pairs = [(b, e) for b, e in pairwise(events) if b["ph"] == "B" and e["ph"] == "E"]
        return [_slice(b, Fraction(b["ts"]), Fraction(e["ts"] - b["ts"])) for b, e in pairs]
    stacks: dict[tuple[str, str], list[tuple[int, Event]]] = defaultdict(list)
    timed = [(Fraction(e["ts"]), i, e) for i, e in enumerate(events) if e["ph"] in "XBE"]
    for ts, i, event in sorted(timed, key=lambda item: item[:2]):
        stack = stacks[str(event.get("pid")), str(event.get("tid"))]
        if event["ph"] == "X":
            found.append((i, _slice(event, ts, Fraction(event["dur"]))))
        elif event["ph"] == "B":
            stack.append((i, event))
        else:
            wanted = event.get("name") if by_name else None
            for depth in range(len(stack) - 1, -1, -1):
                if wanted is None or stack[depth][1]["name"] == wanted:
                    j, begin = stack.pop(depth)
                    start = Fraction(begin["ts"])
                    found.append((j, _slice(begin, start, ts - start)))
                    break
    return [item for _, item in sorted(found, key=lambda item: item[0])]


def is_mxnet(events: list[Event]) -> bool:
    """Whether the processes are named as MXNet's profiler names them."""
    return any(e["ph"] == "M" and e["args"].get("name") == "cpu pinned/" for e in events)


def figures(durations: list[Fraction]) -> dict[str, float]:
    """The figures of `statistic` for durations in microseconds, by definition."""
    ms = sorted(d / 1000 for d in durations)
    mean = sum(ms) / len(ms)
    return {
        "count": len(ms),
        "total_ms": float(sum(ms)),
        "min_ms": float(ms[0]),
        "max_ms": float(ms[-1]),
        "avg_ms": float(mean),
        "var_ms2": float(sum((d - mean) ** 2 for d in ms) / len(ms)),
        "p50_ms": float(statistics.median(ms)),
        "p95_ms": float(_quantile(ms, Fraction(95, 100))),
        "p99_ms": float(_quantile(ms, Fraction(99, 100))),
    }


def _quantile(values: list[Fraction], q: Fraction) -> Fraction:
    at = q * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def covered_ms(intervals: list[tuple[Fraction, Fraction]]) -> float:
    """How long at least one of the (start, end) intervals was open, for times in microseconds."""
    total, reach = Fraction(0), None
    for start, end in sorted(intervals):
        if reach is None or end > reach:
            total += end - (start if reach is None else max(start, reach))
            reach = end
    return float(total / 1000)


def _slice(event: Event, ts: Fraction, dur: Fraction) -> Slice:
    return str(event["name"]), event.get("cat") or "", event.get("pid"), event.get("tid"), ts, dur
