"""Recognition of databases that Nsight Systems exports."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from analyzer.reading.formats.other_files import TABLE

_HEAD = b"SQLite format 3\0"
#: A table's name, and the version of its layout, as CUPTI numbers its records.
_VERSIONED = re.compile(r"(.+?)_?V(\d{1,3})")
#: Beginnings of the names of tables that only Nsight Systems writes.
_OF_NSIGHT = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_", "ANALYSIS_", "EXPORT_META_DATA", "META_DATA_")
_OF_NVPROF = ("StringTable", "CUPTI_ACTIVITY_KIND_")


def recognises(head: bytes) -> bool:
    """Check whether a file that begins with `head` is a database of SQLite."""
    return head.startswith(_HEAD)


def other_database(tables: Collection[str]) -> str:
    """Name the database with these tables, and the remedy; "" for an export of Nsight Systems."""

    def has_any(*beginnings: str) -> bool:
        return any(table.startswith(beginnings) for table in tables)

    if has_any("rocpd_kernel_dispatch", "rocpd_info_"):
        return "a database of rocprofv3; record with rocprofv3 --output-format pftrace"
    if has_any("rocpd_"):
        return "a database of rocmProfileData; write a trace of it: rpd2tracing.py FILE.rpd trace.json"
    if has_any(*_OF_NSIGHT):
        return ""
    if has_any(*_OF_NVPROF):
        return "a profile of nvprof (.nvvp); record with nsys profile, then nsys export --type sqlite"
    if {"experiments", "runs", "metrics"} <= {*tables}:
        return TABLE
    return "a database without a table of Nsight Systems" if tables else "an empty database"


def newest_versions(tables: Sequence[str]) -> Mapping[str, str]:
    """Map the names of tables without a version to the newest version of each.

    >>> newest_versions(["NVTX_EVENTS_V2", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNELV3"])
    {'CUPTI_ACTIVITY_KIND_KERNEL': 'CUPTI_ACTIVITY_KIND_KERNELV3', 'NVTX_EVENTS': 'NVTX_EVENTS_V2'}
    """
    versions: dict[str, tuple[int, str]] = {}
    for table in sorted(tables):
        match = _VERSIONED.fullmatch(table)
        name, version = (match[1], int(match[2])) if match else (table, 1)
        versions[name] = max(versions.get(name, (0, "")), (version, table))
    return {name: table for name, (_, table) in versions.items()}
