"""JSON documents keep to the JSON Schemas in docs/schema, which are made from types.

`--update-golden` writes the schemas. Rows of tables have the types of their columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import jsonschema
import mutations
import pytest

from analyzer import cli
from analyzer.answers.diagnose.finding import FindingKind
from analyzer.cli import critical, statistic
from analyzer.cli.collect import collect_tables as network
from analyzer.cli.compare.comparison_tables import CHANGE
from analyzer.cli.critical import BY_NAME, PATH
from analyzer.cli.diagnose import hang_tables
from analyzer.cli.statistic import bubble_tables, flops_tables
from analyzer.cli.statistic import statistic_tables as collective_table
from analyzer.report.result import Column
from conftest import REPO, few, run_cli

pytestmark = pytest.mark.slow

_NUMBER = float | None
_STRING = str | None
_REAL = ({"low": float, "mid": float, "high": float, "source": str}, None)
_OF_KIND: dict[str, Any] = dict.fromkeys(("int", "id"), int | None)
_OF_KIND |= {"text": _STRING, "sentence": _STRING, "float": _NUMBER, "percent": _NUMBER, "bool": bool | None}
_NAMES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def rows(*columns: Sequence[Column], **more: Any) -> list[Any]:
    """Return the type of a table's rows; of several tables, keys that not all have end in ``?``."""
    keys = {column.key: column for each in columns for column in each}
    always = set(keys).intersection(*([column.key for column in each] for each in columns))
    return [{**{key if key in always else f"{key}?": kind for key, kind in keys.items()}, **more}]


_ITEM = {"count": [int], "avg_ms": [_NUMBER], "step_ms": [_NUMBER], "explained_ms": _NUMBER, "explains": bool}
_PAIR = {
    "paths": [str],
    "operations": rows(CHANGE, name=str, cat=str, **_ITEM),
    "only_in": [[str]],
    "categories": rows(CHANGE, cat=str, **_ITEM),
    "iteration_ms": [_NUMBER],
    "iteration": rows(CHANGE, steps=[int], recorded_ms=[_NUMBER])[0],
    "verdict": str,
}  # fmt: skip
_EFFECT = {"kind": str, "name": str, "cat": str, "added_ms": float, "effect_ms": float, "effect": float}
_AVERAGES = {"cat": str, "avg_ms": [_NUMBER]}
_LONGEST = {"{}": str | float | None}

#: The document of each option, as types: objects by their keys (``?``: not always there; ``{}``: any), lists
#: by what is in them.
TYPES: dict[str, dict[str, Any]] = {
    "diagnose": {
        "iteration_ms": {"median": _NUMBER, "mean": _NUMBER, "p95": _NUMBER, "real": _REAL},
        "limit": _STRING,
        "ranks": [str],
        "steps": [int],
        "findings": [{
            "id": int, "kind": FindingKind, "title": str,
            "gain_ms": {"low": _NUMBER, "mid": _NUMBER, "high": _NUMBER},
            "bound": _STRING, "gain_share": _NUMBER, "gain_after_above_ms": _NUMBER,
            "change": _STRING, "lost_s?": float,
            "scope": {"ranks": [str], "steps": [int], "operations": [str],
                      "from_step?": int, "to_step?": int},
            "evidence": [{"path": str, "rank": str, "step": int | None, "name": str, "ts_ms": float,
                          "dur_ms": float}],
            "cause": str, "action": str, "caveat": str, "command": str, "look": str,
        }],
        "below_threshold": int,
        "skipped": [{"kind": FindingKind, "reason": str}],
        "waits?": rows(hang_tables._RANKS),
    },
    "statistic": {
        "traces?": [{"path": str, "dialect": str, "events": int, "ranks": [int]}],
        "operations?": rows(statistic._OPERATIONS, statistic._OVER_RANKS),
        "categories?": rows(statistic._CATEGORIES),
        "ranks?": rows(statistic._RANKS),
        "breakdown?": rows(statistic._BREAKDOWN),
        "collectives?": rows(collective_table._COLLECTIVES),
        "flops?": rows(flops_tables._STEPS), "kernels?": rows(flops_tables._KINDS), "device?": _STRING,
        "peaks?": {"{}": float}, "bubbles?": rows(bubble_tables._RANKS),
        **dict.fromkeys(("stages?", "micro_batches?"), int),
        **dict.fromkeys(("ideal_share?", "idle_ms?", "schedule_ms?", "uneven_ms?", "other_ms?"), float),
        "even_stages?": {"change": str, "gain_ms": {"low": _NUMBER, "mid": _NUMBER, "high": _NUMBER}},
        "half_batches_gain_ms?": float,
        **{f"{name}?": [_LONGEST] for name in statistic._DASF},
    },
    "graph": {
        "nodes": int, "edges": int, "components": int, "depth": int, "by_cat": {"{}": int},
        "only_in_graph": [str], "only_in_trace": [str], "output": str,
    },
    "combine": {
        "output": str, "events": int, "aligned_by": str,
        "workers": [{"path": str, "ranks": [int], "offset_us": _NUMBER, "drift_ppm": _NUMBER,
                     "bound_us": _NUMBER, "anchors": int, "violations_before": int | None,
                     "violations_after": int | None}],
    },
    "compare": {**_PAIR, "comparisons?": [_PAIR]},
    "critical": {
        "step": int | str, "iteration_ms": float,
        "scopes": [{"scope": str, "worker": int | None, "length_ms": float, "path": rows(PATH),
                    "by_name": rows(BY_NAME), "by_cat": {"{}": float}}],
        "operations": rows(critical._OPERATIONS),
    },
    "replay": {
        **dict.fromkeys(("steps?", "operations?", "critical_step?"), int),
        **dict.fromkeys(("iteration_ms?", "before_ms?", "after_ms?", "change?"), float),
        "predicted_ms?": {"{}": float},
        "measured_ms?": _NUMBER, "error?": _NUMBER, "interval_ms?": ([float], None), "output?": _STRING,
        "critical_path?": rows(PATH),
        "whatif?": [{"set": str, "before_ms": float, "after_ms": float, "change": float,
                     "interval_ms": ([float], None),
                     "slowdown?": float, "command?": str, "finding?": _STRING,
                     "slowdown_by?": {by: {"{}": float} for by in ("rank", "stage", "kind")}}],
        "delays?": [_EFFECT], "bottlenecks?": [_EFFECT], "edits?": [{"set": str, "help": str}],
    },
    "collect": {
        "gpus": [{"path": str, "trace": str, "events": {"{}": int}, "steps": int, "fw_bw_ms": _NUMBER,
                  "iteration_ms": _NUMBER, "iteration_ms_per_step": [_NUMBER]}],
        "iteration_ms": _NUMBER,
        "network?": {"output": str, "events": int, "keys": rows(network._KEYS)},
        "server?": {"output": str, "events": int, "operations": rows(network._OPERATIONS),
                    "keys": rows(network._REQUESTS)},
    },
    "3dcompare": {
        "runs": [str], "paths": [str], "iteration_ms": [_NUMBER], "categories": [_AVERAGES],
        "operations": [{"name": str, **_AVERAGES}], "output": str,
    },
}  # fmt: skip


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    match kind:
        case Column():
            return {**schema(_OF_KIND[kind.kind]), "description": kind.title}
        case {"{}": item}:
            return {"type": "object", "additionalProperties": schema(item)}
        case dict():
            return {
                "type": "object",
                "properties": {key.rstrip("?"): schema(item) for key, item in kind.items()},
                "required": [key for key in kind if not key.endswith("?")],
            }
        case list():
            return {"type": "array", "items": schema(kind[0])}
        case tuple():
            return {"anyOf": [schema(item) for item in kind]}
        case UnionType():
            return {"type": [_NAMES[item] for item in get_args(kind)]}
        case _ if get_origin(kind) is Literal:
            return {"enum": list(get_args(kind))}
        case _:
            return {"type": _NAMES[NoneType if kind is None else kind]}


def schema_of(option: str) -> dict[str, Any]:
    """Return the schema of an option's document."""
    head = {"option": Literal[option], "headline": str}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"analyze.py {option} --format json",
        **schema({**head, **TYPES[option], "repairs": [str]}),
    }


def closed(found: Any) -> Any:
    """Return a schema that knows all keys: a document with another one is refused."""
    if isinstance(found, list):
        return [closed(item) for item in found]
    if not isinstance(found, dict):
        return found
    made = {key: closed(item) for key, item in found.items()}
    return {**made, "additionalProperties": False} if isinstance(found.get("properties"), dict) else made


@pytest.mark.parametrize("option", cli.MODULES)
def test_the_schema_in_the_documentation_is_that_of_the_types(
    option: str, request: pytest.FixtureRequest
) -> None:
    path = REPO / f"docs/schema/{option}.json"
    made = json.dumps(schema_of(option), indent=1) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(made)
    assert path.read_text() == made, "make golden rewrites the schemas; review the difference"


JOB, LENET = REPO / "examples/mlp-raw", REPO / "examples/lenet"
COMMANDS = (
    ("diagnose", LENET),
    ("statistic", JOB),
    ("statistic", JOB, "--group_by", "operation"),
    ("statistic", JOB, "--sub_option", "breakdown"),
    ("graph", JOB, "--output", "OUT/graph.svg"),
    ("combine", JOB, "--output", "OUT/combined.json"),
    ("compare", JOB, LENET, JOB),
    ("critical", JOB, "--output", "OUT/marked.json"),
    ("critical", JOB, "--step", "mean"),
    ("replay", JOB, "--output", "-"),
    ("replay", JOB, "--sub_option", "smlt_delay_cmp"),
    ("replay", JOB, "--sub_option", "map_delay"),
    ("replay", JOB, "--sub_option", "bottleneck"),
    ("whatif", JOB),
    ("whatif", JOB, "help"),
    ("whatif", JOB, "straggler=mean", "bandwidth=2"),
    ("collect", JOB, "--sub_option", "iter_time"),
    ("3dcompare", JOB, LENET, "--output", "OUT/sweep.html"),
)


OF_ANY_JOB = (
    ("diagnose",),
    ("statistic", "--sub_option", "breakdown"),
    ("statistic", "--sub_option", "collectives"),
    ("statistic", "--sub_option", "flops"),
    ("statistic", "--sub_option", "bubbles"),
    ("critical",),
    ("whatif",),
)
RECORDED = (
    ("statistic", "kineto/gpu-hta-nccl-rank0of2", "--group_by", "operator"),
    ("statistic", "kineto/h200-truth/busy_llama", "--sub_option", "flops"),
    ("statistic", "pipeline/straggler-ST", "--sub_option", "bubbles"),
    ("statistic", "dasf/one-host-2workers", "--sub_option", "function_bottleneck"),
    ("statistic", "dasf/one-host-2workers", "--sub_option", "task_bottleneck"),
    ("statistic", "dasf/one-host-2workers", "--sub_option", "task_balance"),
    ("collect", "byteps/fork_mlp_2w2s_pcap", "--sub_option", "pcap", "--output", "OUT/network.json"),
    ("collect", "byteps/fork_mlp_2w2s_pcap", "--sub_option", "server", "--output", "OUT/server.json"),
)


def keeps_to_its_schema(out: Path, *words: object) -> bool:
    """Run a command; its document keeps to the schema, or False: the job is refused, in one line."""
    code, printed, err = run_cli(*(str(word).replace("OUT", str(out)) for word in words), "--format", "json")
    if code:
        assert "error: " in err.splitlines()[-1]
        return False
    found = json.loads(printed)
    jsonschema.Draft202012Validator(closed(schema_of(found["option"]))).validate(found)
    return True


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(map(str, [words[0], *words[2:]])))
def test_a_document_keeps_to_its_schema(words: tuple[object, ...], tmp_path: Path) -> None:
    assert keeps_to_its_schema(tmp_path, *words)


@pytest.mark.parametrize("kind", few(3, (kind for kind in mutations.KINDS if kind != "graph")))
def test_of_any_system_documents_keep_to_their_schemas(kind: str, tmp_path: Path) -> None:
    mutations.write_job(kind, tmp_path / "job")
    kept = [keeps_to_its_schema(tmp_path, words[0], tmp_path / "job", *words[1:]) for words in OF_ANY_JOB]
    assert kept[:2] == [True, True]


@pytest.mark.parametrize("words", RECORDED, ids=lambda words: " ".join(words[1:4]))
def test_of_recorded_jobs_too(words: tuple[str, ...], shared_data: Path, tmp_path: Path) -> None:
    assert keeps_to_its_schema(tmp_path, words[0], shared_data / words[1], *words[2:])


@pytest.mark.parametrize(
    "wrong", [{"other": 1}, {"nodes": "3"}, {"by_cat": {"FW": None}}, {"only_in_trace": 1}]
)
def test_another_key_or_type_is_refused(wrong: dict[str, Any]) -> None:
    sizes = {"nodes": 3, "edges": 2, "components": 1, "depth": 3, "by_cat": {"FW": 3}}
    lists: dict[str, Any] = {"only_in_graph": [], "only_in_trace": ["FW.a"], "repairs": []}
    graph = {"option": "graph", "headline": "The graph …", **sizes, **lists, "output": "dag.svg"}
    validator = jsonschema.Draft202012Validator(closed(schema_of("graph")))
    assert validator.is_valid(graph) and not validator.is_valid({**graph, **wrong})
