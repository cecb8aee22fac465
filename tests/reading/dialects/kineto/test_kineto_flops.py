"""Floating-point operations: by hand, as torch.utils.flop_counter counts them, and against the peaks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.reading.dialects.kineto.kineto_flops import product
from conftest import SHARED, ask, run_cli
from make import write

_HERE = Path(__file__).parent
_CONV = ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("name", "dims", "values", "by_hand"),
    [
        ("aten::mm", [[5, 3], [3, 7]], [], 2 * 5 * 3 * 7),
        ("aten::addmm_", [[7], [5, 3], [3, 7], [], []], [], 2 * 5 * 3 * 7),
        ("aten::mv", [[5, 3], [3]], [], 2 * 5 * 3),
        ("aten::bmm", [[4, 5, 3], [4, 3, 7]], [], 2 * 4 * 5 * 3 * 7),
        ("aten::baddbmm", [[4, 5, 7], [4, 5, 3], [4, 3, 7]], [], 2 * 4 * 5 * 3 * 7),
        ("aten::linear", [[2, 5, 3], [7, 3], [7]], [], 2 * 2 * 5 * 3 * 7),
        # (32 + 2·3 - 7) // 2 + 1 = 16 on each side; 3 channels of 7 · 7
        ("aten::convolution", [[2, 3, 32, 32], [16, 3, 7, 7], []], _CONV, 2 * (2 * 16 * 16 * 16) * 3 * 49),
        # two groups: each of the 8 channels sees 3 of 6
        ("aten::convolution", [[2, 6, 9, 9], [8, 3, 1, 1], []], ["", "", "", "[1]", "[0]", "[1]", "False"],
         2 * (2 * 8 * 9 * 9) * 3),
        # transposed: each of the 2·4·9·9 elements goes into 6 channels of 3 · 3
        ("aten::convolution", [[2, 4, 9, 9], [4, 6, 3, 3], []], [*_CONV[:6], "True"],
         2 * (2 * 4 * 9 * 9) * 6 * 9),
        ("aten::convolution_backward", [[2, 16, 16, 16], [2, 3, 32, 32], [16, 3, 7, 7]],
         [*[""] * 7, "False", "", "", "[False, True, False]"], 2 * (2 * 16 * 16 * 16) * 3 * 49),
        ("aten::cudnn_convolution_backward", [[2, 3, 32, 32], [2, 16, 16, 16], [16, 3, 7, 7]], [],
         2 * 2 * (2 * 16 * 16 * 16) * 3 * 49),
        # 4 heads of 8 positions, keys of 6 positions; 16 numbers, values of 10
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 8, 16], [2, 4, 6, 16], [2, 4, 6, 10]], [],
         2 * 2 * 4 * 8 * 6 * (16 + 10)),
        ("FlashAttnFunc", [[2, 8, 4, 16], [2, 6, 4, 16], [2, 6, 4, 10]], [], 2 * 2 * 4 * 8 * 6 * (16 + 10)),
        # backwards: the scores again, and two gradients for each of the two products
        ("aten::_scaled_dot_product_efficient_attention_backward",
         [[2, 4, 8, 10], [2, 4, 8, 16], [2, 4, 6, 16], [2, 4, 6, 10]], [],
         2 * 2 * 4 * 8 * 6 * (16 + 2 * 16 + 2 * 10)),
    ],
)  # fmt: skip
def test_products_count_as_by_hand(name: str, dims: list[Any], values: list[Any], by_hand: int) -> None:
    count = product(name, dims, values)
    assert count is not None
    assert count[0] == by_hand


@pytest.mark.parametrize(
    "name", ["aten::add", "aten::matmul", "aten::_slow_conv2d_forward", "aten::mm_extra"]
)
def test_other_operators_are_no_products(name: str) -> None:
    assert product(name, [[5, 3], [3, 7]]) is None


def test_texts_of_several_lengths_in_one_row_are_unknown() -> None:
    assert product("FlashAttnFunc", [[80, 4, 16]] * 3) is None


_JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats(), lambda inner: st.lists(inner, max_size=4)
)


@given(st.sampled_from(["aten::mm", "aten::convolution", "aten::convolution_backward", "FlashAttnFunc"]),
       st.lists(_JUNK, max_size=4), st.lists(_JUNK, max_size=11))  # fmt: skip
def test_shapes_that_are_none_count_nothing_or_something_finite(
    name: str, dims: list[Any], values: list[Any]
) -> None:
    count = product(name, dims, values)
    assert count is None or (math.isfinite(count[0]) and count[0] >= 0)


# ---- whole blocks, recorded with PyTorch 2.13 on a CPU: forward, backward, update


def test_a_llama_block_counts_as_by_hand_and_as_pytorch_does() -> None:
    """2 texts of 32 tokens, 64 numbers a token; 4 heads of 16, 2 of keys; 160 in the MLP; 100 words."""
    tokens, width, hidden = 2 * 32, 64, 160
    weights = 2 * width * width + 2 * width * 32 + 3 * width * hidden + width * 100  # q, o; k, v; MLP; head
    products = 3 * 2 * tokens * weights  # forward, and two gradients
    assert products == 18_972_672  # torch.utils.flop_counter: aten.mm
    scores = 2 * 2 * 4 * 32 * 32 * 16
    attention = 3 * 2 * scores  # two products; with math attention flop_counter has 1,572,864 of aten.bmm
    (step,) = ask("statistic", _HERE / "llama_block.json.gz", "--sub_option", "flops")["flops"]
    assert step["model_tflop"] == pytest.approx((products + attention) / 1e12, rel=1e-9)
    assert step["repeated_tflop"] == pytest.approx(scores / 1e12, rel=1e-9)  # in the fused backward pass


def test_a_resnet_block_counts_as_by_hand_and_as_pytorch_does() -> None:
    """2 images of 3 · 32 · 32: a stem of 7 · 7, a bottleneck of 16 to 64 channels, its shortcut, a head."""
    stem = 2 * (2 * 16 * 16 * 16) * 3 * 7 * 7
    first, middle = 2 * (2 * 16 * 16 * 16) * 16, 2 * (2 * 16 * 8 * 8) * 16 * 3 * 3
    last = shortcut = 2 * (2 * 64 * 8 * 8) * 16
    forward = stem + first + middle + last + shortcut
    head = 2 * 2 * 64 * 10
    whole = 3 * forward - stem + 3 * head  # the images need no gradient
    assert whole == 8_953_344  # torch.utils.flop_counter
    (step,) = ask("statistic", _HERE / "resnet_block.json.gz", "--sub_option", "flops")["flops"]
    assert step["model_tflop"] == pytest.approx(whole / 1e12, rel=1e-9)
    assert step["repeated_tflop"] == 0


# ---- rates and peaks, on a made GPU


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, /, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def operator(name: str, ts: float, dur: float, *dims: list[int], tid: int = 1, **more: Any) -> dict[str, Any]:
    types = ["c10::BFloat16"] * len(dims)
    args = {"Input Dims": list(dims), "Input type": types, **more} if dims else more
    return event(name, "cpu_op", ts, dur, tid, **args)


def launched(ts: float, number: int, name: str, at: float, dur: float, tid: int = 1) -> list[dict[str, Any]]:
    return [
        event("cudaLaunchKernel", "cuda_runtime", ts, 1, tid, correlation=number),
        event(name, "kernel", at, dur, 7, correlation=number, stream=7),
    ]


def gpu(path: Path, device: str = "NVIDIA H100 80GB HBM3") -> Path:
    """Record a product of 1024 · 1024 · 1024 (10 µs), its gradients (20 µs), and an addition (5 µs)."""
    square = [1024, 1024]
    node, engine = "FusedBackward0", "autograd::engine::evaluate_function: FusedBackward0"
    origin = {"Sequence number": 5, "Fwd thread id": 1}
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 200),
        operator("aten::linear", 5, 15, [1024, 1024], square),
        operator("aten::addmm", 6, 10, [1024], square, square, **{"Sequence number": 5}),
        *launched(8, 1, "nvjet_gemm", 20, 10),
        operator("aten::add", 30, 5, square, square),
        *launched(31, 2, "vectorized_elementwise_kernel", 40, 5),
        operator(engine, 50, 20, tid=2, **origin),
        operator(node, 51, 18, square, tid=2, **origin),
        *launched(55, 3, "custom_gemm", 70, 20, tid=2),
    ]
    return write(path, events, deviceProperties=[{"id": 0, "name": device}], schemaVersion=1)


def answer(path: Path, *flags: str) -> dict[str, Any]:
    result: dict[str, Any] = ask("statistic", path, "--sub_option", "flops", "--as_recorded", *flags)
    return result


_ONE = 2 * 1024**3


def test_mfu_is_the_share_of_the_peak_over_the_step(tmp_path: Path) -> None:
    result = answer(gpu(tmp_path / "a.json"))
    (step,) = result["flops"]
    assert step["model_tflop"] == pytest.approx(3 * _ONE / 1e12)  # two products for the gradients of one
    assert step["mfu"] == pytest.approx(3 * _ONE / 989.4e12 / (step["step_ms"] / 1e3))
    assert step["not_modelled_share"] == pytest.approx(5 / 35)
    assert result["headline"].startswith("14 % of the device's time is not modelled")


def test_kinds_have_rates_against_the_peaks(tmp_path: Path) -> None:
    gemm, addition = answer(gpu(tmp_path / "a.json"))["kernels"]
    assert (gemm["kind"], gemm["type"], addition["kind"]) == ("GEMM", "bf16", "elementwise")
    assert gemm["tflop_per_s"] == pytest.approx(3 * _ONE / 30e-6 / 1e12)
    assert gemm["peak_share"] == pytest.approx(3 * _ONE / 30e-6 / 989.4e12)
    moved = 2 * (3 * 1024**2 * 2 + 1024 * 2)  # two matrices, the bias and the result, in both directions
    assert gemm["gb_per_s"] == pytest.approx(moved / 30e-6 / 1e9)
    assert gemm["flop_per_byte"] == pytest.approx(3 * _ONE / moved)
    assert addition["gb_per_s"] == pytest.approx(2 * 1024**2 * 2 / 5e-6 / 1e9)
    assert addition["memory_share"] == pytest.approx(2 * 1024**2 * 2 / 5e-6 / 3350e9)


def test_an_unknown_device_has_the_peak_that_is_told(tmp_path: Path) -> None:
    path = gpu(tmp_path / "a.json", device="Mill 7")
    assert answer(path)["flops"][0]["mfu"] is None
    (step,) = answer(path, "--peak_tflops", "100")["flops"]
    assert step["mfu"] == pytest.approx(3 * _ONE / 100e12 / (step["step_ms"] / 1e3))


def test_the_page_has_a_roofline(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    answer(gpu(tmp_path / "a.json"), "--html", str(page))
    assert "Roofline of NVIDIA H100 80GB HBM3" in page.read_text()
    assert "GEMM bf16: 215 TFLOP/s at 512 FLOP/byte" in page.read_text()


def test_a_recording_without_shapes_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [event("aten::mm", "cpu_op", 0, 5)], schemaVersion=1)
    code, _, log = run_cli("statistic", path, "--sub_option", "flops")
    assert code == 2
    assert "record it with PyTorch's profiler and record_shapes=True" in log


def test_operators_in_the_capture_of_a_graph_count_nothing(tmp_path: Path) -> None:
    path = gpu(tmp_path / "a.json")
    document = json.loads(path.read_text())
    more = operator("aten::mm", 100, 5, [4096, 4096], [4096, 4096])
    write(path, [*document.pop("traceEvents"), more], **document)
    assert answer(path)["flops"][0]["model_tflop"] == pytest.approx(3 * _ONE / 1e12)


# ---- recorded jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "model_tflop"),
    [
        # 6 layers of 768, 2,304 in the MLP, 8,192 words, 16 texts of 1,024; all pairs of positions
        ("h200-truth/busy_llama/ill.pt.trace.json.gz", 3 * 2 * 16 * 1024 * (
            6 * (4 * 768**2 + 3 * 768 * 2304) + 768 * 8192) + 6 * 3 * 4 * 16 * 1024**2 * 768),
        # ResNet-50: 4.1 billion multiplications an image, three times, 32 images
        ("gpu-resnet50-v100-two-cycles/worker0.1623212756351.pt.trace.json.gz", 3 * 2 * 4.09e9 * 32),
    ],
)  # fmt: skip
def test_recorded_models_have_the_operations_of_their_layers(job: str, model_tflop: float) -> None:
    path = SHARED / "kineto" / job
    if not path.exists():
        pytest.skip("no recordings")
    steps = ask("statistic", path, "--sub_option", "flops")["flops"]
    assert [step["model_tflop"] for step in steps[:2]] == pytest.approx([model_tflop / 1e12] * 2, rel=0.01)


@pytest.mark.slow
def test_checkpoints_are_repeated_operations() -> None:
    """The forward pass of a ResNet is a quarter of all: it runs once, again, and its gradients take two."""
    path = SHARED / "kineto" / "gpu-tracelens-resnet-ckpt-mi300-rank0of8"
    if not path.exists():
        pytest.skip("no recordings")
    step = ask("statistic", path, "--sub_option", "flops")["flops"][0]
    assert step["repeated_tflop"] / (step["model_tflop"] + step["repeated_tflop"]) == pytest.approx(
        0.25, abs=0.02
    )
