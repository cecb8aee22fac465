"""How fast the engine is, on graphs of 10⁴, 10⁵ and 10⁶ operations, beside the loop one writes first.

The peer walks a networkx graph whose operations and devices are dictionary entries, with a heap of
events, as simulators of such graphs usually do.

    python3 -m benchmarks.replay
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable

import networkx as nx
import numpy as np

from replay.engine import Plan, make_plan, pays, simulate

SIZES = (10_000, 100_000, 1_000_000)
PEER_UP_TO = 100_000


def random_plan(n: int, n_devices: int = 64, seed: int = 7) -> Plan:
    """Return n operations in chains on devices, with as many edges again between the chains."""
    draw = np.random.default_rng(seed)
    device = draw.integers(0, n_devices, n)
    order = np.argsort(device, kind="stable")
    same = device[order[1:]] == device[order[:-1]]
    chains = np.stack([order[:-1][same], order[1:][same]], axis=1)
    source = draw.integers(0, n - 1, n)
    target = np.minimum(source + draw.integers(1, 200, n), n - 1)
    across = np.stack([source, target], axis=1)[source < target]
    return make_plan(draw.integers(1_000, 1_000_000, n), np.concatenate([chains, across]), device=device)


def peer(graph: nx.DiGraph[int]) -> dict[int, int]:
    """Return the start of each operation: dictionaries all the way."""
    waiting = {op: graph.in_degree(op) for op in graph}
    queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    busy: dict[int, bool] = defaultdict(bool)
    start: dict[int, int] = {}
    events = [(0, 0, op) for op in graph if waiting[op] == 0]
    heapq.heapify(events)
    while events:
        now, is_end, op = heapq.heappop(events)
        device = graph.nodes[op]["device"]
        if is_end:
            busy[device] = False
            for after in graph.successors(op):
                waiting[after] -= 1
                if waiting[after] == 0:
                    heapq.heappush(events, (now, 0, after))
        else:
            heapq.heappush(queue[device], (now, op))
        if queue[device] and not busy[device]:
            _, chosen = heapq.heappop(queue[device])
            busy[device] = True
            start[chosen] = now
            heapq.heappush(events, (now + graph.nodes[chosen]["dur"], 1, chosen))
    return start


def as_graph(plan: Plan) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for op, (dur, device) in enumerate(zip(plan.dur_ns.tolist(), plan.device.tolist(), strict=True)):
        graph.add_node(op, dur=dur, device=device)
    source, target = np.repeat(np.arange(len(plan)), np.diff(plan.after_ptr)), plan.after
    graph.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    return graph


def seconds(run: Callable[[], object], repeat: int = 3) -> float:
    """Return the least CPU time of `repeat` runs."""
    times = []
    for _ in range(repeat):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    begin = time.perf_counter()
    simulate(random_plan(1_000), compiled=True)
    print(f"first call of the compiled loop: {time.perf_counter() - begin:.2f} s\n")
    heads = ("operations", "edges", "loop", "ops/s", "plain", "compiled", "peer")
    print(" ".join(f"{head:>10}" for head in heads), "ratio")
    for n in SIZES:
        measure(random_plan(n))


def measure(plan: Plan) -> None:
    """Print operations per second of CPU time: as chosen by size, of each loop, and of the peer."""
    n = len(plan)
    chosen = n / seconds(lambda: simulate(plan))
    plain = n / seconds(lambda: simulate(plan, compiled=False), 1)
    compiled = n / seconds(lambda: simulate(plan, compiled=True))
    which = "compiled" if pays(n) else "plain"
    row = f"{n:10,} {len(plan.after):10,} {which:>10} {chosen:10,.0f} {plain:10,.0f} {compiled:10,.0f}"
    if n <= PEER_UP_TO:
        graph = as_graph(plan)
        other = n / seconds(lambda: peer(graph), 1)
        row += f" {other:10,.0f} {chosen / other:.1f}x"
    print(row)


if __name__ == "__main__":
    main()
