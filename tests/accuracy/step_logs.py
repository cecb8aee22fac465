"""Faults put into made step logs that `diagnose` finds, by cost, and how often it names another rank.

The job is an event model that shares nothing with the diagnosis. Each rank loads, computes, meets all others
in a collective, and goes on alone (optimizer, rest) into its next step. Which rows show a fault depends on
the columns that the job writes. Noise is of sixteen kinds.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyze import main as analyze

Times = NDArray[np.float64]
_NOISES = (
    "none", "tails", "holds", "network", "unlike", "lengths", "own lengths", "hosts", "drift", "evaluations",
    "warm-up", "busy rank 0", "collections", "clocks", "slow loads", "several",
)  # fmt: skip
_FAULTS = ("late", "late", "late", "two late", "grows", "always", "all", "every n-th", "none", "none")
_SIZES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of a step
_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.3)  # of the classes of costs
_LOAD, _COMPUTE, _UPDATE, _REST = range(4)  # rows of a rank's own work
_SEEN = 0.25  # of a fault's cost that a column shows; less is not counted


class Fault(NamedTuple):
    """A `kind`, put into a rank (-1: all) from `begin` to before `end`; or into every `end`-th step."""

    kind: str
    rank: int
    begin: int
    end: int


def _holding(rng: np.random.Generator, shape: tuple[int, ...], steps: float, sd: float) -> Times:
    """Noise that lasts for a number of steps."""
    keep = np.exp(-1 / steps)
    noise = rng.normal(0, sd * np.sqrt(1 - keep * keep), shape)
    noise[..., 0] = rng.normal(0, sd, shape[:-1])
    for step in range(1, shape[-1]):
        noise[..., step] += keep * noise[..., step - 1]
    return noise


def _disturb(rng: np.random.Generator, noise: str, own: Times, network: Times, step: float) -> None:
    """Add a kind of noise to work (4, ranks, steps) and to the collective (steps)."""
    load, compute, _, rest = own
    (n_ranks, n), chosen = load.shape, {noise} if noise != "several" else set(rng.choice(_NOISES[1:], 4))
    if "tails" in chosen:
        compute *= 1 + 0.01 * np.minimum(rng.pareto(2.2, load.shape), 30)
        load *= 1 + 0.1 * np.minimum(rng.pareto(1.8, load.shape), 50)
    if "holds" in chosen:
        compute *= np.exp(_holding(rng, load.shape, 30, 0.01) + _holding(rng, (1, n), 60, 0.03))
    if "network" in chosen:
        network *= np.exp(_holding(rng, (n,), 20, 0.35)) * np.where(
            rng.random(n) < 0.03, rng.uniform(2, 6, n), 1
        )
    if "unlike" in chosen:
        compute *= rng.normal(1, 0.012, (n_ranks, 1))
        load *= rng.lognormal(0, 0.4, (n_ranks, 1))
    if "lengths" in chosen:
        compute *= rng.gamma(30, 1 / 30, n)
    if "own lengths" in chosen:
        compute *= rng.gamma(200, 1 / 200, load.shape)
    if "hosts" in chosen:
        rest += (rng.random(load.shape) < 0.25 / n_ranks) * step * rng.gamma(1.5, 0.4, load.shape)
        load += (rng.random(load.shape) < 0.15 / n_ranks) * step * rng.gamma(1, 0.3, load.shape)
    if "drift" in chosen:
        compute *= np.linspace(1, 1 + rng.uniform(-0.2, 0.3), n)
    if "evaluations" in chosen:
        every = int(rng.choice([25, 50, 100]))
        rest[:, every - 1 :: every] += step * rng.uniform(1, 8)
        for end in range(2 * every, n, 2 * every):
            compute[:, end - 6 : end] *= 1.5
    if "warm-up" in chosen:
        compute *= 1 + 1.5 * np.exp(-np.arange(n) / 8)
        rest[:, 0] += 20 * step
    if "busy rank 0" in chosen:
        rest[0] += 0.01 * step
        rest[0, ::10] += 0.1 * step
    if "collections" in chosen:
        for rank in range(n_ranks):
            compute[rank, rng.integers(40) :: rng.integers(35, 60)] += 0.15 * step
    if "clocks" in chosen:
        for host in range(0, n_ranks, 8):
            compute[host : host + 8] *= 1 + 0.004 * np.sign(_holding(rng, (n,), 50, 1.0))
    if "slow loads" in chosen:
        load += 0.05 * step * (rng.random(load.shape) < 0.1)


def _put(rng: np.random.Generator, kind: str, own: Times, network: Times, step: float) -> list[Fault]:
    """Add faults, and return them."""
    _, n_ranks, n = own.shape
    size, found = float(rng.choice(_SIZES)) * step, []
    for rank in rng.permutation(n_ranks)[: {"none": 0, "two late": 2}.get(kind, 1)].tolist():
        length = min(int(rng.choice([5, 8, 15, 30, 60, 120, 200])), n // 2)
        begin = int(rng.integers(10, n - length - 3))
        begin, end = (0, n) if kind == "always" else (begin, begin + length)
        more = size * rng.lognormal(0, float(rng.choice([0, 0.05, 0.2])), end - begin)
        part = own[int(rng.integers(4)), rank]
        if kind == "all":
            (network if rng.random() < 0.5 else own[_COMPUTE])[..., begin:end] += size
        elif kind == "every n-th":
            begin, end = int(rng.integers(10)), int(rng.choice([10, 20, 50]))
            part[begin::end] += max(size, 0.5 * step)
        else:
            part[begin:end] += more * (np.linspace(0, 2, end - begin) if kind == "grows" else 1)
        found.append(Fault("late" if kind == "two late" else kind, -1 if kind == "all" else rank, begin, end))
    return found


def _run(own: Times, network: Times) -> tuple[Times, Times]:
    """Load, compute, network, wait, update, rest and whole (7, ranks, steps), and steps' ends."""
    load, compute, update, rest = own
    columns, ends = np.empty((7, *load.shape)), np.empty(load.shape)
    begin = np.zeros(len(load))
    for step, net in enumerate(network.tolist()):
        comes = begin + load[:, step] + compute[:, step]
        end = comes.max() + net + update[:, step] + rest[:, step]
        columns[:, :, step] = (
            load[:, step], compute[:, step], np.full(len(load), net), comes.max() - comes, update[:, step],
            rest[:, step], end - begin,
        )  # fmt: skip
        ends[:, step] = begin = end
    return columns, ends


def _told(columns: Times, layout: int) -> tuple[dict[str, Times], str]:
    """Columns as one of seven jobs writes them, and the name of the column of the whole step, if any."""
    load, compute, net, wait, update, rest, whole = columns
    return (
        ({"data_ms": load, "compute_ms": compute, "comm_ms": net + wait, "optim_ms": update,
          "step_ms": whole}, "step_ms"),
        ({"data_ms": load, "compute_ms": compute + wait + 0.8 * net, "comm_ms": 0.2 * net,
          "step_ms": whole}, "step_ms"),
        ({"time/data": load, "time/forward": compute / 3, "time/backward": compute / 1.5 + wait + net,
          "time/opt_step": update, "time/iter": whole}, "time/iter"),
        ({"dataloader_s": load, "fwd_bwd_s": compute, "allreduce_s": net, "barrier_s": wait,
          "iteration_s": whole}, "iteration_s"),
        ({"data_time": load, "batch_time": whole}, "batch_time"),
        ({"load (ms)": load, "fwd (ms)": 0.4 * compute, "bwd (ms)": 0.6 * compute,
          "grad_sync (ms)": net + wait, "update (ms)": update, "log (ms)": rest}, ""),
        ({"data_ms": load, "compute_ms": compute, "comm_ms": net + wait, "step_ms": whole - rest},
         "step_ms"),
    )[layout]  # fmt: skip


def _is_seen(fault: Fault, told: Mapping[str, Times], whole: str, step: Times, cost: float) -> bool:
    """True if a column of the rank, or the time outside its columns, shows enough of the fault."""
    parts = {name: each for name, each in told.items() if name != whole}
    rows = told[whole] if whole else sum(parts.values(), np.zeros(step.shape))
    parts |= {
        "rest": rows - sum(parts.values(), np.zeros(step.shape)),
        "between": np.median(step, axis=0) - rows,
    }
    every = fault.kind == "every n-th"
    span = slice(fault.begin, None, fault.end) if every else slice(fault.begin, fault.end)
    for each in parts.values():
        more = (each - np.median(each, axis=0))[fault.rank]
        usual = 0.0 if fault.kind == "always" else np.median(more)
        if np.median(more[span]) - usual > _SEEN * cost:
            return True
    return False


def _write(rng: np.random.Generator, folder: Path, told: Mapping[str, Times], ends: Times) -> None:
    """Write the job as a file for each rank or one for all, maybe with missing rows, or times of day."""
    form = str(rng.choice(["csv", "tsv", "jsonl.gz", "one.csv", "one.jsonl"]))
    unit = {name: 1e-3 if name.endswith("_s") or "time" in name else 1.0 for name in told}
    heads = [str(rng.choice(["step", "iteration", "global_step"])), "rank", *told, "loss", "timestamp"]
    n_columns, drops = len(heads) - int(rng.random() < 0.5), rng.random() < 0.2
    rows: list[list[str]] = [[] for _ in ends]
    for step in range(ends.shape[1]):
        for rank, end in enumerate(ends[:, step].tolist()):
            if drops and (step * 7919 + rank) % 997 == 3:
                continue
            times = [f"{each[rank, step] * unit[name]:.6f}" for name, each in told.items()]
            cells = [str(step), str(rank), *times, "2.5", f"{1.7e9 + end / 1e3:.4f}"][:n_columns]
            if "json" in form:
                members = [f'"{name}": {cell}' for name, cell in zip(heads, cells, strict=False)]
                line = f"{{{', '.join(members)}}}"
            else:
                line = ("\t" if form == "tsv" else ",").join(cells)
            rows[0 if form.startswith("one") else rank].append(line)
    head = [] if "json" in form else [("\t" if form == "tsv" else ",").join(heads[:n_columns])]
    for rank, lines in enumerate(filter(None, rows)):
        data = "\n".join([*head, *lines]).encode()
        (folder / f"log_rank{rank}.{form.removeprefix('one.')}").write_bytes(
            gzip.compress(data) if form.endswith("gz") else data
        )


def _diagnosed(folder: Path) -> list[dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        analyze([str(folder), "--format", "json", "--logging_level", "ERROR", "--jobs", "1"])
    found: list[dict[str, Any]] = json.loads(out.getvalue())["findings"]
    return found


def _finds(one: Mapping[str, Any], fault: Fault) -> bool:
    """True if a finding has the rank of this fault, and a step of its span."""
    scope = one["scope"]
    if scope["ranks"] != ([f"rank{fault.rank}"] if fault.rank >= 0 else []):
        return False
    if fault.kind == "every n-th":
        return True
    lasts = one["kind"] == "late_rank" if fault.rank >= 0 else not scope["steps"]
    return bool(lasts and scope["from_step"] < fault.end and scope["to_step"] >= fault.begin)


class Found(NamedTuple):
    """A fault, its cost as a share of a step, the finding of it, and by what span and cost are off.

    That of every n-th step is spread over n steps.
    """

    kind: str
    share: float
    is_found: bool
    span: int = 0
    cost: float = 0.0


def trial(seed: int) -> tuple[list[Found], int, bool]:
    """Diagnose a made job: its faults, the number of other ranks that are named, and True without a fault."""
    rng = np.random.default_rng([11, seed])
    noise, kind = str(rng.choice(_NOISES)), str(rng.choice(_FAULTS))
    n_ranks = int(
        rng.choice([8, 8, 16, 16, 24, 64, 256, 1024], p=[0.2, 0.2, 0.2, 0.19, 0.1, 0.09, 0.01, 0.01])
    )
    n = int(rng.choice([150, 300, 500, 1000, 2500] if n_ranks < 64 else [200, 500]))
    step = float(np.exp(rng.uniform(np.log(20), np.log(8000))))
    load, compute, net, update, rest = step * np.maximum(rng.dirichlet([2, 20, 5, 2, 1.5]), 0.004)
    scatter = float(rng.choice([0.003, 0.01, 0.02]))
    own = np.array([load, compute, update, rest])[:, None, None] * rng.lognormal(
        0, scatter * np.array([5, 1, 1, 3])[:, None, None], (4, n_ranks, n)
    )
    network = net * rng.lognormal(0, 2 * scatter, n)
    _disturb(rng, noise, own, network, step)
    before = np.median(_run(own, network)[0][6], axis=0)
    faults = _put(rng, kind, own, network, step)
    columns, ends = _run(own, network)
    told, whole = _told(columns, int(rng.integers(7)))
    with tempfile.TemporaryDirectory() as folder:
        _write(rng, Path(folder), told, ends)
        findings = _diagnosed(Path(folder))
    usual, found = float(np.median(before)), []
    for fault in faults:
        more = np.median(columns[6], axis=0) - before
        more = more[fault.begin :: fault.end] if kind == "every n-th" else more[fault.begin : fault.end]
        cost = float(more.mean() if kind == "grows" else np.median(more))
        if kind == "every n-th":
            cost = max(
                cost, float(np.median((np.median(columns[6], axis=0) - before)[fault.begin + 1 :: fault.end]))
            )
        if fault.rank >= 0 and not _is_seen(fault, told, whole, columns[6], cost):
            continue
        share = cost / usual / (fault.end if kind == "every n-th" else 1)
        if (one := next((one for one in findings if _finds(one, fault)), None)) is None:
            found.append(Found(fault.kind, share, False))
            continue
        scope = one["scope"]
        off = max(abs(scope["from_step"] - fault.begin), abs(scope["to_step"] + 1 - fault.end))
        gain = one["gain_ms"]["mid"] or 0.0  # none is claimed where the interval includes 0
        found.append(Found(fault.kind, share, True, off, abs(gain - cost) / usual))
    guilty = {f"rank{fault.rank}" for fault in faults}
    return found, sum(not guilty.issuperset(one["scope"]["ranks"]) for one in findings), kind == "none"


def table(found: Sequence[Found], wrong: Sequence[int], in_even: Sequence[int]) -> str:
    """Format the table of found faults by kind and cost."""
    cells: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for one in found:
        cells[one.kind, int(np.searchsorted(_BOUNDS, one.share))].append(one)
    heads = [
        "1–2 %",
        "2–5 %",
        "5–10 %",
        "10–30 %",
        "more",
        "spans within 5 steps",
        "costs within 4 % of a step",
    ]
    lines = [f"| a fault costs, of a step | {' | '.join(heads)} |", "| --- |" + " --: |" * len(heads)]
    for kind in dict.fromkeys(_FAULTS):
        rows = [cells[kind, at] for at in range(1, len(_BOUNDS) + 1)]
        if not any(rows):
            continue
        ours = [one for row in rows for one in row if one.is_found]
        columns = [f"{sum(one.is_found for one in row)} of {len(row)}" for row in rows]
        if kind == "every n-th":
            columns += ["–", "–"]
        else:
            columns += [f"{sum(one.span <= 5 for one in ours)} of {len(ours)}"]
            columns += [f"{sum(one.cost <= 0.04 for one in ours)} of {len(ours)}"]
        lines.append(f"| {kind} | {' | '.join(columns)} |")
    of_all = [f"{sum(map(bool, one))} of {len(one)} jobs" for one in (wrong, in_even)]
    return "\n".join([*lines, "", f"Another rank is named in {of_all[0]} with a fault, {of_all[1]} without."])


#: What the table is of, for docs/dev/accuracy.md.
_ABOUT = """made logs of 8 to 1,024 ranks and 150 to 2,500 steps, in seven layouts of columns, with sixteen kinds of noise (tails,
stalls, drift, sequences of other lengths, other hosts). Faults are of 1 to 100 % of a step, from 5 steps on; one of which
no column shows a quarter is not counted. The jobs are an event model that shares nothing with the diagnosis. Found are:
"""  # noqa: E501


def about_and_table(n_jobs: int, first: int = 2000) -> str:
    """Write a paragraph about some jobs, and their table."""
    found: list[Found] = []
    wrong: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(first, first + n_jobs):
        of_job, others, is_even = trial(seed)
        found += of_job
        wrong[is_even].append(others)
    return f"{n_jobs} {_ABOUT}\n{table(found, wrong[False], wrong[True])}"
