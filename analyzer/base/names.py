"""Names of operations (`rank0.Comm.x.PUSH`) and short forms of the names of functions and kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from analyzer.base.errors import listed, whole_number

_OWNER = r"((?:wk\d+\.)?(?:rank\d+\.)?)"
#: A function of C++: the rank before it, ``void``, and its name with what belongs to it.
_FUNCTION = (
    rf"(?s){_OWNER}(?:void )?"
    r"(\S.*::.*|\S*\w<.*>.*|(?<=void ).*|\w+\([A-Za-z_][\w:<> ]*[*&,][\w:<>,*& ]*\))"
)
_NAMESPACE = r"(?:\b\w+|\(anonymous namespace\)|<unnamed>|\{[^{}]*\})::"
#: Functions that run the function in their template.
_RUNS_ANOTHER = re.compile(r"[Kk]ernel\d?|device_kernel|launch\w*")
#: Words of a template that identify a kernel; shorter words, and these prefixes, are types and adaptors.
_TELLING = re.compile(
    r"(?<!\w)(?!gpu_|cu(?:blas|dnn)|unsigned|complex|BFloat16|OpaqueType|[AB]?UnaryF|BinaryF|ReduceOp|func_wrapper|Tensor[IL]|operator|enable_)"
    r"[A-Za-z]\w{6,}"
)
_MARKED = re.compile(r"(?s)^(before |)#+ (.*\S) #+$")
MOST = 72  # characters of a name in a sentence


def without_parameters(name: str, *, namespaces: bool = False) -> str:
    """Cut ``void`` and the parameters from a function of C++, and its namespaces unless `namespaces`."""
    function = re.fullmatch(_FUNCTION, name)
    if function is None:
        return name
    owner, rest = function.groups()
    bare = re.sub(r"\(anonymous namespace\)::" if namespaces else _NAMESPACE, "", rest)
    return owner + (_split(bare, "(")[0] or bare)


def plain(name: str) -> str:
    """Remove the marks around the name of an annotation.

    >>> plain("## forward ##"), plain("before ## forward ##"), plain("C# ##")
    ('forward', 'before forward', 'C# ##')
    """
    return _MARKED.sub(r"\1\2", name)


@lru_cache(maxsize=65536)  # ranks have the same kernels
def brief(name: str) -> str:
    """Shorten a name for a sentence; words around a function of C++ stay.

    >>> brief("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)")
    'elementwise_kernel<CUDAFunctor_add>'
    >>> brief("before void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)")
    'before cutlass_80_simt_sgemm_128x32_8x5_nn_align1'
    >>> brief("aten::add_"), brief("$numpy asarray")  # `$` marks the functions of Python in traces of JAX
    ('aten::add_', 'numpy asarray')
    """
    owner, rest = re.fullmatch(rf"(?s){_OWNER}(.*)", plain(name)).groups()  # type: ignore[union-attr]
    words = _split(rest.removeprefix("$"), " ")
    for i, word in enumerate(words):
        if ("(" in word or "<" in word) and (words[i - 1 : i] == ["void"] or re.fullmatch(_FUNCTION, word)):
            words[i] = _identity(word)
    text = owner + " ".join(word for word in words if word != "void")
    return text if len(text) <= MOST else text[: MOST * 2 // 3] + "…" + text[1 - MOST // 3 :]


def named(names: Iterable[str], most: int = 3) -> str:
    """Join short names: ``a, b and c``; of many the first."""
    return listed(list(dict.fromkeys(map(brief, names))), most)


def _identity(function: str) -> str:
    """Cut a function of C++ to its name and the first telling word of its template; an edit's ratio stays."""
    bare = _split(re.sub(_NAMESPACE, "", function), "(")[0]
    name, _, template = bare.partition("<")
    if not name:
        return function
    telling = next(iter(_TELLING.findall(template)), "")
    ratio = re.search(r"(=[\w.%+-]+|)$", function)[0]  # type: ignore[index]  # it matches any text
    if telling and _RUNS_ANOTHER.fullmatch(name):
        return telling + ratio
    return f"{name}<{telling}>{ratio}" if telling else name + ratio


def _split(text: str, by: str) -> list[str]:
    """Split a text at a character outside of all brackets."""
    parts, depth, begin = [], 0, 0
    for index, char in enumerate(text):
        if char == by and not depth:
            parts.append(text[begin:index])
            begin = index + 1
        depth += (char in "<(") - (char == ")" or (char == ">" and text[index - 1] != "-"))
    return [*parts, text[begin:]]


#: BytePS's queue stages in the order in which a partition passes them, then the other stages of dPRO.
QUEUES = (
    "COORDINATE_REDUCE", "REDUCE", "COPYD2H", "PCIE_REDUCE", "COORDINATE_PUSH", "COMPRESS", "PUSH",
    "PULL", "DECOMPRESS", "COPYH2D", "COORDINATE_BROADCAST", "BROADCAST",
    "PUSH_REQ", "PUSH_RES", "PULL_REQ", "PULL_RES", "COPY_FIRST", "SUM", "COPY_MERGED",  # messages, servers
    "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "Sync", "QUEUE", "MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE",
    "MEMCPY_OUT_FUSION_BUFFER", "SEND", "RECV",  # Horovod and NCCL
)  # fmt: skip

#: Categories that end a step (the model's update), and those that begin a step.
LAST, FIRST = ("STEP", "UPDATE"), ("FW", "I/O")
COMM, FORWARD, OUTPUT = "Comm", "FW", "OUTPUT"

_N = "0|[1-9][0-9]{0,18}"  # of 64 bits, without a leading zero, so that printing inverts parsing
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

#: Beginnings of the names within the grammar.
_BEGINNINGS = ("host", "wk", "rank", "Comm.", "FW", "BW", "STEP", "I/O", "OUTPUT", "UPDATE")


def may_be_within(text: str) -> bool:
    """Test quickly if a name may be within the grammar."""
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
        """``wk<i>.rank<r>.``, or the known part; ``host<i>.rank<r>->`` in dPRO's form."""
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
        """The whole communication of a sub-task; any other name unchanged."""
        return self._replace(queue=None, key=None)

    @property
    def is_comm(self) -> bool:
        """True for a BytePS communication or a part of one."""
        return self.cat == "Comm"

    def bare(self) -> OpName:
        """Drop worker and rank."""
        return self._replace(worker=None, rank=None, arrow=False)

    def aliases(self) -> tuple[str, ...]:
        """List the names that select this operation: its own, its stage's, its main task's.

        Each name is with and without worker and rank.
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
    numbers = ("host", "hrank", "wk", "rank", "key")
    number = {name: None if field[name] is None else int(field[name]) for name in numbers}
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
    """Make BytePS's key of a partition: ``declared_key << 16 | partition``."""
    return declared_key << 16 | partition


def split_key(key: int) -> tuple[int, int]:
    """Split a partition key into (declared key, partition); inverse of `partition_key`."""
    return key >> 16, key & 0xFFFF


@lru_cache(maxsize=65536, typed=True)  # ranks have the same names and keys
def with_key(name: str, tid: object) -> str:
    """Add the partition key in `tid` to a sub-task's name; any other name stays unchanged."""
    op = OpName.parse(name)
    if op.queue is None or op.key is not None or (key := whole_number(str(tid))) is None:
        return name
    return str(op._replace(key=key))
