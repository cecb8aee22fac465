"""The door to traces: what paths hold, as columns, one trace per rank."""

from __future__ import annotations

from traces.files import read_document, read_trace, read_traces
from traces.filter import check_known, selected_of
from traces.gpu_folders import GpuDir, find_gpus
from traces.layouts import find_job, find_paths
from traces.loading import LoadedJob, load_job, load_paths
from traces.outlines import TraceFile
from traces.paths import Job, Source, rank_notes
from traces.raw import files_to_read

__all__ = [
    "GpuDir", "Job", "LoadedJob", "Source", "TraceFile", "check_known", "files_to_read", "find_gpus",
    "find_job", "find_paths", "load_job", "load_paths", "rank_notes", "read_document", "read_trace",
    "read_traces", "selected_of",
]  # fmt: skip
