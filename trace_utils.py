"""The door to traces: what paths hold, as columns, one trace per rank."""

from __future__ import annotations

from traces.files import read_document, read_trace, read_traces
from traces.filter import check_known, selected_of
from traces.gpu_folders import GpuDir, find_gpus
from traces.layouts import find_job, find_paths
from traces.paths import Job, Source, rank_notes
from traces.ranks import Ranks, Request, load_paths, map_ranks
from traces.raw import files_to_read
from traces.split import TraceFile

__all__ = [
    "GpuDir", "Job", "Ranks", "Request", "Source", "TraceFile", "check_known", "files_to_read", "find_gpus",
    "find_job", "find_paths", "load_paths", "map_ranks", "rank_notes", "read_document", "read_trace",
    "read_traces", "selected_of",
]  # fmt: skip
