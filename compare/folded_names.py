"""Names of one operation that differ from call to call, folded into one."""

from __future__ import annotations

import re
from functools import lru_cache

_FOLDS = (
    (re.compile(r"ProfilerStep#\d+"), "ProfilerStep*"),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}\b"), "0x…"),  # <function f at 0x7f63ad2b1510>
    (re.compile(r"#\d+\b"), "#*"),
    (re.compile(r"\b((?:\w*_)?(?:step|iteration|iter|batch|epoch)[ _#:=-]+)\d+\b", re.IGNORECASE), r"\1*"),
)


@lru_cache(maxsize=65536)
def folded(name: str) -> str:
    """Return the name without what changes from call to call: addresses and the numbers of steps."""
    for pattern, instead in _FOLDS:
        name = pattern.sub(instead, name)
    return name
