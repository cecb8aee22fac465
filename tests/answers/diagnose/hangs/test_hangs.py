"""Why a job hangs: made dumps whose fault is known, and recorded ones with injected faults."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_hangs import Made, Op, Run, small_job
from msgspec.structs import replace

from analyzer.answers.diagnose.hangs.find_hang import Hang, find_hang
from analyzer.answers.diagnose.hangs.waits import HangCause
from analyzer.reading import dialects
from analyzer.reading.formats.recorder.recorder_dump import read
from analyzer.reading.formats.recorder.standing import Standing
from conftest import ask, run_cli


def hang_of(
    run: Run, folder: Path, without: tuple[int, ...] = (), frozen: dict[int, int] | None = None
) -> Hang:
    run.write(folder, without, seen=frozen or {})
    return find_hang(standings(folder))


def standings(folder: Path) -> dict[int, Standing]:
    found = {}
    for path in folder.iterdir():
        trace = dialects.recognised(read(path))
        standing = dialects.of(trace).standing(trace)
        assert trace.rank is not None
        assert standing is not None
        found[trace.rank] = standing
    return found


def named(hang: Hang) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for root in hang.roots:
        found[root.cause.name] = sorted({*found.get(root.cause.name, ()), *root.ranks})
    return found


def changed(made: Made, rank: int, place: int, **change: Any) -> Made:
    program = list(made.programs[rank])
    program[place] = program[place]._replace(**change)
    return made._replace(programs={**made.programs, rank: program})


def test_a_rank_that_never_enters(tmp_path: Path) -> None:
    run = Run(small_job(), random.Random(1), {2: 9})  # its group's first call of the second step, and 3 more
    hang = hang_of(run, tmp_path)
    assert named(hang) == {"ABSENT": [2]}
    (root,) = hang.roots
    assert root.call is not None
    assert (root.call.kind, root.call.number) == ("all_reduce", 6)
    assert root.call.group.description == "TENSOR_GROUP"
    assert root.waiting == [3]  # the others wait further on, for it and for rank 3
    assert root.call.at_ns == run.called_ns[3, 9]
    assert hang.doubt.endswith("if no timeout made the job write them, it may only be slow")
    for path in tmp_path.iterdir():
        os.utime(path, ns=(root.call.at_ns + 31 * 10**9,) * 2)  # longer than jobs that live pause
    assert find_hang(standings(tmp_path)).doubt == ""


@pytest.mark.parametrize(("times", "is_sure"), [(1.2, False), (2.5, True)])
def test_copies_show_a_hang_after_twice_the_longest_call(times: float, is_sure: bool, tmp_path: Path) -> None:
    hang = hang_of(Run(small_job(), random.Random(1), {2: 9}), tmp_path)
    since_ns = min(root.call.at_ns for root in hang.roots if root.call is not None)
    longest_ns = 100_000_000  # a watchdog that looks each 100 ms finds any call that long
    hour_ns = 3_600 * 10**9
    found = {
        rank: replace(
            one,
            longest_ns=longest_ns,
            last_ns=since_ns + int(times * longest_ns),
            written_ns=since_ns + hour_ns,
        )
        for rank, one in standings(tmp_path).items()
    }
    hang = find_hang(found)
    assert named(hang) == {"ABSENT": [2]}
    waited = f"end after {100 * times:.0f} ms of waiting, calls took up to 100 ms before"
    assert (waited in hang.doubt) != is_sure
    assert (hang.doubt == "") == is_sure


def test_a_rank_without_a_dump_died_if_nothing_else_explains_the_waits(tmp_path: Path) -> None:
    assert named(hang_of(Run(small_job(), random.Random(1), {2: 9}), tmp_path, (2,))) == {"NO_DUMP": [2]}
    code, answer, _ = run_cli(str(tmp_path))
    assert (code, answer.partition(", and")[0]) == (
        0,
        "The job may hang, or only be slow: rank 2 left no dump",
    )


def test_a_peer_outside_any_group_without_a_dump_is_named(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1, 2])}
    programs = {rank: [Op("0", "send", (rank + 1) % 3)] for rank in range(3)}
    Run(Made(groups, programs), random.Random(1), {1: 0}).write(tmp_path, (1,), form="json")
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"[0, 1, 2]"', '"[]"'))
    code, answer, _ = run_cli(str(tmp_path))
    assert (code, answer.partition(", and")[0]) == (0, "The job hangs: rank 1 left no dump")


def test_a_lost_dump_of_a_victim_is_not_accused(tmp_path: Path) -> None:
    hang = hang_of(Run(small_job(8), random.Random(1), {2: 9}), tmp_path, (5,))
    assert named(hang) == {"ABSENT": [2]}
    assert "rank 5 left no dump" in hang.caveat


def test_a_lost_dump_that_no_rank_awaits_is_a_caveat(tmp_path: Path) -> None:
    """Ranks 0 and 4 wait for rank 1, and rank 2 for rank 0; rank 3 is awaited by nobody."""
    groups = {"0": ("default_pg", [0, 1, 2, 3, 4]), "1": ("A", [0, 1, 4]), "2": ("B", [2, 3])}
    first, second = Op("1", "all_reduce", waits=True), Op("2", "all_reduce", waits=True)
    programs = {0: [first, Op("0", "send", 2)], 1: [first], 2: [second, Op("0", "recv", 0)]}
    programs |= {3: [second], 4: [first]}
    hang = hang_of(Run(Made(groups, programs), random.Random(1), {1: 0}), tmp_path, (1, 3))
    assert named(hang) == {"NO_DUMP": [1]}
    assert hang.caveat == "rank 3 left no dump: whether they wait, too, is not known"


def test_a_single_dump_accuses_no_rank(tmp_path: Path) -> None:
    hang = hang_of(Run(small_job(), random.Random(1), {2: 9}), tmp_path, (0, 1, 2))
    assert named(hang) == {}
    assert "pass all dumps" in hang.reason


def test_a_call_that_differs(tmp_path: Path) -> None:
    made = changed(small_job(), 3, 8, dtype="Half")  # _reduce_scatter_base of all ranks, in the second step
    hang = hang_of(Run(made, random.Random(1)), tmp_path)
    assert named(hang) == {"MISMATCH": [3]}
    assert [*hang.roots[0].differ.values()] == [[0, 1, 2], [3]]


def test_ranks_outside_all_waits_mean_the_job_may_run(tmp_path: Path) -> None:
    """Of the groups of ranks 0 and 1, and of 2 and 3, only the first one waits for a rank."""
    groups = {"0": ("A", [0, 1]), "1": ("B", [2, 3])}
    programs = {rank: [Op(str(rank // 2), "all_reduce", waits=True)] * 4 for rank in range(4)}
    hang = hang_of(Run(Made(groups, programs), random.Random(1), {0: 2, 2: 2, 3: 2}), tmp_path)
    assert (named(hang), hang.waits[1].on) == ({}, [0])
    assert hang.reason == ("ranks 2 and 3 may be running: they wait for no rank, and no rank waits for them")
    for path in tmp_path.iterdir():  # written by the watchdog, after the 600 s of each call
        at_ns = hang.waits[1].call.at_ns + 603 * 10**9
        os.utime(path, ns=(at_ns, at_ns))
    assert named(find_hang(standings(tmp_path))) == {"ABSENT": [0]}


def test_a_peers_index_in_an_unlisted_group_is_no_rank(tmp_path: Path) -> None:
    """Ranks 0 and 1 receive from places 1 and 0 of two groups: from ranks 2 and 3, not from each other."""
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("PIPELINE", [0, 2]), "2": ("PIPELINE", [3, 1])}
    programs = {
        0: [Op("1", "recv", 2)],
        1: [Op("2", "recv", 3)],
        2: [Op("1", "send", 0)],
        3: [Op("2", "send", 1)],
    }
    Run(Made(groups, programs), random.Random(1), {2: 0, 3: 0}).write(tmp_path, form="json")
    hang = edited(tmp_path, lambda _, document: document.pop("pg_config"))
    assert (named(hang), hang.waits) == ({}, {})
    assert hang.reason == "calls are open, and the dumps do not list the ranks of their groups"


def test_a_stopped_record_is_named_beside_an_absent_rank(tmp_path: Path) -> None:
    run = Run(small_job(8), random.Random(1), {2: 13})
    hang = hang_of(run, tmp_path, frozen={6: 8})
    assert named(hang) == {"ABSENT": [2], "BEHIND": [6]}


def test_dumps_of_different_moments_show_a_running_job(tmp_path: Path) -> None:
    made = small_job()
    for rank in made.programs:  # each rank's dump is of a moment at which the job was a little further
        Run(made, random.Random(1), dict.fromkeys(made.programs, 4 + 4 * rank)).write(tmp_path, only=rank)
    hang = find_hang(standings(tmp_path))
    assert named(hang) == {}
    assert "the job went on in between" in hang.reason


@pytest.mark.parametrize("guilty", [[2], [2, 3]])
def test_ranks_that_never_made_a_completed_call_are_all_named(tmp_path: Path, guilty: list[int]) -> None:
    """The 18th call of each rank is all_reduce 9 of all ranks; the guilty ones made 17."""
    made = small_job()
    for rank in made.programs:
        stops = dict.fromkeys(made.programs, 17) if rank in guilty else None
        Run(made, random.Random(1), stops).write(tmp_path, only=rank)
    hang = find_hang(standings(tmp_path))
    assert named(hang) == {"ABSENT": guilty}
    assert {str(root.call.number) for root in hang.roots} == {"9"}
    assert "may only be older" in hang.doubt


def test_an_absent_rank_and_one_missing_a_completed_call_are_named(tmp_path: Path) -> None:
    """Rank 3 makes 12 calls, in which all come this far but rank 1: it makes 11."""
    made = small_job()
    for rank in made.programs:
        stops = {3: 12} if rank != 1 else dict.fromkeys(made.programs, 11)
        Run(made, random.Random(1), stops).write(tmp_path, only=rank)
    assert named(find_hang(standings(tmp_path))) == {"ABSENT": [1, 3]}


def test_a_completed_call_that_one_rank_never_made_is_a_lead(shared_data: Path) -> None:
    code, out, err = run_cli("--path", shared_data / "cases/fr-completed-not-retired")
    assert code == 0, err
    assert out.startswith("The job may hang, or only be slow: rank 2 has not called all_reduce 10 of ")


def edited(folder: Path, change: Callable[[int, dict[str, Any]], object]) -> Hang:
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        change(int(path.name.rpartition("_")[2]), document)
        path.write_text(json.dumps(document))
    return find_hang(standings(folder))


def without(*keys: str) -> Callable[[int, dict[str, Any]], object]:
    return lambda _, document: [entry.pop(key, None) for entry in document["entries"] for key in keys]


@pytest.mark.parametrize(
    "change",
    [
        without("time_discovered_started_ns", "time_discovered_completed_ns"),
        without("is_p2p", "p2p_seq_id", "timeout_ms", "frames", "retired", "record_id"),
        without("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
        lambda _, document: document.pop("pg_status"),
        lambda _, document: document.pop("pg_config"),
        lambda _, document: document.update(nccl_comm_state={"a": {"rank": "0"}}),
        lambda _, document: document["pg_config"]["0"].update(ranks="[]"),
        lambda _, document: document["pg_status"].update({"7" * 5000: {}}),  # no number to Python
        lambda _, document: [
            counters.update({key: str(n) for key, n in counters.items()})
            for counters in document["pg_status"].values()
        ],
    ],
)
def test_other_versions_lack_keys_or_write_them_differently(
    tmp_path: Path, change: Callable[[int, dict[str, Any]], object]
) -> None:
    Run(small_job(), random.Random(1), {2: 9}).write(tmp_path, form="json")
    assert named(edited(tmp_path, change)) == {"ABSENT": [2]}


def test_groups_known_by_number_only_are_kept_apart(tmp_path: Path) -> None:
    Run(small_job(), random.Random(1), {2: 9}).write(tmp_path, form="json")

    def as_in_version_1(rank: int, document: dict[str, Any]) -> None:
        for entry in document["entries"]:
            entry["pg_id"] = min(1, int(entry.pop("process_group")[0]))
            entry["seq_id"] = entry.pop("collective_seq_id")
        del document["pg_config"], document["pg_status"]

    assert named(edited(tmp_path, as_in_version_1)) == {"ABSENT": [2]}
    made = small_job()
    Run(changed(made, 2, 9, sizes=(7,)), random.Random(1)).write(tmp_path, form="json")
    hang = edited(tmp_path, as_in_version_1)  # two groups with one number call differently, too
    assert (named(hang), "do not list the ranks of their groups" in hang.reason) == ({}, True)


def test_groups_with_one_name_on_different_ranks_are_kept_apart(tmp_path: Path) -> None:
    Run(small_job(), random.Random(1), {2: 9}).write(tmp_path, form="json")

    def renamed(rank: int, document: dict[str, Any]) -> None:
        config = document["pg_config"]
        document["pg_config"] = {"0": config["0"], "1": config["1" if rank < 2 else "2"]}
        for entry in document["entries"]:
            entry["process_group"][0] = str(min(1, int(entry["process_group"][0])))

    hang = edited(tmp_path, renamed)
    assert named(hang) == {"ABSENT": [2]}
    assert hang.roots[0].waiting == [3]


def test_batched_messages_have_the_state_of_their_launch(tmp_path: Path) -> None:
    both, last = [Op("0", "send", 1), Op("0", "recv", 1)], Op("0", "all_reduce")
    programs = {0: [*both, last], 1: [op._replace(peer=0) for op in both] + [last], 2: [last]}
    run = Run(Made({"0": ("default_pg", [0, 1, 2])}, programs), random.Random(1), {2: 0})
    for rank in (0, 1):  # both are sent at once, which the simulation does not know
        run.called[rank] = 3
        run.called_ns |= {(rank, at): 10**18 + at for at in range(3)}
    run.write(tmp_path, form="json")

    def batched(rank: int, document: dict[str, Any]) -> None:
        messages = document["entries"][:-1]
        for entry in messages:
            entry.update(state="scheduled", p2p_seq_id=1)
        if messages:
            launch = {**messages[-1], "profiling_name": "nccl:coalesced", "state": "completed"}
            document["entries"].insert(2, launch)

    hang = edited(tmp_path, batched)
    waits = {rank: (wait.call.kind, wait.on) for rank, wait in hang.waits.items()}
    assert waits == dict.fromkeys((0, 1), ("all_reduce", [2]))
    assert named(hang) == {"ABSENT": [2]}


def test_a_job_with_a_running_call_is_alive(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("A", [0, 1]), "2": ("B", [2, 3])}
    programs = {
        rank: [Op(str(1 + rank // 2), "all_reduce")] * 9 + [Op("0", "all_reduce")] for rank in range(4)
    }
    run = Run(Made(groups, programs), random.Random(1), {1: 9, 2: 9, 3: 9})
    assert named(hang_of(run, tmp_path / "a")) == {"ABSENT": [1, 2, 3]}
    run = Run(Made(groups, programs), random.Random(1), {1: 9, 2: 9, 3: 9})
    for rank in (2, 3):  # the last call of all that its members have made
        run.done[rank].remove(8)
        run.called_ns[rank, 8] = max(run.called_ns.values())
    hang = hang_of(run, tmp_path / "b")
    assert (named(hang), "all_reduce 9 of B (2) may still be running" in hang.reason) == ({}, True)


def test_dumps_written_soon_may_be_of_a_slow_job(tmp_path: Path) -> None:
    run = Run(small_job(), random.Random(1), {2: 9})
    longest_ns = max(run.done_ns[call] - run.called_ns[call] for call in run.done_ns)
    run.write(tmp_path)
    for path in tmp_path.iterdir():
        since_ns = run.called_ns[3, 9]
        os.utime(path, ns=(0, since_ns + 3 * longest_ns // 2))  # a slow one may take twice as long as ever
    hang = find_hang(standings(tmp_path))
    assert (named(hang), "the dumps were written" in hang.reason) == ({}, True)


@pytest.mark.parametrize(("name", "guilty"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_injected_faults_are_named(shared_data: Path, name: str, guilty: list[int]) -> None:
    answer = ask(shared_data / "nccl-flight-recorder" / name)
    ranks = sorted(rank for one in answer["findings"] for rank in one["scope"]["ranks"])
    assert ranks == sorted(f"rank{rank}" for rank in guilty)
    assert {one["kind"] for one in answer["findings"]} == {"hang"}


def test_the_answer_of_the_command_line(tmp_path: Path) -> None:
    run = Run(small_job(), random.Random(1), {2: 9})
    run.write(tmp_path / "job", form="json")
    (tmp_path / "job" / "notes.txt").write_text("not a dump")
    (tmp_path / "job" / "dump_1").write_bytes(b"")
    page = tmp_path / "page.html"
    code, out, errors = run_cli("--path", tmp_path / "job", "--html", page)
    assert code == 0, errors
    assert out.startswith(
        "The job may hang, or only be slow: rank 2 never reached all_reduce 6 of TENSOR_GROUP (2), where"
    )
    assert "train_step (train.py:18)" in out  # its last call is its ninth
    assert "1 of its files is not a dump" in errors
    assert "dump_1: an empty file" in errors
    assert "Who waits for whom" in page.read_text()
    answer = ask(tmp_path / "job")
    (finding,) = answer["findings"]
    assert finding["kind"] == "hang" and finding["scope"]["ranks"] == ["rank2"]
    assert finding["gain_ms"]["mid"] is None
    assert answer["iteration_ms"] == {"median": None, "mean": None, "p95": None, "real": None}
    assert (answer["waits"][0]["rank"], answer["waits"][0]["state"]) == (2, HangCause.ABSENT.value)


def test_waiting_and_transfer_of_completed_calls_are_separate(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1])}
    program = [Op("0", "all_reduce", sizes=(1000,))] * 6
    run = Run(Made(groups, {0: program, 1: program}), random.Random(1))
    for rank, at in run.called_ns:  # rank 1 comes 3 ms later, and the transfer takes 2 ms
        run.called_ns[rank, at] = 10**18 + at * 10_000_000 + rank * 3_000_000
        run.done_ns[rank, at] = 10**18 + at * 10_000_000 + 5_000_000
    run.write(tmp_path)
    (row,) = ask("statistic", "--sub_option", "collectives", "--path", tmp_path)["collectives"]
    said = (row["kind"], row["group"], row["ranks"], row["bytes"])
    assert said == ("all-reduce", "default_pg (0)", 2, 4000)
    assert (row["count"], row["transfer_ms"], row["waiting_ms"]) == (6, pytest.approx(2), pytest.approx(1.5))
