"""The paths of GPUs, workers and the job: the chain through a GPU's DAG, worked out by hand."""

from __future__ import annotations

from analyzer.model.graph.model import Dag
from analyzer.model.graph.path_summary import OperationSlack, longest_chain


def test_the_longest_chain_is_the_path_of_its_gpu_and_all_others_have_slack() -> None:
    #  a:1 -> b:5      a, b is the longest: 6; c could take 6 - (1 + 3) = 2 more
    #      -> c:3
    dag = Dag.of(["a", "b", "c"], ["FW", "BW", "Comm"], [1, 5, 3], [(0, 1), (0, 2)])
    scope, operations = longest_chain("GPU-1", 2, dag)
    assert (scope.name, scope.kind, scope.worker, scope.length_ns) == ("GPU-1", "GPU", 2, 6)
    path = scope.path()
    assert [label.name for label in path.labels] == ["a", "b"]
    assert path.ns == [1, 5]
    assert operations == [
        OperationSlack("a", "FW", 1, 0), OperationSlack("b", "BW", 5, 0), OperationSlack("c", "Comm", 3, 2),
    ]  # fmt: skip
