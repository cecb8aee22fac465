"""Floating-point operations of PyTorch's operators, from the shapes that `record_shapes=True` records.

A product counts once, at the innermost operator whose shapes tell it: `aten::linear` calls `aten::addmm`. A
multiplication and an addition are two operations, as in torch.utils.flop_counter; attention counts all pairs
of positions, also masked ones. What a backward pass computes again is marked: the model does not need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.intervals import innermost
from analyzer.reading.dialects.kineto.attribution import around, forward_operators
from analyzer.reading.dialects.kineto.collectives import ENGINE, SHAPE_ARGS, bytes_of_inputs, item_bytes
from analyzer.reading.dialects.kineto.launches import calls_of, integers
from analyzer.reading.dialects.name_rules import OTHER, PRODUCTS
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.system import CPU_OP_CATS
from analyzer.reading.formats.columns import Trace

_COLUMNS = [("kind", "U16"), ("type", "U5"), ("flops", "f8"), ("again", "f8"), ("bytes", "f8")]
#: Pieces of work. `type` is that of the numbers multiplied, `is_modelled` marks parts of products, `again`
#: are operations that the backward pass repeats. An operator's operations and bytes are divided among its
#: pieces.
WORK = np.dtype([("begin_ns", "i8"), ("dur_ns", "i8"), ("is_modelled", "?"), *_COLUMNS])
_PRODUCT = np.dtype([("row", "i8"), *_COLUMNS])

_Shape: TypeAlias = Sequence[int]
_Values: TypeAlias = Sequence[Any]
_Args: TypeAlias = Mapping[str, Mapping[int, Any]]
_Count: TypeAlias = tuple[float, float, float]  # operations, those that repeat others, elements of the result

#: Operators that read a part of a tensor, whose size says nothing of the bytes.
_PARTS = re.compile(
    r"(?i)embedding|index|gather|scatter|select|lookup|topk|sort|paged|cache|slice|narrow|nll_loss|sampl"
)
#: Words for types of numbers that are multiplied.
_TYPES = {"float8": "fp8", "bfloat16": "bf16", "half": "fp16", "double": "fp64", "char": "int8",
          "float": "fp32"}  # fmt: skip
_TF32 = re.compile(r"(?i).*(?:tf32|s1688|_xf32)")
_MOST = 1 << 40  # elements along a dimension


# ---- operations of one operator


def product(name: str, dims: Sequence[Any], values: _Values = (), out: _Shape = ()) -> _Count | None:
    """Count the operations of an operator by its shapes; None if it is no product, or they do not tell.

    `values` are the recorded numbers among the inputs; `out` is the shape of the result, for convolutions
    without them.

    >>> product("aten::addmm", [[7], [5, 3], [3, 7], [], []])
    (210.0, 0.0, 35.0)
    """
    count = next((count for pattern, count, _ in _COUNTS if pattern.fullmatch(name)), None)
    try:
        return None if count is None else count(name, [*map(_shape, dims)], values, out)
    except (IndexError, ValueError, ZeroDivisionError):
        return None


def _shape(value: Any) -> _Shape:
    sizes = value if isinstance(value, list) and len(value) < 9 else []
    return sizes if all(type(size) is int and 0 <= size < _MOST for size in sizes) else []


def _matrices(name: str, shapes: Sequence[_Shape], values: _Values, out: _Shape) -> _Count:
    left, right = shapes["add" in name :][:2]  # behind the matrix that is added
    columns = right[0] if name == "aten::linear" else right[-1] if len(right) > 1 else 1
    return 2.0 * math.prod(left) * columns, 0.0, float(math.prod(left[:-1]) * columns)


def _convolution(name: str, shapes: Sequence[_Shape], values: _Values, out: _Shape) -> _Count:
    given, weight = shapes[:2]
    if values[6:7] == ["True"]:  # transposed: each element of the input is spread over the result
        out = given
    elif not out:
        numbers = [[*map(int, re.findall(r"\d{1,9}", str(text)))] for text in values[3:6]]
        out = [given[0], weight[0]]
        for i, (size, width) in enumerate(zip(given[2:], weight[2:], strict=True)):
            stride, padding, dilation = (number[i % len(number)] for number in numbers)
            out.append(max((size + 2 * padding - dilation * (width - 1) - 1) // stride + 1, 0))
    return 2.0 * math.prod(weight[1:]) * math.prod(out), 0.0, float(math.prod(out))


def _gradients(name: str, shapes: Sequence[_Shape], values: _Values, out: _Shape) -> _Count:
    """Count a convolution's products for the gradients of input and weight, as far as they are asked for."""
    gradient, given, weight = shapes[:3]
    if name != "aten::convolution_backward":  # of a library (before PyTorch 1.11)
        gradient, given = given, gradient
    asked = re.findall("True|False", str(values[10]))[:2].count("True") if len(values) > 10 else 2
    spread = given if values[7:8] == ["True"] else gradient
    return asked * 2.0 * math.prod(weight[1:]) * math.prod(spread), 0.0, float(math.prod(given))


def _attention(name: str, shapes: Sequence[_Shape], values: _Values, out: _Shape) -> _Count:
    is_backward = name.endswith(("backward", "bwd"))
    query, key, value = shapes[is_backward:][:3]  # behind the gradient
    if not len(query) == len(key) == len(value) == 4:
        raise ValueError("texts of several lengths, in one row")
    scores = 2.0 * math.prod(query[:3]) * key[2 if name.startswith("aten") else 1]
    forward, again = scores * (query[3] + value[3]), scores * query[3]
    # backwards each of the two products has two gradients, and the scores are computed again
    counts = (2 * forward + again, again) if is_backward else (forward, 0.0)
    return *counts, float(math.prod(query[:3]) * value[3])


#: In FlashAttention's own operators, heads come behind positions.
_COUNTS = (
    (re.compile(r"aten::(?:linear|_?(?:add|badd)?(?:bmm|mm|mv)(?:_activation)?_?"
                r"|_(?:int|scaled|grouped|scaled_grouped)_mm)"), _matrices, "GEMM"),
    (re.compile(r"aten::convolution"), _convolution, "convolution"),
    (re.compile(r"aten::(?:\w+_)?convolution_backward"), _gradients, "convolution"),
    (re.compile(r"aten::_scaled_dot_product_(?:flash|efficient|cudnn|fused)_attention(?:_for_cpu"
                r"|_overrideable)?(?:_backward)?|FlashAttnFunc"
                r"|flash_attn\w*::(?:_flash_attn_(?:for|back)ward|[fb]wd)"), _attention, "attention"),
)  # fmt: skip


# ---- operations of a trace


def modelled_work(trace: Trace, rows: Int64, kinds: Sequence[str]) -> NDArray[np.void] | None:
    """List the work of devices (k `rows`) with its operations and bytes; without devices, that of operators.

    None without shapes. Beside a device, operators without work of it, as in the capture of a graph, count
    nothing.
    """
    if "Input Dims" not in trace.args:
        return None
    args: dict[str, dict[int, list[Any]]] = {key: {} for key in SHAPE_ARGS}
    for key, column in trace.args.items():
        if key in args:
            args[key] = {row: value for row, value in column.as_dict().items() if isinstance(value, list)}
    operators = np.flatnonzero(by_cat(trace, CPU_OP_CATS.__contains__))
    products = _products(trace, operators, args)
    if len(rows):
        call, begin_ns, dur_ns = calls_of(trace, rows), trace.ts_ns[rows], trace.dur_ns[rows]
    else:
        spans = trace.ts_ns[operators], trace.end_ns[operators]
        which, begin_ns, end_ns = innermost(*spans, trace.track_id[operators])
        call = rows = operators[which]
        dur_ns = end_ns - begin_ns
    thread = np.append(trace.track_id, -1)[call].astype(np.int64)
    at_ns = np.append(trace.ts_ns, 0)[call] if len(kinds) else begin_ns
    owner = around(trace, products["row"], thread, at_ns)
    reader = around(trace, trace.args["Input Dims"].rows, thread, at_ns)
    index = np.where(owner >= 0, np.searchsorted(products["row"], owner), -1)
    known = np.append(products, np.zeros(1, _PRODUCT))[index]
    work = np.zeros(len(rows), WORK)
    work["begin_ns"], work["dur_ns"], work["is_modelled"] = begin_ns, dur_ns, owner >= 0
    work["kind"] = kinds if len(kinds) else np.where(owner >= 0, known["kind"], OTHER)
    multiplies = np.isin(work["kind"], PRODUCTS)
    in_tf32 = (known["type"] == "fp32") & by_name(trace, _TF32.match)[rows]
    work["type"] = np.where(np.isin(owner, owner[in_tf32]) & (owner >= 0), "tf32", known["type"])
    work["type"][~multiplies] = ""
    reads, reading = np.unique(np.where(owner < 0, reader, -1), return_inverse=True)
    in_parts = by_name(trace, _PARTS.search)
    n_bytes = [0.0 if row < 0 or in_parts[row] else _bytes(args, row) for row in reads.tolist()]
    known["bytes"] += np.array(n_bytes)[reading]
    share = _shares(np.where(owner >= 0, owner, reader), dur_ns, multiplies)
    for name in ("flops", "again", "bytes"):
        work[name] = known[name] * share
    return work


def _shares(owner: Int64, dur_ns: Int64, multiplies: Mask) -> Float64:
    """Divide each operator by time among its pieces (k,) that are products, else among all."""
    _, index = np.unique(owner, return_inverse=True)
    has_products = np.bincount(index, multiplies)[index] > 0
    weight = np.where(multiplies | ~has_products, np.maximum(dur_ns, 1), 0)
    return np.asarray(weight / np.bincount(index, weight)[index])


def _products(trace: Trace, operators: Int64, args: _Args) -> NDArray[np.void]:
    """List the products among the operators, by row: the innermost ones, and what backward passes add."""
    of_name = ((i, pattern, kind) for i in range(len(trace.names)) for pattern, _, kind in _COUNTS)
    kinds = {i: kind for i, pattern, kind in of_name if pattern.fullmatch(trace.names[i])}
    number = integers(trace, "Sequence number", np.arange(len(trace)))
    origin = integers(trace, "Fwd thread id", operators)
    is_engine = by_name(trace, lambda name: name.startswith(ENGINE))[operators]
    nodes = operators[(origin > 0) & ~is_engine]
    backward = dict(zip(number[nodes].tolist(), nodes.tolist(), strict=True))
    dims, counted = args["Input Dims"], []
    for row in operators[np.isin(trace.name_id[operators], list(kinds))].tolist():
        name_id, gradients = int(trace.name_id[row]), dims.get(backward.get(int(number[row]), -1)) or [[]]
        values = args["Concrete Inputs"].get(row, ())
        count = product(trace.names[name_id], dims.get(row, ()), values, _shape(gradients[0]))
        if count is not None:
            types = [word for word in args["Input type"].get(row, ()) if _short(word)] or [""]
            n_bytes = _bytes(args, row) + count[2] * item_bytes(types[0])
            counted.append((row, kinds[name_id], _short(types[0]), *count[:2], n_bytes))
    products = _innermost(trace, np.array(counted, _PRODUCT))
    row, thread, at_ns = products["row"], trace.track_id.astype(np.int64), trace.ts_ns
    inside = around(trace, operators[(origin > 0) | is_engine], thread[row], at_ns[row])
    repeats = (inside >= 0) & (number[row] >= 0)  # as in a forward pass
    products["again"][repeats] = products["flops"][repeats]
    # the gradients of products whose own operators have no shapes: two for each product
    bare = np.setdiff1d(nodes, around(trace, nodes, thread[row], at_ns[row]))
    forward = forward_operators(trace, operators, bare)
    source = around(trace, row, np.where(forward >= 0, thread[forward], -1), at_ns[forward])
    is_known = (source >= 0) & (number[source] == number[bare])
    gradients = products[np.searchsorted(row, source[is_known])]
    gradients["row"], gradients["flops"], gradients["again"] = bare[is_known], 2 * gradients["flops"], 0
    both = np.concatenate([products, gradients])
    return both[np.argsort(both["row"], kind="stable")]


def _innermost(trace: Trace, products: NDArray[np.void]) -> NDArray[np.void]:
    """Leave out products around others: those are parts of them."""
    row = products["row"]
    order = np.lexsort((-trace.end_ns[row], trace.ts_ns[row], trace.track_id[row]))
    before, after = row[order[:-1]], row[order[1:]]
    is_around = trace.track_id[before] == trace.track_id[after]
    is_around &= trace.ts_ns[after] < trace.end_ns[before]
    return np.delete(products, order[:-1][is_around])


def _short(of_type: object) -> str:
    """Name a type of numbers as data sheets do; "" for one that is not multiplied."""
    return next((short for word, short in _TYPES.items() if word in str(of_type).lower()), "")


def _bytes(args: _Args, row: int) -> float:
    """Add up the bytes of an operator's inputs; no memory has more than `_MOST` squared."""
    return float(min(bytes_of_inputs({key: args[key].get(row) for key in SHAPE_ARGS}), _MOST**2))
