"""Small jobs of every system, and ways to damage their files: what `test_mutations` runs the program on."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

Mutation = Callable[[random.Random, bytes], bytes]

_NUMBERS = (
    b"-1", b"0.5", b"1e308", b"-1e999", b"NaN", b"-Infinity", b"9223372036854775808", b"-9223372036854775809",
    b"7" * 60, b"7" * 4500, b"3200000000000000", b"1e15", b"null", b"true", b'"12"', b"[1]", b'{"a":[]}',
    b"[" * 90 + b"]" * 90,
)  # fmt: skip
_TEXTS = (
    b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\\u0000"', b'"\x1b[31m"', b'""', b'"FW."', b'"=1+1"',
    b'"Comm.t.PUSH"', b'"Comm.t.PUSH.' + b"8" * 4400 + b'"', b'"ProfilerStep#' + b"5" * 4400 + b'"',
    b'"' + b"x" * 70_000 + b'"', b'"</script>"', '"\u202e\u00b2\u0663"'.encode(), b"{}", b"3", b'["FW.a"]',
)  # fmt: skip
_NOISE = (
    b"\0",
    b"\xff\xfe",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"]",
    b",",
    b"\x1f\x8b",
    b"}" + b" " * 5000,
    b"[" * 2000,
    b'{"ph":1,' * 500,
)
_MEMBERS = (
    b"ph",
    b"name",
    b"cat",
    b"pid",
    b"tid",
    b"ts",
    b"dur",
    b"args",
    b"id",
    b"input0",
    b"rank",
    b"baseTimeNanoseconds",
)


def write_job(kind: str, folder: Path) -> None:
    """Write the small job `kind` (a key of `KINDS`) into `folder`."""
    for name, content in KINDS[kind]().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def damaged(rng: random.Random, name: str, content: bytes) -> bytes:
    """Return the content of the file `name` after one to three mutations."""
    ways: Sequence[Mutation] = _BYTES
    if name.endswith((".json", ".gz")):
        ways = (*_BYTES, *_JSON, *_JSON)
    elif name.endswith(".gml"):
        ways = (*_BYTES, *_GML, *_GML)
    is_packed = name.endswith(".gz") and rng.random() < 0.8
    content = gzip.decompress(content) if is_packed else content
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = rng.choice(ways)(rng, content)
    return gzip.compress(content, 1) if is_packed else content


# -- the jobs ---------------------------------------------------------------------------------


def _trace(events: Sequence[dict[str, Any]], **header: Any) -> bytes:
    return json.dumps({**header, "traceEvents": events}).encode()


def _slice(name: str, ts: float, dur: float, **members: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **members}


def _byteps() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for worker in (0, 1):
        comm, operators = [], []
        for step in range(4):
            at = 10**15 + 10_000 * step + 7 * worker
            operators += [_slice("FW.a", at, 900, args={"name": "FW.a"}), _slice("BW.a", at + 1000, 800)]
            for tensor in range(2):
                name, key = f"Comm.byteps.gradient_{tensor}", str(tensor << 16)
                comm.append(_slice(name, at + 1900, 5000, tid="total", pid=name, cat="Comm"))
                comm += [
                    _slice(f"{name}.{stage}", at + 1900 + 1500 * i, 1400, tid=key, pid=name, cat="Comm")
                    for i, stage in enumerate(("PUSH", "PULL"))
                ]
        home = f"worker_{worker}/0/"
        files[home + "comm.json"] = _trace(comm)
        files[home + "temp.json"] = _trace(operators, displayTimeUnit="ms")
        files[home + "io.json"] = _trace([_slice("I/O", 10**15 + 10_000 * i - 500, 300) for i in range(4)])
        files[home + "dag.gml"] = _gml(("FW.a", "BW.a", "Comm.byteps.gradient_0", "Comm.byteps.gradient_1"))
        files[home + "gradient_name_list.txt"] = b"a_weight\na_bias\n"
    files["key_dict.txt"] = b"byteps.gradient_0: 0\nbyteps.gradient_1: 65536\n"
    return files


def _gml(names: Sequence[str]) -> bytes:
    nodes = "".join(f'  node [\n    id {i}\n    label "{name}"\n  ]\n' for i, name in enumerate(names))
    edges = "".join(f"  edge [\n    source {i}\n    target {i + 1}\n  ]\n" for i in range(len(names) - 1))
    return f"graph [\n  directed 1\n{nodes}{edges}]\n".encode()


def _kineto() -> dict[str, bytes]:
    files = {}
    for rank in (0, 1):
        events: list[dict[str, Any]] = []
        for step in range(3):
            at = 5000.25 + 1000 * step
            events += [
                _slice(f"ProfilerStep#{step}", at, 990, cat="user_annotation"),
                _slice("aten::mm", at + 10, 200, cat="cpu_op", args={"External id": 3 * step + 1}),
                _slice("cudaLaunchKernel", at + 50, 9, cat="cuda_runtime", args={"correlation": step + 1}),
                _slice(
                    "gemm", at + 90, 300, cat="kernel", tid=7, args={"stream": 7, "correlation": step + 1}
                ),
                _slice("gloo:all_reduce", at + 420, 300 + rank, cat="user_annotation", tid=2),
                {"ph": "s", "id": step, "name": "ac2g", "cat": "ac2g", "pid": 1, "tid": 1, "ts": at + 50},
                {
                    "ph": "f",
                    "id": step,
                    "name": "ac2g",
                    "cat": "ac2g",
                    "pid": 1,
                    "tid": 7,
                    "ts": at + 90,
                    "bp": "e",
                },
            ]
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        text = _trace(
            events, schemaVersion=1, distributedInfo=info, baseTimeNanoseconds=1_700_000_000 * 10**9
        )
        files[f"rank{rank}.pt.trace.json.gz"] = gzip.compress(text, 1)
    return files


def _horovod() -> dict[str, bytes]:
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": start}]
    for tensor in range(2):
        events.append({"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": f"grad/{tensor}"}})
        for step in range(3):
            at = 100 + 900 * step
            for name, begin, end in (("NEGOTIATE_ALLREDUCE", at, at + 80), ("ALLREDUCE", at + 80, at + 500)):
                events += [
                    {"ph": "B", "name": name, "ts": begin, "pid": tensor},
                    {"ph": "E", "ts": end, "pid": tensor},
                ]
    return {"timeline.json": b"[\n" + b",\n".join(map(msgspec.json.encode, events)) + b",\n"}


def _composer() -> dict[str, bytes]:
    files = {}
    for rank in (0, 1):
        events: list[dict[str, Any]] = [
            {"name": name, "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": {"value": value}}
            for name, value in (("global_rank", rank), ("clock_sync_timestamp_us", 1000 * rank))
        ]
        for step in range(3):
            events += [
                {
                    "ph": phase,
                    "name": "event/batch",
                    "cat": "event",
                    "pid": rank,
                    "tid": 1,
                    "ts": 500 * step + after,
                }
                for phase, after in (("B", 0), ("E", 450))
            ]
        files[f"ep0-ba3-rank{rank}.json"] = json.dumps(events).encode()
    return files


def _dasf() -> dict[str, bytes]:
    records = b""
    for i in range(20):
        record = {
            "name": "Compute", "phase": "X", "timestamp": 100.0 + i, "duration": 0.5, "process_id": "host",
            "thread_id": f"tcp://{i % 2}",
            "args": {"key": f"('sum-{i}', {i})", "name": "sum", "dependencies": []},
        }  # fmt: skip
        text = msgspec.msgpack.encode(record)
        records += len(text).to_bytes(8, "big") + text
    return {"host.msgpack": records}


def _chrome() -> dict[str, bytes]:
    events = [_slice(f"op{i % 4}", 10 * i, 8, args={"list": [{"x": 1}, {"y": [i]}]}) for i in range(40)]
    events += [{"ph": "i", "name": "mark", "ts": 5, "pid": 1, "tid": 1, "s": "t", "id2": {"local": "0x1"}}]
    return {"trace.json": _trace(events)}


def _graph() -> dict[str, bytes]:
    return {"dag.gml": _gml([f"FW.layer{i}" for i in range(12)])}


KINDS: dict[str, Callable[[], dict[str, bytes]]] = {
    "byteps": _byteps, "kineto": _kineto, "horovod": _horovod, "composer": _composer, "dasf": _dasf,
    "chrome": _chrome, "graph": _graph,
}  # fmt: skip


# -- the mutations ----------------------------------------------------------------------------


def _span(rng: random.Random, content: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(content) + 1)
    return begin, min(len(content), begin + rng.choice((1, 3, 30, 400)))


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _without_a_span(rng: random.Random, content: bytes) -> bytes:
    begin, end = _span(rng, content)
    return content[:begin] + content[end:]


def _with_a_span_again(rng: random.Random, content: bytes) -> bytes:
    begin, end = _span(rng, content)
    return content[:end] + content[begin:end] * rng.choice((1, 20)) + content[end:]


def _with_other_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 2, 20)) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _with_noise(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(_NOISE) + content[at:]


def _with_other_numbers(rng: random.Random, content: bytes) -> bytes:
    places = list(re.finditer(rb"-?\d+(?:\.\d+)?", content))
    for place in sorted(rng.sample(places, min(len(places), rng.choice((1, 3)))), key=lambda m: -m.start()):
        content = content[: place.start()] + rng.choice(_NUMBERS) + content[place.end() :]
    return content


def _with_other_members(rng: random.Random, content: bytes) -> bytes:
    """Give one member another value, in some events or in all."""
    member, value, share = rng.choice(_MEMBERS), rng.choice((*_NUMBERS, *_TEXTS)), rng.choice((0.05, 1.0))
    pattern = rb'("%b": ?)("(?:[^"\\]|\\.)*"|-?[\d.]+)' % member
    return re.sub(pattern, lambda m: m[1] + value if rng.random() < share else m[0], content)


def _without_a_member(rng: random.Random, content: bytes) -> bytes:
    pattern = rb'"%b": ?("(?:[^"\\]|\\.)*"|-?[\d.]+), ?' % rng.choice(_MEMBERS)
    return re.sub(pattern, lambda m: b"" if rng.random() < 0.5 else m[0], content)


def _with_more_edges(rng: random.Random, content: bytes) -> bytes:
    edges = b"".join(
        b"edge [ source %d target %d ]\n" % (rng.randrange(12), rng.randrange(12)) for _ in range(3)
    )
    return content.rstrip().removesuffix(b"]") + edges + b"]\n"


def _with_other_labels(rng: random.Random, content: bytes) -> bytes:
    label = rng.choice(
        (b"&#55296;", b"&#" + b"9" * 4400 + b";", b"&amp;nbsp;", b"()", b"[]", b"", b"FW.", b"a\x07")
    )
    return re.sub(
        rb'label "[^"]*"', lambda m: b'label "' + label + b'"' if rng.random() < 0.2 else m[0], content
    )


_BYTES: Sequence[Mutation] = (
    _cut, _without_a_span, _with_a_span_again, _with_other_bytes, _with_noise, _with_other_numbers,
)  # fmt: skip
_JSON: Sequence[Mutation] = (_with_other_members, _with_other_members, _without_a_member)
_GML: Sequence[Mutation] = (_with_more_edges, _with_other_labels)
