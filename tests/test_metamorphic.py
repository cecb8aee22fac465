"""Changes of a recording that must not change the answer, or change it in a known way.

The recorded jobs are of PyTorch's profiler; the made job is a pipeline whose third stage computes for 1.4
times as long as the others. What a change leaves unknown is not claimed any more.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import REPO, SHARED, ask, few, run_cli
from oracles.known_pipeline import Pipelines

Document = dict[str, Any]
#: The files of a job by their names.
Files = Mapping[str, Document]

DDP = "examples/ddp-h200"
GLOO, PIPELINE, HOST_BOUND = (
    "kineto/ddp2-gloo-slow-rank1/trace", "pipeline/straggler-ST", "kineto/gpu-hta-2of128/trace"
)  # fmt: skip
MADE = "made"
JOBS = DDP, MADE, PIPELINE, GLOO, HOST_BOUND

#: Findings that say that a rank, or a stage, differs from the others.
COMPARES_RANKS = {"late_rank", "uneven_work", "slow_collective"}

#: A flaw of the recording.
FLAW = "capture_quality"
UNALIGNED = "the clocks of the ranks are not aligned"
#: Parts of the names of all that ranks do together.
COLLECTIVES = "nccl", "gloo", "c10d"

pytestmark = pytest.mark.slow


class Answer(NamedTuple):
    """What a job is asked: the kind and the ranks of each finding, and the saving (ms) of the first one."""

    headline: str
    findings: list[tuple[str, list[str]]]
    gain_ms: float
    path_ms: dict[str, float]  # the categories of the critical path
    gaining: set[str]  # the kinds of the findings that claim a saving
    flaws: list[str]  # of the recording

    @property
    def is_tied(self) -> bool:
        """True if the clocks of all ranks are known to each other."""
        return UNALIGNED not in self.flaws


def answer(directory: Path, files: Files, *flags: str, packed: bool = False) -> Answer:
    """Write the files of a job and ask what is slow in it, and for its critical path."""
    directory.mkdir()
    for name, document in files.items():
        content = json.dumps(document).encode()
        path = directory / f"{name}.pt.trace.json{'.gz' * packed}"
        path.write_bytes(gzip.compress(content, 1) if packed else content)
    diagnosis = ask("--path", directory, *flags)
    findings = diagnosis["findings"]
    gain = findings[0]["gain_ms"]
    return Answer(
        diagnosis["headline"],
        [(finding["kind"], finding["scope"]["ranks"]) for finding in findings if finding["kind"] != FLAW],
        gain["mid"] if gain else 0.0,
        ask("critical", directory)["scopes"][-1]["by_cat"],
        {finding["kind"] for finding in findings if finding["gain_ms"]["mid"] is not None},
        [finding["title"].rpartition(": ")[2] for finding in findings if finding["kind"] == FLAW],
    )


class Recorded(NamedTuple):
    """The unpacked files of a job, and what is answered before they are changed."""

    files: Files
    before: Answer


@cache
def recorded(path: Path, scratch: Path) -> Recorded:
    """Read a job and ask about it, once for all tests."""
    files = read(path)
    return Recorded(files, answer(scratch / "-".join(path.parts[-3:]).strip("/"), files))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the made pipeline."""
    path = tmp_path_factory.mktemp("pipeline") / MADE
    Pipelines(slow={(0, 2): 1.4}, replicas=1).write(path, names_peers=True)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for jobs as they were recorded."""
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture
def job(request: pytest.FixtureRequest, made: Path, scratch: Path) -> Recorded:
    """The job that the test names."""
    path = {MADE: made, DDP: REPO / DDP}.get(request.param, SHARED / request.param)
    if not path.is_dir():
        pytest.skip(f"no recorded traces at {SHARED}")
    return recorded(path, scratch)


def job_files(*names: str) -> pytest.MarkDecorator:
    """Run a test on two jobs, in `make fuzz` on the others, too."""
    jobs = [pytest.param(name, marks=[pytest.mark.fuzz] * (i >= 2)) for i, name in enumerate(names)]
    return pytest.mark.parametrize("job", jobs, indirect=True)


def read(directory: Path) -> Files:
    """Read the trace files of a directory, by their names without a suffix."""
    documents = {}
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        documents[path.name.partition(".")[0]] = json.loads(text)
    return documents


def changed(files: Files, change: Callable[[int, Document], Document]) -> Files:
    """Change each event with the number of its file; metadata without a time stays."""
    return {
        name: {**document, "traceEvents": [change(i, event) for event in document["traceEvents"]]}
        for i, (name, document) in enumerate(files.items())
    }


def shuffled(files: Files) -> Files:
    """Put the events of each file into another order."""
    draw = random.Random(7)
    return {
        name: {**document, "traceEvents": draw.sample(document["traceEvents"], len(document["traceEvents"]))}
        for name, document in files.items()
    }


def cut(document: Document) -> tuple[Document, Document]:
    """Cut a file in two where its middle step begins; metadata is in both."""
    events = document["traceEvents"]
    begins = sorted(float(event["ts"]) for event in events if event["name"].startswith("ProfilerStep#"))
    middle = begins[len(begins) // 2]
    early, late = (
        [event for event in events if event["ph"] == "M" or (float(event["ts"]) < middle) == is_early]
        for is_early in (True, False)
    )
    return {**document, "traceEvents": early}, {**document, "traceEvents": late}


def in_two_parts(files: Files, n_ranks: int | None = None) -> Files:
    """Cut the files of the first ranks, or of all, in two."""
    parts: dict[str, Document] = {}
    for i, (name, document) in enumerate(files.items()):
        if n_ranks is None or i < n_ranks:
            parts |= {f"{name}.{number}": part for number, part in enumerate(cut(document), 1)}
        else:
            parts[name] = document
    return parts


def with_ranks_swapped(files: Files) -> Files:
    """Let the last rank be the first one, and the other way round; the files keep their own names."""
    ranks = [document["distributedInfo"]["rank"] for document in files.values()]
    return {
        f"rank{rank}": {**document, "distributedInfo": {**document["distributedInfo"], "rank": rank}}
        for document, rank in zip(files.values(), reversed(ranks), strict=True)
    }


def slower(files: Files, factor: int) -> Files:
    """Let everything take `factor` times as long from the first event on."""
    origin = min(
        float(event["ts"])
        for document in files.values()
        for event in document["traceEvents"]
        if event["ph"] != "M"
    )

    def change(_: int, event: Document) -> Document:
        times = {"ts": origin + factor * (float(event["ts"]) - origin)} if event["ph"] != "M" else {}
        return event | times | ({"dur": factor * float(event["dur"])} if "dur" in event else {})

    return changed(files, change)


def on_other_clocks(files: Files, skew_ms: float) -> Files:
    """Put each rank on a machine of its own, whose clock is so far ahead of the one before."""

    def change(rank: int, event: Document) -> Document:
        return event if event["ph"] == "M" else event | {"ts": float(event["ts"]) + 1e3 * skew_ms * rank}

    moved = changed(files, change)
    return {name: {**document, "host_name": f"node{i}"} for i, (name, document) in enumerate(moved.items())}


def without(files: Files, *texts: str) -> Files:
    """Leave out the events whose names hold one of some texts."""
    return {
        name: {
            **document,
            "traceEvents": [
                event for event in document["traceEvents"] if not any(text in event["name"] for text in texts)
            ],
        }
        for name, document in files.items()
    }


@job_files(*JOBS)
def test_gzip_changes_no_answer(job: Recorded, tmp_path: Path) -> None:
    assert answer(tmp_path / "packed", job.files, packed=True) == job.before


@job_files(*JOBS)
def test_the_order_of_events_changes_no_answer(job: Recorded, tmp_path: Path) -> None:
    assert answer(tmp_path / "shuffled", shuffled(job.files)) == job.before


@job_files(MADE, PIPELINE, GLOO, HOST_BOUND, DDP)
@pytest.mark.parametrize("n_ranks", few(1, [None, 1]))
def test_a_file_in_two_parts_changes_no_answer(job: Recorded, tmp_path: Path, n_ranks: int | None) -> None:
    assert answer(tmp_path / "cut", in_two_parts(job.files, n_ranks)) == job.before


@job_files(DDP, GLOO)
def test_swapped_ranks_swap_in_the_answer(job: Recorded, tmp_path: Path) -> None:
    after = answer(tmp_path / "swapped", with_ranks_swapped(job.files))
    assert job.before.findings[0] == ("late_rank", ["rank1"])
    assert after.headline.replace("rank0", "rank1") == job.before.headline


@job_files(DDP, MADE, GLOO, PIPELINE, HOST_BOUND)
@pytest.mark.parametrize("factor", few(1, [2, 10]))
def test_doubled_times_double_the_answer(job: Recorded, tmp_path: Path, factor: int) -> None:
    before = answer(tmp_path / "recorded", job.files, "--as_recorded")  # an event costs the same in both
    after = answer(tmp_path / "slower", slower(job.files, factor), "--as_recorded")
    assert after.findings[0] == before.findings[0]
    assert after.gain_ms == pytest.approx(factor * before.gain_ms, rel=0.01)
    path = {name: factor * ms for name, ms in job.before.path_ms.items()}
    assert after.path_ms == pytest.approx(path, rel=0.01, abs=factor * 0.1)


@job_files(DDP, MADE)
def test_kernels_whose_args_name_a_collective_are_met_under_any_name(job: Recorded, tmp_path: Path) -> None:
    def change(_: int, event: Document) -> Document:
        return event | {"name": event["name"][:: -1 if "Collective name" in event.get("args", {}) else 1]}

    after = answer(tmp_path / "renamed", changed(job.files, change))
    assert after.findings[0] == job.before.findings[0]
    assert after.gain_ms == pytest.approx(job.before.gain_ms)


@job_files(DDP, MADE, PIPELINE, GLOO)
@pytest.mark.parametrize("skew_ms", few(1, [1, 1000]))
def test_clocks_that_collectives_tie_change_no_answer(job: Recorded, tmp_path: Path, skew_ms: float) -> None:
    after = answer(tmp_path / "skewed", on_other_clocks(job.files, skew_ms))
    if skew_ms == 1 and after.findings[0] != job.before.findings[0]:
        # gloo's collectives take 20 ms: they do not show that a broadcast waits for its last rank
        assert "clocks agree within ±2" in run_cli("--path", tmp_path / "skewed")[1]
        assert not after.gaining
        return
    assert after.findings[0] == job.before.findings[0]
    assert after.gain_ms == pytest.approx(job.before.gain_ms, rel=0.02)


@job_files(MADE, PIPELINE)
@pytest.mark.parametrize("skew_ms", few(1, [1, 1000]))
def test_clocks_that_messages_tie_change_no_answer(job: Recorded, tmp_path: Path, skew_ms: float) -> None:
    sent = without(job.files, "AllReduce", "AllGather", "ReduceScatter")
    after = answer(tmp_path / "skewed", on_other_clocks(sent, skew_ms))
    assert job.before.findings[0][0] == "uneven_work"
    assert after.findings[0] == job.before.findings[0]
    assert after.gain_ms == pytest.approx(job.before.gain_ms, rel=0.1)


@job_files(DDP, MADE, GLOO, PIPELINE)
def test_no_headline_compares_ranks_whose_clocks_nothing_ties(job: Recorded, tmp_path: Path) -> None:
    alone = answer(tmp_path / "alone", on_other_clocks(without(job.files, *COLLECTIVES), 1))
    assert (job.before.is_tied, alone.is_tied) == (True, False)
    assert alone.findings[0][0] not in COMPARES_RANKS
    assert not COMPARES_RANKS & alone.gaining
