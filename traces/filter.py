"""`--filter`: only some of the communications of a trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

import dialects
from errors import AnalyzeError
from formats.columns import Trace


def check_known(only: Collection[str], known: Mapping[str, None]) -> None:
    """Raise AnalyzeError where a name of `only` is no communication that is `known`."""
    for name in only:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AnalyzeError(f"--filter {name}: no communication in this job has that name{hint}")


def selected_of(trace: Trace, prefix: str, only: Collection[str], known: dict[str, None]) -> Trace:
    """Return the trace without communications that are not in `only`; `known` gets the names of all.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only.
    """
    if not len(trace):
        return trace
    system = dialects.of(trace)
    is_comm = system.filterable(trace)
    code = trace.name_id[is_comm].astype(np.int64) * len(trace.tracks) + trace.track_id[is_comm]
    distinct, place = np.unique(code, return_inverse=True)
    keep = np.zeros(len(distinct), np.bool_)
    for i, pair in enumerate(distinct.tolist()):
        name, track = divmod(pair, len(trace.tracks))
        aliases = system.aliases(trace, name, track)
        aliases = (*aliases, *(f"{prefix}{alias}" for alias in aliases)) if prefix else aliases
        known.update(dict.fromkeys(aliases))
        keep[i] = any(alias in only for alias in aliases)
    kept = np.ones(len(trace), np.bool_)
    kept[is_comm] = keep[place]
    return trace.select(kept)
