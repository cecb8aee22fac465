"""The DAG of a GPU from a model's symbol dump.

Nodes and edges are those of BytePS's profiler: ``I/O`` and ``STEP`` feed the first forward operation,
the backward pass mirrors the forward one, ``OUTPUT<k>`` joins the two, each backward operation feeds
the communication of its parameters, and these the ``STEP``. Without the edges out of ``STEP`` the
graph has no cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from analyzer.reading.formats.gml import Gml

if TYPE_CHECKING:
    from networkx import DiGraph

_OUTPUT = re.compile(r"\s*output\[\d+\]=(.+)\(\d+\)")
_ARG = re.compile(r"\s*arg\[\d+\]=(.+)\(\d+\)")
_VARIABLE = re.compile(r"Variable:(.+)")
_OP = re.compile(r"Op:([^,]*), Name=(.+)")


def from_gml(gml: Gml) -> DiGraph[str]:
    """Make the graph of a `dag.gml`; its labels as text."""
    from networkx import DiGraph

    labels = [str(label) for label in gml.labels]
    graph: DiGraph[str] = DiGraph()
    graph.add_nodes_from(labels)
    ends = zip(gml.source.tolist(), gml.target.tolist(), strict=True)
    graph.add_edges_from((labels[source], labels[target]) for source, target in ends)
    return graph


def inputs_of(graph: DiGraph[str]) -> dict[str, list[str]]:
    """List the predecessors of each node, in the order in which the edges were added."""
    return {node: list(graph.predecessors(node)) for node in graph}


def _operation(node: str) -> str:
    """Strip the ``_fwd`` that Gluon appends."""
    return node.removesuffix("_fwd")


def from_symbols(model: str, losses: Mapping[int, str] = MappingProxyType({})) -> DiGraph[str] | None:
    """Build the DAG of a model and its losses by output, given as texts of ``Symbol.debug_str()``.

    The result is None if the model has no operation.
    """
    graph = _from_symbol(model, is_model=True)
    if graph is None:
        return None
    for k, text in losses.items():
        loss = _from_symbol(text, is_model=False)
        if loss is not None:
            _join_loss(graph, loss, f"OUTPUT{k}")
    return graph


def _from_symbol(text: str, *, is_model: bool) -> DiGraph[str] | None:
    from networkx import DiGraph

    outputs: list[str] = []
    variables: set[str] = set()  # inputs and parameters
    ops: list[tuple[str, str, list[str]]] = []  # kind, name and arguments
    for line in text.splitlines():
        if match := _OP.match(line):
            ops.append((match[1], _operation(match[2]), []))
        elif match := _VARIABLE.match(line):
            variables.add(match[1])
        elif (match := _ARG.match(line)) and ops:
            ops[-1][2].append(match[1])
        elif (match := _OUTPUT.match(line)) and not ops:
            outputs.append(_operation(match[1]))
    if not ops:
        return None
    graph: DiGraph[str] = DiGraph()
    for k, output in enumerate(outputs):
        graph.add_edge(f"FW.{output}", f"OUTPUT{k}")
        graph.add_edge(f"OUTPUT{k}", f"BW.{output}")
    for kind, name, args in ops:
        for node in (f"FW.{name}", f"BW.{name}"):
            graph.add_node(node, op=kind)
        _add_inputs(graph, name, args, variables, is_model)
    return graph


def _add_inputs(
    graph: DiGraph[str], name: str, args: Sequence[str], variables: set[str], is_model: bool
) -> None:
    forward, backward = f"FW.{name}", f"BW.{name}"
    for arg in args:
        if arg not in variables:
            graph.add_edge(f"FW.{_operation(arg)}", forward)
            graph.add_edge(backward, f"BW.{_operation(arg)}")
        elif "data" in arg or arg.endswith("label"):
            graph.add_edge("I/O", forward)
            if is_model and "data" in arg:  # a label is input to a loss, but not the start of a step
                graph.add_edge(backward, "STEP")
                graph.add_edge("STEP", forward)
        else:
            graph.add_edge(f"Comm.{arg}", "STEP")
            graph.add_edge(backward, f"Comm.{arg}")


def _join_loss(graph: DiGraph[str], loss: DiGraph[str], output: str) -> None:
    """Append a loss to the model's output, which becomes the loss's input."""
    if output not in graph:
        return
    last, first = next(graph.predecessors(output)), next(graph.successors(output))
    for source, target in loss.edges:
        if source == "I/O":
            graph.add_edge(last, target)
            graph.add_edge(f"BW.{target.removeprefix('FW.')}", first)
        elif source.startswith("OUTPUT"):
            graph.add_edge(output, target)
        elif target.startswith("OUTPUT"):
            graph.add_edge(source, output)
        else:
            graph.add_edge(source, target)
