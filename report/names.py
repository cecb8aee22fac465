"""Names that fit a column and can still be told apart."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence

from report.tables import ELLIPSIS, display_width, printable, shorten

#: A function of C++: what comes before it (a rank), ``void``, and its name with what belongs to it.
_FUNCTION = re.compile(
    r"((?:wk\d+\.)?(?:rank\d+\.)?)(?:void )?(\S.*::.*|\S*\w<.*>.*|(?<=void ).*)", re.DOTALL
)
_NAMESPACE = re.compile(r"(?:\w+|\(anonymous namespace\)|\{[^{}]*\})::")
_NARROW = 10  # columns in which nothing can be told apart
_MOST = 400  # characters of a text that is drawn: shaping a longer one takes minutes
_INNERMOST = re.compile(r"<[^<>]*>")


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return each name in at most `width` columns of a terminal.

    Functions of C++ first lose ``void``, namespaces and parameters, then the arguments of templates; then
    names lose their middle, or where that leaves two alike, more of what they have in common.
    """
    short = {name: _shortest(name, width) for name in names}
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


def _shortest(name: str, width: int) -> str:
    if display_width(name) <= width:
        return name
    signature = without_parameters(name)
    if display_width(signature) <= width:
        return signature
    return shorten(without_arguments(signature), width)


def without_parameters(name: str) -> str:
    """Return a function of C++ without ``void``, namespaces and parameters; other names as they are."""
    function = _FUNCTION.fullmatch(name)
    if function is None:
        return name
    owner, rest = function.groups()
    bare = _NAMESPACE.sub("", rest)
    depth = 0
    for at, char in enumerate(bare):
        depth += (char == "<") - (char == ">" and bare[at - 1] != "-")
        if char == "(" and depth == 0 and at > 0:
            return owner + bare[:at]
    return owner + bare


def without_arguments(name: str) -> str:
    """Return a function of C++ without the arguments of its templates; other names as they are."""
    if _FUNCTION.fullmatch(name) is None:
        return name
    while (fewer := _INNERMOST.sub("", name)) != name:
        name = fewer
    return name


def _apart(names: list[str], width: int) -> list[str]:
    """Return different names that are alike when shortened, from where they differ on."""
    differ = len(os.path.commonprefix(names))  # noqa: RUF071  (of any texts)
    head = names[0][: width // 3] + ELLIPSIS
    if width < _NARROW or differ <= len(head):
        return [shorten(name, width) for name in names]
    return [head + shorten(name[differ:], width - display_width(head)) for name in names]
