"""Names in narrow columns: C++ without what says little, and never two alike where that can be helped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import printable
from analyzer.base.names import brief, without_parameters
from analyzer.report.cells import display_width, short_functions, short_names

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)


def test_a_function_loses_void_namespaces_and_parameters() -> None:
    assert without_parameters(ADD) == (
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, Array<char*, 3> >"
    )
    assert without_parameters("rank0.void f(int)") == "rank0.f"
    assert without_parameters("at::(anonymous namespace)::g(float*)") == "g"
    assert without_parameters("rank1.ncclKernel_Sum(ncclDevComm*, unsigned long)") == "rank1.ncclKernel_Sum"
    assert without_parameters("step(5)") == "step(5)"
    assert without_parameters("enumerate(DataLoader)#next") == "enumerate(DataLoader)#next"


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
            "at::native::func_wrapper_t<float, at::native::sum_functor<X>::operator()(X&)::{lambda(X)#1}>, "
            "int> >(X)",
            "reduce_kernel<sum_functor>",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X> > >(P)",
            "FlashAttnFwdSm90",
        ),
        ("rank3.before void (anonymous namespace)::f<float>(float*)", "rank3.before f"),
        ("void at::native::f<float>(int)=0.5", "f=0.5"),
    ],
)
def test_a_sentence_has_what_identifies_a_kernel(name: str, cut: str) -> None:
    assert brief(name) == cut


@given(st.text("ab<>(),: _ZNI0123456789~&*{}#", max_size=40))
def test_any_name_can_be_cut(name: str) -> None:
    assert len(brief(name)) <= len(name)


def test_functions_that_differ_in_a_type_show_it() -> None:
    assert short_names([ADD, ADD.replace("float", "long")], 60) == [
        "vectorized_elementwise_kernel<CUDAFunctor_add> [float]",
        "vectorized_elementwise_kernel<CUDAFunctor_add> [long]",
    ]


def test_what_cannot_be_told_apart_is_numbered() -> None:
    assert short_names([f"f<{'int, ' * n}int>()" for n in (9, 9, 12)], 12) == ["f", "f", "f [int]"]
    same = [f"{'a' * 30}{middle}{'z' * 30}{end}" for middle in "bc" for end in ("", "z")]
    assert len(set(short_names(same, 12))) == 4


@pytest.mark.slow
@given(st.lists(st.text(), max_size=5), st.integers(1, 40))
def test_every_name_fits(names: list[str], width: int) -> None:
    names = [printable(name) for name in names]
    assert all(display_width(short) <= width for short in short_names(names, width))


def test_tables_without_a_width_cut_functions_and_leave_paths() -> None:
    path = ".".join(f"Layer_{i}" for i in range(30))
    assert short_functions([ADD, path, f"rank0.{path}", 7, "aten::add", f"rank0.{ADD}"]) == {
        f"rank0.{ADD}": "rank0.vectorized_elementwise_kernel<CUDAFunctor_add>",
        ADD: "vectorized_elementwise_kernel<CUDAFunctor_add>",
    }
