"""Dumps of flight recorders: what is plain is read, whatever the form; nothing else is executed."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzer.base.errors import TraceError
from analyzer.reading import dialects
from analyzer.reading.formats.columns import BYTES, Trace
from analyzer.reading.formats.file_kinds import is_dump
from analyzer.reading.formats.recorder import recorder_dump
from conftest import REPO, THOROUGH, run_cli

_BAD = f"/tmp/executed-by-a-pickle-{os.getpid()}"  # of another run nothing is left that fails this one


def entry(at: int, state: str = "completed") -> dict[str, Any]:
    return {
        "record_id": at, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": at + 1,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000_000_000 + at * 1_000_000,
        "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "output_sizes": [[4, 2]], "state": state,
        "output_dtypes": ["Float"], "time_discovered_started_ns": 1_000_100_000 + at * 1_000_000,
        "time_discovered_completed_ns": 1_000_400_000 + at * 1_000_000, "retired": True, "is_p2p": False,
    }  # fmt: skip


def document(n: int = 5) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.9", "pg_config": groups, "entries": [entry(at) for at in range(n)]}


def read(folder: Path, text: bytes) -> Trace:
    (folder / "d").write_bytes(text)
    return recorder_dump.read(folder / "d")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "json"])
def test_a_dump_has_a_slice_for_each_completed_call(tmp_path: Path, protocol: int | str) -> None:
    value = document()
    value["entries"].append(entry(5, "scheduled"))
    text = json.dumps(value).encode() if isinstance(protocol, str) else pickle.dumps(value, protocol)
    path = tmp_path / "dump_3"
    path.write_bytes(text)
    assert is_dump(text[:4096])
    trace = recorder_dump.read(path)
    assert (list(trace.names), list(trace.cats), sum(trace.phases.values())) == (
        ["all_reduce"],
        ["default_pg"],
        6,
    )
    assert trace.dur_ns.tolist() == [300_000] * 5  # from found started to found completed
    assert trace.ts_ns.tolist() == [1_000_100_000 + at * 1_000_000 for at in range(5)]


@pytest.mark.parametrize(
    ("dtype", "size"), [("Bool", 1), ("BFloat16", 2), ("Float", 4), ("ComplexDouble", 16)]
)
def test_the_bytes_of_a_call_are_those_of_its_elements(tmp_path: Path, dtype: str, size: int) -> None:
    value = document(1)
    value["entries"][0] |= {"input_dtypes": [dtype], "output_dtypes": [dtype]}
    (tmp_path / "d").write_bytes(pickle.dumps(value))
    args = recorder_dump.read(tmp_path / "d", BYTES).args
    assert [list(args[key].values) for key in BYTES] == [[8 * size]] * len(BYTES)


def test_a_call_that_ends_before_it_begins_is_left_out(tmp_path: Path) -> None:
    value = document()
    value["entries"][2]["time_discovered_completed_ns"] = 1
    trace = read(tmp_path, pickle.dumps(value))
    assert (len(trace), trace.repairs) == (4, ["1 call left out: the end is before the beginning"])


def test_calls_of_odd_states_and_times_are_counted(tmp_path: Path) -> None:
    value = document()
    value["entries"][0]["state"] = "done"
    value["entries"][1]["state"] = -1  # no call that is open
    value["entries"][2]["time_discovered_completed_ns"] = 1e18
    value["entries"][3]["time_discovered_completed_ns"] = None  # as of one that nobody watched
    trace = read(tmp_path, pickle.dumps(value))
    assert (len(trace), trace.repairs) == (
        1,
        [
            "1 of 5 entries are damaged and left out",
            "1 call in states that are not known: taken as open",
            "1 time of calls cannot be: taken as unknown",
        ],
    )
    without = read(tmp_path, pickle.dumps({"version": "2.9", "pg_config": {}}))
    assert without.repairs == ["no list of entries: no call is recorded"]


def test_the_first_recorder_wrote_a_list(tmp_path: Path) -> None:
    assert len(read(tmp_path, pickle.dumps(document()["entries"]))) == 5


def test_lists_of_exponential_size_are_not_written_out(tmp_path: Path) -> None:
    nested: Any = ["Float"]
    for _ in range(60):
        nested = [nested, nested]  # as a text it has 2^60 words
    value = document()
    value["entries"][4] |= {"input_sizes": nested, "input_dtypes": nested, "state": "scheduled"}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(value, 2))
    trace = dialects.recognised(recorder_dump.read(path, BYTES))
    standing = dialects.of(trace).standing(trace)
    assert standing is not None
    assert [call.data for call in standing.lanes["0"].first] == [" [-1, -1], [-1, -1] -> [4, 2]"]


@pytest.mark.parametrize("place", ["key", "process_group", "profiling_name", "state"])
def test_tuples_of_exponential_size_are_not_hashed(tmp_path: Path, place: str) -> None:
    nested: Any = ("0", "1")
    for _ in range(60):
        nested = (nested, nested)  # to hash it takes 2^60 steps
    value = document()
    for one in value["entries"][:2]:
        one[place] = nested
    program = pickle.dumps(value, 2)
    if place == "key":
        program = b"\x80\x02}(" + pickle.dumps(nested, 2)[2:-1] + pickle.dumps(value, 2)[2:-1] + b"u."
    (tmp_path / "nccl_trace_rank_0").write_bytes(program)
    # in another process, as one that hashes hears no signal
    command = [sys.executable, str(REPO / "analyze.py"), "diagnose", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (run.returncode, b"Traceback" in run.stderr) == (1 if place == "key" else 0, False)


def test_a_repeated_text_or_list_is_read_once(tmp_path: Path) -> None:
    tensors = [[2] * 60] * 10_000
    entries = [{**entry(0), "frames": [{"name": "f" * 10**6}] * 10**4, "input_sizes": tensors}] * 1000
    (tmp_path / "d").write_bytes(pickle.dumps({"entries": entries}))
    trace = dialects.recognised(recorder_dump.read(tmp_path / "d", BYTES))
    assert dialects.of(trace).standing(trace) is not None


def test_a_small_file_may_repeat_one_long_value(tmp_path: Path) -> None:
    long, ranks, digits = [[4]] * 10**5, [0] * 5 * 10**6, "1" * 10**7
    common = {"process_group": long, "input_sizes": long, "time_created_ns": digits}
    value = {
        "entries": [{**entry(0), **common, "input_dtypes": [str(i)]} for i in range(10**4)],
        "pg_config": {str(i): {"ranks": ranks} for i in range(10**4)},
        "pg_status": {(digits, str(i)): {} for i in range(10**4)},
    }
    (tmp_path / "d").write_bytes(pickle.dumps(value))
    trace = dialects.recognised(recorder_dump.read(tmp_path / "d", BYTES))
    assert dialects.of(trace).standing(trace) is not None


def _as_pytorch_writes(value: dict[str, Any]) -> bytes:
    """Return a pickle in which each text is written once, and only what comes again is remembered."""
    for one in value["entries"]:
        one["process_group"] = tuple(map(sys.intern, one["process_group"]))
    return pickletools.optimize(pickle.dumps(value, 2))


def test_references_to_missing_memo_entries_are_refused(tmp_path: Path) -> None:
    program = _as_pytorch_writes(document(300))
    at = program.index(b"K\x64")  # 100, the first time as the number of a call
    with pytest.raises(TraceError, match="a damaged pickle"):
        read(tmp_path, program[:at] + b"h\xff" + program[at + 2 :])


def test_a_measured_duration_comes_first(tmp_path: Path) -> None:
    value = document(1)
    value["entries"][0]["duration_ms"] = 0.25
    assert read(tmp_path, pickle.dumps(value)).dur_ns.tolist() == [250_000]


@pytest.mark.parametrize("protocol", [2, 4, "json"])
def test_whole_entries_of_a_cut_dump_are_kept(tmp_path: Path, protocol: int | str) -> None:
    value = document(20)
    text = json.dumps(value).encode() if isinstance(protocol, str) else pickle.dumps(value, protocol)
    path = tmp_path / "d"
    counts = []
    for cut in range(len(text) // 2, len(text), 37):
        path.write_bytes(text[:cut])
        trace = recorder_dump.read(path)
        assert any("cut off" in line for line in trace.repairs)
        assert trace.dur_ns.tolist() == [300_000] * len(trace)
        counts.append(len(trace))
    assert counts == sorted(counts)
    assert counts[0] < 12
    assert counts[-1] >= 18


class _Runs:
    """What a pickle of it runs when it is loaded."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


_PROGRAMS = {
    "reduce": pickle.dumps({"entries": [_Runs(os.mkdir, _BAD)]}, 2),
    "stack_global": pickle.dumps({"entries": [_Runs(os.mkdir, _BAD)]}, 4),
    "eval": pickle.dumps({"pg_config": _Runs(eval, f"__import__('os').mkdir({_BAD!r})")}, 3),
    "inst": b"\x80\x02(S'" + _BAD.encode() + b"'\nios\nmkdir\n.",
    "persistent": b"\x80\x02P1\n.",
    "extension": b"\x80\x02\x82\x01.",
    "memory": b"\x80\x02}r\xff\xff\xff\x7f.",
    "long text": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
    "long number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "frame": b"\x80\x04\x95" + b"\xff" * 8 + b"}.",
    "deep": b"\x80\x02}()" + b"\x85" * 50_000 + b"Nu.",
    "deep and cut": b"\x80\x02" + b"(" * 100_000 + b"t" * 50_000,
    "lists": b"\x80\x02" + b"]" * 100_000,
    "empty stack": b"\x80\x02s.",
    "no dictionary": b"\x80\x02]Na.",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_any_other_program_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dump_0"
    path.write_bytes(_PROGRAMS[name])
    for option in ("diagnose", "statistic"):
        code, out, errors = run_cli("--option", option, "--path", path)
        assert (code, out, errors.count("\n")) == (1, "", 1)
    assert not Path(_BAD).exists()


_PLAIN = [
    pickle.dumps(document(3), 2), pickle.dumps(document(3), 4), *_PROGRAMS.values(),
    *[_as_pytorch_writes(document(12))] * 6,
]  # fmt: skip


def _hostile(rng: random.Random) -> bytes:
    """Return a pickle that somebody changed, or opcodes at random."""
    plain = bytearray(rng.choice(_PLAIN)[:3000])
    if rng.random() < 0.2:
        return b"\x80\x02" + bytes(
            rng.choices(b"()]}.0123abcdehijlpqrstuJKMNGRXcioPQ\x81\x85\x86\x93\x94\x95", k=rng.randint(1, 60))
        )
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(2, len(plain))
        way = rng.randrange(4)
        if way == 0:
            plain[at] = rng.randrange(256)
        elif way == 1:
            plain[at:at] = rng.choice(
                [b"cos\nmkdir\n", b"R", b"b", b"\x81", b"i", b"o", b"0", b"2", b"}", b"]", b"(", b"t"]
            )
        elif way == 2:
            del plain[at : at + rng.randint(1, 20)]
        else:
            begin = rng.randrange(2, len(plain))
            plain[at:at] = plain[begin : begin + rng.randint(1, 40)]
        if len(plain) < 4:
            break
    return bytes(plain)


def test_hostile_pickles_execute_nothing_and_give_a_trace_or_a_line(tmp_path: Path) -> None:
    count = int(os.environ.get("FUZZ_COUNT", 300)) * (2 if THOROUGH else 1)
    rng = random.Random(int(os.environ.get("FUZZ_SEED", 1)))
    called: list[str] = []
    is_on = [True]

    def hook(event: str, arguments: Any) -> None:
        if is_on[0] and event in ("pickle.find_class", "os.mkdir", "os.system", "exec", "import"):
            called.append(f"{event} {arguments}")

    path = tmp_path / "dump_1"
    path.write_bytes(pickle.dumps(document(3)))
    dialects.recognised(recorder_dump.read(path))  # what it imports is imported

    sys.addaudithook(hook)
    try:
        for _ in range(count):
            path.write_bytes(_hostile(rng))
            try:
                trace = dialects.recognised(recorder_dump.read(path))
                dialects.of(trace).standing(trace)
            except TraceError as error:
                assert "\n" not in str(error)
    finally:
        is_on[0] = False
    assert called == []
