"""`compare.folded_names`: one operation has one name, whatever its addresses and steps."""

from __future__ import annotations

import pytest

from compare.folded_names import folded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProfilerStep#17", "ProfilerStep*"),
        ("<built-in method acquire of _thread.lock object at 0x7f63ad2b1510>",
         "<built-in method acquire of _thread.lock object at 0x…>"),
        ("Optimizer.step#12", "Optimizer.step#*"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        ("train_step 5", "train_step *"),
        ("epoch=3 batch=12", "epoch=* batch=*"),
        ("aten::conv2d", "aten::conv2d"),
        ("void gemm_128x64_0x1(float*)", "void gemm_128x64_0x1(float*)"),
        ("Comm.gradient_1.PUSH.65536", "Comm.gradient_1.PUSH.65536"),
    ],
)  # fmt: skip
def test_what_changes_from_call_to_call_is_folded(name: str, expected: str) -> None:
    assert folded(name) == expected
