"""Why a job hangs: made dumps whose fault is known, and recorded ones with injected faults."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
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
from oracles.hanging_jobs import START_NS, Do, Job, Simulation
from oracles.hangs import write_case


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


_HOUR_NS = 3600 * 10**9
_PAIRS = {"1": ("TENSOR", (0, 1)), "2": ("TENSOR", (2, 3)), "3": ("TENSOR", (4, 5))}


def call(group: str, size: int = 8, taken: int | None = None, kind: str = "all_reduce") -> Do:
    return Do("call", group=group, kind=kind, given=(size,), taken=(size if taken is None else taken,))


def hang_of_job(folder: Path, job: Job, stops: Mapping[int, int] | None = None) -> Hang:
    run = Simulation(job, random.Random(1), stops)
    run.write(folder, lambda _: run.last_ns + _HOUR_NS)
    return find_hang(standings(folder))


def in_pairs(program: Sequence[Do], odd: Sequence[Do]) -> Job:
    """Return a job of six ranks, in groups of two, of which rank 3 has a program of its own."""
    name = {rank: group for group, (_, own) in _PAIRS.items() for rank in own}
    programs = {
        rank: [do._replace(group=do.group or name[rank]) for do in (odd if rank == 3 else program)]
        for rank in range(6)
    }
    return Job({"0": ("default_pg", tuple(range(6))), **_PAIRS}, programs)


@pytest.mark.parametrize("size", [7, 9])
def test_similar_groups_decide_which_of_two_calls_is_wrong(tmp_path: Path, size: int) -> None:
    job = in_pairs([call("", 4), call("")], [call("", 4), call("", size)])
    hang = hang_of_job(tmp_path, job)
    assert named(hang) == {"MISMATCH": [3]}
    assert hang.roots[0].differ == {
        "all_reduce, BFloat16, 8->8 elements": [2],
        f"all_reduce, BFloat16, {size}->{size} elements": [3],
    }


def test_a_rank_that_skips_a_call_differs_later(tmp_path: Path) -> None:
    """The second call of rank 2 meets the third one of rank 3, which is alike; their third calls are not."""
    job = in_pairs([call(""), call(""), call("", 5)], [call(""), call("", 5)])
    assert named(hang_of_job(tmp_path, job)) == {"MISMATCH": [3]}


def test_an_all_to_all_with_unequal_sums_is_a_mismatch(tmp_path: Path) -> None:
    """Each gives 8; ranks 2 and 3 take 10 and 6, but rank 3 gives 9."""
    sizes = {0: (8, 5), 1: (8, 11), 2: (8, 10), 3: (9, 6), 4: (8, 8), 5: (8, 8)}
    job = in_pairs([], [])
    for rank, (given, taken) in sizes.items():
        job.programs[rank].append(call(str(rank // 2 + 1), given, taken, "all_to_all"))
    hang = hang_of_job(tmp_path, job)
    assert named(hang) == {"MISMATCH": [3]}
    assert hang.roots[0].differ == {
        "gives 8 and takes 10 elements": [2],
        "gives 9 and takes 6 elements": [3],
    }


def ring(n: int) -> Job:
    """Return a job in which each rank sends to the next one and receives from the one before, as one."""
    programs = {
        rank: [
            Do("batch", group="1", messages=(("send", (rank + 1) % n, (8,)), ("recv", (rank - 1) % n, (8,))))
        ]
        * 5
        for rank in range(n)
    }
    return Job({"0": ("default_pg", tuple(range(n))), "1": ("CONTEXT", tuple(range(n)))}, programs)


def test_the_absent_rank_of_a_ring_is_named(tmp_path: Path) -> None:
    """The batches of ranks 0, 1 and 3 are open, though what rank 4 answers of them may be done."""
    hang = hang_of_job(tmp_path, ring(5), {2: 3})
    assert named(hang) == {"ABSENT": [2]}
    assert hang.roots[0].call.peer == 2
    assert {rank: list(wait.on) for rank, wait in hang.waits.items() if 2 in wait.on} == {1: [2], 3: [2]}


def test_a_ring_with_all_batches_called_may_run(tmp_path: Path) -> None:
    run = Simulation(ring(4), random.Random(1))
    moments = sorted(call.end_ns for call in run.calls[0])
    run.write(tmp_path, lambda _: moments[0] - 1)  # all have called, and nothing is complete
    hang = find_hang(standings(tmp_path))
    assert (named(hang), "may still be running" in hang.reason) == ({}, True)


def test_a_ring_with_some_batches_complete_may_be_slow(tmp_path: Path) -> None:
    """Ranks 0 and 3 are through with the last batch, ranks 1 and 2 not yet: these seem to wait for those."""
    write_case("lives, at one moment", random.Random("lives, at one moment/64028"), tmp_path)
    hang = find_hang(standings(tmp_path))
    assert (named(hang), hang.doubt != "") == ({"CYCLE": [0, 1, 2, 3]}, True)


@pytest.mark.parametrize(("later_ns", "is_hang"), [(10**7, False), (10**9, True)])
def test_calls_completed_just_before_the_dump_show_progress(
    tmp_path: Path, later_ns: int, is_hang: bool
) -> None:
    """A watchdog that looks each 0.1 s has retired the first calls, but not yet those of the last moments."""
    program = [call("0"), Do("pause", 3 * 10**8), call("0"), call("0")]
    run = Simulation(
        Job({"0": ("default_pg", (0, 1, 2))}, dict.fromkeys(range(3), program)), random.Random(1), {1: 3}
    )
    assert run.calls[0][1].end_ns > START_NS + 3 * 10**8
    run.write(tmp_path, lambda _: run.calls[0][1].end_ns + later_ns, keeps_times=False)
    hang = find_hang(standings(tmp_path))
    assert bool(named(hang)) == is_hang
    assert ("completed just before the dumps were written" in hang.reason) != is_hang


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["a rank stops", "a rank is a step behind", "another size", "another kind", "two calls exchanged",
     "a call left out", "two groups in two orders"],
)  # fmt: skip
def test_faults_of_simulated_jobs_are_named(tmp_path: Path, fault: str) -> None:
    for seed in range(2):
        case = write_case(fault, random.Random(f"test {fault} {seed}"), tmp_path / str(seed))
        found: dict[int, Standing] = standings(tmp_path / str(seed))
        ranks = {rank for root in find_hang(found).roots for rank in root.ranks}
        assert case.guilty <= ranks <= case.allowed, (fault, seed)
