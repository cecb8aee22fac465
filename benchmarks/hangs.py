"""How long `diagnose` takes for the dumps of a job that hangs: hangs.py [RANKS [ENTRIES]] (512, 2,000)."""

from __future__ import annotations

import pickle
import pickletools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
_GROUP = 8  # ranks of a tensor group; the others are all ranks
_START_NS = 1_700_000_000_000_000_000


def main(n_ranks: int = 512, n_entries: int = 2000) -> None:
    """Write the dumps of a job in which the last rank but one has not come, and diagnose it."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(n_ranks):
            write(Path(folder), rank, n_ranks, n_entries)
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run = [sys.executable, str(REPO / "analyze.py"), "--path", folder, "--head", "1"]
        answer = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(answer.splitlines()[0])
        took_s = time.perf_counter() - began
        print(f"{n_ranks:,} dumps of {n_entries:,} entries: {took_s:.1f} s, {cpu_s:.1f} s of CPU")
        print(f"{after.ru_maxrss >> 10} MiB at most in a process")


def write(folder: Path, rank: int, n_ranks: int, n_entries: int) -> None:
    """Write a rank's dump as PyTorch does: texts are written once, containers are not numbered."""
    first = rank // _GROUP * _GROUP
    groups = {"0": ("default_pg", range(n_ranks)), "1": ("TENSOR_GROUP", range(first, first + _GROUP))}
    called = n_entries - 40 if rank == n_ranks - 2 else n_entries
    is_done = n_entries - 40
    frames = [{"name": f"call_{i}", "filename": "/job/train.py", "line": i} for i in range(8)]
    entries = [
        {
            "frames": frames[i % 4 : i % 4 + 4], "record_id": i, "pg_id": i % 2,
            "process_group": (str(i % 2), groups[str(i % 2)][0]), "thread_name": "python3",
            "thread_id": "23456244340032", "collective_seq_id": i // 2 + 1, "p2p_seq_id": 0,
            "op_id": i // 2 + 1, "profiling_name": "nccl:all_reduce",
            "time_created_ns": _START_NS + i * 1_000_003 + rank,
            "input_sizes": [[4096, 1, 5120]], "input_dtypes": ["BFloat16"], "output_sizes": [[4096, 1, 5120]],
            "output_dtypes": ["BFloat16"], "state": "completed" if i < is_done else "scheduled",
            "time_discovered_started_ns": None, "retired": i < is_done, "timeout_ms": 600_000,
            "is_p2p": False,
            "time_discovered_completed_ns": _START_NS + i * 1_000_003 + 900_000 if i < is_done else None,
        }
        for i in range(called)
    ]  # fmt: skip
    counters = {"last_enqueued_collective": (called + 1) // 2, "last_started_collective": -1,
                "last_completed_collective": is_done // 2}  # fmt: skip
    document: dict[str, Any] = {
        "version": "2.9",
        "pg_config": {
            key: {"name": key, "desc": desc, "ranks": str(list(ranks))}
            for key, (desc, ranks) in groups.items()
        },
        "nccl_version": "2.27.3",
        "pg_status": dict.fromkeys(groups, counters),
        "entries": entries,
    }  # fmt: skip
    (folder / f"_dump_{rank}").write_bytes(pickletools.optimize(pickle.dumps(document, protocol=2)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
