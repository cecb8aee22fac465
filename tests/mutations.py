"""Small jobs of every system, and ways to damage their files: what `fuzz_runs` runs the program on."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import random
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from made_hangs import Op, Run, small_job
from made_jobs import Job, composer, data_parallel, horovod
from nsight_export import two_ranks
from packets import two_threads

from conftest import run_cli
from make import dasf_bytes, dasf_compute
from traffic import NEW, Connection, pcap, train

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
    b'"' + b"a_1." * 9000 + b'"', b'"void ' + b"apply<" * 9000 + b'"',
)  # fmt: skip
_NOISE = (
    b"\0", b"\xff\xfe", b'"', b"\\", b"{", b"}", b"]", b",", b"\x1f\x8b", b"}" + b" " * 5000, b"[" * 2000,
    b'{"ph":1,' * 500,
)  # fmt: skip
_MEMBERS = (
    b"ph", b"name", b"cat", b"pid", b"tid", b"ts", b"dur", b"args", b"id", b"input0", b"rank",
    b"baseTimeNanoseconds", b"step", b"step_ms", b"collective_seq_id", b"state", b"profiling_name",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0.5, 1 << 70, -(1 << 63), float("nan"), float("inf"), "", "12", "\ud800", "x" * 3000,
    b"b", [], {}, (), [[]], {"a": [1]}, {1: 2}, [[1 << 62] * 4] * 4, "9" * 5000, "nccl:send 0->99999999",
    "[0, 1]",
)  # fmt: skip


def write_job(kind: str, folder: Path) -> None:
    """Write the small job `kind` (a key of `KINDS`) into `folder`."""
    for name, content in _files_of(kind).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@functools.cache
def _files_of(kind: str) -> dict[str, bytes]:
    return KINDS[kind]()


def damage(rng: random.Random, job: Path) -> None:
    """Damage one or two files of a job, and now and then its directory."""
    files = sorted(path for path in job.rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 2)))):
        path.write_bytes(damaged(rng, path.name, path.read_bytes()))
    if rng.random() < 0.1:
        rng.choice(_DIRECTORY)(rng, rng.choice(files))


def damage_visibly(rng: random.Random, job: Path) -> None:
    """Damage one file of a job so that a reader can see what it cannot read: nothing goes, or turns empty."""
    path = rng.choice(sorted(path for path in job.rglob("*") if path.is_file()))
    before, suffix = path.read_bytes(), path.suffix
    ways: Sequence[Mutation] = (_with_other_bytes, _with_noise)
    if suffix == ".jsonl":
        ways = (_with_other_numbers,)
    elif suffix == ".csv":
        ways = (_with_other_numbers, _with_noise_in_rows)
    elif path.name.startswith("dump_rank"):
        ways = (_with_other_numbers, _with_other_members)
    elif suffix in (".json", ".gz"):
        is_closed = suffix == ".gz" or before.rstrip().endswith((b"]", b"}"))
        ways = (*ways, *[_cut] * is_closed, _with_other_numbers, _with_other_members)
    elif suffix == ".pickle":
        ways = (partial(_with_other_values, only_odd=True),)
    elif suffix in (".sqlite", ".db"):
        ways = (partial(_with_other_cells, only_odd=True),)
    path.write_bytes(_mutated(rng, path.name, before, [partial(_seen, rng.choice(ways))]))


#: Values of cells and times that may be empty, and the phase of a sample, which has no length.
_UNSEEN = re.compile(rb'null|NaN|"P"|\xa1P')


def _seen(way: Mutation, rng: random.Random, content: bytes) -> bytes:
    changed = way(rng, content)
    return content if len(_UNSEEN.findall(changed)) > len(_UNSEEN.findall(content)) else changed


def damaged(rng: random.Random, name: str, content: bytes) -> bytes:
    """Return the content of the file `name` after one to three mutations."""
    ways: Sequence[Mutation] = _BYTES
    if name.endswith((".json", ".gz", ".jsonl")):
        ways = (*_BYTES, *_JSON, *_JSON)
    elif name.endswith(".pickle"):
        ways = (*_BYTES, *_PICKLE)
    elif name.endswith((".sqlite", ".db")):
        ways = (*_BYTES, *(_with_other_cells,) * 8)
    elif name.endswith(".gml"):
        ways = (*_BYTES, *_GML, *_GML)
    elif name.endswith(".msgpack"):
        ways = (*_BYTES, *(_with_other_records,) * 8)
    return _mutated(rng, name, content, [rng.choice(ways) for _ in range(rng.choice((1, 1, 2, 3)))])


def _mutated(rng: random.Random, name: str, content: bytes, ways: Sequence[Mutation]) -> bytes:
    is_packed = name.endswith(".gz") and rng.random() < 0.8
    content = gzip.decompress(content) if is_packed else content
    for way in ways:
        content = way(rng, content)
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
    return files


def _gml(names: Sequence[str]) -> bytes:
    nodes = "".join(f'  node [\n    id {i}\n    label "{name}"\n  ]\n' for i, name in enumerate(names))
    edges = "".join(f"  edge [\n    source {i}\n    target {i + 1}\n  ]\n" for i in range(len(names) - 1))
    return f"graph [\n  directed 1\n{nodes}{edges}]\n".encode()


def _written(write: Callable[[Path, Job], Path], ranks: int = 2) -> dict[str, bytes]:
    """Return the files of a job of three steps."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "job"), Job(ranks=ranks, steps=3))
        return {path.name: path.read_bytes() for path in Path(folder, "job").iterdir()}


def _kineto() -> dict[str, bytes]:
    files = _written(data_parallel)
    return {f"{name}.gz": gzip.compress(content, 1) for name, content in files.items()}


def _dasf() -> dict[str, bytes]:
    tasks = [dasf_compute(100.0 + i, 0.5, key=f"('sum-{i}', {i})", dependencies=[]) for i in range(20)]
    return {
        "host.msgpack": dasf_bytes(*(task | {"thread_id": f"tcp://{i % 2}"} for i, task in enumerate(tasks)))
    }


def _chrome() -> dict[str, bytes]:
    events = [_slice(f"op{i % 4}", 10 * i, 8, args={"list": [{"x": 1}, {"y": [i]}]}) for i in range(40)]
    events += [{"ph": "i", "name": "mark", "ts": 5, "pid": 1, "tid": 1, "s": "t", "id2": {"local": "0x1"}}]
    events += [{"ph": ph, "id": 1, "name": "to", "cat": "to", "pid": 1, "tid": 1, "ts": ts}
               for ph, ts in (("s", 12), ("f", 25))]  # fmt: skip
    return {"trace.json": _trace(events)}


def _graph() -> dict[str, bytes]:
    return {"dag.gml": _gml([f"FW.layer{i}" for i in range(12)])}


def _pipeline() -> dict[str, bytes]:
    events: list[dict[str, Any]] = []
    for stage in (0, 1):
        for kind, thread in (("forward", 2 * stage), ("pp-comm", 2 * stage + 1)):
            name = {"name": f"stage {stage} {kind}"}
            events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": name})
        for step in range(3):
            at, args = 5000 * step + 700 * stage, {"step": step}
            message = "forward-send" if stage == 0 else "forward-recv"
            events += [
                _slice("forward-compute", at + 100, 400, pid=0, tid=2 * stage, args=args),
                _slice(message, 5000 * step + 500, 200, pid=0, tid=2 * stage + 1, args=args),
                _slice("backward-compute", at + 1500, 600, pid=0, tid=2 * stage, args=args),
            ]
    return {"timeline.json": _trace(events)}


def _recorder(name: str, text: Callable[[Any], bytes]) -> dict[str, bytes]:
    """Return the dumps of three ranks that hang: rank 1 makes no call after its twelfth one."""
    job = small_job(3)
    job.programs[0].insert(9, Op("0", "send", peer=2))
    job.programs[2].insert(9, Op("0", "recv", peer=0))
    run = Run(job, random.Random(1), stops={1: 12})
    return {name.format(rank): text(run.document(rank)) for rank in job.programs}


def _step_log() -> dict[str, bytes]:
    rows = [
        {"step": step, "ts": 1_700_000_000.5 + step, "step_ms": 900.5 + rank + 90 * (step > 20),
         "data_ms": 40.0, "comm_ms": 200.0 + 90 * (step > 20) * (rank != 1), "loss": 2.0, "rank": rank}
        for rank in (0, 1, 2)
        for step in range(40)
    ]  # fmt: skip
    files = {}
    for rank in (0, 1, 2):
        lines = [json.dumps(row) for row in rows if row["rank"] == rank]
        files[f"rank_{rank}.jsonl"] = "\n".join(lines).encode() + b"\n"
    return files


def _step_table() -> dict[str, bytes]:
    rows = [(step, rank, 0.9 + 0.1 * (step > 25), 0.1, "a") for step in range(40) for rank in (0, 1)]
    lines = ["step,rank,step_time,data_time,text", *(",".join(map(str, row)) for row in rows)]
    return {"metrics.csv": "\n".join(lines).encode()}


def _network() -> dict[str, bytes]:
    log = "byteps.gradient_0 partitioned to 2 part(s), total_len=5096, key_range=[65536, 65537] rank=0\n"
    files = {name: content for name, content in _files_of("byteps").items() if name.startswith("worker_0")}
    files["worker_0.log"] = (
        f"[x] Declared tensor byteps.gradient_0, declared key: 1 rank=0\n[x] {log}".encode()
    )
    line = "[02:19:41] server.cc:1: push key=65536\t sender=9\t size=4096\n"
    files["server_0.key_log.txt"] = line.encode() * 3
    files["server_0.txt"] = b"1\tserver_process_pull\t1000\n1\tserver_send_pull_response\t4000\n" * 3
    for worker in (0, 1):
        connection = Connection((f"10.0.0.{worker + 1}", 40_000), ("10.0.0.9", 9000))
        keys = [(1 << 16, 4096), (1 << 16 | 1, 1000)]
        train(connection, NEW, server=8, worker=9 + 2 * worker, keys=keys, steps=2, start_ns=10**18)
        files[f"worker_{worker}.pcap"] = b"".join(pcap(connection.packets, ns=True))
    return files


@functools.cache
def _digest() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_job("byteps", Path(folder, "job"))
        run_cli("statistic", Path(folder, "job"), "--save", Path(folder, "job.digest.json"), "--jobs", "1")
        return {"job.digest.json": Path(folder, "job.digest.json").read_bytes()}


def _nsight() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return {"report.sqlite": two_ranks(Path(folder, "report.sqlite"), 3).read_bytes()}


def _perfetto() -> dict[str, bytes]:
    return {"all.pftrace": two_threads().SerializeToString()}


def _jax() -> dict[str, bytes]:
    devices = ("/device:GPU:0", "/device:GPU:1")
    host = {"name": "/host:CPU"}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 701, "args": host}]
    events += [
        {"ph": "M", "name": name, "pid": pid, "tid": 5, "args": {"name": text}}
        for pid, device in enumerate(devices, 1)
        for name, text in (("process_name", device), ("thread_name", "Stream #5(Compute)"))
    ]
    for step in range(4):
        at, args = 5000.0 * step, {"step_num": str(step), "group_id": str(step)}
        events.append(_slice("train", at, 4000, pid=701, tid=1, args=args))
        for pid in (1, 2):
            run = {"hlo_module": "jit_step", "hlo_op": "dot.1", "run_id": str(step), "group_id": str(step)}
            events.append(_slice("dot.1", at + 100 * pid, 900, pid=pid, tid=5, args=run))
            reduced = {**run, "hlo_op": "all-reduce.1"}
            events.append(_slice("ncclDevKernel_AllReduce", at + 1500, 700, pid=pid, tid=5, args=reduced))
    path = "plugins/profile/2026_11_23_07_45_57/vm.trace.json.gz"
    return {path: gzip.compress(_trace([*events, {}], displayTimeUnit="ns"), 1)}


KINDS: dict[str, Callable[[], dict[str, bytes]]] = {
    "byteps": _byteps, "kineto": _kineto, "horovod": partial(_written, horovod), "dasf": _dasf,
    "composer": partial(_written, composer),
    "chrome": _chrome, "graph": _graph, "pipeline": _pipeline,
    "network": _network, "digest": _digest,
    "step_log": _step_log, "step_table": _step_table, "nsight": _nsight,
    "perfetto": _perfetto, "jax": _jax,
    "dumps": lambda: _recorder("dump_{}.pickle", pickle.dumps),
    "json_dumps": lambda: _recorder("dump_rank{}.json", lambda document: json.dumps(document).encode()),
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


def _with_noise_in_rows(rng: random.Random, content: bytes) -> bytes:
    head, newline, rows = content.partition(b"\n")
    return head + newline + _with_noise(rng, rows)


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


def _with_other_values(rng: random.Random, content: bytes, *, only_odd: bool = False) -> bytes:
    """Put other values into some places of a pickle."""
    try:
        document = _unpickled(content)
    except Exception:  # damaged by a mutation before this one
        return content
    for _ in range(rng.choice((1, 3, 10))):
        _change(rng, document, only_odd=only_odd)
    return pickle.dumps(document, protocol=rng.choice((2, 3, 4, 5)))


def _unpickled(content: bytes) -> Any:
    """Load a pickle in Python: the reader in C may take 2 GB for a damaged one."""
    return pickle._Unpickler(io.BytesIO(content)).load()


def _change(rng: random.Random, document: Any, *, only_odd: bool = False) -> None:
    within = document
    while isinstance(within, dict | list) and within:
        key = rng.choice(list(within)) if isinstance(within, dict) else rng.randrange(len(within))
        if isinstance(within[key], dict | list) and within[key] and rng.random() < 0.85:
            within = within[key]
        elif rng.random() < 0.2 and not only_odd:
            del within[key]
            return
        else:
            within[key] = rng.choice(
                [value for value in _VALUES if value not in (None, [], ())] if only_odd else _VALUES
            )
            return


def _with_other_cells(rng: random.Random, content: bytes, *, only_odd: bool = False) -> bytes:
    """Put other values into some cells of a database, or take rows, a column or a table out of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.sqlite")
        path.write_bytes(content)
        with (
            contextlib.suppress(sqlite3.Error, LookupError, ValueError),
            contextlib.closing(sqlite3.connect(path)) as db,
        ):
            for _ in range(rng.choice((1, 3, 10))):
                _change_cells(rng, db, only_odd=only_odd)
            db.commit()
        return path.read_bytes()


#: What says which rows are no slices.
_SORTS = ("eventType", "string", "category_id")


def _change_cells(rng: random.Random, db: sqlite3.Connection, *, only_odd: bool) -> None:
    table = rng.choice([row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")])
    column = rng.choice([row[1] for row in db.execute(f'PRAGMA table_info("{table}")')])
    value = rng.choice((None, -1, 0.5, 1 << 62, -(1 << 63), float("inf"), "", "12", b"b", "x" * 3000))
    ways = (
        f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % 7 = 1',
        f'UPDATE "{table}" SET "{column}" = ?',
        f'DELETE FROM "{table}" WHERE "{column}" > ?',
        f'INSERT INTO "{table}" ("{column}") VALUES (?)',
    )
    if only_odd:
        if column not in _SORTS:
            db.execute(rng.choice(ways[:2]), (value,))
        return
    db.execute(rng.choice(ways), (value,))
    if rng.random() < 0.1:
        db.execute(f'DROP TABLE "{table}"')
    elif rng.random() < 0.1:
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def _with_other_records(rng: random.Random, content: bytes) -> bytes:
    """Put other values into some records of a DASF profile."""
    records, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "big")
        try:
            record = msgspec.msgpack.decode(content[at + 8 : at + 8 + size])
        except (msgspec.DecodeError, ValueError):  # damaged by a mutation before this one
            return content
        if rng.random() < 0.1:
            _change(rng, record)
        with contextlib.suppress(Exception):  # nor can all values be written
            text = msgspec.msgpack.encode(record)
            records.append(len(text).to_bytes(8, "big") + text)
        at += 8 + size
    return b"".join(records)


class _Call:
    """Something that a pickle of it calls when it is read in full."""

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return os.getenv, ("HOME",)


def _with_a_call(rng: random.Random, content: bytes) -> bytes:
    try:
        document = _unpickled(content)
    except Exception:  # damaged by a mutation before this one
        return content
    is_dump = isinstance(document, dict) and document
    document = {**document, rng.choice(list(document)): _Call()} if is_dump else [_Call()]
    return pickle.dumps(document, protocol=rng.choice((0, 2, 4, 5)))


# -- what a directory may hold beside or instead of a file ------------------------------------


def _removed(rng: random.Random, path: Path) -> None:
    path.unlink()


def _emptied(rng: random.Random, path: Path) -> None:
    path.write_bytes(b"")


def _twice(rng: random.Random, path: Path) -> None:
    name = rng.choice(
        (f"copy_{path.name}", path.name.replace("0", "1"), path.name.replace("0", "99999999999"))
    )
    path.with_name(name).write_bytes(path.read_bytes())


def _renamed(rng: random.Random, path: Path) -> None:
    name = rng.choice(
        (
            path.name + ".gz",
            path.name + ".bak",
            "x",
            "\x1b[31m.json",
            "\udcff.json",
            "a" * 250,
            ".hidden.json",
        )
    )
    path.rename(path.with_name(name))


def _special(rng: random.Random, path: Path) -> None:
    """Put a pipe, a socket, a loop of links, or a directory in the place of a file, or beside it."""
    place = path if rng.random() < 0.5 else path.with_name(f"rank9{''.join(path.suffixes)}")
    place.unlink(missing_ok=True)
    made = rng.choice(("pipe", "socket", "loop", "folder", "nowhere", "device", "up"))
    if made == "pipe":
        os.mkfifo(place)
    elif made == "socket":
        os.mknod(place, 0o600 | stat.S_IFSOCK)
    elif made == "folder":
        place.mkdir()
    else:
        targets = {"loop": str(place), "nowhere": "/nowhere/at/all", "device": "/dev/zero", "up": ".."}
        place.symlink_to(targets[made])


_DIRECTORY = (_removed, _emptied, _twice, _renamed, _special, _special)
_PICKLE: Sequence[Mutation] = (*(_with_other_values,) * 8, _with_a_call)
_BYTES: Sequence[Mutation] = (
    _cut, _without_a_span, _with_a_span_again, _with_other_bytes, _with_noise, _with_other_numbers,
)  # fmt: skip
_JSON: Sequence[Mutation] = (_with_other_members, _with_other_members, _without_a_member)
_GML: Sequence[Mutation] = (_with_more_edges, _with_other_labels)
