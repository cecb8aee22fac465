"""Snapshots of an allocator: damaged and hostile pickles execute nothing and end in a line."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any

import mutations
import pytest

from conftest import THOROUGH, run_cli
from oracles.allocator import train

#: Opcodes: an empty dictionary with the key of a snapshot, whose value follows.
HEAD = b"\x80\x04}(\x8c\x08segments"
TRACES = b"\x80\x04}(\x8c\x0ddevice_traces"


class Call:
    """Something that a pickle of it calls when it is read in full."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("exit 7",)


def answer(path: Path, content: bytes) -> tuple[int, str, str]:
    path.write_bytes(content)
    return run_cli("statistic", path, "--sub_option", "memory", "--no-progress", "--format", "json")


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"segments": [], "device_traces": [[Call()]]}),
        pickle.dumps({"segments": Call()}, 2),
        HEAD + b"cos\nsystem\n(\x8c\x06exit 7tRu.",
        HEAD + b"\x8c\x02os\x8c\x06system\x93\x8c\x06exit 7\x85Ru.",
        HEAD + b"]" + b"r\xff\xff\xff\x7fu.",  # room in the memo for 2^31 objects
        HEAD + b"\x8d" + struct.pack("<Q", 1 << 60) + b"u.",
        HEAD + b"\x8b" + struct.pack("<i", 1 << 30) + b"u.",
        HEAD + b"]" + b"(" * 100_000 + b"u.",
        b"\x80\x04segments.",
        HEAD,
        HEAD + b"Nu.",
        pickle.dumps({"segments": {}, "device_traces": 3}),
        pickle.dumps([{"segments": 1}]),
    ],
)
def test_a_hostile_pickle_is_refused_in_a_line(tmp_path: Path, content: bytes) -> None:
    code, out, error = answer(tmp_path / "rank0.pickle", content)
    assert (code, out) == (1, "")
    assert error.count("\n") == 1, error


@pytest.mark.parametrize("depth", [10, 300_000])
def test_nested_lists_need_no_recursion(tmp_path: Path, depth: int) -> None:
    code, _, error = answer(tmp_path / "rank0.pickle", TRACES + b"]" * depth + b"a" * (depth - 1) + b"u.")
    assert (code, error.count("\n")) == (1, 1)


def test_a_list_is_read_once_and_devices_are_few(tmp_path: Path) -> None:
    blocks = [{"size": 512, "state": "active_allocated"}]
    history = [{"action": "alloc", "addr": 4096, "size": 1024}]
    histories = [history] * 9 + [[history[0].copy()] for _ in range(200)]
    document = {"segments": [{"blocks": blocks} for _ in range(9)], "device_traces": histories}
    devices = json.loads(answer(tmp_path / "rank0.pickle", pickle.dumps(document))[1])["memory"]
    assert ([device["peak_bytes"] for device in devices[:2]], len(devices)) == ([1536, 1024], 128)


def test_huge_and_odd_numbers_are_no_bytes(tmp_path: Path) -> None:
    document = train().snapshot()
    odd: tuple[Any, ...] = (1 << 63, -5, 1.5, "7", None, [], {}, (1, 2), True)
    for i, value in enumerate(odd):
        document["device_traces"][0][i]["size"] = value
        document["device_traces"][0][-i]["addr"] = value
        document["segments"][i % len(document["segments"])]["total_size"] = value
    code, _, error = answer(tmp_path / "rank0.pickle", pickle.dumps(document))
    assert code == 0, error


def test_each_damaged_snapshot_gives_an_answer_or_a_line(tmp_path: Path) -> None:
    found: list[str] = []
    sys.addaudithook(
        lambda event, _: found.append(event) if event in ("pickle.find_class", "os.system") else None
    )
    documents = [train(seed, 2).snapshot() for seed in range(3)]
    for seed in range(5000 if THOROUGH else 60):
        rng = random.Random(seed)
        content = pickle.dumps(rng.choice(documents), rng.choice((2, 4, 5)))
        found.clear()
        damaged = mutations.damaged(rng, "rank0.pickle", content)
        found.clear()
        code, _, error = answer(tmp_path / "rank0.pickle", damaged)
        assert not found, seed
        assert code in (0, 1) and "Traceback" not in error, (seed, error)
        assert code == 0 or error.count("\n") == 1, (seed, error)
