"""Names of functions, such as a device's kernels, cut to what identifies them; the one place for that.

A kernel's name is a whole signature of C++, often of several hundred characters. What identifies it is the
function's own name and one argument of its template: ``elementwise_kernel<CUDAFunctor_add>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from errors import listed

#: A function of C++: what comes before it (a rank), ``void``, and its name with what belongs to it.
_FUNCTION = (
    r"(?s)((?:wk\d+\.)?(?:rank\d+\.)?)(?:void )?"
    r"(\S.*::.*|\S*\w<.*>.*|(?<=void ).*|\w+\([A-Za-z_][\w:<> ]*[*&,][\w:<>,*& ]*\))"
)
_OWNER = r"(?:wk\d+\.)?(?:rank\d+\.)?"
_EDIT = re.compile(r"(.*?)(|=[\w.%+-]+)", re.DOTALL)  # what `--set` says of a function
_CLONE = re.compile(r" ?\[clone [^][]*\]$|\.kd$")
_NAMESPACE = r"(?:\b\w+|\(anonymous namespace\)|\{[^{}]*\})::"
_UNNAMED = r"(?s)\(anonymous namespace\)::|::\{lambda.*|::operator\(\).*"
#: Functions that only run what their template's argument says.
_RUNS_ANOTHER = re.compile(r"[Kk]ernel\d?|device_kernel|globalKernel|trampoline_kernel|launch\w*|run_kernel")
#: Words of templates that many kernels share: types of numbers, how data lies in memory, adaptors.
_PLUMBING = re.compile(
    r"unsigned|signed|const|long|short|char|int|bool|float|double|void|true|false|size_t|u?int\d+_t|_*half2?|Half"
    r"|BFloat16|_*(?:nv|hip)_\w+|Float8\w*|float\d|complex|[Aa]rray|TensorListMetadata|\w*OffsetCalculator"
    r"|(?:Load|Store)With\w+|OpaqueType|\w*TensorInfo|Copy|integral_constant|optional|tuple|pair|Tensor(?:Base)?"
    r"|cublas\w+|\w*Shape|\w*Policy\d*|\w*Iterator|\w*TileState|\w*_config|Dispatch\w+|\w*_traits|decltype"
    r"|[AB]?UnaryFunctor|BinaryFunctor|ReduceOp|func_wrapper_t|gpu_kernel_impl\w*|gpu_index_kernel"
    r"|\w+_and_transform|\w*[wW]rapper|enable_\w+|apply|operator|policy_hub|nullptr|\w+_launcher|bfloat16_t"
)
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_TENSILE = r"(Cijk_[^\W_]+_[^\W_]+_[A-Z0-9]+(?:_BH)?(?:_Bias)?)_.*?(MT\d+x\d+x\d+).*"
_MARKED = re.compile(r"(?s)^(before |)#+ (.*\S) #+$")
_LENGTH = re.compile(r"\d+")
MOST = 72  # characters of a name in a sentence


def without_parameters(name: str, *, namespaces: bool = False) -> str:
    """Return a function of C++ without ``void`` and parameters, and without `namespaces` unless wanted.

    Other names stay as they are.
    """
    function = re.fullmatch(_FUNCTION, name)
    if function is None:
        return name
    owner, rest = function.groups()
    bare = re.sub(_UNNAMED, "", rest) if namespaces and rest.startswith("(anon") else rest
    bare = bare.replace("(anonymous namespace)::", "") if namespaces else re.sub(_NAMESPACE, "", rest)
    at = next(_at_depth_0(bare, "("), len(bare))
    return owner + (bare[:at] if at else bare)


def plain(name: str) -> str:
    """Return a name without the marks around it that some annotations have.

    >>> plain("## forward ##"), plain("before ## forward ##"), plain("C# ##")
    ('forward', 'before forward', 'C# ##')
    """
    return _MARKED.sub(r"\1\2", name)


@lru_cache(maxsize=65536)  # ranks have the same kernels
def brief(name: str) -> str:
    """Return a name cut to what identifies it, for a sentence; words around a function of C++ stay.

    Of such a function that is its own name, and the argument of its template that tells what it does.

    >>> brief("void at::native::elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)")
    'elementwise_kernel<CUDAFunctor_add>'
    >>> brief("before void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)")
    'before cutlass_80_simt_sgemm_128x32_8x5_nn_align1'
    >>> brief("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT0_i"), brief("aten::add_")
    ('add_rmsnorm_quant_kernel', 'aten::add_')
    >>> brief("$numpy asarray")  # `$` marks the functions of Python in traces of JAX
    'numpy asarray'
    """
    name = plain(name)
    owner = re.match(_OWNER, name)[0]  # type: ignore[index]  # it matches any text
    words = _split(_CLONE.sub("", name[len(owner) :].removeprefix("$")), " ")
    places = [at for at, word in enumerate(words) if _is_function(word, words[at - 1] if at else "")]
    if places:
        first = last = places[-1]
        while first and (words[first - 1] == "void" or first - 1 in places):  # the type that it returns
            first -= 1
        function, edit = _EDIT.fullmatch(words[last]).groups()  # type: ignore[union-attr]  # it matches any text
        words[first : last + 1] = [_shorter(_identity(function)) + edit]
        return owner + " ".join(words)
    return owner + _shorter(" ".join(words))


def named(names: Iterable[str], most: int = 3) -> str:
    """Return names cut to what identifies them as text: ``a, b and c``; of many the first."""
    return listed(list(dict.fromkeys(map(brief, names))), most)


def _is_function(word: str, before: str) -> bool:
    has_more = word.startswith("_ZN") or (("(" in word or "<" in word) and re.fullmatch(_FUNCTION, word))
    return bool(has_more) or (before == "void" and "(" in word)


def _shorter(name: str) -> str:
    """Return a name in at most `MOST` characters; of a matrix product of Tensile its types and its tile."""
    if len(name) > MOST:
        name = re.sub(_TENSILE, r"\1…\2", name)
    return name if len(name) <= MOST else name[: MOST * 2 // 3] + "…" + name[1 - MOST // 3 :]


def _identity(function: str) -> str:
    """Return the name of a function of C++, with the first word of its template that tells what it does."""
    if function.startswith("_ZN"):
        return _unmangled(function)
    function = re.sub(_UNNAMED, "", function.replace("(anonymous namespace)::", ""))
    function = function[: next(_at_depth_0(function, "("), len(function))] or function
    full_name, _, template = function.partition("<")
    *spaces, own = _split(full_name, "::")
    words = _WORD.findall(re.sub(rf"{_NAMESPACE}|\([^()]*\)", "", template))
    telling = next((word for word in words if not _PLUMBING.fullmatch(word)), "")
    if not _RUNS_ANOTHER.fullmatch(own):
        return f"{own}<{telling}>" if telling else own
    return telling or "::".join([*spaces[-1:], own])


def _split(text: str, by: str) -> list[str]:
    places = [*_at_depth_0(text, by)]
    begins = [0, *(at + len(by) for at in places)]
    return [text[begin:end] for begin, end in zip(begins, [*places, len(text)], strict=True)]


def _at_depth_0(text: str, wanted: str) -> Iterator[int]:
    """Yield where a text occurs in another outside of all brackets."""
    depth = 0
    for at, char in enumerate(text):
        if depth == 0 and text.startswith(wanted, at):
            yield at
        depth += (char in "<(") - (char == ")" or (char == ">" and text[at - 1] != "-"))


def _unmangled(name: str) -> str:
    """Return a compiler's name of a function as its own, without its template (Itanium C++ ABI)."""
    found, at = [], 3
    while match := _LENGTH.match(name, at):
        at = match.end() + int(match[0][:6])
        found.append(name[match.end() : at])
    is_general = bool(found) and _RUNS_ANOTHER.fullmatch(found[-1])
    return "::".join(found[-2:] if is_general else found[-1:]) or name
