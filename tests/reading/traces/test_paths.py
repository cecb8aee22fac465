"""What a path may be: files, GPU, worker and job directories, directories of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from analyzer.base.errors import TraceError
from analyzer.reading.traces.gpu_folders import find_gpus
from analyzer.reading.traces.layouts import find_job
from analyzer.reading.traces.paths import JobFiles, JobKind, Source
from trace_utils import held_by, read_ranks

TRACE = json.dumps({"traceEvents": [{"ph": "X", "name": "FW.a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}]})


def make(root: Path, *names: str, content: str = TRACE) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def kineto(rank: int, world: int) -> str:
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": world}, **json.loads(TRACE)})


def prefixes(path: Path) -> list[str]:
    return [source.prefix for source in find_job(path).sources]


def test_a_gpu_directory_has_one_trace_the_final_one_first(tmp_path: Path) -> None:
    make(
        tmp_path,
        "comm.json",
        "temp.json",
        "bps_trace_local_rank0_9step.json",
        "bps_trace_local_rank0_20step.json",
    )
    job = find_job(tmp_path)
    assert (job.kind, [source.path.name for source in job.sources]) == (
        "gpu",
        ["bps_trace_local_rank0_20step.json"],
    )
    make(tmp_path, "bps_trace_final.json")
    assert find_job(tmp_path).sources[0].path.name == "bps_trace_final.json"


def test_rank_underscore_local_rank_of_two_workers(tmp_path: Path) -> None:
    make(tmp_path, "0_0/comm.json", "1_1/comm.json", "2_0/comm.json", "3_1/comm.json")
    assert prefixes(tmp_path) == ["wk0.rank0.", "wk0.rank1.", "wk1.rank0.", "wk1.rank1."]


def test_workers_are_in_natural_order_and_missing_ranks_noted(tmp_path: Path) -> None:
    make(tmp_path, "worker_10/0/comm.json", "worker_2/0/comm.json", "worker_2/1/comm.json")
    assert prefixes(tmp_path) == ["wk0.rank0.", "wk0.rank1.", "wk1.rank0."]
    assert find_job(tmp_path).notes == [
        f"{tmp_path}, worker 1: local rank 1 of 2 missing",
        f"{tmp_path}: workers are numbered by their place: wk0 is worker_2 and wk1 is worker_10",
    ]
    assert [gpu.path.parent.name for gpu in find_gpus(tmp_path)] == ["worker_2", "worker_2", "worker_10"]


def test_a_lone_worker_that_is_not_the_first_is_noted(tmp_path: Path) -> None:
    make(tmp_path, "a/worker_2/0/comm.json", "b/worker_0/0/comm.json", "b/worker_1/0/comm.json")
    note = f"{tmp_path}/a/worker_2: workers 0 and 1 may be missing: no folder beside it is theirs"
    assert find_job(tmp_path / "a").notes == find_job(tmp_path / "a" / "worker_2").notes == [note]
    assert find_job(tmp_path / "b" / "worker_1").notes == []
    assert prefixes(tmp_path / "b" / "worker_1") == ["rank0."]


def test_a_directory_around_one_job_is_searched(tmp_path: Path) -> None:
    make(tmp_path, "a/traces/worker_0/0/comm.json")
    assert find_job(tmp_path / "a").sources[0].path.name == "comm.json"
    make(tmp_path, "b/traces/worker_0/0/comm.json")
    with pytest.raises(TraceError, match=f"holds several jobs: a and b; give one, e.g. {tmp_path}/a$"):
        find_job(tmp_path)


def test_rank_files_by_content_before_name(tmp_path: Path) -> None:
    make(tmp_path, "rank0.pt.trace.json", content=kineto(1, 3))
    make(tmp_path, "rank1.pt.trace.json", content=kineto(0, 3))
    loaded = read_ranks([tmp_path])
    assert [(s.rank, s.path.name) for s in loaded.job.sources] == [
        (0, "rank1.pt.trace.json"),
        (1, "rank0.pt.trace.json"),
    ]
    assert loaded.repairs == [f"{tmp_path}: rank 2 of 3 missing"]


def test_other_files_and_products_are_not_ranks(tmp_path: Path) -> None:
    make(tmp_path, "rank0.json", "combined.json", "synthetic.json.gz")
    make(tmp_path, "notes.txt", "steps.json", content='{"steps": [1]}')
    make(tmp_path, "rank1.json", content="")
    job = find_job(tmp_path)
    assert [source.path.name for source in job.sources] == ["rank0.json"]
    assert job.notes == [
        f"{tmp_path / 'rank1.json'}: an empty file, left out",
        f"{tmp_path / 'steps.json'}: not a trace, left out",
    ]


@pytest.mark.parametrize("name", ["rank0.json", "rank0/trace.json"])
def test_step_logs_are_ranks_only_without_traces(tmp_path: Path, name: str) -> None:
    make(tmp_path, "a/metrics.csv", "a/a.jsonl", content="step,step_time\n1,2\n2,2\n")
    make(tmp_path, "other.csv", content="a,b\n1,2\n")
    (tmp_path / "metrics.csv").write_bytes((tmp_path / "a/metrics.csv").read_bytes())
    assert [source.path.name for source in find_job(tmp_path).sources] == ["metrics.csv"]
    assert held_by([tmp_path]) == "steps"
    make(tmp_path, name)
    job = find_job(tmp_path)
    assert [source.path for source in job.sources] == [tmp_path / name]
    assert not [note for note in job.notes if "csv" in note]
    assert held_by([tmp_path]) == "events"


@pytest.mark.parametrize("where", ["merged_trace.json", "merged/merged_trace.json.gz"])
def test_composers_merged_file_is_not_a_rank(tmp_path: Path, where: str) -> None:
    files = ["rank0.json", "rank1.json"] if "/" not in where else ["trace/rank0.json", "trace/rank1.json"]
    make(tmp_path, *files, where)
    job = find_job(tmp_path)
    assert [source.rank for source in job.sources] == [0, 1]
    assert job.notes == [f"{tmp_path / where}: the files of all ranks once more, left out"]


def test_ranks_on_several_hosts_and_ambiguous_directories(tmp_path: Path) -> None:
    make(tmp_path, "host0/rank0.json", "host1/rank1.json")
    assert prefixes(tmp_path) == ["rank0.", "rank1."]
    make(tmp_path, "again/rank0.json")
    with pytest.raises(TraceError, match="several directories in it hold traces of the same ranks"):
        find_job(tmp_path)


@pytest.mark.parametrize(
    "head",
    ['{"distributedInfo": {"backend": "nccl", "rank": %d, "world_size": 10}, "traceEvents": []}',
     '[{"name": "global_rank", "ph": "M", "pid": 0, "args": {"value": %d}}]'],
)  # fmt: skip
@pytest.mark.parametrize("name", ["trace.json", "rank0.json"])  # the second: a rank on its own host
def test_files_of_one_name_have_the_ranks_in_their_contents(tmp_path: Path, name: str, head: str) -> None:
    make(tmp_path, f"host0/{name}", content=head % 8)
    make(tmp_path, f"host1/{name}", content=head % 2)
    sources = find_job(tmp_path).sources
    assert [(s.rank, s.path.parent.name) for s in sources] == [(2, "host1"), (8, "host0")]
    make(tmp_path, f"host2/{name}", content=head % 8)
    with pytest.raises(
        TraceError, match=r"unknown ones: host0, host1 and host2; give one, e\.g\. .*/host0, or"
    ):
        find_job(tmp_path)


def test_a_broken_rank_is_left_out_with_a_note(tmp_path: Path) -> None:
    make(tmp_path, "rank0.json", "rank1.json")
    make(tmp_path, "rank2.json", content='{"traceEvents" 3 "ph"')
    loaded = read_ranks([tmp_path])
    assert [source.rank for source in loaded.job.sources] == [0, 1]
    assert any("rank2.json: not a trace" in line for line in loaded.repairs)


def test_special_files_are_left_out_with_a_note(tmp_path: Path) -> None:
    make(tmp_path, "rank0.json")
    os.mkfifo(tmp_path / "rank1.json")
    for name, target in (
        ("rank2.json", "rank2.json"),
        ("rank3", "nowhere"),
        ("rank4", "/dev/zero"),
        ("up", ".."),
    ):
        (tmp_path / name).symlink_to(target)
    job = find_job(tmp_path)
    assert [source.path.name for source in job.sources] == ["rank0.json"]
    left = ("rank1.json", "rank2.json", "rank3", "rank4")
    assert job.notes == [f"{tmp_path / name}: neither a file nor a directory, left out" for name in left]


def test_several_directories_are_workers_several_files_ranks(tmp_path: Path) -> None:
    make(tmp_path, "x/0/comm.json", "y/0/comm.json", "y/1/comm.json")
    loaded = read_ranks([tmp_path / "y", tmp_path / "x"])
    assert [source.prefix for source in loaded.job.sources] == ["wk0.rank0.", "wk0.rank1.", "wk1.rank0."]
    make(tmp_path, "r0.json", content=kineto(0, 2))
    make(tmp_path, "r1.json", content=kineto(1, 2))
    loaded = read_ranks([tmp_path / "r1.json", tmp_path / "r0.json"])
    assert [(source.prefix, source.path.name) for source in loaded.job.sources] == [
        ("rank0.", "r0.json"),
        ("rank1.", "r1.json"),
    ]


@pytest.mark.parametrize(
    ("case", "dialect"),
    [
        ("byteps/fork_lenet_base/worker_0/0/comm.json", "byteps"),
        ("byteps/fork_lenet_base/worker_0/0/io.json", "byteps"),
        ("byteps/fork_lenet_base/worker_0/0/temp.json", "mxnet"),
        ("byteps/master_torch_truncated/worker_0/0/comm.json", "byteps"),
        ("horovod/2ranks-killed/trace/timeline.json", "horovod"),
        ("generic/derived/horovod_no_bracket.json", "horovod"),
        ("composer/ws2/trace/ep0-ba7-rank1.json", "composer"),
        ("composer/ws2/oracle/merged_trace.json", "composer"),
        ("kineto/gpu-kineto-old-list/num_workers_0/worker0.pt.trace.json.gz", "kineto"),
        ("kineto/edge-rank-missing/rank_not_found.json.gz", "kineto"),
        ("dasf/one-host-2workers/trace/demo-TracePlugin-vm.msgpack", "dasf"),
        ("generic/node/node_trace.json", "chrome"),
        ("generic/viztracer/viz.json.gz", "chrome"),
    ],
)
def test_dialects_are_recognised_by_content(
    shared_data: Path, tmp_path: Path, case: str, dialect: str
) -> None:
    renamed = tmp_path / "file.bin"
    renamed.write_bytes((shared_data / case).read_bytes())
    assert read_ranks([renamed]).made[0].dialect == dialect


def hosts(kind: JobKind, *sources: Source) -> list[int]:
    return JobFiles(Path("job"), kind, sources).hosts


def test_the_gpus_of_a_worker_share_its_host() -> None:
    gpus = [Source(Path(f"{worker}/{rank}/t.json"), worker, rank) for worker in (0, 3) for rank in (0, 1)]
    assert hosts("job", *gpus) == [0, 0, 1, 1]
    assert hosts("worker", Source(Path("0/t.json"), rank=0), Source(Path("1/t.json"), rank=1)) == [0, 0]


def test_files_of_ranks_have_a_host_each_and_the_ranks_of_a_file_share_one() -> None:
    a, b = Path("a.json"), Path("b.json")
    assert hosts("ranks", Source(a, rank=0), Source(a, rank=1), Source(b, rank=2)) == [0, 0, 1]


def write_run(log: Path, run: str, *files: str) -> Path:
    folder = log / "plugins" / "profile" / run
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text(TRACE)
    return folder


def test_the_newest_run_has_a_trace_for_each_host(tmp_path: Path) -> None:
    write_run(tmp_path, "2026_11_22_23_59_59", "h0.trace.json")
    run = write_run(tmp_path, "2026_11_23_00_00_01", "h10.trace.json", "h2.trace.json", "h2.xplane.pb")
    job = find_job(tmp_path)
    assert [source.path for source in job.sources] == [run / "h2.trace.json", run / "h10.trace.json"]
    assert [source.worker for source in job.sources] == [0, 1]
    assert job.kind == "ranks"
    assert [note.split(": ", 1)[1] for note in job.notes] == ["an earlier run, left out; give it to read it"]


def test_log_directories_of_processes_are_one_job(tmp_path: Path) -> None:
    for process in ("0", "1"):
        write_run(tmp_path / process, "run", "h.trace.json")
    assert len(find_job(tmp_path).sources) == 2
