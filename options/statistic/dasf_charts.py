"""The pictures of DASF's analyses: what takes each worker's time, and how many results it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from options.step_charts import MOST_BARS, rank_map
from result import Bars, Chart, Table


def dasf_charts(table: Table) -> list[Chart]:
    """Return a picture of one of `statistic.dasf_analyses`' tables; nothing where it has no row."""
    rows: Sequence[Sequence[Any]] = table.rows
    if not rows:
        return []
    if table.name == "task_balance":
        return [_held([column.title for column in table.columns[1:]], rows)]
    workers = [f"{host} GPU {gpu}" for host, gpu, *_ in rows]
    names = list(dict.fromkeys(name for _, _, name, *_ in rows))[:MOST_BARS]
    seconds: dict[str, list[float | None]] = {one: [None] * len(names) for one in workers}
    for worker, (_, _, name, took, *_) in zip(workers, rows, strict=True):
        if name in names:
            seconds[worker][names.index(name)] = took
    seconds = {worker: took for worker, took in seconds.items() if any(took)}
    title = "Time of each function" if table.name == "function_bottleneck" else "Longest tasks"
    return [Bars(f"{title}, by worker", "s", "", names, seconds, stacked=True, horizontal=True)]


def _held(workers: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    """Return a map of what each worker held in each second; those without a sample are empty."""
    seconds = np.array([row[0] for row in rows])
    held = np.full((len(workers), int(seconds[-1]) + 1), np.nan)
    held[:, seconds] = np.array([row[1:] for row in rows], np.float64).T
    every = list(map(str, range(held.shape[1])))
    chart = rank_map("Tasks held", workers, every, held, "second")
    return chart._replace(title="Tasks held, by worker and second", y_label="worker", value_label="tasks")
