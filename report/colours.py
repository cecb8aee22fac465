"""One meaning per colour everywhere: computation blue, communication warm, waiting grey, input green.

Any two of these colours differ by 10 at least (CIEDE2000), also to eyes without one of the three kinds of
cones, and each stands out 3 : 1 against the white and against the dark page; `tests/report/test_colours.py`
has the arithmetic.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable

#: Of everything drawn; its metrics are those of Arial and Helvetica.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

_COMPUTATION = ("#2850f4", "#7d84fd", "#1d9fb8")
_COMMUNICATION = ("#d18200", "#e7013c", "#845d0a")
_WAITING = ("#9a9283", "#727d8a")
_INPUT = ("#008c50",)
_COPIES = ("#bd0bb0",)
_OTHER = ("#406c66", "#ff4bb1")
#: The critical path.
PATH = "#d10376"
#: All of them; no two alike.
PALETTE = (*_COMPUTATION, *_COMMUNICATION, *_WAITING, *_INPUT, *_COPIES, *_OTHER)
_NEUTRAL = (*_OTHER, *_COPIES, *_INPUT, *_COMPUTATION, *_COMMUNICATION, *_WAITING)
#: Names that mean something (patterns of a whole name in any case) and the colours for them, the best
#: first. Earlier ones have the first choice.
_MEANINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("idle|gap|untraced|.*not(hing)? recorded.*", _WAITING[::-1]),
    (".*wait.*|.*negotiat.*|.*coordinate.*|.*sync.*", _WAITING),
    ("i/o|io|.*input.*|.*load.*", _INPUT),
    ("(gpu_)?mem(cpy|set|ory).*|cop(y|ies).*", _COPIES),
    ("comm|wire|.*communication.*|exposed.*", _COMMUNICATION),
    ("push", _COMMUNICATION[::-1]),
    ("pull", (*_COMMUNICATION[1:], _COMMUNICATION[0])),
    (".*push.*|.*pull.*|.*broadcast.*|.*reduce.*|.*gather.*|.*nccl.*|.*gloo.*", _COMMUNICATION),
    ("fw|forward.*", _COMPUTATION),
    ("bw|backward.*|cpu_op", (*_COMPUTATION[1:], _COMPUTATION[0])),
    ("step", (*_COMPUTATION[2:], *_COMPUTATION[:2])),
    ("both|update.*|output.*|optimizer.*", (*_COMPUTATION[2:], *_COMPUTATION[:2])),
    ("comput.*|kernel|operator", _COMPUTATION),
    (".*", _NEUTRAL),
)


def assign(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each distinct name of a picture: one of its meaning, if possible not yet used.

    Names without a meaning (runs, series) take what is left; colours recur when all are taken.
    """
    distinct = dict.fromkeys(names)
    chosen: dict[str, str] = {}
    for name in sorted(distinct, key=_meaning):
        colours = _MEANINGS[_meaning(name)][1]
        free = [colour for colour in colours if colour not in chosen.values()]
        chosen[name] = free[0] if free else colours[len(chosen) % len(colours)]
    return {name: chosen[name] for name in distinct}


def of(name: str) -> str:
    """Return the colour of a name that stands alone."""
    return assign([name])[name]


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast: (L1 + 0.05) / (L2 + 0.05), by WCAG 2.2."""
    return "#000000" if luminance(colour) > math.sqrt(1.05 * 0.05) - 0.05 else "#ffffff"


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``, 0 to 1, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@functools.lru_cache(4096)
def _meaning(name: str) -> int:
    """Return the place of what a name means; the last is that of names without a meaning."""
    word = name[:80].lower()
    return next(at for at, (pattern, _) in enumerate(_MEANINGS) if re.fullmatch(pattern, word, re.DOTALL))
