"""Damaged, changed and older digests: one line, whatever option reads them."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from conftest import run_cli
from make import span, step, write


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
