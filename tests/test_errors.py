"""Messages: one line that can be printed, never longer than a few lines of a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from errors import one_line, shortened, summed_up


@given(st.text())
def test_a_line_is_short_and_printable(text: str) -> None:
    line = one_line(text * 50)
    assert len(line) <= 300
    assert line.isprintable()


@given(st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=300))
def test_what_can_be_printed_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_the_longest_names_are_shortened_first() -> None:
    line = one_line(f"trace.json: no operation is called {'a' * 200}{'b' * 200}; the nearest is FW.conv1")
    assert line.startswith("trace.json: no operation is called aaa")
    assert line.endswith("bbb; the nearest is FW.conv1")
    assert "a…b" in line
    assert len(line) == 300


def test_control_and_bidirectional_characters_are_escaped() -> None:
    assert one_line("a\nb\x1b[31m\u202e\ud800") == r"a\nb\x1b[31m\u202e\ud800"


def test_a_shortened_text_keeps_both_ends() -> None:
    assert shortened("0123456789", 5) == "01…89"


def test_lines_that_say_the_same_of_many_files_are_one_and_others_stay_in_their_order() -> None:
    lines = [f"e{i}.json: empty" for i in range(11)]
    others = ["b.json: cut off", "a line without a file", "c.json: cut off"]
    assert summed_up([others[0], *lines, *others[1:]]) == [
        others[0], "e0.json, e1.json, e2.json and 8 more: empty", *others[1:]
    ]  # fmt: skip
    assert summed_up(lines[:10]) == lines[:10]
