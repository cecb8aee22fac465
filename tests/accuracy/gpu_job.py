"""Records small training jobs of PyTorch on one GPU, each under several conditions; needs torch and a GPU.

    python3 gpu_job.py DIRECTORY [--rounds N] [--seconds S] [--only A,B]

Two ranks of the jobs called ``ddp`` share the device: side by side under CUDA's MPS
(``nvidia-cuda-mps-control -d``), else by turns, which no trace tells.
Traces lie in ``DIRECTORY/<round>/<condition>/rank<r>.pt.trace.json``. One model keeps the device busy all the
time, a smaller one waits for its host to launch; a condition changes one of them by something that is known.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_WARM_UP, _STEPS = 3, 12
_SLEEP_CYCLES_A_MS = 1_980_000  # of the clock that `torch.cuda._sleep` counts, in a busy Hopper GPU
_RANKS = 2
_WIDTH = 1536


class Condition(NamedTuple):
    """How a job differs from the plain one of its size."""

    batch: int = 40  # rows of 512 tokens
    spin_ms: float = 0.0  # a kernel more in the forward pass of the middle layer
    loader_ms: float = 0.0  # what the loader sleeps
    frames: str = ""  # 64 MB of input more: pageable, pinned, or prefetched
    item: str = ""  # who asks the device for a number: each step, or each layer
    synchronize: bool = False  # after each layer
    empty_cache: bool = False  # after each step
    python_ms: float = 0.0  # what the host does in an annotation of its own in each layer
    save_every: int = 0  # steps between checkpoints
    optimizer: str = "foreach"
    runner: str = "eager"  # graph: the step is captured, compile: the model is compiled
    dtype: str = "bfloat16"
    layers: int = 3


_TINY = Condition(batch=1)
CONDITIONS = {
    "busy": Condition(),
    "busy_batch": Condition(batch=80),
    "busy_spin5": Condition(spin_ms=5),
    "busy_spin10": Condition(spin_ms=10),
    "busy_item": Condition(item="step"),
    "busy_items": Condition(item="layer"),
    "busy_loader": Condition(loader_ms=10),
    "busy_starves": Condition(loader_ms=60),
    "busy_pageable": Condition(frames="pageable"),
    "busy_pinned": Condition(frames="pinned"),
    "busy_prefetch": Condition(frames="prefetched"),
    "busy_empty_cache": Condition(empty_cache=True),
    "busy_saves": Condition(save_every=4),
    "busy_float32": Condition(dtype="float32"),
    "busy_layers": Condition(layers=5),
    "tiny": _TINY,
    "tiny_spin1": _TINY._replace(spin_ms=1),
    "tiny_spin20": _TINY._replace(spin_ms=20),
    "tiny_items": _TINY._replace(item="layer"),
    "tiny_synchronize": _TINY._replace(synchronize=True),
    "tiny_python": _TINY._replace(python_ms=1),
    "tiny_loop": _TINY._replace(optimizer="loop"),
    "tiny_fused": _TINY._replace(optimizer="fused"),
    "tiny_loader": _TINY._replace(loader_ms=10),
    "tiny_graph": _TINY._replace(runner="graph"),
    "tiny_compile": _TINY._replace(runner="compile"),
}


class Parallel(NamedTuple):
    """How a job of two ranks differs from the plain one."""

    spin_ms: float = 0.0  # more in the forward pass of rank 1
    loader_ms: float = 0.0  # what rank 1's loader sleeps
    bucket_mb: float = 40
    forward_ms: float = 1.5  # a layer
    backward_ms: float = 3.0


PARALLEL = {
    "ddp": Parallel(),
    "ddp_middle": Parallel(bucket_mb=20),
    "ddp_small": Parallel(bucket_mb=1),
    "ddp_one": Parallel(bucket_mb=1000),
    "ddp_spin": Parallel(spin_ms=10),
    "ddp_loader": Parallel(loader_ms=40),
    "ddp_backward": Parallel(backward_ms=6),
}


def main() -> None:
    """Record all conditions, round after round, until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--only", default="")
    parser.add_argument("--rank", type=int)
    args = parser.parse_args()
    wanted = set(args.only.split(",")) if args.only else {*CONDITIONS, *PARALLEL}
    if args.rank is not None:
        _rank(args.directory, args.rank, args.rounds, wanted)
        return
    torch: Any = importlib.import_module("torch")  # it is not among what the project requires
    args.directory.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + args.seconds
    names = [name for name in CONDITIONS if name in wanted]
    with contextlib.suppress(subprocess.TimeoutExpired):
        if wanted & {*PARALLEL}:
            _ranks(args.directory, args.rounds, wanted, args.seconds / 4)
    for turn, name in [(turn, name) for turn in range(args.rounds) for name in names]:
        if time.monotonic() > ends:
            print("out of time before", turn, name, flush=True)
            break
        began = time.monotonic()
        try:
            _record(torch, CONDITIONS[name], args.directory / str(turn) / name)
        except Exception:
            traceback.print_exc()
        print(turn, name, f"{time.monotonic() - began:.1f} s", flush=True)


def _record(torch: Any, condition: Condition, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    job = _Job(torch, condition)
    for _ in range(5):
        job.step()
    torch.cuda.synchronize()
    _traced(torch, job.step, path / "rank0.pt.trace.json")
    del job
    torch._dynamo.reset() if condition.runner == "compile" else None
    torch.cuda.empty_cache()


def _traced(torch: Any, step: Any, path: Path) -> None:
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(
        activities=activities,
        schedule=profiler.schedule(wait=0, warmup=_WARM_UP, active=_STEPS),
        record_shapes=True,  # which tell the bytes of the buckets
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as running:
        for _ in range(_WARM_UP + _STEPS):
            step()
            running.step()


class _Job:
    """A language model, its loader and its optimizer."""

    def __init__(self, torch: Any, condition: Condition) -> None:
        self.torch, self.condition = torch, condition
        self.tokens = 512 if condition.batch > 1 else 64
        self.model = _model(torch, condition)
        parameters = list(self.model.parameters())
        kinds = {"foreach": {}, "loop": {"foreach": False}, "fused": {"fused": True}}
        captured = {"capturable": True} if condition.runner == "graph" else {}
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, **kinds[condition.optimizer], **captured)
        self.side = torch.cuda.Stream()
        self.loader = self._loaded()
        self.next: Any = None
        self.n_steps = 0
        if condition.runner == "compile":
            self.model = torch.compile(self.model)
        if condition.runner == "graph":
            self._capture()

    def step(self) -> None:
        torch, condition = self.torch, self.condition
        ids, frames = self._input()
        if condition.runner == "graph":
            self.ids.copy_(ids)
            self.graph.replay()
            return
        self.optimizer.zero_grad()
        loss = self._loss(ids, frames)
        loss.backward()
        self.optimizer.step()
        if condition.item:
            loss.item()
        if condition.empty_cache:
            torch.cuda.empty_cache()
        self.n_steps += 1
        if condition.save_every and self.n_steps % condition.save_every == 0:
            with torch.profiler.record_function("save_checkpoint"), tempfile.TemporaryFile() as file:
                torch.save(self.model.state_dict(), file)

    def _loss(self, ids: Any, frames: Any) -> Any:
        logits = self.model(ids)
        loss = self.torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        return loss if frames is None else loss + 0 * frames[0, 0]

    def _input(self) -> tuple[Any, Any]:
        if self.condition.frames != "prefetched":
            return self._moved(next(self.loader))
        if self.next is None:
            self.next = self._ahead()
        current = self.torch.cuda.current_stream()
        current.wait_stream(self.side)
        ids, frames = self.next
        frames.record_stream(current)
        self.next = self._ahead()
        return ids, frames

    def _ahead(self) -> tuple[Any, Any]:
        with self.torch.cuda.stream(self.side):
            return self._moved(next(self.loader))

    def _moved(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        ids, frames = batch
        later = self.condition.frames in ("pinned", "prefetched")
        moved = None if frames is None else frames.to("cuda", non_blocking=later)
        return ids.to("cuda", non_blocking=True), moved

    def _loaded(self) -> Iterator[Any]:
        torch, condition = self.torch, self.condition
        ids = torch.randint(0, 1000, (condition.batch, self.tokens)).pin_memory()
        frames: Any = torch.rand(16, 1 << 20) if condition.frames else None
        if condition.frames in ("pinned", "prefetched"):
            frames = frames.pin_memory()

        def item(_: Any, __: int) -> Any:
            time.sleep(condition.loader_ms / 1e3)
            return ids, frames

        members = {"__getitem__": item, "__len__": lambda _: 1 << 20}
        dataset = type("Made", (torch.utils.data.Dataset,), members)()
        return iter(torch.utils.data.DataLoader(dataset, batch_size=None))

    def _capture(self) -> None:
        torch = self.torch
        self.ids = torch.randint(0, 1000, (self.condition.batch, self.tokens), device="cuda")

        def once() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self._loss(self.ids, None).backward()
            self.optimizer.step()

        with torch.cuda.stream(self.side):
            for _ in range(3):
                once()
        torch.cuda.current_stream().wait_stream(self.side)
        self.graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self._loss(self.ids, None).backward()
            self.optimizer.step()


def _model(torch: Any, condition: Condition) -> Any:
    nn = torch.nn

    def init(block: Any, number: int) -> None:
        super(blocks, block).__init__()
        block.number = number
        block.first, block.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        block.qkv, block.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        block.up, block.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(block: Any, values: Any) -> Any:
        heads = block.qkv(block.first(values)).unflatten(-1, (3, 24, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        values = values + block.out(attended.transpose(1, 2).flatten(2))
        values = values + block.down(nn.functional.gelu(block.up(block.second(values))))
        if condition.spin_ms and block.number == 1:
            torch.cuda._sleep(int(condition.spin_ms * _SLEEP_CYCLES_A_MS))
        if condition.item == "layer":
            values[0, 0, 0].item()
        if condition.synchronize:
            torch.cuda.synchronize()
        if condition.python_ms:
            with torch.profiler.record_function("extra"):
                time.sleep(condition.python_ms / 1e3)
        return values

    blocks: Any = type("Block", (nn.Module,), {"__init__": init, "forward": forward})
    layers = [blocks(number) for number in range(condition.layers)]
    model = nn.Sequential(nn.Embedding(1000, _WIDTH), *layers, nn.Linear(_WIDTH, 1000))
    return model.to("cuda", getattr(torch, condition.dtype))


def _ranks(directory: Path, rounds: int, wanted: set[str], seconds: float) -> None:
    """Record the jobs of two ranks."""
    # NCCL refuses two ranks on one device of one host; each says that its host is another one.
    over_loopback = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
    arguments = [str(directory), "--rounds", str(rounds), "--only", ",".join(wanted)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--rank", str(rank)],
            env=os.environ | over_loopback | {"NCCL_HOSTID": f"host{rank}"},
        )
        for rank in range(_RANKS)
    ]
    ends = time.monotonic() + seconds
    try:
        for process in processes:
            process.wait(max(1.0, ends - time.monotonic()))
    finally:
        for process in processes:
            process.kill()


def _rank(directory: Path, rank: int, rounds: int, wanted: set[str]) -> None:
    torch: Any = importlib.import_module("torch")
    torch.cuda.set_device(0)
    store = f"file://{directory.resolve()}/store"
    torch.distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=_RANKS)
    for turn, name in [(turn, name) for turn in range(rounds) for name in PARALLEL if name in wanted]:
        path = directory / str(turn) / name
        path.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        step = _parallel_step(torch, PARALLEL[name], rank)
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        torch.distributed.barrier()
        _traced(torch, step, path / f"rank{rank}.pt.trace.json")
        if rank == 0:
            print(turn, name, f"{time.monotonic() - began:.1f} s", flush=True)
    torch.distributed.destroy_process_group()


def _parallel_step(torch: Any, condition: Parallel, rank: int) -> Any:
    """Return one step of a job whose layers take a known time on the device, both ways."""
    mine = Parallel() if rank == 0 else condition
    spin = torch.cuda._sleep

    def forward(_: Any, values: Any) -> Any:
        spin(int(condition.forward_ms * _SLEEP_CYCLES_A_MS))
        return values.clone()

    def backward(_: Any, gradient: Any) -> Any:
        spin(int(condition.backward_ms * _SLEEP_CYCLES_A_MS))
        return gradient

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    emulated: Any = type("Emulated", (torch.autograd.Function,), members)
    layer = type("Layer", (torch.nn.Module,), {"forward": lambda _, values: emulated.apply(values)})
    layers = [one for _ in range(4) for one in (layer(), torch.nn.Linear(_WIDTH, _WIDTH))]
    model = torch.nn.Sequential(*layers).to("cuda")
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=condition.bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    inputs = torch.ones(4, _WIDTH, device="cuda")

    def step() -> None:
        with torch.profiler.record_function("enumerate(DataLoader)#input"):
            time.sleep(mine.loader_ms / 1e3)
        optimizer.zero_grad()
        if mine.spin_ms:
            spin(int(mine.spin_ms * _SLEEP_CYCLES_A_MS))
        parallel(inputs).sum().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
