"""Names of functions, such as a device's kernels, cut to what identifies them; the one place for that.

A kernel's name is a whole signature of C++, often of several hundred characters. What identifies it is the
function's own name and one word of its template: ``elementwise_kernel<CUDAFunctor_add>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from analyzer.base.errors import listed

_OWNER = r"((?:wk\d+\.)?(?:rank\d+\.)?)"
#: A function of C++: the rank before it, ``void``, and its name with what belongs to it.
_FUNCTION = (
    rf"(?s){_OWNER}(?:void )?"
    r"(\S.*::.*|\S*\w<.*>.*|(?<=void ).*|\w+\([A-Za-z_][\w:<> ]*[*&,][\w:<>,*& ]*\))"
)
_NAMESPACE = r"(?:\b\w+|\(anonymous namespace\)|<unnamed>|\{[^{}]*\})::"
#: Functions that only run what their template says.
_RUNS_ANOTHER = re.compile(r"[Kk]ernel\d?|device_kernel|launch\w*")
#: Words of a template that say what it does: shorter ones, and these, are types and adaptors.
_TELLING = re.compile(
    r"(?<!\w)(?!gpu_|cu(?:blas|dnn)|unsigned|complex|BFloat16|OpaqueType|[AB]?UnaryF|BinaryF|ReduceOp|func_wrapper|Tensor[IL]|operator|enable_)"
    r"[A-Za-z]\w{6,}"
)
_MARKED = re.compile(r"(?s)^(before |)#+ (.*\S) #+$")
MOST = 72  # characters of a name in a sentence


def without_parameters(name: str, *, namespaces: bool = False) -> str:
    """Cut ``void`` and the parameters from a function of C++, and its namespaces unless these are wanted."""
    function = re.fullmatch(_FUNCTION, name)
    if function is None:
        return name
    owner, rest = function.groups()
    bare = re.sub(r"\(anonymous namespace\)::" if namespaces else _NAMESPACE, "", rest)
    words = _split(bare, "(")
    return owner + (words[0] or bare)


def plain(name: str) -> str:
    """Remove the marks around the name of an annotation.

    >>> plain("## forward ##"), plain("before ## forward ##"), plain("C# ##")
    ('forward', 'before forward', 'C# ##')
    """
    return _MARKED.sub(r"\1\2", name)


@lru_cache(maxsize=65536)  # ranks have the same kernels
def brief(name: str) -> str:
    """Cut a name to what identifies it, for a sentence; words around a function of C++ stay.

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
    """Join names cut to what identifies them: ``a, b and c``; of many the first."""
    return listed(list(dict.fromkeys(map(brief, names))), most)


def _identity(function: str) -> str:
    """Cut a function of C++ to its name and the first long word of its template; an edit's ratio stays."""
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
