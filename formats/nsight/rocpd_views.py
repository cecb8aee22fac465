"""Databases of ROCm's profiler (``rocprofv3 --output-format rocpd``), as those that Nsight Systems exports.

A view, which nothing writes to the file, stands for each table of Nsight's; so one reader reads both. Kernels
are called by their symbols, whose numbers lie beyond those of texts. A row stays where what it refers to is
not there: a call without a category is one of the runtime.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

from errors import TraceError

_BEYOND = 1 << 40
_JOINED = "LEFT JOIN rocpd_info_process P ON P.id = R.pid LEFT JOIN rocpd_event E ON E.id = R.event_id"
_WORK = (
    'R.start, R."end", ifnull(P.pid, R.pid) << 24 AS globalPid, R.stream_id AS streamId, '
    "E.stack_id AS correlationId"
)
_CALL = (
    'R.start, R."end", ifnull(P.pid, R.pid) << 24 | (ifnull(T.tid, R.tid) & 0xFFFFFF) AS globalTid, '
    "R.name_id AS nameId, E.stack_id AS correlationId, 59 AS eventType, "
    "coalesce(json_extract(E.extdata, '$.message'), N.string) AS text "
    f"FROM rocpd_region R {_JOINED} LEFT JOIN rocpd_info_thread T ON T.id = R.tid "
    "LEFT JOIN rocpd_string N ON N.id = R.name_id LEFT JOIN rocpd_string C ON C.id = E.category_id "
    "WHERE ifnull(C.string, 'HIP') "
)
_INDEX = "coalesce(A.type_index, A.logical_index, A.id) AS deviceId"
_DIRECTIONS = {1: "HOST_TO_DEVICE", 2: "DEVICE_TO_HOST", 8: "DEVICE_TO_DEVICE", 9: "HOST_TO_HOST"}
_VIEWS = {
    "StringIds": "id, string AS value FROM rocpd_string UNION ALL "
    f"SELECT id + {_BEYOND}, coalesce(display_name, kernel_name) FROM rocpd_info_kernel_symbol",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, {_INDEX}, R.kernel_id + {_BEYOND} AS demangledName, "
    + ", ".join(
        f"R.workgroup_size_{axis} AS block{axis.upper()}, "
        f"R.grid_size_{axis} / max(1, R.workgroup_size_{axis}) AS grid{axis.upper()}"
        for axis in "xyz"
    )
    + f" FROM rocpd_kernel_dispatch R {_JOINED} LEFT JOIN rocpd_info_agent A ON A.id = R.agent_id",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, {_INDEX}, R.size AS bytes, CASE "
    + " ".join(f"WHEN N.string LIKE '%{words}' THEN {kind}" for kind, words in _DIRECTIONS.items())
    + f" ELSE 0 END AS copyKind FROM rocpd_memory_copy R {_JOINED} "
    "LEFT JOIN rocpd_string N ON N.id = R.name_id "
    "LEFT JOIN rocpd_info_agent D ON D.id = R.dst_agent_id "
    "LEFT JOIN rocpd_info_agent A ON A.id = iif(D.type = 'GPU', R.dst_agent_id, R.src_agent_id)",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_CALL} LIKE 'HIP%'",
    "NVTX_EVENTS": f"{_CALL} LIKE 'MARKER%' OR C.string LIKE 'RCCL%'",
    "PROCESSES": "pid, command AS name FROM rocpd_info_process",
    "TARGET_INFO_SYSTEM_ENV": "'Hostname' AS name, hostname AS value FROM rocpd_info_node",
}


def add_views(path: Path, db: sqlite3.Connection, tables: Collection[str]) -> Collection[str]:
    """Return the tables and views of a database, to which Nsight's are added where it is ROCm's."""
    of_recording = [table[len("rocpd_string") :] for table in tables if table.startswith("rocpd_string_")]
    if len(of_recording) > 1:
        raise TraceError(f"{path}: several recordings in one database; give each in a file of its own")
    suffixed = [table for table in tables if of_recording and table.endswith(of_recording[0])]
    plain = {table.removesuffix(of_recording[0]): f'* FROM "{table}"' for table in suffixed}
    if (
        not {"rocpd_string", "rocpd_event", "rocpd_info_process"} <= {*tables, *plain}
        or "StringIds" in tables
    ):
        return tables
    db.execute("PRAGMA temp_store = MEMORY")
    for view, chosen in ({name: told for name, told in plain.items() if name not in tables} | _VIEWS).items():
        db.execute(f'CREATE TEMP VIEW "{view}" AS SELECT {chosen}')
    return [*tables, *_VIEWS]
