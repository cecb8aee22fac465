"""Steps of inference: what serving programs annotate, each step of a kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.distributions import median
from analyzer.base.errors import listed
from analyzer.base.units import in_ms
from analyzer.reading.dialects.steps import NO_STEPS, Steps, outer_rows, spans
from analyzer.reading.formats.columns import Trace

#: vLLM counts requests (and tokens) of prompts and of generation in its annotations; TensorRT-LLM likewise.
_COUNTED = re.compile(
    r"execute_(?:\d+_)?context_(?P<prompts>\d+)\(.*_generation_(?P<others>\d+)\(.*"
    r"|execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)"
    r"|\[Executor\] _forward_step \d+: (?P<ctx>\d+) ctx reqs.* (?P<gen>\d+) gen reqs"
)
#: SGLang names what a batch does.
_NAMED = re.compile(r"step\[(\w+)\b.*")
_WORDS = {"extend": "prefill", "target_verify": "decode"}
_ANY = re.compile(r"execute_\w.*")
#: What people call these steps themselves.
_PLAIN = re.compile(r"(prefill|decode)(?:[ _-]?step)?(?:[ _#-]?\d+)?", re.IGNORECASE)
_BEGINS = ("execute_", "step[", "[Executor] ", "prefill", "Prefill", "decode", "Decode")
_LEAST = 3  # annotations without a kind that make a loop


def kind_of_step(name: str) -> str | None:
    """Return the kind of the step that an annotation marks, "" where it does not say; None if it marks none.

    >>> [kind_of_step(f"execute_context_{n}(0)_generation_{m}(16)") for n, m in ((0, 16), (2, 0), (1, 15))]
    ['decode', 'prefill', 'mixed']
    >>> [kind_of_step(name) for name in ("step[DECODE bs=32]", "Prefill 3", "execute_model", "decode_image")]
    ['decode', 'prefill', '', None]
    """
    if not name.startswith(_BEGINS):  # names are many
        return None
    counted = _COUNTED.fullmatch(name)
    if counted:
        prompts, others = (int(number) > 0 for number in counted.groups() if number is not None)
        return ("", "decode", "prefill", "mixed")[2 * prompts + others]
    named = _NAMED.fullmatch(name) or _PLAIN.fullmatch(name)
    if named:
        word = named[1].lower()
        return _WORDS.get(word, word)
    return "" if _ANY.fullmatch(name) else None


def annotated_steps(trace: Trace) -> tuple[Steps, Sequence[str]]:
    """Return the steps that a serving program annotates, numbered from 1, and the kind of each."""
    if not any(kind_of_step(name) is not None for name in trace.names):
        return NO_STEPS, ()
    rows = outer_rows(trace, lambda name: kind_of_step(name) is not None)
    of_name = [kind_of_step(name) or "" for name in trace.names]
    kinds = [of_name[i] for i in trace.name_id[rows].tolist()]
    if not any(kinds) and len(rows) < _LEAST:
        return NO_STEPS, ()
    steps = tuple(spans(trace, rows, range(1, len(rows) + 1)))
    return Steps(steps, (), "annotations of a serving program"), kinds


def chosen_kind(steps: Int64, kinds: Sequence[str], by: str | None = None) -> tuple[str, str]:
    """Return the kind `by` (None: that of most of the steps, (n, 3)), and a note on steps of other kinds.

    Of two kinds with equally many it is the one that takes more time.
    """
    kind_of = np.array(kinds)[steps[:, 0] - 1]
    counts = Counter(kind_of.tolist())
    if len(counts) < 2 and by is None:
        return next(iter(counts), ""), ""
    took_ns = steps[:, 2] - steps[:, 1]
    kind = max(counts, key=lambda name: (counts[name], took_ns[kind_of == name].sum())) if by is None else by
    others = []
    for other in sorted(counts.keys() - {kind}):
        usual = median(took_ns[kind_of == other])
        n_steps = f"{counts[other]:,} {other} step{'' if counts[other] == 1 else 's'}".replace("  ", " ")
        look = f" (--step_by {other} looks at them)" if other else ""
        others.append(f"{n_steps}, {in_ms(usual)} in the median{look}")
    return kind, f"steps of other kinds are not in these figures: {listed(others)}" if others else ""
