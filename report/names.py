"""Names that fit a column and can still be told apart."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from opname import without_arguments, without_parameters
from report.tables import ELLIPSIS, display_width, shorten

_NARROW = 10  # columns in which nothing can be told apart
_BETWEEN = re.compile(r"([._/: -]+)")
_COMMON = 0.25  # of the names have a word that is common
_ELLIPSES = re.compile(f"{ELLIPSIS}{{2,}}")


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


def _shortest(name: str, width: int, common: Mapping[str, int]) -> str:
    signature = without_parameters(name)
    bare = without_arguments(signature)
    for form in (name, signature, bare):
        if display_width(form) <= width:
            return form
    return _without_common(bare, width, common) or shorten(bare, width)


def _without_common(name: str, width: int, common: Mapping[str, int]) -> str:
    """Return `name` with as many common words as needed replaced by ``…``; "" where that is not enough.

    `common` has of how many names each is a part. Long words go before more common ones.
    """
    parts = _BETWEEN.split(name)  # words in the even places
    places = [at for at in range(0, len(parts), 2) if parts[at] in common]
    for at in sorted(places, key=lambda at: -common[parts[at]] * len(parts[at]) ** 2):
        parts[at : at + 2] = [ELLIPSIS, ""]
        text = _ELLIPSES.sub(ELLIPSIS, "".join(parts))
        if display_width(text) <= width:
            return text
    return ""


def _apart(names: list[str], width: int) -> list[str]:
    """Return different names that are alike when shortened, from where they differ on."""
    differ = len(os.path.commonprefix(names))  # noqa: RUF071  (of any texts)
    head = names[0][: width // 3] + ELLIPSIS
    if width < _NARROW or differ <= len(head):
        return [shorten(name, width) for name in names]
    return [head + shorten(name[differ:], width - display_width(head)) for name in names]
