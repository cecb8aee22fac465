"""All GPU directories of a job, collected in parallel; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import parallel
import progress as bars
from collector.gpu.final_trace import gather
from collector.gpu.parts import PARTS, PartName, count_by_cat
from errors import AnalyzeError
from jobfiles import GpuDir


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What became of one GPU directory."""

    trace: Path | None  # the final trace; None where the directory failed
    events: Mapping[str, int]  # per category
    warnings: Sequence[str]  # lines "path: what", the reason of a failure last
    notes: Sequence[str]


def collect_gpus(
    gpus: Sequence[GpuDir],
    parts: Collection[PartName] = PARTS,
    *,
    into: Path | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[GpuReport]:
    """Collect each directory's final trace (and its DAG where it has none), in the order of `gpus`.

    `parts` are renewed; see `collector.gpu.final_trace.gather`. `into` is a directory that takes the traces
    instead; then nothing is changed in those of `gpus`.
    """
    work = [
        (gpu, frozenset(parts), None if into is None else into / f"{i}.json") for i, gpu in enumerate(gpus)
    ]
    with bars.bar(total=len(gpus), unit="GPUs", what="collect", enabled=progress) as bar:
        jobs = min(jobs or parallel.cores(), len(gpus))
        if jobs < 2:
            return [_reported(item, bar.update) for item in work]
        with parallel.process_pool(jobs) as pool:
            futures = [pool.submit(_reported, item) for item in work]
            for future in futures:
                future.add_done_callback(lambda _: bar.update())
            return [future.result() for future in futures]


def _reported(
    item: tuple[GpuDir, frozenset[PartName], Path | None], on_done: Callable[[], object] = lambda: None
) -> GpuReport:
    gpu, parts, target = item
    try:
        collected = gather(gpu, parts)
        if target is None:
            collected.write()
        else:
            target.write_bytes(collected.encode())
        events = count_by_cat(collected.events)
        return GpuReport(target or collected.path, events, collected.warnings, collected.notes)
    except AnalyzeError as error:
        return GpuReport(None, {}, [str(error)], [])
    except OSError as error:
        return GpuReport(None, {}, [f"{gpu.path}: {error.strerror or error}"], [])
    finally:
        on_done()
