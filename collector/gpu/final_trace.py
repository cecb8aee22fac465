"""The final trace and DAG of each GPU, made in parallel from the files of the profilers."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, field

from analyzer.base import parallel
from analyzer.base.errors import AnalyzeError, Repairs, TraceError
from analyzer.base.names import OpName
from analyzer.base.outputs.atomic import open_output
from analyzer.base.parallel import FilePart, OnRead, progress_bar
from analyzer.reading.dialects.byteps import GradientNames, read_names
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.gml import read_gml
from analyzer.reading.formats.stream import read_text
from analyzer.reading.traces.gpu_folders import GpuDir
from analyzer.reading.traces.readers import read_document, read_trace
from collector.gpu.dag_from_symbols import from_gml, from_symbols, inputs_of
from collector.gpu.parts import (
    PARTS,
    Event,
    Inputs,
    PartName,
    collect_comm,
    collect_operators,
    count_by_cat,
    node_of,
    of_category,
    part_of,
    time_of,
)

if TYPE_CHECKING:
    from networkx import DiGraph

SOURCES: Mapping[PartName, str] = {
    "io": "io.json", "step": "step.json", "comm": "comm.json", "operator": "temp.json"
}  # fmt: skip
_CONTENT: Mapping[PartName, str] = {
    "io": "I/O", "step": "trainer's STEP", "comm": "Comm", "operator": "FW and BW"
}  # fmt: skip
_DAG, _SYMBOLS = "dag.gml", "symbol_debug_str.txt"
_NEW_TRACE = "bps_trace_final.json"
_LOSS = re.compile(r"loss(\d+)\.txt(\.gz)?")

_ENCODE = msgspec.json.Encoder().encode

T = TypeVar("T")


class _GpuReport(Struct, frozen=True):
    """The outcome for one GPU directory; without new files it failed."""

    new: Mapping[Path, Path]  # target -> present location of its new files, the final trace first
    events: Mapping[str, int]  # per category
    warnings: Sequence[str]  # lines "path: what", the reason of a failure last
    notes: Sequence[str]


def gather(gpu: GpuDir, into: Path, parts: Collection[PartName] = PARTS) -> _GpuReport:
    """Make the final trace of one GPU, and its DAG if it has none, in the directory `into`.

    `parts` are renewed, the others stay as they are in the existing final trace; without one all parts
    are gathered. A part whose source is missing or unusable stays, too. A missing DAG is made from the symbol
    dumps. Raises TraceError if all sources are missing or unusable.
    """
    gathering = _Gathering(gpu)
    files, events = gathering.run(parts)
    into.mkdir()
    new = {path: into / path.name.removesuffix(".gz") for path in files}
    for path, content in files.items():
        new[path].write_bytes(content)
    return _GpuReport(new, count_by_cat(events), gathering.repairs.lines, gathering.notes)


class _Gathering(Struct, dict=True):
    """The state of one `gather`: the remarks so far, and files that several parts need."""

    gpu: GpuDir
    repairs: Repairs = field(default_factory=Repairs)
    notes: list[str] = field(default_factory=list)

    def run(self, parts: Collection[PartName]) -> tuple[dict[Path, bytes], list[Event]]:
        """Make the new files, and the events of the final trace."""
        path = self.gpu.final_trace()
        old = None if path is None else self._tried(path, partial(read_document, path))
        if old is None and set(parts) != set(PARTS):
            self.notes.append(f"{self.gpu.path}: no final trace to update: all parts collected")
            parts = PARTS
        kept: dict[PartName | None, list[Event]] = {part: [] for part in (*PARTS, None)}
        for event in old["traceEvents"] if old else ():
            kept[part_of(event)].append(event)
        uses_graph = bool({"comm", "operator"} & set(parts))
        names = self._tried(self.gpu.path, partial(read_names, self.gpu.path)) if uses_graph else None
        graph = self._graph() if uses_graph else None
        inputs = inputs_of(graph) if graph is not None else {}
        for part in PARTS:
            if part in parts:
                new = self._part(part, names, inputs, len(kept[part]))
                kept[part] = kept[part] if new is None else list(new)
        if any(OpName.parse(str(event["name"])).cat == "STEP" for event in kept["operator"]):
            kept["step"] = []
        elif kept["step"]:
            self.notes.append(f"{self.gpu.path}: STEP is the trainer's call, from {SOURCES['step']}")
        events = [event for part in (None, *PARTS) for event in kept[part]]
        if not events:
            reasons = "; ".join(line.removeprefix(f"{self.gpu.path}/") for line in self.repairs.lines)
            raise TraceError(f"{self.gpu.path}: nothing to collect: {reasons}")
        events.sort(key=lambda event: -math.inf if (time := time_of(event)) is None else time)
        header = {"displayTimeUnit": "ms"} if old is None else old
        others = {key: value for key, value in header.items() if key not in ("traceEvents", "repairs")}
        lines = b",\n".join(map(_ENCODE, events)) + b"\n]"
        members = b"".join(b",\n" + _ENCODE(key) + b":" + _ENCODE(value) for key, value in others.items())
        target = path or self.gpu.path / _NEW_TRACE
        files = {target: b'{"traceEvents":[\n' + lines + members + b"}\n"}
        if graph is not None and self.gpu.file(_DAG) is None:
            from networkx import generate_gml

            files[self.gpu.path / _DAG] = "".join(f"{line}\n" for line in generate_gml(graph)).encode()
        return files, events

    def _part(
        self, part: PartName, names: GradientNames | None, inputs: Inputs, n_old: int
    ) -> Sequence[Event] | None:
        """Read the events of a part from its source; None if the part in the trace has to stay."""
        path, content = self._source(part), _CONTENT[part]
        fate = (
            f"{content} stay as they are in the final trace" if n_old else f"no {content} in the final trace"
        )
        if not path.is_file():
            if part != "step":  # only some wrappers write it, and the operators tell more
                self.repairs.add(path, f"missing: {fate}")
            return None
        try:
            new, damage, warnings = self._collected(part, names, inputs)
        except AnalyzeError as error:
            self.repairs.add(path, f"{str(error).removeprefix(f'{path}: ')}; {fate}")
            return None
        remarks = [*damage, *warnings]
        useless = not new or (damage and len(new) < n_old)
        if useless and not remarks:
            remarks.append(f"no {content} in it")
        if useless and n_old:
            remarks.append(f"{len(new)} events: {fate}")
        if remarks:
            self.repairs.add(path, *remarks)
        return None if useless else new

    def _collected(
        self, part: PartName, names: GradientNames | None, inputs: Inputs
    ) -> tuple[Sequence[Event], Sequence[str], Sequence[str]]:
        """Read the events of a part, the damage in its source, and warnings about it."""
        if part == "operator":
            events, warnings, notes = collect_operators(self._profile, inputs)
            self.notes += [f"{self._source(part)}: {line}" for line in notes]
            return events, self._profile.repairs, warnings
        document = read_document(self._source(part))
        events, damage = document["traceEvents"], document["repairs"]
        if part == "comm":
            new, warnings = collect_comm(events, names, inputs)
        else:
            new, warnings = of_category(events, "I/O" if part == "io" else "STEP")
        return new, damage, warnings

    def _source(self, part: PartName) -> Path:
        return self.gpu.file(SOURCES[part]) or self.gpu.path / SOURCES[part]

    @cached_property
    def _profile(self) -> Trace:
        return read_trace(self._source("operator"))

    def _graph(self) -> DiGraph[str] | None:
        """Read the DAG: the recorded one if it fits the profile, else that of the symbol dump."""
        path = self.gpu.file(_DAG)
        recorded = None if path is None else self._tried(path, lambda: from_gml(read_gml(path)))
        described = self._described()
        if recorded and described and set(described.edges) == set(recorded.edges):
            recorded = described  # the dump numbers the inputs of an operation as the profiler did
        candidates = [graph for graph in (recorded, described) if graph is not None]
        graph = next(filter(self._fits, candidates), candidates[0] if candidates else None)
        if path is None:
            nothing = "nothing to build it from: events without inputs"
            built = nothing if graph is None else f"built from {_SYMBOLS}"
            self.repairs.add(self.gpu.path / _DAG, f"missing: {built}")
        elif graph is not None and graph is not recorded:
            self.repairs.add(path, f"not used: inputs from {_SYMBOLS}")
        return graph

    def _fits(self, graph: DiGraph[str]) -> bool:
        try:
            names = self._profile.names if len(self._profile) else ()
        except AnalyzeError:  # the operations' part has a warning
            return True
        inputs = inputs_of(graph)
        return not names or any(node_of(name, inputs) for name in names)

    def _described(self) -> DiGraph[str] | None:
        """Build the DAG of the symbol dumps; None without a model's dump."""
        model = self.gpu.file(_SYMBOLS)
        if model is None:
            return None
        losses = {int(m[1]): p for p in sorted(self.gpu.path.iterdir()) if (m := _LOSS.fullmatch(p.name))}
        graph = from_symbols(read_text(model), {k: read_text(path) for k, path in sorted(losses.items())})
        if graph is None:
            self.repairs.add(model, "describes no operation")
        return graph

    def _tried(self, path: Path, read: Callable[[], T]) -> T | None:
        """Call `read`; if the file is unusable, make its error a warning and return None."""
        try:
            return read()
        except AnalyzeError as error:
            text = str(error).removeprefix(f"{path}: ")
            if text.startswith(str(path)):  # about a file in the directory `path`
                self.repairs.add(text)
            else:
                self.repairs.add(path, text)
            return None


def collect_gpus(
    gpus: Sequence[GpuDir],
    parts: Collection[PartName] = PARTS,
    *,
    into: Path,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[_GpuReport]:
    """Collect each directory's final trace (and its DAG if it has none), in the order of `gpus`.

    `parts` are renewed; see `gather`. The new files are in the directory `into` until `renew` moves them.
    """
    work = partial(_reported, parts=frozenset(parts))
    files = [filter(None, map(gpu.file, SOURCES.values())) for gpu in gpus]
    tasks = [
        FilePart(gpu.path, size=sum(map(parallel.size_of, of_gpu)), about=(gpu, into / str(i)))
        for i, (gpu, of_gpu) in enumerate(zip(gpus, files, strict=True))
    ]
    with progress_bar(sum(task.size for task in tasks), "B", what="collecting", enabled=progress) as advance:
        return list(parallel.map_files(work, tasks, jobs=jobs, on_read=advance))


def renew(reports: Sequence[_GpuReport]) -> None:
    """Write the new files into the GPUs' directories, together with the other outputs of the command."""
    for report in reports:
        for path, content in report.new.items():
            with open_output(path, is_guarded=False) as file, content.open("rb") as collected:
                shutil.copyfileobj(collected, file)


def _reported(part: FilePart, on_read: OnRead, parts: Collection[PartName]) -> _GpuReport:
    gpu, into = part.about
    try:
        return gather(gpu, into, parts)
    except (AnalyzeError, OSError) as error:
        reason = f"{gpu.path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        return _GpuReport({}, {}, [reason], [])
    finally:
        on_read(part.size)
