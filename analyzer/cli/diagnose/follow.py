"""`diagnose --follow`: the answer of a step log again as lines come, a line for each change."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analyzer.base.errors import TraceError, UsageError, listed, one_line
from analyzer.base.units import in_percent
from analyzer.report.result import Result
from trace_utils import held_by

#: Seconds between two looks, and times as long as an answer took until the next one: half of a core at most.
_LOOK, _REST = 0.5, 1.0
#: Steps before the last one in which a finding may end that still holds.
_RECENT = 5
#: A saving that has changed by this factor is printed again.
_OTHER_COST = 1.5

_Answer = Callable[[Namespace, list[Path]], Result]


def follow(args: Namespace, answer: _Answer) -> Result:
    """Print a line for each change of the answer until Ctrl-C; then give the answer."""
    from analyzer.reading.formats.file_kinds import STEP_SUFFIXES
    from analyzer.reading.formats.step_log.followed_logs import copied

    if len(args.path) != 1:
        raise UsageError("--follow: give one log, or one directory of logs")
    (path,) = args.path
    with contextlib.suppress(TraceError):  # no row as yet
        if held_by([path]) != "steps" and path.suffix not in STEP_SUFFIXES[1:]:  # in texts it may come later
            raise UsageError(f"--follow: {path} is no step log; leave --follow out")
        if path.is_dir() and all(file.suffix == ".gz" for file in path.rglob("*") if file.is_file()):
            raise UsageError(f"--follow: the logs in {path} are packed, so none grows; leave --follow out")
    if sys.stderr.isatty():
        sys.stderr.write(f"following {path}; Ctrl-C gives the answer\n")
    stream = sys.stdout if args.format == "table" else sys.stderr
    args.jobs, args.progress = 1, False
    with tempfile.TemporaryDirectory(prefix="followed-") as folder:
        copy = Path(folder, path.name)
        if path.is_dir():
            copy.mkdir()
        changes, is_due, next_time = _Changes(), False, 0.0
        try:
            for has_come, restart in copied(path, copy if path.is_dir() else Path(folder)):
                if restart is not None:
                    print(f"the job begins again at step {restart % (1 << 31):,}", file=stream, flush=True)
                    changes = _Changes()
                is_due |= has_come
                begun = time.monotonic()
                if is_due and begun >= next_time:
                    is_due = False
                    for line in _lines(args, answer, copy, changes):
                        print(one_line(line), file=stream, flush=True)
                    next_time = time.monotonic() + _REST * (time.monotonic() - begun)
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            return _answered(args, answer, copy)
    raise AssertionError("logs are followed until Ctrl-C")


def _answered(args: Namespace, answer: _Answer, copy: Path) -> Result:
    try:
        if not copy.exists():
            raise TraceError(f"{args.path[0]}: no row of a step yet")
        result = answer(args, [copy])
    except TraceError as error:
        raise TraceError(str(error).replace(str(copy), str(args.path[0]))) from error
    repairs = [str(repair).replace(str(copy), str(args.path[0])) for repair in result.repairs]
    return result._replace(repairs=repairs)


def _lines(args: Namespace, answer: _Answer, copy: Path, changes: _Changes) -> list[str]:
    try:
        return changes.since(_answered(args, answer, copy).document)
    except TraceError:
        return []  # too few rows as yet


class _Changes:
    """The change that was printed last, and lines for the next."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] | None = None
        self._is_first = True
        self._stalls = -1  # the last step of a stall that was printed

    def since(self, document: Mapping[str, Any]) -> list[str]:
        """Word what has changed since the answer before, in lines."""
        steps, lines = document["steps"], []
        recent = steps[-min(_RECENT, len(steps))]
        spans = [finding for finding in document["findings"] if "to_step" in finding["scope"]]
        now = next(
            (f for f in spans if not f["scope"]["steps"] and f["scope"]["to_step"] >= recent),
            None,  # no stall
        )
        for stall in (f for f in spans if f["scope"]["steps"] and f["scope"]["to_step"] > self._stalls):
            if not self._is_first and stall["kind"] == "outlier_steps":
                lines.append(stall["title"])
            self._stalls = stall["scope"]["to_step"]
        if self._differs(now):
            if now is not None:
                lines.append(_worded(now))
            elif self._last is not None:
                lines.append(f"at step {steps[-1]:,}: no longer; {self._last['title']}")
            self._last = now
        if self._is_first and not lines:
            lines.append(f"steps {steps[0]:,} to {steps[-1]:,}: nothing stands out")
        self._is_first = False
        return lines

    def _differs(self, now: Mapping[str, Any] | None) -> bool:
        if now is None or self._last is None:
            return now is not self._last
        costs = sorted((finding["gain_ms"]["mid"] or 0.0) for finding in (now, self._last))
        return _subject(now) != _subject(self._last) or costs[1] > _OTHER_COST * costs[0]


def _subject(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    scope = finding["scope"]
    return finding["kind"], scope["ranks"], scope["operations"]


def _worded(finding: Mapping[str, Any]) -> str:
    """Word a finding: since when, who, where, how much."""
    scope = finding["scope"]
    what = f"{listed(scope['ranks'])} {'is' if len(scope['ranks']) == 1 else 'are'} the straggler"
    what = what if finding["kind"] == "late_rank" else "all ranks are slower"
    part = f"in {listed(scope['operations'])}" if scope["operations"] else "outside the log's columns"
    gain_ms, share = finding["gain_ms"]["mid"], finding["gain_share"]
    saving = "no saving is claimed" if gain_ms is None else f"{gain_ms:.3g} ms ({in_percent(share)})"
    return f"since step {scope['from_step']:,}: {what}, {part}; {saving}"
