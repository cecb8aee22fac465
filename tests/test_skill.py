"""What SKILL.md tells assistants holds: its commands parse, its keys are in the answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from analyzer import cli
from analyzer.cli import arguments
from conftest import REPO
from replay.edit import as_edit

TEXT = (REPO / "SKILL.md").read_text()
_QUOTED = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"`analyze ((?:[^`\n])+)`")
#: Keys of the documents of `--brief` alone.
_OF_BRIEF = {"further", "notes", "left_out"}


def keys_of(schema: Any) -> set[str]:
    """Return the names of all members in a JSON Schema."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", ())) | keys_of(list(schema.values()))


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert re.match(r"---\nname: [a-z-]+\ndescription: >\n(  .+\n)+---\n", TEXT)


@pytest.mark.parametrize("words", dict.fromkeys(_COMMAND.findall(TEXT)))
def test_each_command_is_one(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO / "examples")
    for name, path in (("JOB", "lenet"), ("BASE", "lenet"), ("NEW", "lenet"), ("RUN", "lenet")):
        words = re.sub(rf"\b{name}\d?\b", path, words)
    if not words.startswith("OPTION"):
        arguments.parse(words.split())


def test_each_key_is_in_an_answer() -> None:
    schemas = [json.loads(path.read_text()) for path in (REPO / "docs/schema").glob("*.json")]
    known = keys_of(schemas) | _OF_BRIEF | {"option", "headline", "repairs"}
    reading = TEXT.partition("## How to read")[2].partition("## Rules")[0]
    parts = {part for text in _QUOTED.findall(reading) for part in re.split(r"[.\[\]]", text)}
    keys = {part for part in parts if re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", part)}
    words = {"share", "change", "gap", "command", "null", "step"}  # also values
    assert keys - known - words - {"low", "mid", "high"} == set()
    assert len(keys) > 40


def test_each_edit_is_one() -> None:
    edits = [
        text for text in _QUOTED.findall(TEXT) if re.fullmatch(r"[a-z_]+=[\w.]+", text) and "_by" not in text
    ]
    names = {edit.partition("=")[0] for edit in edits} - {"kernel"}
    assert [name for name in names if not as_edit(name, "2")] == []
    assert len(names) > 5
    assert set(cli.SHORT) <= set(re.findall(r"analyze (\w+) ", TEXT))
