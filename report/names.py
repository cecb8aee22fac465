"""Names that fit a column and can still be told apart."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from opname import without_arguments, without_parameters
from report.tables import ELLIPSIS, beginning, display_width, printable, shorten

_NARROW = 10  # columns in which nothing can be told apart
_BETWEEN = re.compile(r"([._/: -]+)")
_COMMON = 0.25  # of the names have a word that is common
_ELLIPSES = re.compile(f"{ELLIPSIS}{{2,}}")
_MOST = 400  # characters of a text that is drawn: shaping a longer one takes minutes


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return each name in at most `width` columns of a terminal.

    Functions of C++ first lose ``void``, namespaces and parameters, then the arguments of templates. Then
    names lose words that many of them have, the most common and longest first. Where that is not enough they
    lose their middle, or where that leaves two alike, more of what they have in common.
    """
    bare = {without_arguments(without_parameters(name)) for name in names}
    words = Counter(itertools.chain.from_iterable(set(_BETWEEN.split(name)) for name in bare))
    common = {word: n for word, n in words.items() if n >= max(2, len(bare) * _COMMON) and len(word) > 1}
    short = {name: _shortest(name, width, common) for name in names}
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        alike[text].append(name)
    for same in alike.values():
        if len(same) > 1:
            forms = [without_parameters(name) for name in same]
            short.update(
                zip(same, _apart(same if len(set(forms)) < len(same) else forms, width), strict=True)
            )
    return [short[name] for name in names]


def bounded(text: str, most: int = _MOST) -> str:
    """Return `text` printable and in at most `most` characters, its middle replaced by ``…``."""
    text = printable(text if len(text) <= most else text[: most // 2] + ELLIPSIS + text[-most // 2 :])
    return text if len(text) <= most else text[: most // 2] + ELLIPSIS + text[1 - most // 2 :]


def labels(names: Sequence[str], width: int) -> list[str]:
    """Return names fit to be drawn in `width` columns: shortened, printable, none of them long by marks.

    A character may carry any number of combining ones, which take no column but have to be drawn.
    """
    return [bounded(name, 3 * width) for name in short_names([bounded(name) for name in names], width)]


def _shortest(name: str, width: int, common: Mapping[str, int]) -> str:
    signature = without_parameters(name)
    bare = without_arguments(signature)
    for form in (name, signature, bare):
        if display_width(form) <= width:
            return form
    return _without_common(bare, width, common) or shorten(bare, width)


def _without_common(name: str, width: int, common: Mapping[str, int]) -> str:
    """Return `name` with as many common words as needed replaced by ``…``; "" where that is not enough.

    `common` has of how many names each is a part. Long words go before more common ones, and the last word
    last: names end in what they do.
    """
    parts = _BETWEEN.split(name)  # words in the even places
    places = [at for at in range(0, len(parts), 2) if parts[at] in common]
    for at in sorted(places, key=lambda at: (at == len(parts) - 1, -common[parts[at]] * len(parts[at]) ** 2)):
        parts[at : at + 2] = [ELLIPSIS, ""]
        text = _ELLIPSES.sub(ELLIPSIS, "".join(parts))
        if display_width(text) <= width:
            return text
    return ""


def _apart(names: list[str], width: int) -> list[str]:
    """Return different names that are alike when shortened, from where they differ on, and up to there."""
    differ = len(os.path.commonprefix(names))  # noqa: RUF071  (of any texts)
    least = width // 3  # columns of the head
    if width < _NARROW or differ <= least + 1:
        return [shorten(name, width) for name in names]
    tails = [name[differ:] for name in names]
    n_alike = len(os.path.commonprefix([tail[::-1] for tail in tails]))  # noqa: RUF071
    if n_alike > 1 and max(map(display_width, tails)) > width - least - 1:
        tails = [tail[:-n_alike] + ELLIPSIS for tail in tails]
    room = max(least, width - 1 - max(map(display_width, tails)))
    head = beginning(names[0][:differ], room) + ELLIPSIS
    return [head + shorten(tail, width - display_width(head)) for tail in tails]
