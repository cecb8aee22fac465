"""The registry of `--set` edits."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from importlib import import_module

from msgspec.structs import replace

from analyzer.base.errors import SIMILAR, UsageError
from replay.edit import Edit, EditRequest, Job

#: Modules of `replay.whatif`, each with the forms and the meaning of its edits; the last makes all edits that
#: no other knows.
EDITS = (
    (
        "bandwidth",
        "bandwidth=R|200Mbit, latency=R",
        "bandwidth: links are R times as fast, or have this rate (Kbit, Mbit, Gbit); other parts of a "
        "transfer stay; latency: the fixed cost of a collective is R times as long",
    ),
    (
        "partition",
        "partition_bytes=N",
        "tensors are cut into pieces of N bytes; needs their sizes, from BytePS's log",
    ),
    (
        "schedule",
        "schedule=priority|fifo",
        "links serve the lowest tensor index first, or first come, first served, instead of the recorded "
        "order",
    ),
    (
        "straggler",
        "straggler=none|even|mean|each_step",
        "none: slow ranks work as long as their peers; even: an operation takes its time on the mean rank; "
        "mean: the ideal step, each kind of work at its mean over ranks and steps; each_step: every rank "
        "works as long as the mean rank of that step",
    ),
    (
        "drop",
        "drop=NAME",
        "the operation takes no time; an annotation is removed with everything inside, idle time included",
    ),
    (
        "negotiation",
        "negotiation=none, ready=first, rank1.ready=peers",
        "negotiation: reductions start as soon as the last rank is ready; first: all ranks are ready as "
        "early as the first; peers: a rank is ready as early as its peers",
    ),
    (
        "outliers",
        "step20=usual",
        "replace these steps (step20,step31) by the median step: no event takes longer or starts later",
    ),
    (
        "server_times",
        "servers=even|none",
        "even: a slow server is as fast per byte as the others; none: pulls take no longer than their bytes",
    ),
    (
        "collective_times",
        "collectives=peers|merged",
        "peers: slow collectives reach the bus bandwidth of others of their kind and size; merged: one of "
        "ten short collectives remains",
    ),
    (
        "gradients",
        "overlap=off, bucket_cap=50MB",
        "overlap: gradients are reduced only after the backward pass of their rank; bucket_cap: recorded "
        "buckets are joined until they hold this much (KB, MB, GB)",
    ),
    (
        "host",
        "host=none, sync=none, allocations=none",
        "host: launches take no time, and device work starts as soon as the work before it ends; sync: no "
        "host call waits for the device; allocations: allocating and freeing device memory takes no time",
    ),
    (
        "straggler",
        "rank1=peers, rank1.extra=peers, rank1.gap=peers, gap=even",
        "a rank (rank1,rank2) works as long as its peers; extra: work that not all ranks do is shortened "
        "until the rank works as long as they do; gap: its pauses are as short as theirs; even: no rank "
        "pauses longer in a step than the mean rank",
    ),
    (
        "scaling",
        "NAME=R|+400ms",
        "an operation (Comm.x.PUSH, FW.conv0), a category (FW, BW, Comm, I/O), a rank (rank1), a part of a "
        "rank (rank1.FW) or a pipeline stage (stage0) takes R times as long, or this much longer once in "
        "each step",
    ),
)
_WORD = re.compile(r"[a-z_]{4,}")
_NUMBER = re.compile(r"\d+")


def parse(request: EditRequest, job: Job) -> Edit:
    """Parse a request with the first module that knows it; only modules that may know it are loaded.

    Raises UsageError for a value that the edit does not have, or a name that nothing in the job has.
    """
    module = ""
    try:
        for module in _modules(request):
            edit: Edit | None = import_module(f"replay.whatif.{module}").parse(request, job)
            if edit is not None:
                return replace(edit, name=str(request))
        raise request.refused("no such edit")
    except UsageError as error:
        forms, meant = _forms(), meant_name(request.name)
        if request.name == meant and module == "scaling":
            raise request.refused(f"it is {forms[meant]}; --set help lists all") from error
        if meant in ("", request.name):
            raise
        suggestion = forms[meant]
        with contextlib.suppress(UsageError):
            suggestion = str(parse(EditRequest(meant, request.value), job).name)
        raise request.refused(
            f"there is no such edit; did you mean {suggestion}? --set help lists all"
        ) from error


def _modules(request: EditRequest) -> list[str]:
    """List the modules that may know a request, by the last word of its name or by its value."""
    words = request.name.rpartition(".")[2], request.value
    names = [name for name, forms, _ in EDITS if any(_word(form) in words for form in forms.split(", "))]
    return [*names, "scaling"]


def _word(form: str) -> str:
    """Take the word of an edit's form that no name of an operation has: of its name, else its value.

    >>> _word("rank1.gap=peers"), _word("rank1=peers"), _word("latency=R")
    ('gap', 'peers', 'latency')
    """
    name, _, value = form.partition("=")
    word = name.rpartition(".")[2]
    return value if _NUMBER.search(word) else word


def _forms() -> dict[str, str]:
    """List the written form of each edit by its name."""
    return {form.partition("=")[0]: form for _, forms, _ in EDITS for form in forms.split(", ")}


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
