"""Output files: whole or not at all, the same bytes for the same content."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.base.errors import OutputError
from analyzer.base.outputs.atomic import open_output


def test_the_same_content_makes_the_same_compressed_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for path in paths:
        with open_output(path) as file:
            file.write(b"[1, 2]")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert gzip.decompress(paths[0].read_bytes()) == b"[1, 2]"


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_after_an_error_there_is_what_was_there_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="No space left"), open_output(path) as file:
        file.write(b"new")
        raise OSError(28, "No space left on device")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with open_output(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
