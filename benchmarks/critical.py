"""How fast `critical` answers for a graph of 20,000 operations and its trace, loading included.

The peer does the same as one writes it first: json, a dictionary per operation, networkx for the graph
and its longest path.

    python3 -m benchmarks.critical [--nodes N] [--steps S]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import python, run, table
from formats.gml import Gml, format_gml


def write_job(directory: Path, n: int, steps: int) -> None:
    """Write the graph and the trace of one GPU: forward and backward chains with branches, and tensors."""
    draw = random.Random(3)
    third = n // 3
    names = [f"FW.layer{i}_op" for i in range(third)] + [f"BW.layer{i}_op" for i in range(third)]
    names += [f"Comm.layer{i}_weight" for i in range(n - 2 * third - 1)] + ["STEP"]
    edges = {(i, i + 1) for i in range(2 * third - 1)}
    edges |= {(i, min(i + draw.randrange(2, 30), 2 * third - 1)) for i in range(0, 2 * third - 2, 2)}
    for i in range(2 * third, len(names) - 1):
        edges |= {(third + draw.randrange(third), i), (i, len(names) - 1)}
    ends = np.array(sorted((a, b) for a, b in edges if a != b), np.int64)
    gml = Gml(names, ends[:, 0], ends[:, 1], [{}] * len(names), [{}] * len(ends))
    (directory / "dag.gml").write_text(format_gml(gml), "ascii")
    events, now = [], 0
    for _ in range(steps):
        for name in names:
            comm = name.startswith("Comm")
            dur = draw.randrange(10, 500)
            events.append({
                "ph": "X", "name": name, "cat": "Comm" if comm else "operator", "pid": name if comm else 0,
                "tid": "total" if comm else 1, "ts": now, "dur": dur, "args": {"name": name},
            })  # fmt: skip
            now += dur
    (directory / f"bps_trace_local_rank0_{steps}step.json").write_text(json.dumps({"traceEvents": events}))


def peer(directory: Path) -> float:
    """Return the length of the longest chain of average durations (µs)."""
    import networkx as nx

    with next(directory.glob("bps_trace*")).open() as file:
        events = json.load(file)["traceEvents"]
    spent: dict[str, list[float]] = {}
    for event in events:
        if event["cat"] != "Comm" or event["tid"] == "total":
            spent.setdefault(event["name"], []).append(event["dur"])
    graph: nx.DiGraph[str] = nx.DiGraph(nx.read_gml(directory / "dag.gml"))
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = sum(spent[a]) / len(spent[a])
    path = nx.dag_longest_path(graph, weight="weight")
    return sum(sum(spent[name]) / len(spent[name]) for name in path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.peer)
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_job(directory, args.nodes, args.steps)
        ours = run([python(), "analyze.py", "--option", "critical", "--path", name, "--jobs", "1"], repeat=3)
        theirs = run([python(), "-m", "benchmarks.critical", "--peer", name])
    costs = [(cost.cpu_s, cost.wall_s, cost.peak_mb) for cost in (theirs, ours)]
    ratios = [theirs / ours for theirs, ours in zip(*costs, strict=True)]
    head = ("", "CPU s", "wall s", "peak MB")
    print(table([head, ("here", *costs[1]), ("json and networkx", *costs[0]), ("ratio", *ratios)]))


if __name__ == "__main__":
    main()
