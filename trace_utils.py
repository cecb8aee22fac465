"""The door to traces: what paths hold, as columns; `read_ranks` makes something of each rank of a job."""

from __future__ import annotations

from analyzer.reading.traces.gpu_folders import find_gpus
from analyzer.reading.traces.layouts import check_chrome, held_by, is_input
from analyzer.reading.traces.paths import Source
from analyzer.reading.traces.ranks import Request, files_to_read, read_ranks
from analyzer.reading.traces.readers import read_args, read_trace
from analyzer.reading.traces.split import CommFilter, TraceFile

__all__ = [
    "CommFilter", "Request", "Source", "TraceFile", "check_chrome",
    "files_to_read", "find_gpus", "held_by", "is_input", "read_args", "read_ranks", "read_trace",
]  # fmt: skip
