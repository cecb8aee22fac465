"""Files of byteprofile and dPRO that hold all ranks answer as the ranks' own files do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dpro_layouts import WRITERS, write_combined

from conftest import REPO, ask
from make import span, write

LENET = REPO / "examples" / "lenet"
COMMANDS = {
    "statistic": ("--option", "statistic"),
    "breakdown": ("--option", "statistic", "--sub_option", "breakdown"),
    "critical": ("--option", "critical"),
    "diagnose": (),
    "replay": ("--option", "replay", "--output", "-"),
}
#: Keys of JSON that name files, or how a command is typed.
_OF_FILES = {"traces", "path", "paths", "command", "look", "repairs", "output"}


def without_files(value: Any) -> Any:
    """Drop what names files from a document."""
    if isinstance(value, dict):
        return {key: without_files(part) for key, part in value.items() if key not in _OF_FILES}
    return [without_files(part) for part in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("option", COMMANDS)
@pytest.mark.parametrize("layout", WRITERS)
def test_a_file_of_all_ranks_answers_as_their_own_files(tmp_path: Path, layout: str, option: str) -> None:
    path = write_combined(LENET, layout, tmp_path / "bps_trace_final.json")
    own, combined = (without_files(ask(*COMMANDS[option], "--path", job)) for job in (LENET, path))
    assert combined == own


@pytest.mark.slow
@pytest.mark.parametrize("layout", WRITERS)
def test_a_file_of_all_ranks_does_not_differ_from_their_own(tmp_path: Path, layout: str) -> None:
    path = write_combined(LENET, layout, tmp_path / "combined.json")
    found = ask("--option", "compare", "--path", LENET, path.parent)
    assert found["only_in"] == [[], []]
    assert all(row["avg_absolute_ms"] == 0 for row in found["operations"])


@pytest.mark.slow
def test_two_gpus_of_each_worker_are_two_ranks(shared_data: Path, tmp_path: Path) -> None:
    job = shutil.copytree(shared_data / "byteps" / "fork_lenet_2w2g", tmp_path / "job")
    ask("--option", "collect", "--path", job)
    for layout in WRITERS:
        path = write_combined(job, layout, tmp_path / f"{layout}.json")
        assert ask("--path", path)["ranks"] == ["wk0.rank0", "wk0.rank1", "wk1.rank0", "wk1.rank1"]


def test_a_final_trace_above_the_folders_of_its_ranks_is_named_and_not_read(tmp_path: Path) -> None:
    job = shutil.copytree(LENET, tmp_path / "trial")
    path = write_combined(LENET, "dpro", job / "bps_trace_final.json")
    found = ask("--option", "statistic", "--path", job)
    assert without_files(found) == without_files(ask("--option", "statistic", "--path", LENET))
    assert found["repairs"] == [f"{path}: not read; the ranks' own folders are"]


def test_a_raw_folder_of_dpro_is_read_like_one_of_byteprofile(tmp_path: Path) -> None:
    raw = REPO / "examples" / "mlp-raw"
    gpu = shutil.copytree(raw, tmp_path / "trial") / "worker_0" / "0"
    for profile in gpu.glob("temp.json*"):
        profile.rename(gpu / profile.name.replace("temp", "trace"))
    for names in gpu.glob("gradient_name_list.txt"):
        listed = names.read_text().splitlines()
        (gpu / "metadata.json").write_text(json.dumps({"gradient_name_list": listed}))
        names.unlink()
    found, own = (ask("--option", "statistic", "--path", job) for job in (tmp_path / "trial", raw))
    assert found["operations"] == own["operations"]


def test_a_pid_that_is_a_text_may_name_a_rank_of_any_system(tmp_path: Path) -> None:
    slices = [span("work", 0, 5 + rank, pid=f"host0.rank{rank}") for rank in (0, 1)]
    path = write(tmp_path / "trace.json", slices)
    names = [row["name"] for row in ask("--option", "statistic", "--path", path)["operations"]]
    assert names == ["wk0.rank0.work", "wk0.rank1.work"]
