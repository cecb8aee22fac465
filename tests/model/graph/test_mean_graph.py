"""The DAG of a GPU with average durations, from its directory."""

from __future__ import annotations

from pathlib import Path

from analyzer.model.graph.dependencies import mean_dags
from make import comm, span, write

GML = """graph [ directed 1
  node [ id 0 label "FW.a" ] node [ id 1 label "BW.a" ] node [ id 2 label "Comm.w" ]
  node [ id 3 label "STEP" ]
  edge [ source 0 target 1 ] edge [ source 1 target 2 ] edge [ source 2 target 3 ] edge [ source 3 target 0 ]
]"""


def test_a_gpu_directory_has_averages_over_its_steps(tmp_path: Path) -> None:
    # FW 2 and 4, BW 5, the gradient 10; STEP is recorded from BW on, 3 longer than the gradient
    events = []
    for at, forward in ((0, 2), (30, 4)):
        events += [
            span("FW.a", 1000 * at, 1000 * forward), span("BW.a", 1000 * at + 4000, 5000),
            span("Comm.byteps.gradient_0", 1000 * at + 10_000, 10_000, pid="Comm", tid="total"),
            comm("byteps.gradient_0", "PUSH", 65536, 1000 * at + 11_000, 9000),
            span("STEP", 1000 * at + 9000, 14_000, tid="update"),
        ]  # fmt: skip
    write(tmp_path / "bps_trace_final.json", events)
    (tmp_path / "gradient_name_list.txt").write_text("w\n")
    (tmp_path / "dag.gml").write_text(GML)
    ((_, _, dag),), notes, _ = mean_dags([tmp_path])
    assert dict(zip(dag.names, (dag.dur_ns // 10**6).tolist(), strict=True)) == {
        "FW.a": 3, "BW.a": 5, "Comm.w": 10, "STEP": 3}  # fmt: skip
    assert dag.longest_path().length_ns == 21_000_000
    assert notes == []
