"""Lines that training programs print, and records of NCCL Inspector, as the rows of a step log.

Formats change from version to version, so a line is recognised by its beginning, and its cells by their names
and units, in any order. Each source, which a prefix of its lines tells (`srun -l`, `torchrun`, hosts), has
rows of its own. Of enclosing timers only the time outside the enclosed ones is a part.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

_N = r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?"  # 12, 7,034, 1.342E-04
_STEP = r"(?P<step>\d{1,15})\b"
_CELLS = rf"(?P<name>[^|:=]{{1,80}}?)\s*[:=]\s*(?P<number>{_N})(?=[\s|,(%]|$)"


#: Lines with a step's number: their beginning, and their cells. If True, timers without a number that follow
#: are of this step; else those before it are, too.
_LINES = (
    # Megatron-LM, with : or =
    # iteration 10/ 1000 | consumed samples: 160 | elapsed time per iteration (ms): 1147.6 | …
    (rf"\biteration[ =]\s*{_STEP}\s*/\s*(?:\d+|infinity)\s*\|", _CELLS, False),
    # torchtitan (earlier wps for tps)
    # step: 10  loss: 10.7  memory: 30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%
    (rf"(?<!validate )\bstep:\s*{_STEP}(?=\s+loss:)", rf"(?P<name>[a-z_]{{1,80}}):\s*(?P<number>{_N})", True),
    # DeepSpeed: [Rank 0] step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]
    (rf"\[Rank \d+\] step={_STEP}(?=, skipped)", r"(?P<name>skipped)=(?P<number>\d+)", True),
    # DeepSpeed: epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=24.9, …
    (
        rf"\b(?:global_step=|\] \d+/){_STEP}(?=, (?:RunningAvg)?SamplesPerSec)",
        rf"(?P<name>\w{{1,80}})=(?P<number>{_N})",
        True,
    ),
    # DeepSpeed, of pipelines: steps: 10 loss: 3.2045 iter time (s): 0.123 samples/sec: 260.163
    (rf"\bsteps: {_STEP}(?= loss: )", rf"(?P<name>[\w/() ]{{1,80}}): (?P<number>{_N})", True),
)
_ANY = re.compile("|".join(f"(?:{begin.replace('?P<step>', '')})" for begin, _, _ in _LINES).encode())
#: Timers after an iteration's line (Megatron-LM): a title, and a line for each, or for each rank of each.
_TITLE = re.compile(r"\btimes? across ranks \(ms\):")
_TIMER = re.compile(rf"\s*(?P<name>[\w/-]+) ?\.*:\s*(?:\(\s*{_N},\s*)?(?P<number>{_N})?\)?\s*$")
_TIMER_OF_RANK = re.compile(rf"\s*rank\s+(?P<rank>\d{{1,7}}):\s*(?P<number>{_N})\s*$")
#: Timers in one line: ``time (ms) | fwd: 25.3 | bwd: 77.7 | … | step: 2.2`` (DeepSpeed, older Megatron-LM).
_TIMERS = re.compile(r"\btime \(ms\) \|")
#: Timers that are parts of a step; all others, as of checkpoints and micro steps, are not.
_PART = re.compile(
    r"(?:forward|backward|optimizer)(?:-[\w-]+)?|(?:fwd|bwd)(?:_(?!.*microstep)\w+)?|step|batch-generator"
    r"|[\w-]+-(?:all-?reduce|sync|all-gather|reduce-scatter)"
)
#: Timers and those that they enclose, the outermost first.
_ENCLOSED = (
    ("forward-backward", r"(?:forward|backward)-(?!backward).*|all-grads-sync|.+-all-?reduce|fwd|bwd"),
    ("optimizer", r"optimizer-.+|params-all-gather|step"),
    ("forward-compute", r"batch-generator"),
    ("bwd", r"bwd_.+"),
)
#: Columns with another name in the rows than in the lines.
_NAMES = {
    "elapsed time per iteration (ms)": "iteration_ms",
    "elapsed_time_per_iteration_ms": "iteration_ms",
    "iter time (s)": "iteration_s",
    "step": "optimizer-step",  # DeepSpeed's timer of `engine.step()`
}
_COLOUR = re.compile(rb"\x1b\[[\d;]{0,20}[A-Za-z]")
#: What launchers put before a line: a task or host, and the role and number of a process on it.
_PREFIX = re.compile(r"\s*(?:(?P<host>\d+|[\w.-]*\d): )?\s*(?:\[[a-z]+(?P<local>\d+)\]:)?")
#: Times of day to the second are too coarse for steps.
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3,6})")
_WORTH = re.compile(rb"step|iteration|time|\.\.: |rank +\d+: |:\s*$|coll_perf|dump_stats")
_INSPECTED = re.compile(rb'"(?:coll_perf|dump_stats)"\s*:')
_LONGEST_LINE = 4096  # characters; further ones are no cells
_FIRST_ROWS = 200  # rows at the beginning, by which columns are recognised


def recognises(head: bytes) -> bool:
    """Check whether a file that begins with `head` is such a log."""
    begin = head[:_LONGEST_LINE].lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"{"):
        return _INSPECTED.search(head) is not None
    return not re.match(rb"\[\s*[\[{\"\]]", begin) and bool(steps_in(head))


def steps_in(lines: bytes) -> list[int]:
    """List the numbers of steps that lines of text tell."""
    plain = _COLOUR.sub(b"", lines)
    return [int(next(filter(None, match.groups()))) for match in _ANY.finditer(plain)]


def rows(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Turn blocks of whole lines into blocks of rows, as JSON lines."""
    ready: list[dict[str, Any]] = []
    sources: defaultdict[tuple[str, str], _Process] = defaultdict(_Process)
    group: dict[str, Any] = {}
    is_first = True
    for block in blocks:
        for line in block.split(b"\n"):
            if not _WORTH.search(line[:_LONGEST_LINE]):
                continue
            if line.lstrip().startswith(b"{"):
                ready += _of_collective(line, group)
                continue
            text = _COLOUR.sub(b"", line[:_LONGEST_LINE]).decode("utf-8", "replace").rstrip()
            prefix = _PREFIX.match(text)
            host, local = (prefix["host"] or "", prefix["local"] or "") if prefix else ("", "")
            ready += sources[host, local].read(text[prefix.end() :] if prefix else text, host, local)
        if len(ready) >= _FIRST_ROWS or not is_first:
            yield from _as_lines(ready)
            ready, is_first = [], False
    ready += [row for source in sources.values() for row in source.ended()]
    yield from _as_lines(ready)


def _as_lines(ready: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    if ready:
        yield "\n".join(map(json.dumps, ready)).encode()


class _Process(Struct):
    """The lines of one process: the row of its step so far."""

    row: dict[str, Any] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)
    of_ranks: defaultdict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    number: int = 0
    is_counted: bool = False  # the number is the one before and one
    in_timers: bool = False  # after their title
    timer: str = ""  # to which lines of ranks belong

    def read(self, text: str, host: str, local: str) -> Iterator[dict[str, Any]]:
        """Read a line; yield the row that it ends."""
        if _TIMERS.search(text):
            cells = _cells(_CELLS, _TIMERS.split(text, 1)[1])
            if "fwd" in cells and (not self.row or "fwd" in self.timers):
                yield from self._begun(self.number + 1, host, local, text)
                self.is_counted = True
            self._timed(cells)
            return
        for begin, cell, is_first in _LINES:
            if match := re.search(begin, text):
                number = int(match["step"])
                if self.is_counted and not is_first:
                    self.row["step"] = self.number = number
                elif number != self.number or not self.row:
                    yield from self._begun(number, host, local, text)
                self.is_counted = False
                if self.row:
                    cells = _cells(cell, text[match.end() :])
                    self.row |= {_NAMES.get(name, name): value for name, value in cells.items()}
                return
        if _TITLE.search(text):
            self.in_timers = True
        elif self.in_timers and (of_rank := _TIMER_OF_RANK.match(text)) and _PART.fullmatch(self.timer):
            self.of_ranks[int(of_rank["rank"])][self.timer] = _number(of_rank["number"])
        elif self.in_timers and (timer := _TIMER.match(text)):
            self.timer = timer["name"]
            if timer["number"]:
                self._timed({self.timer: _number(timer["number"])})

    def _timed(self, cells: dict[str, float]) -> None:
        if self.row:
            self.timers |= {name: took for name, took in cells.items() if _PART.fullmatch(name)}

    def _begun(self, number: int, host: str, local: str, text: str) -> Iterator[dict[str, Any]]:
        """End the row, and begin that of another step; step 0 is that of DeepSpeed's set-up."""
        yield from self.ended()
        self.number, self.in_timers = number, False
        if number or "skipped=" not in text:
            owner: dict[str, Any] = {"host": host, "local_rank": int(local)} if host and local else {}
            if not owner and (host or local):
                owner = {"rank": int(host or local)} if (host or local).isdigit() else {"host": host}
            moment = _TIME.search(text)
            self.row = {
                "step": number,
                **owner,
                **({"ts": "{}T{}.{}Z".format(*moment.groups())} if moment else {}),
            }

    def ended(self) -> Iterator[dict[str, Any]]:
        """Yield the row, with the timers of each rank if they are told, and forget it."""
        for rank, timers in (self.of_ranks or {-1: self.timers}).items():
            if self.row:
                yield self.row | ({"rank": rank} if rank >= 0 else {}) | _parts(timers)
        self.row, self.timers = {}, {}
        self.of_ranks.clear()
        self.is_counted = False


def _cells(rule: str, text: str) -> dict[str, float]:
    """Read the cells of a line that are finite numbers."""
    cells = {match["name"].strip(" -\t"): _number(match["number"]) for match in re.finditer(rule, text)}
    return {name: number for name, number in cells.items() if name and math.isfinite(number)}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _parts(timers: dict[str, float]) -> dict[str, float]:
    """Name the columns of timers, and leave out of each the time in the timers that it encloses."""
    left = dict(timers)
    for outer, rule in _ENCLOSED:
        inner = sum(took for name, took in timers.items() if name != outer and re.fullmatch(rule, name))
        if outer in left:
            left[outer] = max(left[outer] - inner, 0.0)
    return {f"{_NAMES.get(name, name)}_ms": took for name, took in left.items() if math.isfinite(took)}


def _of_collective(line: bytes, group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Read a record of NCCL Inspector, a row for a metric; `group` is the header of the records before.

    Only collectives of the largest group are rows, as all ranks have only these in common; from version 4.3
    on, a record of its own (`dump_stats`) has the header.
    """
    try:
        record = json.loads(line)
        header, done = record.get("header") or group.get("header") or record, record.get("coll_perf")
        group["header"] = header
        rank, size, name = int(header["rank"]), int(header["n_ranks"]), str(header["id"])[:40]
        group["most"] = max(size, group.get("most", 0))
        if done and size == group["most"]:
            name = f"nccl {str(done['coll'])[:40]} of {name}"
            yield {
                "step": int(done["coll_sn"]),
                "rank": rank,
                "metric": name,
                "value_us": float(done["coll_exec_time_us"]),
            }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return  # damaged, or a record of another kind
