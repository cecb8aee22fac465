"""The DAG of a GPU with average durations, from its directory."""

from __future__ import annotations

import json
from pathlib import Path

from analyzer.model.graph.dependencies import mean_dags

GML = """graph [ directed 1
  node [ id 0 label "FW.a" ] node [ id 1 label "BW.a" ] node [ id 2 label "Comm.w" ]
  node [ id 3 label "STEP" ]
  edge [ source 0 target 1 ] edge [ source 1 target 2 ] edge [ source 2 target 3 ] edge [ source 3 target 0 ]
]"""


def event(name: str, start_ms: int, dur_ms: int, tid: str | int | None = 1) -> dict[str, object]:
    pid = name if name.startswith("Comm") else 0
    fields: dict[str, object] = {
        "ph": "X",
        "name": name,
        "pid": pid,
        "ts": 1000 * start_ms,
        "dur": 1000 * dur_ms,
    }
    return fields if tid is None else {**fields, "tid": tid}


def test_a_gpu_directory_has_averages_over_its_steps(tmp_path: Path) -> None:
    # FW 2 and 4, BW 5, the gradient 10; STEP is recorded from BW on, 3 longer than the gradient
    events = []
    for at, forward in ((0, 2), (30, 4)):
        events += [
            event("FW.a", at, forward), event("BW.a", at + 4, 5),
            event("Comm.byteps.gradient_0", at + 10, 10, "total"),
            event("Comm.byteps.gradient_0.PUSH", at + 11, 9, "65536"), event("STEP", at + 9, 14, None),
        ]  # fmt: skip
    (tmp_path / "bps_trace_final.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "gradient_name_list.txt").write_text("w\n")
    (tmp_path / "dag.gml").write_text(GML)
    found = mean_dags([tmp_path])
    ((_, _, dag),) = found.gpus
    assert dict(zip(dag.names, (dag.dur_ns // 10**6).tolist(), strict=True)) == {
        "FW.a": 3, "BW.a": 5, "Comm.w": 10, "STEP": 3}  # fmt: skip
    assert dag.longest_path().length_ns == 21_000_000
    assert list(found.notes) == []
