"""The grammar of operation names: the one place where a name is taken apart.

BytePS and its profiler encode what an operation is in its name::

    [prefix] Comm.<tensor>[.<stage>[.<partition key>]]
    [prefix] FW|BW|STEP|I/O [.<operation>]        (alone, or with the operation's own name)
    [prefix] OUTPUT|UPDATE [<digits> | _<word> | .<operation>]

    prefix:  [wk<i>.][rank<r>.]   or, in dPRO's later files,   host<i>.rank<r>->
    and, in dPRO's later files, a tail ``~><suffix>``

Every other text is a foreign name (``aten::add``): its `cat` is None and its `label` the text,
after a prefix if it has one. A tensor whose own name ends in a stage (``Comm.mlp.PUSH``) cannot be
told from a sub-task by its name; `tid` in the trace can (``total`` for the whole communication), so
readers that know build the name with its fields.

"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from analyzer.base.errors import whole_number

#: BytePS's queue stages in the order in which a partition passes them, then the other stages of dPRO.
QUEUES = (
    "COORDINATE_REDUCE",
    "REDUCE",
    "COPYD2H",
    "PCIE_REDUCE",
    "COORDINATE_PUSH",
    "COMPRESS",
    "PUSH",
    "PULL",
    "DECOMPRESS",
    "COPYH2D",
    "COORDINATE_BROADCAST",
    "BROADCAST",
    *(
        "PUSH_REQ",
        "PUSH_RES",
        "PULL_REQ",
        "PULL_RES",
        "COPY_FIRST",
        "SUM",
        "COPY_MERGED",
    ),  # messages, servers
    *("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "Sync", "QUEUE", "MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE"),
    *("MEMCPY_OUT_FUSION_BUFFER", "SEND", "RECV"),  # Horovod and NCCL
)

#: Categories that end a step, the model's update: what follows belongs to the next one. Those that begin one.
LAST, FIRST = ("STEP", "UPDATE"), ("FW", "I/O")
COMM, FORWARD, OUTPUT = "Comm", "FW", "OUTPUT"

_N = "0|[1-9][0-9]{0,18}"  # no leading zero: what is printed is what was read; 64 bits
_GRAMMAR = re.compile(
    rf"(?:host(?P<host>{_N})\.rank(?P<hrank>{_N})->"
    rf"|(?:wk(?P<wk>{_N})\.)?(?:rank(?P<rank>{_N})\.)?)"
    r"(?:(?P<comm>Comm)\.(?P<tensor>.+?)"
    rf"(?:\.(?P<queue>{'|'.join(QUEUES)})(?:\.(?P<key>{_N}))?)?"
    r"|(?P<cat>FW|BW|STEP|I/O)(?:\.(?P<op>.+?))?"
    r"|(?P<tailed>OUTPUT|UPDATE)(?P<tail>[0-9]+?|_.+?|\..+?)?"
    r"|(?P<foreign>.*?))"
    r"(?:~>(?P<suffix>.*))?",
    re.DOTALL,
)

_NUMBERS = ("host", "hrank", "wk", "rank", "key")
#: What a name within the grammar begins with.
_BEGINNINGS = ("host", "wk", "rank", "Comm.", "FW", "BW", "STEP", "I/O", "OUTPUT", "UPDATE")


def may_be_within(text: str) -> bool:
    """Check whether a name may be within the grammar: a quick test, because names can be many."""
    return text.startswith(_BEGINNINGS) or "~>" in text


class OpName(NamedTuple):
    """One operation's name, taken apart; `OpName.parse` and `str` are inverses.

    >>> name = OpName.parse("rank0.Comm.gradient_0.PUSH.26148864")
    >>> name.label, name.rank, name.queue, name.key
    ('gradient_0', 0, 'PUSH', 26148864)
    >>> str(name.main)
    'rank0.Comm.gradient_0'
    >>> OpName.parse("aten::add").cat is None
    True
    """

    cat: str | None
    label: str | None = None  # tensor of a Comm op, layer of a compute op, text of a foreign name
    worker: int | None = None
    rank: int | None = None
    queue: str | None = None  # BytePS stage, e.g. PUSH
    key: int | None = None  # partition key: declared_key << 16 | partition
    suffix: str | None = None  # dPRO's ``~>suffix``
    arrow: bool = False  # prefix written as dPRO's ``host0.rank0->``

    @classmethod
    def parse(cls, text: str) -> OpName:
        """Take `text` apart; never fails, a name outside the grammar is foreign."""
        return _parse(text) if may_be_within(text) else cls(None, text)

    def __str__(self) -> str:
        return f"{self.prefix}{self._body()}{'' if self.suffix is None else '~>' + self.suffix}"

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>.``, or what of it is known; ``host<i>.rank<r>->`` in dPRO's form."""
        if self.arrow:
            return f"host{self.worker}.rank{self.rank}->"
        worker = "" if self.worker is None else f"wk{self.worker}."
        return worker + ("" if self.rank is None else f"rank{self.rank}.")

    @property
    def kind(self) -> str:
        """The stage of a sub-task (``PUSH``), else the category; empty for a foreign name."""
        return self.queue or self.cat or ""

    @property
    def main(self) -> OpName:
        """The whole communication that a sub-task belongs to; every other name as it is."""
        return self._replace(queue=None, key=None)

    @property
    def is_comm(self) -> bool:
        """True for a BytePS communication or a part of one."""
        return self.cat == "Comm"

    def bare(self) -> OpName:
        """Return the name without worker and rank."""
        return self._replace(worker=None, rank=None, arrow=False)

    def aliases(self) -> tuple[str, ...]:
        """Return the names by which a user may call this operation, or the whole that it is a part of.

        Its own, its stage over all partitions, its main task's; each with and without worker and rank.
        """
        bare = self.bare()
        return tuple(dict.fromkeys(map(str, (self, self.main, bare, bare._replace(key=None), bare.main))))

    def _body(self) -> str:
        if self.cat is None:
            return self.label or ""
        if self.cat in ("OUTPUT", "UPDATE"):
            return self.cat + (self.label or "")
        parts = (self.cat, self.label, self.queue, self.key)
        return ".".join(str(part) for part in parts if part is not None)


@lru_cache(maxsize=65536)
def _parse(text: str) -> OpName:
    match = _GRAMMAR.fullmatch(text)
    assert match is not None  # the foreign branch takes any text
    field = match.groupdict()
    number = {name: None if text is None else int(text) for name, text in field.items() if name in _NUMBERS}
    arrow = field["host"] is not None
    cat = field["comm"] or field["cat"] or field["tailed"]
    return OpName(
        cat=cat,
        label=field["foreign"] if cat is None else field["tensor"] or field["op"] or field["tail"],
        worker=number["host" if arrow else "wk"],
        rank=number["hrank" if arrow else "rank"],
        queue=field["queue"],
        key=number["key"],
        suffix=field["suffix"],
        arrow=arrow,
    )


def partition_key(declared_key: int, partition: int) -> int:
    """Return BytePS's key of one partition: ``declared_key << 16 | partition``."""
    return declared_key << 16 | partition


def split_key(key: int) -> tuple[int, int]:
    """Return (declared key, partition) of a partition key; inverse of `partition_key`."""
    return key >> 16, key & 0xFFFF


@lru_cache(maxsize=65536, typed=True)  # ranks have the same names and keys
def with_key(name: str, tid: object) -> str:
    """Return a sub-task's name with its partition key, which `tid` holds; every other name as it is."""
    op = OpName.parse(name)
    if op.queue is None or op.key is not None or (key := whole_number(str(tid))) is None:
        return name
    return str(op._replace(key=key))
