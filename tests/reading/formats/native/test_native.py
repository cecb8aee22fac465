"""Building, keeping and loading the scanner: whatever goes wrong, files are read as without it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from analyzer.reading.formats import native
from trace_utils import read_trace

pytestmark = pytest.mark.slow

EVENTS = [
    {"ph": "X", "name": f"n{i % 5}", "pid": 1, "tid": i % 3, "ts": i, "dur": i % 7} for i in range(2000)
]


_FLAGS = ("-std=c11", "-O0", "-shared", "-fPIC")  # built faster


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a compiler `cc` that gives what a real one has once made of the same sources."""
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if real is None:
        pytest.skip("no C compiler here")
    directory = tmp_path_factory.mktemp("built")
    subprocess.run([real, *_FLAGS, "-o", str(directory / "made"), *native._SOURCES], check=True)
    (directory / "cc").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {directory}/made "$2"\n'
    )
    (directory / "cc").chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A cache of its own, nothing loaded, and the scanner wished for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ANALYZE_NATIVE", "1")
    monkeypatch.setattr(native, "_FLAGS", _FLAGS)
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.fixture
def compiler(built: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a C compiler, first on the path; the test is skipped where there is none."""
    monkeypatch.setenv("PATH", f"{built}{os.pathsep}{os.environ['PATH']}")
    return str(built / "cc")


def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS))
    return path


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "analyze").glob("*"))


def test_the_library_is_built_once_and_private(tmp_path: Path, compiler: str) -> None:
    assert native.library() is not None
    (made,) = kept(tmp_path)
    assert (made.suffix, made.name[:5]) == (".so", "scan-")
    assert (made.parent.stat().st_mode & 0o777, made.stat().st_mode & 0o077) == (0o700, 0)
    before = made.stat()
    native.library.cache_clear()
    assert native.library() is not None
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o500])
def test_a_directory_open_to_others_is_not_used(tmp_path: Path, compiler: str, mode: int) -> None:
    directory = tmp_path / "cache" / "analyze"
    directory.mkdir(parents=True)
    directory.chmod(mode)
    if mode == 0o500 and os.access(directory, os.W_OK):
        pytest.skip("the superuser may write anywhere")
    assert native.library() is not None
    assert kept(tmp_path) == []


def test_a_directory_that_is_a_link_is_not_used(tmp_path: Path, compiler: str) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "analyze").symlink_to(tmp_path / "elsewhere")
    assert native.library() is not None
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o722])
def test_a_kept_library_that_is_damaged_or_open_to_others_is_built_anew(
    tmp_path: Path, compiler: str, mode: int
) -> None:
    native.library()
    (made,) = kept(tmp_path)
    made.unlink()  # what is loaded keeps its own
    made.write_bytes(b"planted")
    made.chmod(mode)
    native.library.cache_clear()
    assert native.library() is not None
    assert (kept(tmp_path), made.read_bytes()[:4], made.stat().st_mode & 0o077) == ([made], b"\x7fELF", 0)


@pytest.mark.parametrize("kind", ["none", "fails", "lies", "damaged source"])
def test_files_are_read_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    if kind == "damaged source":
        source = tmp_path / "scan.c"
        source.write_text("int main(")
        monkeypatch.setattr(native, "_SOURCES", [source])
    else:
        tools = tmp_path / "bin"
        tools.mkdir()
        if kind != "none":
            (tools / "cc").write_text(f"#!/bin/sh\necho no >&2\nexit {int(kind == 'fails')}\n")
            (tools / "cc").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.delenv("CC", raising=False)
    trace = read_trace(trace_file(tmp_path))
    assert native.library() is None
    assert [trace.names[i] for i in trace.name_id.tolist()] == [event["name"] for event in EVENTS]
    assert [record.levelno for record in caplog.records if "not used" in record.message] == [logging.INFO]
