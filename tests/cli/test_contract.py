"""What scripts rely on: flags that name columns of a step log, and one grammar of `--filter`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import REPO, ask, run_cli

LENET = REPO / "examples" / "lenet"


@pytest.mark.parametrize("option", ["statistic", "diagnose", "compare", "3dcompare"])
def test_columns_of_a_step_log_that_no_name_tells(option: str, tmp_path: Path) -> None:
    rows = [(no, gpu, 5 + gpu, 20 + 10 * no) for no in range(6) for gpu in (0, 1)]  # steps of 20 to 70 ms
    path, output = (
        tmp_path / "log.csv",
        ("--output", tmp_path / "x.html", "--force") if option == "3dcompare" else (),
    )
    path.write_text("\n".join(",".join(map(str, row)) for row in (("no", "gpu", "load_ms", "all_ms"), *rows)))
    words = (option, path, *[path] * option.endswith("compare"), *output)
    found = ask(*words, "--step_by", "no", "--rank_by", "gpu")
    assert found["repairs"] == []
    if option == "statistic":
        count = {row["name"]: (row["count"], row["avg_ms"]) for row in found["operations"]}
        assert count["rank1.load"] == (6, 6.0)
        log = (option, path, "--sub_option", "breakdown", "--step_by", "no", "--rank_by", "gpu")
        spent = {(row["rank"], row["step"]): row["wall_ms"] for row in ask(*log)["breakdown"]}
        assert spent == {(f"rank{gpu}", no): whole for no, gpu, _, whole in rows}
    else:
        taken = found["iteration_ms"]
        assert set(taken if option != "diagnose" else [taken["mean"]]) == {45.0}
    code, _, err = run_cli(*words, "--rank_by", "gpu", "--force")
    assert (code, err.count("\n")) == (1, 1)
    assert "no column is called after a step: --step_by COLUMN says which it is; there are no, gpu" in err


def test_combine_filters_by_the_names_that_other_options_print(tmp_path: Path) -> None:
    tensor, other = "Comm.hybridsequential0_dense0_weight", "Comm.hybridsequential0_conv0_weight"
    output = tmp_path / "combined.json"
    words = ("--option", "combine", "--path", LENET, "--output", output, "--force", "--filter")
    assert run_cli(*words, f"wk1.rank0.{tensor},{other}.PUSH")[0] == 0
    events = json.loads(output.read_text())["traceEvents"]
    names = {event["name"] for event in events if "Comm." in event["name"] and event["ph"] == "X"}
    assert {name.partition(".Comm.")[0] for name in names if tensor in name} == {"wk1.rank0"}
    assert {name.partition(".Comm.")[0] for name in names if other in name} == {"wk0.rank0", "wk1.rank0"}
    assert all(".PUSH" in name for name in names if other in name)
    lines = [
        run_cli(*words, "Comm.hybridsequential0_dense0_weigth"),
        run_cli("--option", "statistic", "--path", LENET, "--filter", "Comm.hybridsequential0_dense0_weigth"),
    ]
    assert lines[0] == lines[1]
    assert "did you mean Comm.hybridsequential0_dense0_weight" in lines[0][2]
