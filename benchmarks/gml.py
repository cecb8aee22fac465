"""How fast GML is read and written: 100,000 nodes and 150,000 edges, beside networkx.

python3 -m benchmarks.gml [--nodes N]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np

from benchmarks.measure import table
from formats.gml import Gml, format_gml, read_gml


def random_gml(n: int, seed: int = 1) -> Gml:
    """Return n operations with durations, and 1.5 n weighted edges that lead forward."""
    draw = random.Random(seed)
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < n * 3 // 2:
        a, b = sorted((draw.randrange(n), draw.randrange(n)))
        if a != b:
            pairs.add((a, b))
    ends = np.array(sorted(pairs), np.int64)
    labels = [f"rank0.FW.block{i % 97}_layer{i}_conv" for i in range(n)]
    nodes = [{"avg": draw.random() * 10} for _ in range(n)]
    return Gml(labels, ends[:, 0], ends[:, 1], nodes, [{"weight": draw.random()} for _ in pairs])


def cpu(function: Callable[[], object], repeat: int) -> float:
    """Return the CPU seconds of the cheapest of `repeat` calls."""
    costs = []
    for _ in range(repeat):
        begin = time.process_time()
        function()
        costs.append(time.process_time() - begin)
    return min(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=100_000)
    gml = random_gml(parser.parse_args().nodes)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "dag.gml"
        path.write_text(format_gml(gml), "ascii")
        graph = nx.read_gml(path)
        ours = cpu(lambda: path.write_text(format_gml(gml), "ascii"), 5), cpu(lambda: read_gml(path), 5)
        theirs = cpu(lambda: nx.write_gml(graph, path), 1), cpu(lambda: nx.read_gml(path), 1)
    rows = [("CPU seconds", "write", "read", "together"), ("here", *ours, sum(ours)),
            ("networkx", *theirs, sum(theirs)), ("ratio", *(b / a for a, b in zip(ours, theirs, strict=True)),
                                                  sum(theirs) / sum(ours))]  # fmt: skip
    print(table(rows))


if __name__ == "__main__":
    main()
