"""All GPU directories of a job, collected in parallel; one that fails does not stop the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

import parallel
from collector.gpu.final_trace import gather
from collector.gpu.parts import PARTS, PartName, count_by_cat
from errors import AnalyzeError
from outputs.atomic import open_output
from parallel import progress as bars
from traces.gpu_folders import GpuDir


class GpuReport(Struct, frozen=True):
    """The outcome for one GPU directory; without new files it failed."""

    new: Mapping[Path, Path]  # files that it is to get, the final trace first: where their content is now
    events: Mapping[str, int]  # per category
    warnings: Sequence[str]  # lines "path: what", the reason of a failure last
    notes: Sequence[str]


def collect_gpus(
    gpus: Sequence[GpuDir],
    parts: Collection[PartName] = PARTS,
    *,
    into: Path,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[GpuReport]:
    """Collect each directory's final trace (and its DAG where it has none), in the order of `gpus`.

    `parts` are renewed; see `collector.gpu.final_trace.gather`. The directory `into` takes all; `renew`
    changes those of `gpus`.
    """
    work = [(gpu, frozenset(parts), into / str(i)) for i, gpu in enumerate(gpus)]
    with bars.bar(total=len(gpus), unit="GPUs", what="collect", enabled=progress) as bar:
        jobs = min(jobs or parallel.cores(), len(gpus))
        if jobs < 2:
            return [_reported(item, bar.update) for item in work]
        with parallel.process_pool(jobs) as pool:
            futures = [pool.submit(_reported, item) for item in work]
            for future in futures:
                future.add_done_callback(lambda _: bar.update())
            return [future.result() for future in futures]


def renew(reports: Sequence[GpuReport]) -> None:
    """Give the GPUs' directories their new files: all of them, with the other outputs of the command."""
    for report in reports:
        for path, content in report.new.items():
            with open_output(path, is_guarded=False) as file, content.open("rb") as collected:
                shutil.copyfileobj(collected, file)


def _reported(
    item: tuple[GpuDir, frozenset[PartName], Path], on_done: Callable[[], object] = lambda: None
) -> GpuReport:
    gpu, parts, into = item
    try:
        collected = gather(gpu, parts)
        into.mkdir()
        new = {}
        for path, content in collected.files().items():
            new[path] = into / path.name.removesuffix(".gz")
            new[path].write_bytes(content)
        events = count_by_cat(collected.events)
        return GpuReport(new, events, collected.warnings, collected.notes)
    except AnalyzeError as error:
        return GpuReport({}, {}, [str(error)], [])
    except OSError as error:
        return GpuReport({}, {}, [f"{gpu.path}: {error.strerror or error}"], [])
    finally:
        on_done()
