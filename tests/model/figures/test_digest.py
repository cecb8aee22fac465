"""A digest answers as its files do: statistics, breakdown and comparisons, in the same bytes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

import recorded
from analyzer.base.errors import TraceError
from analyzer.model.figures.digest import IN_DIGEST, read_digest, save_digest
from analyzer.model.figures.job_figures import JobFigures, load_figures
from conftest import REPO, run_cli
from make import comm, span, step, two_workers, write
from trace_utils import Request

pytestmark = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.jobs(), ids=lambda path: "-".join(path.parts[-2:]))
def test_a_digest_has_the_figures_of_its_traces(path: Path, tmp_path: Path) -> None:
    try:
        job = load_figures([path], IN_DIGEST, Request(jobs=1, progress=False))
    except TraceError as error:
        assert "holds no operation" in str(error)
        pytest.skip("no operation")
    save_digest(tmp_path / "job.json", job)
    kept = replace(read_digest(tmp_path / "job.json"), path=job.path)
    assert plain(kept) == plain(job)


def plain(job: JobFigures) -> str:
    return json.dumps(to_builtins(job, enc_hook=lambda one: getattr(one, "tolist", one.__str__)()))


def answer(*args: object) -> dict[str, Any]:
    code, out, err = run_cli("--format", "json", *args)
    assert code in (0, 3), err
    document: dict[str, Any] = json.loads(out)
    for key in ("headline", "paths", "runs"):
        document.pop(key, None)
    return document


def test_the_command_line_takes_it_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base, new, digest = REPO / "examples" / "lenet", REPO / "examples" / "lenet-100mbit", "base.json.gz"
    first = answer("--option", "statistic", "--path", base, "--save", digest)
    assert first == answer("--option", "statistic", "--path", digest)
    for words in (["--sub_option", "breakdown"], ["--group_by", "operation"]):
        told = answer("--option", "statistic", "--path", base, *words)
        assert told == answer("--option", "statistic", "--path", digest, *words)
    for option in ("compare", "3dcompare"):
        told = answer("--option", option, "--path", base, new)
        assert told == answer("--option", option, "--path", digest, new, "--force")
    told = answer("--option", "compare", "--path", new, base, "--fail_above", 5, "--save", "new.json.gz")
    assert told == answer("--option", "compare", "--path", new, digest, "--fail_above", 5)
    assert answer("--option", "statistic", "--path", "new.json.gz") == first  # of the last run


def test_workers_are_kept_apart(tmp_path: Path) -> None:
    two_workers(tmp_path / "job")
    run_cli("--option", "statistic", "--path", tmp_path / "job", "--save", tmp_path / "job.json")
    told = answer("--option", "compare", "--path", tmp_path / "job", tmp_path / "job")
    assert told == answer("--option", "compare", "--path", tmp_path / "job.json", tmp_path / "job")
    assert told["operations"][0]["name"].startswith("wk0.")


def test_a_digest_is_marked_and_replaces_no_foreign_file(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [comm("w", "PUSH", 1, 0, 10)])
    mine = tmp_path / "notes.json"
    mine.write_text("{}")
    words = ("--option", "statistic", "--path", trace, "--save")
    for path, why in (
        (trace, "one of the inputs"),
        (mine, "exists; --force overwrites it"),
        (tmp_path / "d.txt", ".json"),
    ):
        code, _, err = run_cli(*words, path)
        assert code == 2 and why in err and len(err.splitlines()) == 1
    assert mine.read_text() == "{}"
    for _ in range(2):  # what this program wrote it may replace, with the same bytes
        assert run_cli(*words, tmp_path / "d.json.gz")[0] == 0
    first = (tmp_path / "d.json.gz").read_bytes()
    run_cli(*words, tmp_path / "d.json.gz")
    assert (tmp_path / "d.json.gz").read_bytes() == first


def test_a_digest_in_a_directory_is_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "t.json", [span("a", 0, 1)])
    before = answer("--option", "statistic", "--path", tmp_path, "--save", tmp_path / "d.json")
    assert answer("--option", "statistic", "--path", tmp_path) == before


def test_options_that_need_events_refuse_a_digest(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [span("a", 0, 1), span("a", 5, 1)])
    digest = tmp_path / "d.json"
    run_cli("--option", "statistic", "--path", trace, "--save", digest)
    for option in ("combine", "graph", "critical", "replay", "collect"):
        code, _, err = run_cli("--option", option, "--path", digest)
        assert code == 1 and len(err.splitlines()) == 1
        code, _, err = run_cli("--option", option, "--path", trace, "--save", tmp_path / "e.json")
        assert code == 2 and "unrecognized argument: --save" in err
    code, _, err = run_cli("diagnose", digest)
    assert code == 2 and "ask statistic or compare" in err
    statistic = ("--option", "statistic", "--path", digest)
    for words in (
        (*statistic, "--filter", "a"),
        (*statistic, "--sub_option", "breakdown", "--step_by", "a"),
        (*statistic, digest),
        (*statistic, "--save", tmp_path / "e.json"),
        ("--option", "compare", "--path", digest, trace, "--filter", "a"),
        ("--option", "statistic", "--path", trace, "--filter", "a", "--save", tmp_path / "e.json"),
    ):
        code, _, err = run_cli(*words)
        assert code == 2 and len(err.splitlines()) == 1, err
    assert not (tmp_path / "e.json").exists()


def test_a_digest_keeps_the_steps_it_was_saved_with(tmp_path: Path) -> None:
    events = [span("turn", 100 * i, 90) for i in range(3)] + [span("a", 100 * i + 5, 5) for i in range(3)]
    trace, digest = write(tmp_path / "t.json", events), tmp_path / "d.json"
    by = ("--step_by", "turn")
    breakdown = ("--option", "statistic", "--sub_option", "breakdown", "--path")
    told = answer(*breakdown, trace, *by, "--save", digest)
    assert len(told["breakdown"]) == 3
    assert answer(*breakdown, digest, *by) == told
    code, _, err = run_cli(*breakdown, digest)
    assert code == 2 and "give --step_by turn" in err
    assert run_cli("--option", "statistic", "--path", digest)[0] == 0  # where steps do not matter


@pytest.fixture
def digest(tmp_path: Path) -> Path:
    """Make the digest of a small job with steps."""
    events = [step(i, 1000 * i, 900) for i in range(4)]
    events += [span("a", 10 * i, 1 + i / 50, "cpu_op") for i in range(390)]
    write(tmp_path / "t.json", events, schemaVersion=1)
    path = tmp_path / "d.json"
    code, _, err = run_cli("--option", "statistic", "--path", tmp_path / "t.json", "--save", path)
    assert code == 0, err
    return path


def check_refused(path: Path) -> None:
    """Check that `statistic` and `compare` say in one line what is wrong."""
    for words in (("statistic", "--path", path), ("compare", "--path", path, path)):
        code, _, err = run_cli("--option", *words)
        assert (code, len(err.splitlines())) == (1, 1)
        assert str(path) in err and "save it again with --save" in err


def test_a_cut_digest_is_refused(digest: Path) -> None:
    text = digest.read_bytes()
    for n in (40, len(text) // 2, len(text) - 3):
        digest.write_bytes(text[:n])
        check_refused(digest)
    digest.write_bytes(gzip.compress(text)[:-20])
    check_refused(digest)


def test_a_digest_of_another_version_is_refused(digest: Path) -> None:
    digest.write_text('{"writtenBy":"analyze.py","digest":3,"root":"."}')
    code, _, err = run_cli("--option", "compare", "--path", digest, digest)
    assert code == 1 and "version 3, and this program reads version 4; save it again with --save" in err


def test_any_changed_byte_is_refused(digest: Path) -> None:
    text, rng = digest.read_bytes(), random.Random(1)
    begin = text.index(b'"job":')
    for _ in range(60):
        damaged = bytearray(text)
        for _ in range(rng.choice((1, 3, 20))):
            place = rng.randrange(begin, len(damaged) - 2)
            damaged[place] = rng.choice(list({*b'0123456789-,.[]{}":eabc\xff\x00'} - {damaged[place]}))
        digest.write_bytes(bytes(damaged))
        check_refused(digest)
