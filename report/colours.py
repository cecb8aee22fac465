"""One meaning per colour everywhere.

Computation is blue, updates pink, communication warm, input green, copies purple, the host's part dark teal;
greys have a tinge: waiting (warm), gaps (blue), the rest (none).

Any two of these colours differ by 10 at least (CIEDE2000), also to eyes without one of the three kinds of
cones, and each stands out 3 : 1 against the white and against the dark page; `tests/report/test_colours.py`
has the arithmetic.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

#: Of everything drawn; its metrics are those of Arial and Helvetica.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

_COMPUTATION = ("#2850f4", "#7d84fd", "#1d9fb8")
_COMMUNICATION = ("#d18200", "#e7013c", "#845d0a")
_WAITING, _GAPS, _REST = "#a2907e", "#66788a", "#848484"
_INPUT = "#008c50"
_COPIES = "#bd0bb0"
_HOST = "#406c66"  # its operators, the runtime's calls, and spans around these
_UPDATE = "#ff4bb1"
#: Of words, and of the critical path: it lies on boxes of every colour, on a wider line in white.
INK = "#1b1f24"
#: Of what is beside the point: titles of axes, edges.
SOFT = "#5a6472"
#: Those that names without a meaning take beside others, since no one reads them as moving, waiting or idle.
_WORKING = (_COMPUTATION[2], _HOST, _COMPUTATION[1], _UPDATE, _COMPUTATION[0], _REST)
#: All of them, no two alike: for names none of which means anything, those that mean most last.
_NEUTRAL = (
    _COMPUTATION[2], _HOST, _WAITING, _GAPS, _UPDATE, _COMPUTATION[1], _REST, *_COMMUNICATION,
    _COMPUTATION[0], _COPIES, _INPUT,
)  # fmt: skip
#: Names that mean something (patterns of a whole name in any case, or of what follows its last slash), each
#: with its colour, whatever else is in a picture or a page; the first that fits.
_MEANINGS: tuple[tuple[str, str], ...] = (
    ("idle|gap|untraced|.*not(hing)? recorded.*", _GAPS),
    (".*wait.*|.*negotiat.*|.*coordinate.*|.*sync.*", _WAITING),
    ("cpu_op|operator|(.*_)?(annotation|runtime|driver)|python.*|callbacks?|host", _HOST),
    (r"i/o|io|.*input.*|.*loader.*|(.*[\W_])?load(ing)?([\W_].*)?", _INPUT),
    ("(gpu_)?mem(cpy|set|ory).*|cop(y|ies).*", _COPIES),
    ("push", _COMMUNICATION[2]),
    ("pull", _COMMUNICATION[1]),
    ("comm|wire|link|.*communication.*|exposed.*", _COMMUNICATION[0]),
    (".*push.*|.*pull.*|.*broadcast.*|.*reduce.*|.*gather.*|.*nccl.*|.*gloo.*", _COMMUNICATION[0]),
    ("fw|forward.*|comput.*|rank", _COMPUTATION[0]),
    ("bw|backward.*", _COMPUTATION[1]),
    ("operation|both|kernel", _COMPUTATION[2]),
    ("step|update.*|output.*|optimizer.*", _UPDATE),
    ("others?|category|rest", _REST),
    ("iteration time|far longer|change", _GAPS),
    ("slow steps", _WAITING),
)
#: Of what others of its colour stand out from: how much of it is seen, 0 to 1.
PALE = 0.5
#: What the pictures of a page gave names so far; None where there is no page.
_given: ContextVar[Mapping[str, str] | None] = ContextVar("_given", default=None)


def assign(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each distinct name of a picture: that of its meaning.

    Names without a meaning (runs, series) have the one that an earlier picture of the page gave them, or
    take what is left, beside names that mean something those of work; colours recur when all are taken.
    """
    given = _given.get() or {}
    meant = {name: _meant(name) for name in names}
    chosen = {name: colour or given.get(name, "") for name, colour in meant.items()}
    pool = _WORKING if any(meant.values()) else _NEUTRAL
    for at, (name, colour) in enumerate(chosen.items()):
        if not colour:
            free = [one for one in pool if one not in chosen.values()]
            free.sort(key=lambda one: one in given.values())
            chosen[name] = free[0] if free else pool[at % len(pool)]
    if _given.get() is not None:
        _given.set({**given, **chosen})
    return chosen


@contextmanager
def of_one_page() -> Iterator[None]:
    """Give a name the same colour in all pictures that are made meanwhile."""
    token = _given.set({})
    try:
        yield
    finally:
        _given.reset(token)


def of(name: str) -> str:
    """Return the colour of a name that stands alone."""
    return assign([name])[name]


def pale(colour: str) -> str:
    """Return ``#rrggbb`` as ``#rrggbbaa``, which lets the page be seen through it."""
    return f"{colour}{round(255 * PALE):02x}"


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
def _meant(name: str) -> str:
    """Return the colour of what a name means; "" for a name without a meaning."""
    word = name[:80].lower()
    words = dict.fromkeys((word, word.rsplit("/", 1)[-1]))
    found = (
        colour for one in words for pattern, colour in _MEANINGS if re.fullmatch(pattern, one, re.DOTALL)
    )
    return next(found, "")
