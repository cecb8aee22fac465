"""The hosts of a job's ranks: each has one clock."""

from __future__ import annotations

from collections.abc import Sequence

from formats.stream import find_file
from traces.paths import Source


def hosts_of(sources: Sequence[Source]) -> list[int]:
    """Return the host of each source: a worker's GPUs share one; of ranks it is not known."""
    if all(source.worker is None for source in sources):
        paths = list(dict.fromkeys(source.path.parent.parent for source in sources))
        is_worker = len(paths) == 1 and all(find_file(source.path.parent, "comm.json") for source in sources)
        files = dict.fromkeys(source.path for source in sources)  # the ranks of a file share its clock
        place = {path: i for i, path in enumerate(files)}
        return [0 if is_worker else place[source.path] for source in sources]
    workers = sorted({source.worker or 0 for source in sources})
    return [workers.index(source.worker or 0) for source in sources]
