"""Output files, in real runs: what is refused, all or none, and what an interrupted run leaves behind."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mutations
import pytest

from conftest import REPO, few, is_alive, run_cli

pytestmark = pytest.mark.slow

ANALYZE = [sys.executable, str(REPO / "analyze.py")]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a worker with final traces, and with files of every kind that other options read."""
    root = tmp_path / "job"
    shutil.copytree(REPO / "examples" / "lenet", root)
    raw = REPO / "examples" / "mlp-raw" / "worker_0" / "0"
    for name in ("comm.json", "temp.json", "io.json"):
        shutil.copy(raw / name, root / "worker_0" / "0" / name)
    (root / "worker_0.pcap").write_bytes(b"\xd4\xc3\xb2\xa1 packets")
    (root / "server_0.key_log.txt").write_text("key 1")
    (root / "notes.md").write_text("mine")
    return root


def checksums(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def temporary(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*.tmp")]


def run_process(*args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [*ANALYZE, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **kwargs)


# ---- what is refused

OPTIONS = (
    "diagnose", "statistic", "graph", "combine", "compare", "critical", "replay", "collect", "3dcompare",
)  # fmt: skip
_FILES = ("output", "xlsx", "html", "save")
#: Each option with one of them, and the first with all, in each run of the suite.
FLAGS = [(option, flag) for option in OPTIONS for flag in _FILES]
FLAGS.sort(key=lambda one: one[0] != OPTIONS[0] and _FILES[OPTIONS.index(one[0]) % len(_FILES)] != one[1])
RECORDED = (
    "worker_0/0/comm.json", "worker_0/0/temp.json", "worker_0/0/io.json", "worker_0/0/dag.gml",
    "worker_0.pcap", "server_0.key_log.txt", "worker_0/0/bps_trace_final.json.gz", "notes.md",
)  # fmt: skip


@pytest.mark.parametrize(("option", "flag"), few(len(OPTIONS) + len(_FILES) - 1, FLAGS))
def test_no_option_replaces_a_file_of_the_job(job: Path, option: str, flag: str) -> None:
    before = checksums(job)
    paths = (job, job) if "compare" in option else (job,)
    for name in RECORDED:
        target = job / name
        link, hard = job.parent / f"link-{target.name}", job.parent / f"hard-{target.name}"
        link.unlink(missing_ok=True)
        hard.unlink(missing_ok=True)
        link.symlink_to(target)
        hard.hardlink_to(target)
        for path in (target, link, hard):
            code, _, err = run_cli("--option", option, "--path", *paths, f"--{flag}", path)
            assert (code, len(err.splitlines())) == (2, 1), err
            assert hard.read_bytes() == target.read_bytes()
    assert checksums(job) == before


@pytest.mark.parametrize("name", RECORDED[:-1])
def test_force_replaces_no_input(job: Path, name: str) -> None:
    before = checksums(job)
    code, _, err = run_cli("--option", "statistic", "--path", job, "--force", "--html", job / name)
    assert (code, err) == (2, f"analyze.py: error: --html {job / name}: is one of the inputs\n")
    assert checksums(job) == before


def test_force_replaces_another_file(job: Path) -> None:
    page = job / "page.html"
    page.write_text("mine")
    code, _, err = run_cli("--option", "statistic", "--path", job, "--html", page)
    assert code == 2
    assert "exists; --force overwrites it" in err
    assert run_cli("--option", "statistic", "--path", job, "--html", page, "--force")[0] == 0
    assert page.read_text().startswith("<!doctype html>")


def test_an_unknown_file_of_a_default_name_stays(job: Path) -> None:
    (job / "combined.json").write_text('{"traceEvents": []}')
    code, _, err = run_cli("--option", "combine", "--path", job)
    assert (code, "exists; --force overwrites it" in err) == (2, True)
    assert (job / "combined.json").read_text() == '{"traceEvents": []}'


@pytest.mark.parametrize(
    ("option", "suffix"), few(1, [("critical", ".json.gz"), ("combine", ".json"), ("replay", ".json.gz")])
)
def test_a_timeline_is_replaced_by_the_next_run(job: Path, option: str, suffix: str) -> None:
    path = job / f"new{suffix}"
    args = ("--option", option, "--path", job, "--output", path)
    assert [run_cli(*args)[0] for _ in range(2)] == [0, 0]
    content = gzip.decompress(path.read_bytes()) if suffix == ".json.gz" else path.read_bytes()
    assert json.loads(content)["writtenBy"] == "analyze.py"


@pytest.mark.parametrize("other", ["x.html", "./x.html", "sub/../x.html", "link.html"])
def test_two_outputs_of_one_name_are_refused(job: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job)
    (job / "sub").mkdir()
    (job / "link.html").symlink_to("x.html")
    gml = "worker_0/0/dag.gml"
    code, _, err = run_cli("--option", "graph", "--path", gml, "--output", "x.html", "--html", other)
    assert (code, "is the name that" in err) == (2, True)
    assert not (job / "x.html").exists()


# ---- all or none


def test_an_output_that_fails_costs_all_of_them(job: Path) -> None:
    before = checksums(job)
    nowhere = job / "nowhere" / "x.html"
    code, _, err = run_cli("--option", "replay", "--path", job, "--html", nowhere, "--xlsx", job / "x.xlsx")
    assert (code, f"there is no directory {nowhere.parent}" in err) == (1, True)
    assert checksums(job) == before


def test_an_interrupt_before_the_result_is_shown_leaves_nothing(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.report import show

    def interrupted(*_: object) -> None:
        assert len(temporary(job)) == 1  # the timeline is prepared
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "show", interrupted)
    before = checksums(job)
    code, _, err = run_cli("--option", "combine", "--path", job)
    assert (code, "interrupted" in err) == (130, True)
    assert (checksums(job), temporary(job)) == (before, [])


@pytest.mark.parametrize(
    ("option", "flag"), [("combine", "output"), ("critical", "output"), ("statistic", "save")]
)
def test_a_name_that_is_no_text_costs_no_output(tmp_path: Path, option: str, flag: str) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xfcller"))  # Latin-1, on a system of UTF-8
    mutations.write_job("kineto", folder)
    for path in list(folder.iterdir()):
        shutil.copy(path, Path(os.fsdecode(os.fsencode(folder) + b"/\xfc" + os.fsencode(path.name))))
    target = tmp_path / "out.json"
    code, _, err = run_cli("--option", option, "--path", folder, f"--{flag}", target)
    assert code == 0, err
    json.loads(target.read_text())


# ---- what is no file


def test_a_pipe_that_nobody_reads_is_a_line(job: Path) -> None:
    os.mkfifo(job.parent / "pipe")
    done = run_process("--option", "combine", "--path", job, "--output", job.parent / "pipe")
    assert done.returncode == 1
    assert (
        done.stderr
        == f"analyze.py: error: {job.parent / 'pipe'}: cannot be written: nobody reads this pipe\n"
    )


# ---- limits


@pytest.mark.parametrize("flag", few(1, ["--html", "--xlsx"]))
def test_a_full_disk_is_a_line_and_leaves_nothing(job: Path, flag: str) -> None:
    disk = job.parent / "disk"
    disk.mkdir()
    inside = f"mount -t tmpfs -o size=64k tmpfs {disk}"
    alone = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*alone, inside], check=False).returncode:
        pytest.skip("no file system may be mounted here")
    # what fills the disk is there before: of a page a part fits, and of what has no room nothing stays
    script = f'{inside}; head -c 50000 /dev/zero > {disk}/full; "$@"; code=$?; ls -A {disk}; exit $code'
    args = ["--option", "statistic", "--path", job, flag, disk / f"x.{flag.strip('-')}"]
    command = [*alone, script, "-", *ANALYZE, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "No space left on device" in done.stderr
    assert done.stdout.splitlines()[-1] == "full"


# ---- interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_file_and_ends_with_its_number(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        f"import os, signal, sys; sys.path.insert(0, {str(REPO)!r})\n"
        "import analyze\nfrom analyzer import cli\n"
        "from pathlib import Path\n"
        "from analyzer.base.outputs.atomic import open_output, temporary_directory\n"
        "def interrupted(*_, rmdir=os.rmdir, **__):\n"
        "    os.rmdir = rmdir\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "def run(args):\n"
        f"    path = Path({str(tmp_path)!r}, 'a.json')\n"
        "    with open_output(path) as file, temporary_directory(path):\n"
        "        file.write(b'half')\n"
        "        os.rmdir = interrupted\n"
        "cli.load('statistic').run = run\n"
        f"sys.argv[1:] = ['statistic', {str(REPO / 'examples' / 'lenet')!r}]\n"
        "analyze.run_command()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert (done.returncode, list(tmp_path.iterdir())) == (128 + number, [])


@pytest.mark.parametrize("module", ["argparse", "datetime", "numpy.linalg"])
def test_an_interrupt_during_an_import_ends_without_a_traceback(module: str) -> None:
    script = (
        f"import os, signal, sys; sys.path.insert(0, {str(REPO)!r})\n"
        "class Finder:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r} and not sys.meta_path.remove(self): os.kill(os.getpid(), 2)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv[1:] = [{str(REPO / 'examples' / 'lenet')!r}]; import analyze; analyze.run_command()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (130, "", False)


def test_worker_processes_end_with_a_killed_parent() -> None:
    script = (
        f"import sys, os, time; sys.path.insert(0, {str(REPO)!r})\n"
        "from analyzer.base.parallel import process_pool\n"
        "with process_pool(2) as pool:\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    [pool.submit(time.sleep, 30) for _ in range(4)]\n"
        "    time.sleep(30)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(worker)


def test_a_timeline_among_the_ranks_is_not_read_as_one(tmp_path: Path) -> None:
    from analyzer.reading.traces.layouts import find_job

    event = {"ph": "X", "name": "FW.a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    output = tmp_path / "all.json"
    for _ in range(2):
        assert run_cli("--option", "combine", "--path", tmp_path, "--output", output)[0] == 0
        assert [source.path.name for source in find_job(tmp_path).sources] == ["rank0.json", "rank1.json"]
