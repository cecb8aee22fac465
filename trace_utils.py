"""The door to traces: what paths hold, as columns; `map_ranks` makes something of each rank of a job."""

from __future__ import annotations

from traces.files import read_args, read_trace, read_traces
from traces.filter import CommFilter, check_known
from traces.gpu_folders import GpuDir, find_gpus
from traces.layouts import find_paths, held_by, is_input
from traces.paths import JobFiles, Source, head_of, hosts_of, natural, rank_notes
from traces.ranks import Request, files_to_read, load_paths, map_ranks
from traces.readers import Holds, reader_of

__all__ = [
    "CommFilter", "GpuDir", "Holds", "JobFiles", "Request", "Source", "check_known", "files_to_read",
    "find_gpus", "find_paths", "head_of", "held_by", "hosts_of", "is_input", "load_paths", "map_ranks",
    "natural", "rank_notes", "read_args", "read_trace", "read_traces", "reader_of",
]  # fmt: skip
