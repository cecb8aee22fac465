"""The list that says which parameter ``byteps.gradient_<i>`` is, in all three forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.reading.dialects.byteps import gradient_index, read_names


def test_gradient_1_is_not_gradient_10() -> None:
    assert gradient_index("byteps.gradient_10") == 10
    assert gradient_index("byteps.Gradient.1") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gradient_name_list.txt", "a\nb\n"),
        ("gradient_name_list.json", '{"gradient_name_list": ["a", "b"]}'),
        ("gradient_name_list.json", '["a", "b"]'),
        ("arg_namesINpara_names.txt", "a\nb\n"),
    ],
)
def test_every_form_names_the_same_parameters(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    names = read_names(tmp_path)
    assert names is not None
    assert names.parameters == {"byteps.gradient_0": "a", "byteps.gradient_1": "b"}
