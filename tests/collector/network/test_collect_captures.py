"""The network's timeline: names, shares of a transfer's time, agreement with traces, one line a bad file."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from analyzer.base.errors import TraceError
from collector.network.collect_captures import TIMELINE, _Captured, read_captures, write_captured
from trace_utils import find_gpus
from traffic import NEW, SERVER_BASE, Connection, Packet, in_order, message, pcap, struct_meta, train

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9
PCAP_JOBS = ("fork_mlp_2w2s_pcap", "master_mxnet_mlp_2w2s_pcap")


# ---- a made job


def make_job(root: Path) -> None:
    """Two workers push and pull a tensor of two parts of one server; worker 1 is 7 ms later."""
    keys = [(1 << 16, 4096), (1 << 16 | 1, 1000)]
    for index, late_ns in ((0, 0), (1, 7 * MS)):
        connection = Connection((f"10.0.0.{index + 1}", 40_000), ("10.0.0.9", 9000))
        train(
            connection, NEW, server=8, worker=9 + 2 * index, keys=keys, steps=3, start_ns=START_NS + late_ns
        )
        (root / f"worker_{index}.pcap").write_bytes(b"".join(pcap(connection.packets, ns=True)))
    (root / "worker_0.log").write_text(
        "[x] Declared tensor byteps.gradient_0, declared key (not PS key): 1 rank=0\n"
        "[x] byteps.gradient_0 partitioned to 2 part(s), total_len=5096, key_range=[65536, 65537] rank=0\n"
    )


def timeline(job: Path) -> Path:
    """Write the timeline of a job's captures into it."""
    write_captured(read_captures(job), job / TIMELINE)
    return job / TIMELINE


def test_a_made_job(tmp_path: Path) -> None:
    make_job(tmp_path)
    captured = read_captures(tmp_path)
    assert captured.nodes == ["server_0", "worker_0", "worker_1"]
    assert [(k.key, k.tensor, k.n_push, k.n_pull, k.push_bytes) for k in captured.keys] == [
        (65536, "byteps.gradient_0", 6, 6, 6 * 4096),
        (65537, "byteps.gradient_0", 6, 6, 6 * 1000),
    ]
    assert captured.repairs == []


def test_wire_server_and_waiting_make_up_the_transfers(tmp_path: Path) -> None:
    make_job(tmp_path)
    shares = read_captures(tmp_path).keys
    for share in shares:
        assert share.waiting_ns is not None
        assert share.wire_ns + share.server_ns + share.waiting_ns == share.push_ns + share.pull_ns
    # gaps of 50 us are shorter than the handshake's 100 us: all of the time is on the wire
    assert (shares[0].server_ns, shares[0].waiting_ns) == (0, 0)


def events_of(path: Path) -> list[dict[str, object]]:
    events: list[dict[str, object]] = json.loads(path.read_bytes())["traceEvents"]
    return events


def test_each_transfer_is_a_slice_with_its_request_and_response(tmp_path: Path) -> None:
    make_job(tmp_path)
    events = events_of(timeline(tmp_path))
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}  # type: ignore[index]
    assert names == {"worker_0 -> server_0", "worker_1 -> server_0"}
    transfers = [e for e in events if e.get("cat") == "Comm"]
    assert len(transfers) == 24
    first = transfers[0]
    assert first["name"] == "Comm.byteps.gradient_0.PUSH.65536"
    assert first["ts"] == (START_NS + MS) / 1000
    parts = [e for e in events if e.get("cat") == "part"]
    assert {e["name"] for e in parts} == {
        f"{s} {h}" for s in ("PUSH", "PULL") for h in ("request", "response")
    }
    assert len(parts) == 48


def test_a_connection_in_two_captures_counts_once(tmp_path: Path) -> None:
    make_job(tmp_path)
    shutil.copy(tmp_path / "worker_0.pcap", tmp_path / "server_0.pcap")
    captured = read_captures(tmp_path)
    assert len(captured.wire) == 24
    assert captured.repairs == [f"{tmp_path / 'server_0.pcap'}: 1 connections are in another capture too"]


# ---- bad input: a line a file, the rest is collected


def bad(root: Path) -> dict[str, bytes]:
    good = (root / "worker_0.pcap").read_bytes()
    control = Connection(("10.0.0.1", 1), ("10.0.0.2", 2))
    control.send(0, message(struct_meta(True, False, 1, 0, 3)), START_NS)
    return {
        "zero.pcap": b"",
        "text.pcap": b"this is no capture\n",
        "cut.pcap": good[:2000],
        "head.pcap": good[:10],
        "foreign.pcap": b"".join(pcap([Packet(0, b"\x45" + bytes(60))])),
        "control.pcap": b"".join(pcap(control.packets)),
        "packed.pcap.gz": b"\x1f\x8b\x08\0garbage",
        "later.pcapng": struct.pack("<IIIHHq", 0x0A0D0D0A, 1 << 30, 0x1A2B3C4D, 1, 0, -1),
    }


def test_each_bad_capture_is_one_line_and_the_others_are_collected(tmp_path: Path) -> None:
    make_job(tmp_path)
    files = bad(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    captured = read_captures(tmp_path)
    assert len(captured.wire) == 24
    said = {Path(line.partition(":")[0]).name: line for line in captured.repairs}
    assert said.keys() == files.keys()
    assert len(captured.repairs) == len(files)
    assert not any("\n" in line for line in captured.repairs)


@pytest.mark.parametrize("name", ["zero", "text", "head", "foreign", "control", "packed", "later"])
def test_a_job_with_only_a_bad_capture_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    make_job(tmp_path)
    content = next(c for n, c in bad(tmp_path).items() if n.startswith(name))
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "worker_0.pcap").write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_captures(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "worker_0.pcap"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "comm_timeline.json").exists()


# ---- the recorded jobs


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> dict[str, _Captured]:
    return {name: read_captures(shared_data / "byteps" / name) for name in PCAP_JOBS}


@pytest.mark.parametrize("name", PCAP_JOBS)
def test_each_event_of_the_trace_contains_exactly_one_transfer(
    shared_data: Path, recorded: dict[str, _Captured], name: str
) -> None:
    """The oracle is the worker's own trace, whose times are cut to microseconds."""
    captured = recorded[name]
    for gpu in find_gpus(shared_data / "byteps" / name):
        path = gpu.path / "comm.json"
        worker = captured.nodes.index(gpu.path.parent.name)
        events = [
            (int(e["tid"]), e["name"].endswith(".PUSH"), 1000 * e["ts"], 1000 * (e["ts"] + e["dur"]))
            for e in json.loads(path.read_bytes())["traceEvents"]
            if e["name"].endswith((".PUSH", ".PULL")) and str(e["tid"]).isdecimal()
        ]
        assert len(events) == 192  # 16 partitions, 6 steps, PUSH and PULL
        wire = captured.wire
        for key, push, start, end in events:
            of_key = (wire.worker == worker) & (wire.key == key) & (wire.push == push)
            before, after = wire.request_start_ns - start, end - wire.response_end_ns
            inside = np.flatnonzero(of_key & (before >= -2_000) & (after >= -2_000))
            assert len(inside) == 1


@pytest.mark.parametrize("name", PCAP_JOBS)
def test_bytes_agree_with_the_sizes_of_all_tensors(recorded: dict[str, _Captured], name: str) -> None:
    """BytePS logs the size of each tensor; a PUSH of each of its partitions has as many bytes."""
    captured = recorded[name]
    pushed: dict[int, int] = {}
    for key in captured.keys:
        pushed[key.key >> 16] = pushed.get(key.key >> 16, 0) + key.push_bytes // key.n_push
    assert sorted(pushed.values()) == sorted([50176, 64, 640, 40] * 2)  # fc16 and fc10 on 784
    assert pushed == {
        key: tensor.total_bytes for key, tensor in captured.names.tensors.items() if key in pushed
    }


@pytest.mark.parametrize("name", PCAP_JOBS)
def test_the_key_log_has_the_same_requests(
    shared_data: Path, recorded: dict[str, _Captured], name: str
) -> None:
    """Each server logs its requests: as many per key as the captures show."""
    from collector.network.server_timeline import read_served

    logs = read_served(shared_data / "byteps" / name)
    workers = len(recorded[name].captures)  # captured; each server logs the requests of both
    mine = {(k.node, k.key): (k.n_push, k.n_pull) for k in recorded[name].keys}
    ratios = [
        count / (expected * 2 / workers)
        for k in logs.keys
        for count, expected in zip((k.n_push, k.n_pull), mine.get((k.node, k.key), (0, 0)), strict=True)
        if expected
    ]
    # lines of several threads run into each other in the logs: some requests are missing there
    assert len(ratios) >= 32
    assert max(ratios) == 1
    assert sum(ratios) / len(ratios) > 0.85


def test_a_worker_with_an_older_connection_is_one_node(tmp_path: Path) -> None:
    """The connection to the first server was open before the capture began and tells no worker."""
    first = Connection(("10.0.0.1", 40_000), ("10.0.0.7", 9000))
    second = Connection(("10.0.0.1", 40_001), ("10.0.0.8", 9000))
    for connection, server, base in ((first, 8, 0), (second, 10, SERVER_BASE)):
        keys = [(base + 65536, 99)]
        train(connection, NEW, server=server, worker=9, keys=keys, steps=2, start_ns=START_NS)
    packets = in_order([second]) + [p for p in first.packets if p.ts_ns > START_NS + MS]
    (tmp_path / "worker_4.pcap").write_bytes(b"".join(pcap(packets)))
    assert read_captures(tmp_path).nodes == ["server_0", "server_1", "worker_4"]


def test_servers_are_called_after_their_key_logs(recorded: dict[str, _Captured]) -> None:
    """In both jobs server 0 has ps-lite's id 10 and rank 1, as the data's description says."""
    for found in recorded.values():
        assert {(link.server, link.server_id) for link in found.links} == {("server_0", 10), ("server_1", 8)}


def test_all_of_a_job_on_one_host(tmp_path: Path) -> None:
    """Over loopback every node has the same address: their ids tell them apart."""
    connections, n_made = [], 0
    for worker in (9, 11):
        for server, port, base in ((8, 9000, 0), (10, 9001, SERVER_BASE)):
            connection = Connection(("127.0.0.1", 40_000 + worker * 10 + server), ("127.0.0.1", port))
            keys = [(base + 65536 + server, 700)]
            n_made += len(
                train(connection, NEW, server=server, worker=worker, keys=keys, steps=2, start_ns=START_NS)
            )
            connections.append(connection)
    (tmp_path / "host.pcap").write_bytes(b"".join(pcap(in_order(connections), link=0)))
    captured = read_captures(tmp_path)
    assert captured.nodes == ["server_0", "server_1", "worker_0", "worker_1"]
    assert len(captured.wire) == n_made
    assert [(k.key, k.node, k.n_push) for k in captured.keys] == [
        (65544, "server_0", 4),
        (65546, "server_1", 4),
    ]
