"""A simulated caching allocator and training loop, and the snapshots that PyTorch would write of them.

The loop knows what each of its tensors is, so who holds memory at the peak is known by definition: `held` is
what was alive when the sum of all requests was largest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

_TORCH = "/env/lib/python3.11/site-packages/torch"
_SMALL, _SMALL_SEGMENT, _LARGE_SEGMENT = 1 << 20, 2 << 20, 20 << 20

Frames = list[dict[str, Any]]


def frames(*calls: tuple[str, int, str]) -> Frames:
    """Return a stack, the innermost call first, with C++ around it as PyTorch records it."""
    inner = {"filename": "??", "line": 0, "name": "at::detail::empty_cuda"}
    return [inner, *({"filename": file, "line": line, "name": name} for file, line, name in calls)]


MADE = frames(
    (f"{_TORCH}/nn/modules/linear.py", 105, "__init__"), ("/home/u/model.py", 9, "__init__"),
)  # fmt: skip
FORWARD = frames(
    (f"{_TORCH}/nn/modules/linear.py", 125, "forward"),
    (f"{_TORCH}/nn/modules/module.py", 1750, "_call_impl"),
    ("/home/u/model.py", 17, "forward"),
    (f"{_TORCH}/nn/modules/module.py", 1750, "_call_impl"),
    ("/home/u/train.py", 40, "<module>"),
)  # fmt: skip
BACKWARD = frames(
    ("??", 0, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"),
    ("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
)  # fmt: skip
UPDATE = frames(
    (f"{_TORCH}/optim/adam.py", 180, "_init_group"), (f"{_TORCH}/optim/optimizer.py", 493, "wrapper"),
    ("/home/u/train.py", 44, "<module>"),
)  # fmt: skip
ZERO = frames((f"{_TORCH}/optim/optimizer.py", 960, "zero_grad"), ("/home/u/train.py", 41, "<module>"))


class Allocator:
    """Places blocks by best fit, splits and merges them, and writes down what it does."""

    def __init__(self, *, stacks_of_frees: bool = True) -> None:
        self.stacks_of_frees = stacks_of_frees
        self.segments: dict[int, list[list[Any]]] = {}  # address: blocks of size, requested bytes, stack
        self.trace: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, str]] = {}  # requested bytes and what it is
        self.peak, self.held = 0, Counter[str]()
        self._time_us = 1_700_000_000_000_000

    def allocate(self, n_bytes: int, what: str, stack: Frames) -> int:
        """Return the address of a new block."""
        size = -(-n_bytes // 512) * 512
        fitting = [
            (block[0], segment, i)
            for segment, blocks in self.segments.items()
            for i, block in enumerate(blocks)
            if block[1] is None and block[0] >= size
        ]
        if not fitting:
            whole = (
                _SMALL_SEGMENT if size <= _SMALL else max(_LARGE_SEGMENT, -(-size // (2 << 20)) * (2 << 20))
            )
            segment = 0x7F0000000000 + (len(self.segments) << 32)
            self.segments[segment] = [[whole, None, []]]
            self._record("segment_alloc", segment, whole, stack)
            fitting = [(whole, segment, 0)]
        whole, segment, i = min(fitting)
        blocks = self.segments[segment]
        blocks[i : i + 1] = [[size, n_bytes, stack], *([[whole - size, None, []]] if whole > size else [])]
        address = segment + sum(int(block[0]) for block in blocks[:i])
        self._record("alloc", address, n_bytes, stack)
        self.alive[address] = n_bytes, what
        if sum(n for n, _ in self.alive.values()) > self.peak:
            self.peak, self.held = 0, Counter()
            for n, name in self.alive.values():
                self.peak += n
                self.held[name] += n
        return address

    def free(self, address: int, stack: Frames) -> None:
        """Free a block, and merge it with its free neighbours."""
        n_bytes, _ = self.alive.pop(address)
        segment = max(each for each in self.segments if each <= address)
        blocks, at = self.segments[segment], segment
        for block in blocks:
            if at == address:
                told = stack if self.stacks_of_frees else block[2]
                self._record("free_requested", address, n_bytes, told)
                self._record("free_completed", address, n_bytes, told)
                block[1:] = [None, []]
                break
            at += block[0]
        for i in range(len(blocks) - 1, 0, -1):
            if blocks[i][1] is None and blocks[i - 1][1] is None:
                blocks[i - 1][0] += blocks.pop(i)[0]

    def _record(self, action: str, address: int, n_bytes: int, stack: Frames) -> None:
        self._time_us += 10
        self.trace.append({
            "action": action, "addr": address, "size": n_bytes, "stream": 0, "time_us": self._time_us,
            "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": list(stack),
        })  # fmt: skip

    @property
    def reserved(self) -> int:
        return sum(int(block[0]) for blocks in self.segments.values() for block in blocks)

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        """Return the snapshot, with only the `last` entries of the history."""
        segments = []
        for address, blocks in self.segments.items():
            at, listed = address, []
            for size, n_bytes, stack in blocks:
                state = "inactive" if n_bytes is None else "active_allocated"
                listed.append({
                    "address": at, "size": size, "requested_size": n_bytes or 0, "state": state,
                    "frames": list(stack),
                })  # fmt: skip
                at += size
            segments.append({
                "device": 0, "address": address, "total_size": at - address, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
                "frames": [], "blocks": listed,
            })  # fmt: skip
        trace = self.trace if last is None else self.trace[len(self.trace) - last :]
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}
        return {
            "segments": segments, "device_traces": [trace, []], "allocator_settings": settings,
            "external_annotations": [],
        }  # fmt: skip


def train(seed: int = 0, steps: int = 3, *, stacks_of_frees: bool = True) -> Allocator:
    """Train a model of some layers with Adam, after each step of which `zero_grad` frees the gradients."""
    rng, device = random.Random(seed), Allocator(stacks_of_frees=stacks_of_frees)
    layers = [rng.randrange(1000, 4_000_000) for _ in range(rng.randrange(2, 6))]
    for n_bytes in layers:
        device.allocate(n_bytes, "parameters", MADE)
    for step in range(steps):
        saved: list[int] = []
        for n_bytes in layers:
            scratch = device.allocate(n_bytes // 3 + 7, "temporary", FORWARD)
            saved.append(device.allocate(2 * n_bytes + rng.randrange(99), "activations", FORWARD))
            device.free(scratch, FORWARD)
        gradients: list[int] = []
        for n_bytes in reversed(layers):
            flowing = device.allocate(n_bytes // 2 + 5, "temporary", BACKWARD)
            gradients.append(device.allocate(n_bytes, "gradients", BACKWARD))
            device.free(saved.pop(), BACKWARD)
            device.free(flowing, BACKWARD)
        for n_bytes in layers:
            if step == 0:
                device.allocate(2 * n_bytes, "optimizer state", UPDATE)
            device.free(device.allocate(n_bytes, "temporary", UPDATE), UPDATE)
        for address in gradients:
            device.free(address, ZERO)
    return device


def by_addition(events: Sequence[tuple[int, int]]) -> int:
    """Return the largest sum of changes of bytes, each with its total after, checked event by event."""
    totals = [total for _, total in events]
    running = totals[0] - events[0][0]
    for change, total in events:
        running += change
        assert running == total
    return max(totals)
