"""Records one small training job of PyTorch under several conditions, one after the other; needs torch.

    python3 ddp_job.py DIRECTORY RANK

Every rank of two runs it; the traces lie in ``DIRECTORY/<round>/<condition>/rank<r>.pt.trace.json``.
Computation is sleep inside operators, as if on a device, so that a machine shared with other work disturbs
it little and a condition changes it by a known factor. DDP, its buckets and gloo over loopback are real.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

_RANKS = 2
#: What else runs on the machine changes from minute to minute; so all conditions are recorded several times.
_ROUNDS = 4
_LAYERS, _WIDTH = 4, 1024
_WARM_UP, _STEPS = 3, 20
#: How long a layer takes (seconds).
_FORWARD, _BACKWARD = 0.008, 0.016


class Condition(NamedTuple):
    """How a job differs from the plain one."""

    forward: float = 1  # factors
    backward: float = 1
    rank1: float = 1  # of both, on rank 1
    input_s: float = 0.002  # a step's loading of input on rank 1
    bucket_mb: float = 25


CONDITIONS = {
    "base": Condition(),
    "backward": Condition(backward=2),
    "batch": Condition(forward=2, backward=2),
    "slow": Condition(rank1=1.6),
    "input": Condition(input_s=0.042),
    "small": Condition(bucket_mb=2),
    "small_slow": Condition(rank1=1.6, bucket_mb=2),
    "middle": Condition(bucket_mb=8),
}


def main() -> None:
    """Join the other rank and record all conditions."""
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch: Any = importlib.import_module("torch")  # it is not among what the project requires
    torch.set_num_threads(1)
    store = f"file://{directory.resolve()}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=_RANKS)
    for turn in range(_ROUNDS):
        for name, condition in CONDITIONS.items():
            path = directory / str(turn) / name / f"rank{rank}.pt.trace.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            _record(torch, rank, condition, path)
    torch.distributed.destroy_process_group()


def _record(torch: Any, rank: int, condition: Condition, path: Path) -> None:
    factor = condition.rank1 if rank == 1 else 1
    model = _model(torch, _FORWARD * condition.forward * factor, _BACKWARD * condition.backward * factor)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=condition.bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    inputs = torch.ones(4, _WIDTH)
    profiler = torch.profiler
    schedule = profiler.schedule(wait=0, warmup=_WARM_UP, active=_STEPS)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=schedule,
        record_shapes=True,  # which tell the bytes of the buckets
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as running:
        for _ in range(_WARM_UP + _STEPS):
            with profiler.record_function("enumerate(DataLoader)#input"):
                time.sleep(condition.input_s if rank == 1 else Condition().input_s)
            optimizer.zero_grad()
            parallel(inputs).sum().backward()
            optimizer.step()
            running.step()


def _model(torch: Any, forward_s: float, backward_s: float) -> Any:
    """Return layers whose computation takes so long, each way."""

    def forward(_: Any, values: Any) -> Any:
        time.sleep(forward_s)
        return values.clone()

    def backward(_: Any, gradient: Any) -> Any:
        time.sleep(backward_s)
        return gradient

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    emulated = type("Emulated", (torch.autograd.Function,), members)

    def layer_forward(_: Any, values: Any) -> Any:
        return emulated.apply(values)  # type: ignore[attr-defined]

    layer = type("Layer", (torch.nn.Module,), {"forward": layer_forward})
    layers = [one for _ in range(_LAYERS) for one in (layer(), torch.nn.Linear(_WIDTH, _WIDTH))]
    return torch.nn.Sequential(*layers)


if __name__ == "__main__":
    main()
