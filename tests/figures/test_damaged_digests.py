"""Damaged, hostile and foreign digests: one line, whatever option reads them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import run_cli
from make import span, step, write


@pytest.fixture
def digest(tmp_path: Path) -> Path:
    """Return the digest of a small job with steps and a sketched operation."""
    events = [step(i, 1000 * i, 900) for i in range(4)]
    events += [span("a", 10 * i, 1 + i / 50, "cpu_op") for i in range(390)]
    write(tmp_path / "t.json", events, schemaVersion=1)
    path = tmp_path / "d.json"
    code, _, err = run_cli("--option", "statistic", "--path", tmp_path / "t.json", "--save", path)
    assert code == 0, err
    return path


def refused(path: Path) -> None:
    """Check that `statistic` or `compare` say in one line what is wrong."""
    for words in (("statistic", "--path", path), ("compare", "--path", path, path)):
        code, _, err = run_cli("--option", *words)
        if code:
            break
    assert (code, len(err.splitlines())) == (1, 1)
    assert str(path) in err and "write it again with --save" in err


def sketch(document: dict[str, Any]) -> list[Any]:
    """Return count, sum and more of the operation that is sketched."""
    found: list[Any] = next(iter(rank(document)["durations"]["moments"].values()))
    return found


def rank(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["ranks"][0]
    return found


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no ranks": lambda d: d.update(ranks=[]),
    "no files": lambda d: d.update(files=[]),
    "an unknown system": lambda d: rank(d).update(dialect="tracer"),
    "a text for a number": lambda d: rank(d).update(n_slices="many"),
    "other slices than durations": lambda d: rank(d).update(n_slices=7),
    "a rank without durations": lambda d: rank(d).pop("durations"),
    "a rank without operations": lambda d: rank(d).pop("operations"),
    "steps of a rank without a name": lambda d: [part.__setitem__(0, "") for part in rank(d)["breakdown"]],
    "fewer names than operations": lambda d: rank(d)["durations"]["operations"].pop(),
    "starts that go back": lambda d: rank(d)["durations"]["start"].__setitem__(1, 10**6),
    "a duration below 0": lambda d: rank(d)["durations"]["value_ns"].__setitem__(0, -5),
    "durations of centuries": lambda d: rank(d)["durations"].update(
        value_ns=[(1 << 62) - 1] * len(rank(d)["durations"]["value_ns"])
    ),
    "a number of 300 digits": lambda d: rank(d)["durations"]["value_ns"].__setitem__(0, 10**300),
    "a fraction of a nanosecond": lambda d: rank(d)["durations"]["value_ns"].__setitem__(0, 0.5),
    "a number beyond any": lambda d: rank(d).update(category_ns={"cpu_op": 10**400}),
    "a step's parts beyond any": lambda d: rank(d)["breakdown"].append(["rank0", 1, 10**400, 0, 0, 0, 0, 0]),
    "a sketch of no operation": lambda d: rank(d)["durations"]["moments"].update({"99": sketch(d)}),
    "a weight of 0": lambda d: rank(d)["durations"]["weight"].__setitem__(0, 0),
    "a sum that is no number": lambda d: sketch(d).__setitem__(1, "ten"),
    "a row too short": lambda d: rank(d)["operations"]["count"][0].pop(),
    "a step too few": lambda d: rank(d)["operations"]["spent_ns"].pop(),
    "a count below 0": lambda d: rank(d)["operations"]["count"][0].__setitem__(0, -1),
    "an unknown role": lambda d: rank(d)["operations"]["role"].__setitem__(0, 77),
    "a step that ends before it begins": lambda d: rank(d)["steps"][0].__setitem__(0, [0, 5, 1]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_one_that_contradicts_itself_is_refused(
    digest: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    document = json.loads(digest.read_text())
    change(document)
    digest.write_text(json.dumps(document, separators=(",", ":")))
    refused(digest)


def test_one_that_is_cut_is_refused(digest: Path) -> None:
    text = digest.read_bytes()
    for n in (40, len(text) // 2, len(text) - 3):
        digest.write_bytes(text[:n])
        refused(digest)
    digest.write_bytes(gzip.compress(text)[:-20])
    refused(digest)


def test_an_older_one_is_refused_as_its_time_by_role_is_another_account(digest: Path) -> None:
    digest.write_text('{"writtenBy":"analyze.py","digest":1,"root":"."}')
    code, _, err = run_cli("--option", "compare", "--path", digest, digest)
    assert code == 1 and "version 1, and this program reads version 2; write it again with --save" in err


def test_random_damage_is_never_more_than_a_line(digest: Path) -> None:
    text, rng = digest.read_bytes(), random.Random(1)
    for _ in range(60):
        damaged = bytearray(text)
        for _ in range(rng.choice((1, 3, 20))):
            damaged[rng.randrange(40, len(damaged))] = rng.choice(b'0123456789-,.[]{}":eabc\xff\x00')
        digest.write_bytes(bytes(damaged))
        for words in (("statistic", "--path", digest), ("compare", "--path", digest, digest)):
            code, _, err = run_cli("--option", *words, "--format", "json")
            assert code in (0, 1), err
            assert code == 0 or len([line for line in err.splitlines() if "error:" in line]) == 1
