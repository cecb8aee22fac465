"""GML: our reader and writer against networkx, which defines the dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recorded
from analyzer.base.errors import TraceError
from analyzer.reading.formats import gml as gml_module
from analyzer.reading.formats.gml import Gml, parse_gml, read_gml
from conftest import examples

TINY = (
    'graph [\n  directed 1\n  node [\n    id 0\n    label "a"\n  ]\n  node [\n    id 1\n    label "b"\n  ]\n'
)
EDGE = "  edge [\n    source 0\n    target 1\n  ]\n]\n"


def _content(graph: nx.Graph[Any]) -> tuple[Any, ...]:
    edges = sorted(graph.edges(data=True), key=lambda edge: str(edge[:2]))
    return graph.is_directed(), list(graph.nodes(data=True)), edges


def _content_of(gml: Gml) -> tuple[Any, ...]:
    """Return of our graph what `_content` returns of one of networkx's."""
    pairs = zip(gml.source.tolist(), gml.target.tolist(), gml.edge_attrs, strict=True)
    edges = [(gml.labels[a], gml.labels[b], attrs) for a, b, attrs in pairs]
    nodes = list(zip(gml.labels, gml.node_attrs, strict=True))
    return gml.directed, nodes, sorted(edges, key=lambda edge: str(edge[:2]))


def _networkx_text(graph: nx.Graph[Any]) -> str:
    return "".join(line + "\n" for line in nx.generate_gml(graph))


labels = st.text(st.characters(codec="utf-8"), max_size=8)
# a line break or a quote at the edge of a value is where networkx's own reader differs from its writer
texts = st.text(st.characters(codec="utf-8"), max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(texts, st.integers(-(2**40), 2**40), st.booleans(), floats)
keys = st.from_regex(r"[A-Za-z][0-9A-Za-z_]{0,5}", fullmatch=True).filter(
    lambda key: (
        key not in {"id", "label", "source", "target", "node", "edge", "directed", "multigraph", "key"}
    )
)
anything = st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=3)


@st.composite
def graphs(draw: st.DrawFn) -> nx.DiGraph[str]:
    names = draw(st.lists(labels, unique=True, max_size=6))
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.graph.update(draw(anything))
    for name in names:
        graph.add_node(name, **draw(anything))
    if names:
        for a, b in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=8)):
            graph.add_edge(a, b, **draw(anything))
    return graph


@pytest.mark.slow
@settings(max_examples=examples(50), deadline=None)
@given(graphs())
def test_graphs_of_networkx_are_read_alike(graph: nx.DiGraph[str]) -> None:
    text = _networkx_text(graph)
    assert _content_of(parse_gml(text)) == _content(nx.parse_gml(text.split("\n")))


@settings(max_examples=examples(100), deadline=None)
@given(st.text('graph[]node edge id label source target "a& 0123.-+#\n', max_size=80))
def test_any_text_is_read_as_networkx_reads_it_or_refused(text: str) -> None:
    try:
        expected = _content(nx.parse_gml(text.split("\n")))
    except Exception:  # networkx lets several kinds through
        with pytest.raises(TraceError):
            parse_gml(text)
    else:
        assert _content_of(parse_gml(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        'graph [ directed 1 node [ id 0 label "a" ] node [ id 1 label "b" ] edge [ source 1 target 0 ] ]',
        "# a comment\n" + TINY + EDGE,
        'Creator "x"\nVersion 1\n' + TINY + EDGE,
        TINY.replace('"a"', '"&lt;&#955;&#x3bb;&nosuch;&"') + EDGE,
        TINY.replace("id 0\n", "id 0\n graphics [ x 1.5 y -2 ]\n") + EDGE,
        TINY.replace("id 1", "id 7") + EDGE.replace("target 1", "target 7"),
        TINY.replace('label "a"', 'label "a" avg NAN') + EDGE,
        TINY.replace('label "a"', 'label "a" avg +INF low -INF') + EDGE,
        TINY.replace('label "a"', 'label "a" l 1 l 2 m "_networkx_list_start" m 3 n "[]" o "()"') + EDGE,
        TINY.replace("directed 1", "directed 0") + EDGE,
        TINY.replace("directed 1", "directed 1 multigraph 1") + EDGE[:-2] + EDGE,
        TINY.replace('label "a"', "label 5") + EDGE,
        TINY.replace("id 0\n    label", 'label "z" old').replace('old "a"', "id 0") + EDGE,
        "graph [\r\n directed 1\r\n node [ id 0 label \"a\" ]\r\n]\r\n",
        "graph [ directed 1 ]",
        TINY.replace("  directed 1", '  directed 1\n  name "x"') + EDGE,
    ],
)  # fmt: skip
def test_layouts_that_other_programs_write(text: str) -> None:
    theirs = nx.parse_gml(text.split("\n"))
    assert repr(_content_of(parse_gml(text))) == repr(_content(theirs))  # by repr: NaN is no NaN's equal


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "input contains no graph"),
        (TINY, "expected"),  # not closed
        (TINY + EDGE.replace("target 1", "target 9"), "undefined target 9"),
        (TINY.replace("id 1", "id 0") + EDGE, "node id 0 is duplicated"),
        (TINY.replace('"b"', '"a"') + EDGE, "node label 'a' is duplicated"),
        (TINY + EDGE[:-2] + EDGE, "is duplicated"),
        ("graph [ node [ id 0 ] ]", "has no 'label'"),
        ("graph " + "[ a " * 5000, "nested too deeply"),
        ('{"traceEvents": []}', "cannot tokenize"),
    ],
)
def test_broken_gml_is_one_line(text: str, what: str) -> None:
    with pytest.raises(TraceError, match=what) as caught:
        parse_gml(text, "dag.gml")
    assert str(caught.value).startswith("dag.gml: ")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_ascii_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "dag.gml"
    path.write_bytes((TINY.replace('"b"', '"é"') + EDGE).encode())
    with pytest.raises(TraceError, match=r"dag.gml: line 9: not ASCII"):
        read_gml(path)


def test_recorded_graphs_are_read_as_networkx_reads_them() -> None:
    paths = [path for job in recorded.jobs("byteps") for path in job.glob("worker_0/0/dag.gml")]
    assert paths
    for path in paths:
        text = path.read_text()
        fast = gml_module._parse_lines(text)
        assert _content_of(fast) == _content(nx.read_gml(path))
