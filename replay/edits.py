"""The edits of a job: the registry of `--set`, and recordings with some of them made."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from dag.step_graph import Recording
from errors import SIMILAR, UsageError
from replay.edit import LIKELY, Edit, EditRequest, Guess, Job
from replay.whatif import (
    bandwidth,
    collective_times,
    drop,
    gradients,
    host,
    negotiation,
    outliers,
    partition,
    peers,
    scaling,
    schedule,
    server_times,
    straggler,
)


class EditModule(Protocol):
    """A module of `replay.whatif`: how its edit is written, parsed, and applied to a recording."""

    NAME: str
    HELP: str

    @property
    def parse(self) -> Callable[[EditRequest, Job], Edit | None]:
        """Return the edit that is requested; None where the request is not one of this module's."""


#: The first that knows a request makes the edit; `scaling` takes what no other one knows.
EDITS: Sequence[EditModule] = (
    bandwidth, partition, schedule, straggler, drop, negotiation, outliers, server_times, collective_times,
    gradients, host, peers, scaling,
)  # fmt: skip
_WORD = re.compile(r"[a-z_]{4,}")
#: What others call what an edit changes.
_MEANT = {
    **dict.fromkeys(("network", "net", "band", "link", "links", "speed", "rate"), "bandwidth"),
    **dict.fromkeys(("slow", "slowrank", "imbalance", "balance"), "straggler"),
    **dict.fromkeys(("bucket", "buckets", "bucketsize"), "bucket_cap"),
    **dict.fromkeys(("partition", "partitions"), "partition_bytes"),
    **dict.fromkeys(("remove", "without", "delete"), "drop"),
    **dict.fromkeys(("priority", "order"), "schedule"), **dict.fromkeys(("cpu", "launch"), "host"),
}  # fmt: skip
#: Recordings with edits that are kept at most; any other is made again when it is needed.
_KEPT = 3


def parse(request: EditRequest, job: Job) -> Edit:
    """Return the edit that is requested.

    Raises
    ------
    UsageError
        A value that the edit does not have, or a name that nothing in the job has.
    """
    try:
        for module in EDITS:
            if (found := module.parse(request, job)) is not None:
                return replace(found, name=str(request))
        raise request.refused("no such edit")
    except UsageError as error:
        forms = {form.partition("=")[0]: form for module in EDITS for form in module.NAME.split(", ")}
        words = [word for word in forms if _WORD.fullmatch(word)]
        if request.name in words and module is scaling:
            raise request.refused(f"it is {forms[request.name]}; --set help lists all") from error
        near = difflib.get_close_matches(request.name, words, n=1, cutoff=SIMILAR)
        meant = _MEANT.get(request.name.lower().replace("_", ""), *near[:1] or [""])
        if not meant or request.name in words:
            raise
        told = forms[meant]
        with contextlib.suppress(UsageError):
            told = str(parse(EditRequest(meant, request.value), job).name)
        raise request.refused(f"there is no such edit; did you mean {told}? --set help lists all") from error


def in_order(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Return edits in the order in which they are made, whatever order they are given in."""
    return tuple(sorted(edits, key=lambda edit: (edit.order, edit.name)))


class EditedJob:
    """The recordings of one job after edits; the latest are kept."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.parse = cache(lambda request: parse(request, job))
        self._made: dict[tuple[Guess, tuple[Edit, ...]], Recording] = {}

    def after(self, edits: Sequence[Edit], guess: Guess = LIKELY) -> Recording:
        """Return the recording with all `edits`, whatever order they are given in."""
        return self._after(in_order(edits), guess)

    def _after(self, edits: tuple[Edit, ...], guess: Guess) -> Recording:
        """Return the recording with `edits` in their order."""
        if not edits:
            return self.job.apart
        key = guess, edits
        if key not in self._made:
            made = edits[-1].apply(self._after(edits[:-1], guess), guess)
            while len(self._made) >= _KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = made
        self._made[key] = self._made.pop(key)  # it is the latest now
        return self._made[key]
