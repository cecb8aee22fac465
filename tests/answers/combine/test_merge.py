"""`--option combine` from end to end: what the combined file holds, against what went in."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

import make
from analyzer.answers.combine import merge
from analyzer.answers.combine.merge import microseconds
from analyzer.answers.combine.rewrite_source import unique_id
from analyzer.reading import dialects
from analyzer.reading.formats.event import NO_ARGS
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.whole import decode, encode
from conftest import few, run_cli
from make import comm, dasf_bytes, dasf_compute, span, write
from trace_utils import Request, files_to_read, read_ranks, read_trace

Event = dict[str, Any]


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    found = json.loads(data, parse_float=Decimal)
    return found if isinstance(found, dict) else {"traceEvents": found}


def _combine(output: Path, *paths: object, flags: Iterable[object] = ()) -> dict[str, Any]:
    code, out, err = run_cli(
        *("--option", "combine", "--format", "json", "--output", output, "--path", *paths, *flags)
    )
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def _fails(*args: object) -> tuple[int, str]:
    code, out, err = run_cli("--option", "combine", *args)
    assert out == ""
    assert err.count("\n") == 1, err
    return code, err


def _timed(document: Mapping[str, Any]) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] != "M"]


def _content(event: Event, *but: str) -> str:
    """What combining must not change, as text; numbers by their value."""
    kept = {key: value for key, value in event.items() if key not in ("ts", "pid", "tid", "id", *but)}
    if isinstance(kept.get("dur"), int):  # 4 and 4.000 are one duration
        kept["dur"] = Decimal(kept["dur"])
    return json.dumps(kept, sort_keys=True, default=lambda number: str(number.normalize()))


def _names(document: Mapping[str, Any], what: str = "process_name") -> dict[int, Any]:
    events = [event for event in document["traceEvents"] if event["ph"] == "M" and event["name"] == what]
    key = what.split("_", 1)[1]
    return {event["pid"]: event["args"][key] for event in events}


def _push(tensor: str, key: int, start: int, end: int) -> list[Event]:
    middle, whole = (start + end) // 2, f"Comm.{tensor}"
    return [
        comm(tensor, "PUSH", key, start, middle - start),
        comm(tensor, "PULL", key, middle, end - middle),
        span(whole, start, end - start, "Comm", whole, "total"),
    ]


@pytest.fixture
def two_workers(tmp_path: Path) -> tuple[Path, Path]:
    """One partition a worker; worker 1's clock is 1 s ahead, windows of 100 us."""
    first = write(tmp_path / "w0" / "0" / "comm.json", _push("x", 65536, 1_000_000, 1_000_100))
    second = write(tmp_path / "w1" / "0" / "comm.json", _push("x", 65536, 2_000_000, 2_000_100))
    return first.parent.parent, second.parent.parent


REAL = {
    "byteps workers": ["byteps/fork_lenet_base/worker_0", "byteps/fork_lenet_base/worker_1"],
    "kineto absolute": ["kineto/gpu-hta-2of128/trace"],
    "composer": ["composer/ws2/trace"],
    "odd members": ["generic/catapult/nestable_async.json", "generic/node/node_trace.json"],
    "objects": ["generic/viztracer/viz_small.json", "generic/catapult/instance_counters.json"],
    "byteps": ["byteps/fork_lenet_2w2g"],
    "kineto": ["kineto/gpu-param-dlrm-8ranks/trace"],
    "kineto old": [
        "kineto/gpu-hta-compare-tiny/base/base.json.gz",
        "kineto/gpu-hta-compare-tiny/test/test.json.gz",
    ],
    "horovod": ["horovod/2ranks-base/trace/timeline.json", "horovod/2ranks-cycles/trace/timeline.json"],
}


def _inputs(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The documents to combine; of a GPU without a final trace that which is collected for it."""
    documents = []
    for path in paths:
        if path.is_dir() and "byteps" in path.parts:
            with files_to_read([path]) as (_, files, _):
                documents += [_read(file) for file in files]
        else:
            found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
            documents += [_read(file) for file in found]
    return documents


class Real(NamedTuple):
    """Recorded traces, and what they were combined to."""

    case: str
    given: list[dict[str, Any]]
    combined: dict[str, Any]
    answer: dict[str, Any]


@pytest.fixture(scope="module", params=few(5, REAL))
def real(shared_data: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Real:
    """Each of `REAL`, combined once for the tests of it."""
    paths = [shared_data / path for path in REAL[request.param]]
    output = tmp_path_factory.mktemp("real") / "out.json"
    answer = _combine(output, *paths)
    return Real(request.param, _inputs(paths), _read(output), answer)


@pytest.mark.slow
def test_nothing_is_lost_or_changed(real: Real) -> None:
    given = [event for document in real.given for event in _timed(document)]
    # names get a prefix in BytePS traces; identifiers of frames and flows change everywhere
    but = ("sf", "esf", "bind_id", *(("name",) if "byteps" in real.case else ()))
    before = Counter(_content(event, *but) for event in given)
    assert Counter(_content(event, *but) for event in _timed(real.combined)) == before
    assert real.answer["events"] == len(real.combined["traceEvents"])


def test_a_viewer_can_show_it(real: Real) -> None:
    combined, events = real.combined, real.combined["traceEvents"]
    assert {type(event[key]) for event in events for key in ("pid", "tid")} == {int}
    assert all(0 <= event[key] < 1 << 31 for event in events for key in ("pid", "tid"))
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    names, order = _names(combined), _names(combined, "process_sort_index")
    assert {event["pid"] for event in events} <= names.keys() & order.keys()
    assert len(set(order.values())) == len(order)


@pytest.mark.parametrize("case", few(1, ["master_torch_cnn_2w1s", "fork_lenet_base", "fork_lenet_2w2g"]))
def test_statistics_of_the_combined_file_are_those_of_the_job(
    shared_data: Path, tmp_path: Path, case: str
) -> None:
    _combine(tmp_path / "out.json", shared_data / "byteps" / case)
    tables = []
    for path in (shared_data / "byteps" / case, tmp_path / "out.json"):
        code, out, _ = run_cli("--option", "statistic", "--format", "json", "--path", path)
        assert code == 0
        tables.append({(op["name"], op["cat"]): op for op in json.loads(out)["operations"]})
    assert tables[0] == tables[1]


@pytest.mark.parametrize("case", few(1, ["ws2", "ws2-slow-rank1", "ws2-torch", "ws1-torch"]))
def test_combine_agrees_with_composers_merger(shared_data: Path, tmp_path: Path, case: str) -> None:
    _combine(tmp_path / "out.json", shared_data / "composer" / case / "trace")
    combined = _read(tmp_path / "out.json")
    oracle = _read(shared_data / "composer" / case / "oracle" / "merged_trace.json")
    events = _on_its_axis(_timed(oracle), _timed(combined))
    assert Counter(map(_composers, _timed(combined))) == Counter(map(_composers, events))


def _on_its_axis(events: Iterable[Event], tied: Iterable[Event]) -> list[Event]:
    """Move the events of PyTorch's profiler, which Composer's merger leaves 56.7 years before the others.

    How far each rank's were moved is seen by its step 3.
    """
    events = list(events)
    steps = [{e["pid"]: e["ts"] for e in each if e["name"] == "ProfilerStep#3"} for each in (events, tied)]
    by = {pid: steps[1][pid] - ts for pid, ts in steps[0].items()}
    return [e | {"ts": e["ts"] + by[e["pid"]]} if e["ts"] < 10**15 else e for e in events]


def _composers(event: Event) -> str:
    tid = event["tid"] if event["tid"] != "" and event["tid"] < 2_000_000_000 else "text"
    # its merger leaves ids as they are: only that they are the same on one rank can be compared
    key = (event["pid"], tid, Decimal(str(event["ts"])).normalize())
    return f"{key} {_content(event)}"


def test_a_worker_ahead_is_put_on_the_first_ones_clock(
    two_workers: tuple[Path, Path], tmp_path: Path
) -> None:
    answer = _combine(tmp_path / "out.json", *two_workers)
    # x <= 1000100 - 2000000 and x >= 1000000 - 2000100: -1000000 +- 100
    worker = answer["workers"][1]
    assert (worker["offset_us"], worker["anchors"]) == (-1_000_000, 1)
    assert worker["bound_us"] == pytest.approx(100, abs=0.1)
    # with its begin after the other's end: one pair out of order, none after
    assert (worker["violations_before"], worker["violations_after"]) == (1, 0)
    assert answer["aligned_by"] == "causality"
    moved = [event for event in _timed(_read(tmp_path / "out.json")) if event["name"].startswith("wk1.")]
    times = sorted((event["ts"], event["dur"]) for event in moved)
    assert times == [(1_000_000, 50), (1_000_000, 100), (1_000_050, 50)]


def test_align_none_moves_nothing(two_workers: tuple[Path, Path], tmp_path: Path) -> None:
    answer = _combine(tmp_path / "out.json", *two_workers, flags=["--align", "none"])
    assert answer["aligned_by"] == "none"
    assert max(event["ts"] for event in _timed(_read(tmp_path / "out.json"))) == 2_000_050


def test_workers_without_a_common_operation_are_combined_unaligned(tmp_path: Path) -> None:
    first = write(tmp_path / "w0" / "0" / "comm.json", _push("x", 65536, 1_000_000, 1_000_100))
    second = write(tmp_path / "w1" / "0" / "comm.json", _push("y", 131072, 2_000_000, 2_000_100))
    answer = _combine(tmp_path / "out.json", first.parent.parent, second.parent.parent)
    assert answer["aligned_by"] == "none"
    assert answer["workers"][1]["bound_us"] is None
    assert ["no common operation ties the clock of " in line for line in answer["repairs"]] == [True]


def test_a_rank_is_one_process_and_its_tensors_are_threads(tmp_path: Path) -> None:
    main = span("FW.a", 5, 1, "operator", "0", "main")
    # a worker's number of a thread may be the key of a partition: then the thread stays in its own process
    other = {**main, "name": "FW.b", "tid": 65536}
    events = [*_push("x", 65536, 10, 20), *_push("y", 131072, 10, 20), main, other]
    for worker in (0, 1):
        write(tmp_path / f"worker_{worker}" / "0" / "comm.json", events)
    _combine(tmp_path / "out.json", tmp_path / "worker_0", tmp_path / "worker_1")
    combined = _read(tmp_path / "out.json")
    names = _names(combined)
    assert sorted(names.values()) == ["wk0.rank0", "wk0.rank0.pid 0", "wk1.rank0", "wk1.rank0.pid 0"]
    threads = {
        (names[event["pid"]], event["tid"]): event["args"]["name"]
        for event in combined["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert threads["wk0.rank0", 65536] == "Comm.x 65536"
    assert threads["wk0.rank0", 131072] == "Comm.y 131072"
    assert {"main", "Comm.x total", "Comm.y total"} <= set(threads.values())
    where = {
        event["name"]: (names[event["pid"]], event["tid"])
        for event in _timed(combined)
        if names[event["pid"]].startswith("wk1")
    }
    assert where["wk1.rank0.FW.b"] == ("wk1.rank0.pid 0", 65536)
    assert where["wk1.rank0.Comm.y.PUSH"] == ("wk1.rank0", 131072)


def test_filtered_communications_still_align_clocks(two_workers: tuple[Path, Path], tmp_path: Path) -> None:
    for worker, path in enumerate(two_workers):
        extra = _push("y", 131072, 1_000_000 * (1 + worker) + 10, 1_000_000 * (1 + worker) + 2000)
        events = _timed(_read(path / "0" / "comm.json"))
        write(path / "0" / "comm.json", [*events, *extra])
    answer = _combine(tmp_path / "out.json", *two_workers, flags=["--filter", "Comm.y"])
    assert answer["workers"][1]["offset_us"] == -1_000_000
    assert answer["workers"][1]["bound_us"] == pytest.approx(100, abs=0.1)  # that of Comm.x


def test_flows_of_two_ranks_stay_apart(tmp_path: Path) -> None:
    flow = [
        {"ph": "s", "cat": "f", "name": "f", "id": 3, "pid": 1, "tid": 1, "ts": 1},
        {"ph": "f", "cat": "f", "name": "f", "id": 3, "pid": 1, "tid": 1, "ts": 2, "bp": "e"},
        {"ph": "b", "cat": "a", "name": "a", "id": "0x1f", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "b", "cat": "a", "name": "a", "id2": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 4},
        {"ph": "X", "name": "n", "pid": 1, "tid": 1, "ts": 5, "dur": 0, "bind_id": "zz", "flow_out": True},
    ]
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", flow)
    _combine(tmp_path / "out.json", tmp_path / "rank0.json", tmp_path / "rank1.json")
    by_pid = defaultdict(list)
    for event in _timed(_read(tmp_path / "out.json")):
        by_pid[event["pid"]].append(event.get("id", event.get("bind_id", event.get("id2"))))
    first, second = by_pid.values()
    assert first[0] == first[1] != second[0] == second[1]
    assert int(str(first[2]), 16) != int(str(second[2]), 16)  # hexadecimal text, as Perfetto reads it
    assert first[3] == second[3] == {"local": "0x1"}  # belongs to its process already
    assert int(str(first[4]), 16) != int(str(second[4]), 16)


def test_times_of_different_bases_meet_exactly(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "dur": 0.5}
    # 2^53 us is passed by the absolute time; the difference of the bases is 1.000000001 s
    text = '{"traceEvents":[%s],"schemaVersion":1,"baseTimeNanoseconds":%d,"distributedInfo":{"rank":%d}}'
    for rank, base, ts in ((0, 1_790_857_026_000_000_000, "4362813300592.121"),
                           (1, 1_790_857_027_000_000_001, "4362813300592.121")):  # fmt: skip
        line = json.dumps({**event, "ts": 0}).replace('"ts": 0', f'"ts": {ts}')
        (tmp_path / f"rank{rank}.json").write_text(text % (line, base, rank))
    _combine(tmp_path / "out.json", tmp_path / "rank0.json", tmp_path / "rank1.json")
    combined = _read(tmp_path / "out.json")
    assert combined["baseTimeNanoseconds"] == 1_790_857_026_000_000_000
    assert [str(event["ts"]) for event in _timed(combined)] == ["4362813300592.121", "4362814300592.122"]


def test_a_huge_duration_stays_as_recorded(tmp_path: Path) -> None:
    longest = 10**400
    events = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": dur} for dur in (longest, 1)]
    document = {"traceEvents": [*events, {**events[1], "dur": math.nan}]}  # so that all are read with care
    (tmp_path / "a.json").write_text(json.dumps(document))
    _combine(tmp_path / "out.json", tmp_path / "a.json")
    assert longest in [event.get("dur") for event in _timed(_read(tmp_path / "out.json"))]


def test_the_longer_of_two_slices_at_one_time_comes_first(tmp_path: Path) -> None:
    _combine(tmp_path / "out.json", write(tmp_path / "a.json", [span("in", 5, 1), span("out", 5, 9)]))
    assert [event["name"] for event in _timed(_read(tmp_path / "out.json"))] == ["out", "in"]


@pytest.mark.parametrize("same_time", [False, True])
def test_a_merge_is_a_stable_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_time: bool) -> None:
    monkeypatch.setattr(merge, "_BLOCK", 7)
    for rank in (0, 1):
        times = [0 if same_time else (i * 7919) % 1009 for i in range(3000)]
        events = [
            {"ph": "i", "name": f"{rank}.{i}", "pid": 1, "tid": 1, "ts": ts} for i, ts in enumerate(times)
        ]
        write(tmp_path / f"rank{rank}.json", events)
    _combine(tmp_path / "out.json", tmp_path / "rank0.json", tmp_path / "rank1.json")
    names = [event["name"] for event in _timed(_read(tmp_path / "out.json"))]
    keys = sorted((0 if same_time else (i * 7919) % 1009, rank, i) for rank in (0, 1) for i in range(3000))
    assert names == [f"{rank}.{i}" for _, rank, i in keys]


def test_a_cut_input_is_combined_and_reported(two_workers: tuple[Path, Path], tmp_path: Path) -> None:
    path = two_workers[1] / "0" / "comm.json"
    path.write_bytes(path.read_bytes()[:-40])
    answer = _combine(tmp_path / "out.json", *two_workers)
    assert len(_timed(_read(tmp_path / "out.json"))) == 5
    assert answer["repairs"] == [
        f"{path}: the file ends early (cut in an event): what the job wrote after that is missing"
    ]


def test_the_files_of_a_rank_share_its_clock(tmp_path: Path) -> None:
    # two cycles of the profiler, 1 s apart, on two ranks; rank 1 is 3 ms ahead
    for rank, cycle in ((0, 0), (0, 1), (1, 0), (1, 1)):
        first = 1_000_000 * (1 + cycle) + 3_000 * rank
        name, cat = "gloo:all_reduce", "user_annotation"
        calls = [span(name, first + 10_000 * i, 1_000 + i, cat) for i in range(4)]
        info = {"rank": rank, "world_size": 2, "backend": "gloo"}
        write(tmp_path / "in" / f"r{rank}.c{cycle}.json", calls, schemaVersion=1, distributedInfo=info)
    answer = _combine(tmp_path / "out.json", tmp_path / "in")
    assert [worker["ranks"] for worker in answer["workers"]] == [[0], [1]]
    assert [worker["offset_us"] for worker in answer["workers"]] == [0, -3000]
    assert answer["workers"][1]["anchors"] == 8
    assert answer["aligned_by"] == "matched ends"
    assert answer["repairs"] == []


# -- what the user can do wrong -----------------------------------------------------------------


def test_two_dialects(two_workers: tuple[Path, Path], tmp_path: Path) -> None:
    other = write(tmp_path / "k.json", [span("k", 1, 1, "kernel", tid=7)])
    code, err = _fails("--path", two_workers[0] / "0" / "comm.json", other)
    assert code == 1
    assert "kineto" in err
    assert "byteps" in err


@pytest.mark.parametrize("text", ["", "[1, 2", '[{"a": 1}]', "hello"])
def test_a_foreign_input_leaves_no_output(two_workers: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    out = tmp_path / "new" / "out.json"
    out.parent.mkdir()
    code, err = _fails("--path", two_workers[0] / "0" / "comm.json", bad, "--output", out)
    assert code == 1
    assert str(bad) in err
    assert list(out.parent.iterdir()) == []


_METADATA = '[{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "python"}}]'


def _kineto(path: Path, rank: int, world_size: int) -> Path:
    info = {"rank": rank, "world_size": world_size}
    return write(path, [span("aten::mm", 1, 1, "cpu_op")], schemaVersion=1, distributedInfo=info)


@pytest.mark.parametrize("text", ["[]", '[{"name": "a", "ph', '{"traceEvents": []}', _METADATA])
def test_a_rank_that_wrote_no_event_does_not_cost_the_job(tmp_path: Path, text: str) -> None:
    empty, first, second = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    empty.write_text(text)
    _kineto(first, 0, 2)
    _kineto(second, 1, 2)
    answer = _combine(tmp_path / "out.json", empty, first, second, flags=["--align", "none"])
    assert [worker["path"] for worker in answer["workers"]] == [str(first), str(second)]
    assert answer["repairs"] == [f"{empty}: no events, left out"]


@pytest.mark.parametrize("text", ["", "hello", '{"a": 1}', "[1, 2, 3]"])
def test_a_broken_trace_of_a_directory_is_noted(
    two_workers: tuple[Path, Path], tmp_path: Path, text: str
) -> None:
    bad = two_workers[0] / "1" / "bps_trace_local_rank1_20step.json"
    bad.parent.mkdir()
    bad.write_text(text)
    answer = _combine(tmp_path / "out.json", *two_workers)
    assert [(worker["path"], worker["ranks"]) for worker in answer["workers"]] == [
        (str(worker), [0]) for worker in two_workers
    ]
    line = next(line for line in answer["repairs"] if line.startswith(f"{bad}: "))
    assert line.endswith("; left out")


def test_missing_ranks_are_noted(tmp_path: Path) -> None:
    paths = [_kineto(tmp_path / "in" / f"{rank}.json", rank, 5) for rank in (0, 1, 3)]
    for given in (paths, [tmp_path / "in"]):
        answer = _combine(tmp_path / "out.json", *given, flags=["--align", "none"])
        assert answer["repairs"] == [f"{given[0]}: ranks 2 and 4 of 5 missing"]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("damaged", [b"", b'{"ph":"X","pid":1,"tid":1,"ts":5,"dur":,"name":"lost"},'])
def test_bad_utf8_is_replaced_also_beside_a_damaged_event(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "a.json").write_bytes(
        b'{"traceEvents":['
        + damaged
        + b'{"ph":"X","pid":1,"tid":1,"ts":1,"dur":2,"name":"a","args":{"k\xe9y":1}},'
        + b'{"ph":"X","pid":1,"tid":1,"ts":4,"dur":2,"name":"b","args":{"key":1}}]}'
    )
    _combine(tmp_path / "out.json", tmp_path / "a.json", flags=["--align", "none"])
    events = _timed(json.loads((tmp_path / "out.json").read_text(encoding="utf-8")))
    assert [event["args"] for event in events] == [{"k\ufffdy": 1}, {"key": 1}]


# -- whole events ---------------------------------------------------------------------------------


def test_unknown_members_survive_as_they_were_written(tmp_path: Path) -> None:
    text = '[{"ph":"X","ts":1,"dur":2.50,"name":"a","zz":{"b": [1e3, "}],["]},"args":{"x":1e400}}]'
    (tmp_path / "a.json").write_text(text)
    event = next(iter(EventReader(tmp_path / "a.json", decode)))[0]
    event.ts = NO_ARGS
    out = encode(event).decode()
    assert '"zz":{"b": [1e3, "}],["]}' in out
    assert '"args":{"x":1e400}' in out
    assert json.loads(out)["dur"] == 2.5


# -- sorting --------------------------------------------------------------------------------------


@generated(st.lists(st.one_of(st.integers(-(10**16), 10**16), st.integers(-(10**18), 10**18)), min_size=1))
def test_microseconds_are_exact_whatever_is_beside_them(ns: list[int]) -> None:
    texts = microseconds(np.array(ns, np.int64))
    assert [Decimal(text.decode()) * 1000 for text in texts] == ns


# -- ids ------------------------------------------------------------------------------------------

_IDS = st.one_of(
    st.integers(-(2**70), 2**70), st.text(max_size=12), st.integers(0, 2**64).map(hex), st.floats()
)


@pytest.mark.slow
@generated(_IDS, st.integers(0, 5000), st.integers(0, 5000))
def test_ids_are_numbers_or_hexadecimal_and_differ_between_sources(
    value: Any, first: int, second: int
) -> None:
    number = unique_id(value, first)
    assert 0 <= (number if isinstance(number, int) else int(number, 16)) < 1 << 64
    assert not isinstance(number, int) or number < 1 << 53
    assert (number == unique_id(value, second)) == (first == second)


# -- anchors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cat", "is_anchor"),
    [
        ("gloo:all_reduce", "user_annotation", True),
        ("gloo:broadcast", "user_annotation", False),  # its root need not wait
        ("gloo:send", "user_annotation", False),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "kernel", True),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "kernel", False),
        ("nccl:all_reduce", "user_annotation", False),  # only the launch
        ("aten::add", "cpu_op", False),
    ],
)
def test_which_collectives_everybody_waits_in(tmp_path: Path, name: str, cat: str, is_anchor: bool) -> None:
    event = {"ph": "X", "name": name, "cat": cat, "ts": 5, "dur": 7, "pid": 1, "tid": 1}
    trace = read_trace(write(tmp_path / "rank0.json", [event], schemaVersion=1))
    points = dialects.named("kineto").sync_points(trace).values()
    waited = [(point.begin_ns.tolist(), point.end_ns.tolist()) for point in points if point.all_wait]
    assert waited == [([5_000], [12_000])] * is_anchor


_RECORDED = [
    *("horovod/2ranks-killed", "kineto/edge-rank-missing", "composer/ws2-slow-rank1"),
    *("byteps/fork_lenet_straggler", "byteps/fork_lenet_2w2g", "kineto/gpu-param-dlrm-8ranks"),
    *("kineto/accel-mtia-inference", "pipeline/straggler-ST"),
]


def _owned(*paths: Path) -> list[tuple[str, int | None, int | None, str, int]]:
    """Name, worker, rank, system and number of slices of each rank that has any."""
    job = read_ranks(paths, request=Request(progress=False))
    ranks = zip(job.names, job.job.sources, job.made, strict=True)
    return [
        (name.partition(":")[0], source.worker, source.rank, trace.dialect, len(trace))
        for name, source, trace in ranks
        if len(trace)
    ]


def _two(folder: Path, events: Callable[[int], list[Event]], **header: Callable[[int], Any]) -> list[Path]:
    """Write files of ranks 3 and 5, which their names do not tell."""
    return [
        write(folder / f"{name}.json", events(rank), **{key: of(rank) for key, of in header.items()})
        for name, rank in (("a", 3), ("b", 5))
    ]


def _kineto_job(folder: Path) -> list[Path]:
    return _two(
        folder,
        lambda rank: [span("gloo:all_reduce", 10 * rank, 5, "user_annotation")],
        distributedInfo=lambda rank: {"rank": rank, "world_size": 6},
    )


def _two_hosts(folder: Path) -> list[Path]:
    """Nothing but members of the header, different on each host, says what wrote the files."""
    return _two(
        folder,
        lambda rank: [span("copy", 10 * rank, 5, "privateuse1_runtime")],
        deviceProperties=lambda rank: [{"id": rank}],
        host_name=lambda rank: f"host{rank}",
        distributedInfo=lambda rank: {"rank": rank, "world_size": 6},
    )


def _composer(folder: Path) -> list[Path]:
    def events(rank: int) -> list[Event]:
        tells = {"clock_sync_timestamp_us": 1, "global_rank": rank}
        metadata = [
            {"ph": "M", "name": k, "pid": 0, "tid": 0, "args": {"value": v}} for k, v in tells.items()
        ]
        return [*metadata, span("event/batch", 10, 5)]

    return _two(folder, events)


def _horovod(folder: Path) -> list[Path]:
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    metadata = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": args}
        for pid, args in ((0, start), (1, {"name": "g"}))
    ]
    events = [*metadata, span("NEGOTIATE_ALLREDUCE", 5, 5, pid=1)]
    return [write(folder / f"rank{rank}.json", events) for rank in (3, 5)]


def _chrome(folder: Path) -> list[Path]:
    return [write(folder / f"rank_{rank}.json", [span("work", rank, 5)]) for rank in (3, 5)]


def _nothing_known(folder: Path) -> list[Path]:
    return [write(folder / f"{name}.json", [span("work", 1, 5)]) for name in ("a", "b")]


def _one_named(folder: Path) -> list[Path]:
    return [write(folder / "rank7.json", [span("work", 1, 5), span("work", 1, 5, pid=2)])]


def _workers(folder: Path) -> list[Path]:
    return [make.two_workers(folder)]


def _one_gpu(folder: Path) -> list[Path]:
    return [write(folder / "2" / "comm.json", [comm("w", "PUSH", 1, 0, 5)]).parent]


@pytest.mark.parametrize(
    "made",
    [_workers, _one_gpu, _kineto_job, _two_hosts, _composer, _horovod, _chrome, _nothing_known, _one_named],
)
def test_combining_keeps_the_ranks_of_every_system(
    tmp_path: Path, made: Callable[[Path], list[Path]]
) -> None:
    paths = made(tmp_path / "job")
    output = tmp_path / "combined.json"
    code, _, err = run_cli("--option", "combine", "--path", *paths, "--output", output)
    assert code == 0, err
    assert _owned(output) == _owned(*paths)


def test_a_dasf_profile_is_not_combined(tmp_path: Path) -> None:
    path = tmp_path / "profile.msgpack"
    path.write_bytes(dasf_bytes(dasf_compute(1.0, 0.5)))
    code, _, err = run_cli("--option", "combine", "--path", path, "--output", tmp_path / "combined.json")
    assert (code, "combine takes chrome-trace files only" in err) == (1, True)


@pytest.mark.parametrize("job", few(2, _RECORDED))
def test_combining_keeps_the_ranks_of_recorded_jobs(shared_data: Path, tmp_path: Path, job: str) -> None:
    output = tmp_path / "combined.json"
    code, _, err = run_cli("--option", "combine", "--path", shared_data / job, "--output", output)
    assert code == 0, err
    assert _owned(output) == _owned(shared_data / job)
    listed = json.loads(output.read_text())["otherData"]["combined"]
    assert len(listed) >= len(_owned(output))
