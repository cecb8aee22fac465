"""The registry of `--set` edits, and recordings with edits applied."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from msgspec.structs import replace

from analyzer.base.errors import SIMILAR, UsageError
from analyzer.model.graph.step_graph import Recording
from replay.edit import Edit, EditRequest, Job
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
    """A module of `replay.whatif`: the form, help and parser of an edit."""

    NAME: str
    HELP: str

    @property
    def parse(self) -> Callable[[EditRequest, Job], Edit | None]:
        """Parse a request; None if it belongs to another module."""


#: The first module that knows a request makes the edit; `scaling` takes all remaining requests.
EDITS: Sequence[EditModule] = (
    bandwidth, partition, schedule, straggler, drop, negotiation, outliers, server_times, collective_times,
    gradients, host, peers, scaling,
)  # fmt: skip
_WORD = re.compile(r"[a-z_]{4,}")
_NUMBER = re.compile(r"\d+")
#: Number of edited recordings that are cached.
_KEPT = 3


def parse(request: EditRequest, job: Job) -> Edit:
    """Parse a request with the first module that knows it.

    Raises UsageError for a value that the edit does not have, or a name that nothing in the job has.
    """
    try:
        for module in EDITS:
            if (edit := module.parse(request, job)) is not None:
                return replace(edit, name=str(request))
        raise request.refused("no such edit")
    except UsageError as error:
        forms, meant = _forms(), meant_name(request.name)
        if request.name == meant and module is scaling:
            raise request.refused(f"it is {forms[meant]}; --set help lists all") from error
        if meant in ("", request.name):
            raise
        suggestion = forms[meant]
        with contextlib.suppress(UsageError):
            suggestion = str(parse(EditRequest(meant, request.value), job).name)
        raise request.refused(
            f"there is no such edit; did you mean {suggestion}? --set help lists all"
        ) from error


def _forms() -> dict[str, str]:
    """List the written form of each edit by its name."""
    return {form.partition("=")[0]: form for module in EDITS for form in module.NAME.split(", ")}


def meant_name(name: str) -> str:
    """Find the edit with this or the most similar name; "" for names of the job's operations."""
    words = [word for word in _forms() if _WORD.fullmatch(word)]
    return next(iter(difflib.get_close_matches(name, words, n=1, cutoff=SIMILAR)), "")


def as_edit(flag: str, value: str) -> str:
    """Write the edit that a user typed as a flag; "" if no edit has this or a similar name.

    >>> as_edit("bandwith", "2"), as_edit("rank3.gap", "peers"), as_edit("schedule", "")
    ('bandwidth=2', 'rank3.gap=peers', 'schedule=priority|fifo')
    """
    forms = {_NUMBER.sub("#", name): form for name, form in _forms().items() if name != "NAME"}
    name = flag if _NUMBER.sub("#", flag) in forms else meant_name(flag)
    if not name or not value:
        return name and forms[_NUMBER.sub("#", name)]
    return f"{name}={shlex.quote(value)}"


def in_order(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Sort edits into their order of application."""
    return tuple(sorted(edits, key=lambda edit: (edit.order, edit.name)))


class EditedJob:
    """Edited recordings of a job; the latest are cached."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.parse = cache(lambda request: parse(request, job))
        self._made: dict[tuple[Edit, ...], Recording] = {}

    def after(self, edits: Sequence[Edit]) -> Recording:
        """Apply `edits`, given in any order, to the recording."""
        if not edits:
            return self.job.apart
        edits = in_order(edits)
        edited = self._made.pop(edits, None) or edits[-1].apply(self.after(edits[:-1]))
        while len(self._made) >= _KEPT:
            del self._made[next(iter(self._made))]
        self._made[edits] = edited  # the latest is last
        return edited
