"""Messages: one line that can be printed, never longer than a few lines of a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import one_line


@given(st.text())
def test_a_line_is_short_and_printable(text: str) -> None:
    line = one_line(text * 50)
    assert len(line) <= 300
    assert line.isprintable()


@given(st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=300))
def test_what_can_be_printed_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_control_and_bidirectional_characters_are_escaped() -> None:
    assert one_line("a\nb\x1b[31m\u202e\ud800") == r"a\nb\x1b[31m\u202e\ud800"
