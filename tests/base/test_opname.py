"""Operation names: taken apart and put together again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.names import QUEUES, OpName, partition_key, split_key

labels = st.text(min_size=1).filter(lambda text: "~>" not in text)
plain_labels = labels.filter(lambda text: not any(text.split(".")[-1] == q for q in QUEUES))
ranks = st.none() | st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "rank0.Comm.byteps.gradient_0.PUSH.26148864",
            OpName("Comm", "byteps.gradient_0", rank=0, queue="PUSH", key=26148864),
        ),
        ("Comm.byteps.gradient_1", OpName("Comm", "byteps.gradient_1")),
        ("Comm.a b/c'd\"é.PULL", OpName("Comm", "a b/c'd\"é", queue="PULL")),
        ("Comm.PUSH.PUSH", OpName("Comm", "PUSH", queue="PUSH")),
        ("Comm.PUSH", OpName("Comm", "PUSH")),
        ("wk3.rank1.FW.conv0", OpName("FW", "conv0", worker=3, rank=1)),
        ("BW.net.PUSH", OpName("BW", "net.PUSH")),
        ("OUTPUT0", OpName("OUTPUT", "0")),
        ("host0.rank1->BW.op~>tail", OpName("BW", "op", 0, 1, suffix="tail", arrow=True)),
        ("aten::add", OpName(None, "aten::add")),
        ("rank01.FW", OpName(None, "rank01.FW")),
        ("Comm.x.PUSH.01", OpName("Comm", "x.PUSH.01")),
        ("", OpName(None, "")),
    ],
)
def test_a_name_is_taken_apart(text: str, expected: OpName) -> None:
    assert OpName.parse(text) == expected
    assert str(expected) == text


@given(st.text())
def test_printing_inverts_parsing_for_any_text(text: str) -> None:
    assert str(OpName.parse(text)) == text


stages = st.tuples(st.sampled_from(QUEUES), st.none() | st.integers(0, 2**40))
communications = st.tuples(st.just("Comm"), plain_labels, ranks, ranks, stages)
computations = st.tuples(st.sampled_from(["FW", "BW", "STEP", "I/O"]), labels, ranks, ranks, st.just(()))


@given(communications | computations)
def test_parsing_inverts_printing(parts: Any) -> None:
    *fields, stage = parts
    name = OpName(*fields, *stage)
    assert OpName.parse(str(name)) == name


def test_parts_main_task_and_aliases() -> None:
    name = OpName.parse("wk0.rank1.Comm.x.PUSH.5")
    assert (name.kind, name.prefix) == ("PUSH", "wk0.rank1.")
    assert (str(name.main), str(name.bare())) == ("wk0.rank1.Comm.x", "Comm.x.PUSH.5")
    assert name.aliases() == (str(name), "wk0.rank1.Comm.x", "Comm.x.PUSH.5", "Comm.x.PUSH", "Comm.x")
    assert OpName.parse("aten::add").aliases() == ("aten::add",)


def test_partition_keys() -> None:
    # FORMATS: 26148864 is tensor 399, partition 0
    assert split_key(26148864) == (399, 0)
    assert partition_key(399, 1) == 26148865
