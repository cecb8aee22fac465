"""The colours of charts: told apart by most eyes, on paper and on a dark screen alike."""

from __future__ import annotations

from collections.abc import Iterable

PALETTE = (
    "#3b82c4",  # blue
    "#e08a1e",  # orange
    "#2f9e73",  # green
    "#c46aa0",  # pink
    "#8a6fd1",  # violet
    "#c9a800",  # mustard
    "#4fb3d9",  # sky
    "#d1603d",  # rust
    "#7a9a3a",  # olive
    "#a67c52",  # brown
    "#5f7a99",  # slate
    "#b0486b",  # wine
)


def assign(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each distinct name, in the order of appearance; they repeat after twelve."""
    distinct = dict.fromkeys(names)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(distinct)}
