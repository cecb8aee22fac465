"""`--filter`: only some of the communications of a trace."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.errors import AnalyzeError, meant
from analyzer.reading.dialects.owners import names_in
from analyzer.reading.dialects.roles import is_communication
from analyzer.reading.dialects.system import System
from analyzer.reading.formats.columns import Trace


class CommFilter:
    """Keeps the communications of one rank that were asked for, and everything that is not communication.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only.

    Attributes
    ----------
    known : the names by which the rank's communications can be asked for
    """

    def __init__(self, system: System, only: Collection[str], prefix: str = "") -> None:
        self._system, self._only, self._prefix = system, frozenset(only), prefix
        self.known: dict[str, None] = {}

    def keeps(self, name: str, cat: str, tid: object, process: str | None) -> bool | None:
        """Whether events of a name, category, thread and process stay; None where they do not communicate."""
        names = self._system.filter_names(name, cat, tid, process)
        if not names and self._system.is_named_comm(name):
            names = (name,)
        if not names:
            return None
        if self._prefix:
            names = (*names, *(self._prefix + name for name in names))
        self.known.update(dict.fromkeys(names))
        return not self._only.isdisjoint(names)

    def select(self, trace: Trace) -> Trace:
        """Remove the communications of a rank that were not asked for, with what collectives call."""
        if not len(trace):
            return trace
        processes = names_in(trace.metadata, "process_name")
        kind = trace.name_id.astype(np.int64) * len(trace.cats) + trace.cat_id
        distinct, place = np.unique(kind * len(trace.tracks) + trace.track_id, return_inverse=True)
        fates = np.empty(len(distinct), np.int8)
        for i, pair in enumerate(distinct.tolist()):
            rest, track = divmod(pair, len(trace.tracks))
            name, cat = divmod(rest, len(trace.cats))
            pid, tid = trace.tracks[track]
            keeps = self.keeps(trace.names[name], trace.cats[cat], tid, processes.get((pid, None)))
            fates[i] = -1 if keeps is None else keeps
        fate = fates[place]
        left_out = fate == 0
        if left_out.any() and (called := is_communication(self._system.roles(trace)) & (fate < 0)).any():
            left_out |= called & lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, left_out)
        return trace.select(~left_out)

    @staticmethod
    def check(only: Collection[str], known: Collection[str]) -> None:
        """Raise AnalyzeError where a name of `only` is not communication that is `known`."""
        for name in only:
            if name not in known:
                near = meant(name, known, most=3)
                raise AnalyzeError(f"--filter {name}: no communication in this job has that name{near}")
