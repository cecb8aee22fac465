"""Server logs and profiles, line by line, and their timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.base.errors import Repairs
from collector.network.partition_keys import read_keys
from collector.network.server_timeline import TIMELINE, Log, _Served, read_log, read_served, write_served
from conftest import examples
from trace_utils import read_trace

US = 1000
DEBUG_LOG = (
    "[2026] Declared tensor byteps.gradient_0, declared key (not PS key): 4 rank=0\n"
    "[2026] byteps.gradient_0 partitioned to 3 part(s), total_len=9000, key_range=[262144, 262146] rank=0\n"
    "[2026] key 262144 assigned to server 0, accumulated workload for this server is 29760\n"
    "[2026] key 262145 assigned to server 1, accumulated workload for this server is 29760\n"
    "[2026] key 262146 assigned to server 1, accumulated workload for this server is 29760\n"
)


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return events


# ---- the formats


def test_key_log() -> None:
    log = read_log(
        lines(
            "[00:19:41] byteps/server/server.cc:158: push key=262144\t sender=11\t size=4096\n"
            "[00:19:41] byteps/server/server.cc:158: push key=262144\t sender=9\t size=4096\n"
            "[00:19:41] byteps/server/server.cc:186: Collected all 2 requests for key=262144, init\n"
            "[00:19:42] byteps/server/server.cc:162: pull key=262144\t sender=9\n"
        )
    )
    assert dict(log.requests) == {(262144, "push"): 2, (262144, "pull"): 1}
    assert dict(log.pushed_bytes) == {262144: 8192}
    # 00:19:41 is second 19 * 60 + 41
    second = log.seconds["push", 1181]
    assert (second.n, second.n_bytes, second.peers) == (2, 8192, {9, 11})


def test_profile_of_the_server_application() -> None:
    log = read_log(
        lines(
            "-1\tserver_process_push\t100\n"
            "-1\tserver_process_pull\t110\n-1\tserver_process_pull\t115\n"
            "-1\tserver_send_pull_response\t130\n-1\tserver_send_pull_response\t150\n"
            "7\tserver_process_pu"
        )
    )
    served = log.profile["pulls served"]
    assert served == [("PULL", 110 * US, 130 * US, -1), ("PULL", 115 * US, 150 * US, -1)]
    assert log.n_unpaired == 0


@pytest.mark.parametrize(
    "line",
    [
        f"1\tserver_process_push\t{'9' * 16}",
        f"{'9' * 30}\tserver_process_push\t5",
        f"[00:00:00] server.cc:1: push key={'9' * 30}\t sender=9",
    ],
)
def test_absurd_numbers_are_ignored(line: str) -> None:
    assert read_log([line.encode()]) == Log()


@given(st.lists(st.binary(max_size=120), max_size=20))
@settings(max_examples=examples(100))
def test_any_lines_do_no_harm(data: list[bytes]) -> None:
    read_log(data)


# ---- the timeline


def timeline(job: Path | _Served, at: Path) -> Path:
    """Write the timeline of a job's servers into the directory `at`."""
    write_served(read_served(job) if isinstance(job, Path) else job, at / TIMELINE)
    return at / TIMELINE


def test_a_servers_profile_is_decoded_by_its_key_range(tmp_path: Path) -> None:
    """Of two servers the second's range begins at 2^63 - 1: its lower half, as a signed number, is -1."""
    (tmp_path / "log.txt").write_text(DEBUG_LOG)
    (tmp_path / "server_0.kvapp.txt").write_text(
        "262144\tserver_process_push\t50\n262145\tserver_process_push\t60\n"
    )
    shown = events(timeline(tmp_path, tmp_path))
    assert [e["args"]["key"] for e in shown if e["ph"] == "i"] == [262145, 262146]


def test_a_server_of_absurd_number_takes_no_time(tmp_path: Path) -> None:
    (tmp_path / "worker_0.byteps_debug_log.txt").write_text(
        DEBUG_LOG + "[2026] key 262147 assigned to server 214748364\n"
        "[2026] b partitioned to 999999999 part(s), total_len=9000, key_range=[327680, 327681] rank=0\n"
    )
    keys = read_keys(tmp_path, Repairs())
    assert keys.servers == {262144: 0, 262145: 1, 262146: 1}
    assert set(keys.partition_bytes()) == {262144, 262145, 262146}


def test_the_clock_of_a_key_log_is_set_by_a_profile(tmp_path: Path) -> None:
    at_us = 1_795_220_381_000_000 + 500_000  # 2026-11-21T00:19:41.5Z
    (tmp_path / "server_0.van.txt").write_text(f"1\tserver_van_recv_push\t{at_us}\n")
    # the log's clock is two hours ahead
    (tmp_path / "server_0.key_log.txt").write_text("[02:19:41] server.cc:1: push key=1\t sender=9\t size=4\n")
    slices = [e for e in events(timeline(tmp_path, tmp_path)) if e["ph"] == "X"]
    assert [(e["name"], e["ts"]) for e in slices] == [("1 x push", 1_795_220_381_000_000)]


def test_each_bad_log_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "server_0.key_log.txt").write_text("[02:19:41] server.cc:1: pull key=1\t sender=9\n")
    (tmp_path / "server_1.key_log.txt").write_text("")
    (tmp_path / "server_2.key_log.txt").write_bytes(bytes(range(256)))
    (tmp_path / "server_3.txt").write_text("9\tserver_send_pull_response\t5\n")
    assert read_served(tmp_path).repairs == [
        f"{tmp_path}/server_1.key_log.txt: empty",
        f"{tmp_path}/server_2.key_log.txt: no line of a known server log",
        f"{tmp_path}/server_3.txt: 1 pulls or responses without a counterpart ignored",
    ]


# ---- the recorded jobs


@pytest.mark.parametrize("name", ["fork_mlp_2w2s_pcap", "master_mxnet_mlp_2w2s_pcap"])
def test_recorded_logs_become_a_trace(shared_data: Path, tmp_path: Path, name: str) -> None:
    served = read_served(shared_data / "byteps" / name)
    assert {log.node for log in served.logs} >= {"server_0", "worker_0"}
    assert len(read_trace(timeline(served, tmp_path))) > 0


def test_pulls_served_by_the_recorded_server(shared_data: Path, tmp_path: Path) -> None:
    case = shared_data / "byteps" / "fork_mlp_2w2s_pcap"
    logs = read_served(case)
    text = (case / "server_0.pslite_profile_kvapp_server.txt").read_text()
    assert [(o.node, o.operation, o.count) for o in logs.operations] == [
        ("server_0", "PULL", text.count("server_send_pull_response"))
    ]
    served = [e for e in events(timeline(logs, tmp_path)) if e["ph"] == "X" and e["name"].endswith(".PULL")]
    assert len(served) == text.count("server_send_pull_response")
    assert all("key" in e["args"] for e in served)
