"""Databases that Nsight Systems exports; SQLite is loaded only where one is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from analyzer.reading.formats.other_files import TABLE

#: Behind the name of a table: the version of its layout, as CUPTI numbers those of its records.
_TABLE_VERSION = re.compile(r"_?V(\d{1,3})")
#: Tables that Nsight Systems alone writes, or begin so.
_OF_NSIGHT = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_", "ANALYSIS_", "EXPORT_META_DATA", "META_DATA_")
_OF_NVPROF = ("StringTable", "CUPTI_ACTIVITY_KIND_")


def other_database(tables: Collection[str]) -> str:
    """Say what a database with these tables is, and the remedy; "" for an export of Nsight Systems."""
    if _any_begins(tables, ("rocpd_kernel_dispatch", "rocpd_info_")):
        return "a database of rocprofv3; record with rocprofv3 --output-format pftrace"
    if _any_begins(tables, ("rocpd_",)):
        return "a database of rocmProfileData; write a trace of it: rpd2tracing.py FILE.rpd trace.json"
    if _any_begins(tables, _OF_NSIGHT):
        return ""
    if _any_begins(tables, _OF_NVPROF):
        return "a profile of nvprof (.nvvp); record with nsys profile, then nsys export --type sqlite"
    if {"experiments", "runs", "metrics"} <= {*tables}:
        return TABLE
    return "a database without a table of Nsight Systems" if tables else "an empty database"


def _any_begins(tables: Collection[str], beginnings: tuple[str, ...]) -> bool:
    return any(table.startswith(beginnings) for table in tables)


def newest_versions(tables: Sequence[str]) -> Mapping[str, str]:
    """Return the tables by their names without a version; of several versions the newest.

    >>> newest_versions(["NVTX_EVENTS_V2", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNELV3"])
    {'CUPTI_ACTIVITY_KIND_KERNEL': 'CUPTI_ACTIVITY_KIND_KERNELV3', 'NVTX_EVENTS': 'NVTX_EVENTS_V2'}
    """
    versions: dict[str, tuple[int, str]] = {}
    for table in sorted(tables):
        match = re.fullmatch(rf"(.+?){_TABLE_VERSION.pattern}", table)
        name, version = (match[1], int(match[2])) if match else (table, 1)
        versions[name] = max(versions.get(name, (0, "")), (version, table))
    return {name: table for name, (_, table) in versions.items()}


_HEAD = b"SQLite format 3\0"


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` is a database of SQLite."""
    return head.startswith(_HEAD)
