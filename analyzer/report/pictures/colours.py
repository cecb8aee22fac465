"""One meaning per colour everywhere: a palette of 12, and a table of the meanings of names.

Any two colours differ by at least 10 (CIEDE2000), also for colour-blind readers, and each has a contrast of
3 : 1 on the white and on the dark page (`tests/report/pictures/test_colours.py`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable

#: The font of all drawings, with the metrics of Arial and Helvetica.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
#: The colour of words and of the critical path.
INK = "#1b1f24"
#: The colour of minor parts: titles of axes, edges.
SOFT = "#5a6472"

#: The palette, in the order in which names without a meaning take colours.
PALETTE = {
    "kernels": "#1d9fb8",
    "update": "#ff4bb1",
    "backward": "#7d84fd",
    "pull": "#e7013c",
    "copies": "#bd0bb0",
    "input": "#008c50",
    "communication": "#d18200",
    "computation": "#2850f4",
    "waiting": "#a2907e",
    "host": "#406c66",
    "gap": "#66788a",
    "rest": "#848484",
}
#: Patterns of a whole name in any case, or of its part after the last slash, and the colour; the first match
#: counts.
_MEANINGS: tuple[tuple[str, str], ...] = (
    ("idle|gap|untraced|.*not(hing)? recorded.*", "gap"),
    (".*wait.*|.*negotiat.*|.*coordinate.*|.*sync.*", "waiting"),
    ("cpu_op|operator|(.*_)?(annotation|runtime|driver)|python.*|callbacks?|host", "host"),
    (r"i/o|io|.*input.*|.*loader.*|(.*[\W_])?load(ing)?([\W_].*)?", "input"),
    ("(gpu_)?mem(cpy|set|ory).*|cop(y|ies).*", "copies"),
    ("pull|far longer", "pull"),
    ("push|comm|wire|link|.*communication.*|exposed.*", "communication"),
    (".*push.*|.*pull.*|.*broadcast.*|.*reduce.*|.*gather.*|.*nccl.*|.*gloo.*", "communication"),
    ("fw|forward.*|comput.*|rank", "computation"),
    ("bw|backward.*", "backward"),
    ("operation|both|kernel", "kernels"),
    ("step|update.*|output.*|optimizer.*", "update"),
    ("others?|category|rest", "rest"),
    ("iteration time|change", "gap"),
    ("slow steps", "waiting"),
)


def assign(names: Iterable[str]) -> dict[str, str]:
    """Give each distinct name the colour of its meaning; if it has none, or that is taken, the next free one.

    The first names have different colours; when all are taken, the others share the colour of the rest.
    """
    chosen = dict.fromkeys(names, "")
    for name in chosen:
        if _meant(name) not in chosen.values():  # "" is in them
            chosen[name] = _meant(name)
    free = iter([colour for colour in PALETTE.values() if colour not in chosen.values()])
    return {name: colour or next(free, PALETTE["rest"]) for name, colour in chosen.items()}


def of(name: str) -> str:
    """Choose the colour of a single name."""
    return assign([name])[name]


def ink_on(colour: str) -> str:
    """Choose black or white for more contrast to ``#rrggbb``: (L1 + 0.05) / (L2 + 0.05), by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # 0 to 1
    return "#000000" if luminance > math.sqrt(1.05 * 0.05) - 0.05 else "#ffffff"


@functools.lru_cache(4096)
def _meant(name: str) -> str:
    """Look up the colour of a name's meaning; "" for a name without one."""
    word = name[:80].lower()
    words = dict.fromkeys((word, word.rsplit("/", 1)[-1]))
    fitting = (
        PALETTE[meaning]
        for part in words
        for pattern, meaning in _MEANINGS
        if re.fullmatch(pattern, part, re.DOTALL)
    )
    return next(fitting, "")
