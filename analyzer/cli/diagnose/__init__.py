"""`--option diagnose`: what is slow, why, and what to do first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import TraceError, UsageError, as_sentence, counted, listed
from analyzer.base.inputs import is_digest
from analyzer.base.names import brief
from analyzer.base.units import bounds_ms, in_ms, in_percent, ms_of
from analyzer.cli import READING, REAL, WHAT_IF, add_flags, asked, command, real, real_notes, refuse
from analyzer.report.result import Card, Chart, Column, Command, Result, Table, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
    from analyzer.answers.diagnose.finding import Evidence

HELP = (
    "what is slow, why, and what to do first: findings ranked by the time that a replay of the steps "
    "says they would save (also without --option)"
)
EXAMPLE = "analyze.py JOB"

#: The kind of the flaws of a recording, which are notes and not findings on standard output.
_QUALITY = "capture_quality"
#: Most keys of a finding's boxes.
_MOST_KEYS = 2_000

_BRIEF = (  # columns of a terminal; the items are the findings of the document, and `where`
    Column("id", "#", "int"),
    Column("gain_ms", "saves (ms)", "float", value=lambda row: row["gain_ms"]["mid"]),
    Column("gain_low_ms", "95 %: from", "float", value=lambda row: row["gain_ms"]["low"]),
    Column("gain_high_ms", "to", "float", value=lambda row: row["gain_ms"]["high"]),
    Column("gain_share", "of a step", "percent", 0),
    Column("title", "what", "sentence"),
    Column("ranks", "where", value=lambda row: row["where"]),
)
_FINDINGS = (
    *_BRIEF,
    Column("gain_after_above_ms", "after those above", "float"),
    Column("kind", "kind", value=lambda row: _words(row["kind"])),
    Column("cause", "why", "sentence"),
    Column("action", "what to do", "sentence"),
    Column("caveat", "caveat", "sentence"),
    Column("change", "what-if (--set)", value=lambda row: row["change"] or ""),
    Column("command", "command"),
)
_FRONTIER = (
    Column("part", "part"),
    Column("ms", "ms a step", "float", value=lambda share: ms_of(share.ns)),
    Column("share", "of a step", "percent"),
    Column("rank", "last in it"),
    Column("steps", "in steps", "percent", value=lambda share: share.ahead),
    Column("behind_ms", "behind the median (ms)", "float", value=lambda share: ms_of(share.ahead_ns)),
)
_SKIPPED = (
    Column("kind", "not checked", value=lambda skipped: _words(skipped.kind)),
    Column("reason", "because", "sentence"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, *REAL, "head")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="read a step log on as it grows, and print a line whenever the answer changes, until Ctrl-C",
    )


def run(args: Namespace) -> Result:
    """Diagnose the job at `--path`."""
    for path in filter(is_digest, args.path):
        raise UsageError(
            f"{path}: a digest has no single events: give the traces, or ask statistic or compare"
        )
    if args.follow:
        from analyzer.cli.diagnose.follow import follow

        return follow(args, _of_step_log)
    from trace_utils import held_by

    content = held_by(args.path)
    if content == "calls":
        return _of_dumps(args)
    if content == "steps":
        return _of_step_log(args)
    from analyzer.answers.diagnose.diagnosis import diagnose
    from collector.network.network_evidence import read_evidence
    from dag_utils import load_steps, read_partitions

    network = read_evidence(args.path, jobs=args.jobs, progress=args.progress)
    loaded = load_steps(args.path, asked(args), partitions=read_partitions(args.path, network), sizes=True)
    job = real(args, loaded)
    diagnosis = diagnose(job.loaded if job is not None else loaded, network.words, real=job)
    repairs = [*loaded.repairs, *network.repairs]
    return _result(args, diagnosis, loaded.recording.notes, repairs)


def _of_dumps(args: Namespace) -> Result:
    """Explain a hang from the flight-recorder dumps of its ranks."""
    from analyzer.answers.diagnose.hangs.find_hang import find_hang, hang_diagnosis, standing_of
    from analyzer.cli.diagnose.hang_tables import hang_tables, without_date
    from trace_utils import Request, read_ranks

    refuse(args, "has no effect on the dumps of a job that hangs", *READING, *REAL)
    mapped = read_ranks(args.path, standing_of, Request(jobs=args.jobs, progress=args.progress))
    ranks, paths, notes = {}, {}, []
    for dump in sorted(mapped.ranks, key=lambda dump: dump.made.last_ns if dump.made else -1):
        rank = dump.source.rank
        if dump.made is None or rank is None:
            notes.append(f"{dump.source.path}: left out: neither its name nor its groups tell its rank.")
        else:
            ranks[rank], paths[rank] = dump.made, str(dump.source.path)
    if not ranks:
        raise TraceError(f"{args.path[0]}: no dump tells its rank; call the files after their ranks")
    hang = find_hang(ranks)
    notes.append(f"The ranks are taken from {listed(sorted({dump.rank_by for dump in ranks.values()}))}.")
    result = _result(args, hang_diagnosis(hang, ranks, paths), notes, mapped.repairs)
    waits, groups = hang_tables(hang, ranks, paths)
    return result._replace(
        document={**result.document, "waits": waits},
        tables=[
            waits._replace(detail=True),
            without_date(waits)._replace(brief=True),
            groups._replace(full=True),
        ],
        notes=[*result.notes, *([] if args.full else [command(args, "diagnose", "--full")])],
    )


def _of_step_log(args: Namespace, read: Sequence[Path] = ()) -> Result:
    """Diagnose a step log, or the copy to `read` in its place."""
    from analyzer.answers.diagnose.step_logs.step_log_diagnosis import diagnose_step_log
    from analyzer.model.figures.job_figures import Wanted, load_figures

    refuse(args, "has no effect on a step log, whose steps no profiler slows", *REAL)
    job = load_figures(read or args.path, Wanted(rows=True), asked(args))
    diagnosis = diagnose_step_log(job)
    result = _result(args, diagnosis, (), job.repairs)
    table = Table.of("frontier", "The step by the last rank", _FRONTIER, diagnosis.frontier, full=True)
    return result._replace(tables=[*result.tables, *([table] if diagnosis.frontier else [])])


def _result(args: Namespace, diagnosis: Diagnosis, notes: Sequence[str], repairs: Sequence[str]) -> Result:
    from analyzer.answers.diagnose.diagnosis import further, headline

    numbered = list(enumerate(diagnosis.findings, 1))[: args.head]
    flaws = [ranked.finding for _, ranked in numbered if ranked.finding.kind == _QUALITY]
    shown = [ranked for _, ranked in numbered if ranked.finding.kind != _QUALITY]
    charts: Sequence[Chart] = ()
    if diagnosis.view is not None:
        from analyzer.cli.diagnose.diagnosis_charts import path_shares

        charts = path_shares(diagnosis.view)
    if args.html and not diagnosis.answer:
        from analyzer.cli.diagnose.diagnosis_charts import diagnosis_charts

        charts = diagnosis_charts(diagnosis, shown, charts)
    records = [_record(args, number, ranked) for number, ranked in numbered]
    rows = [
        {**record, "id": number, "where": _where(record["scope"]["ranks"], len(diagnosis.ranks))}
        for number, record in enumerate((record for record in records if record["kind"] != _QUALITY), 1)
    ]
    about = [_about(diagnosis, ranked) for ranked in shown]
    skipped = Table.of("skipped", "Not checked", _SKIPPED, diagnosis.skipped, full=True)
    return Result(
        option="diagnose",
        title=_subject(args, diagnosis),
        headline=headline(diagnosis),
        further=further(diagnosis),
        document=_document(diagnosis, records),
        tables=[
            Table.of("findings", "Findings", _FINDINGS, rows, about=about, detail=True),
            *([Table.of("findings", "Findings", _BRIEF, rows, brief=True)] if rows else []),
            *([skipped] if diagnosis.skipped else []),
        ],
        charts=charts,
        cards=[_card(args, ranked, keys) for ranked, keys in zip(shown, about, strict=True)],
        notes=[
            *(f"{as_sentence(f'{flaw.title}: {flaw.cause}')} {as_sentence(flaw.action)}" for flaw in flaws),
            *_not_shown(args, diagnosis),
            *diagnosis.notes,
            *(note for note in notes if not any(note == flaw.cause for flaw in flaws)),
            *_real_notes(diagnosis),
            *([] if diagnosis.view is None else [command(args, WHAT_IF)]),
        ],
        repairs=repairs,
    )


def _subject(args: Namespace, diagnosis: Diagnosis) -> str:
    """Name the paths, the number of ranks, and the steps."""
    numbers = diagnosis.numbers
    steps = [f"steps {numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else "one step"] if len(numbers) else []
    return " · ".join([*map(str, args.path), counted(len(diagnosis.ranks), "rank"), *steps])


def _where(ranks: Sequence[str], n_ranks: int) -> str:
    if n_ranks == len(ranks) > 1:
        return "both ranks" if n_ranks == 2 else "all ranks"
    return ", ".join(ranks) if len(ranks) <= 2 else f"{len(ranks)} ranks"


def _commands(args: Namespace, ranked: Ranked) -> tuple[Command | None, Command]:
    """Write the command that answers the gain, if the finding has edits, and the command that shows more."""
    what_if = command(args, WHAT_IF, *map(str, ranked.change)) if ranked.change else None
    return what_if, command(args, *(ranked.finding.look or ("critical",)))


def _card(args: Namespace, ranked: Ranked, about: Sequence[str]) -> Card:
    finding, caveat = ranked.finding, _caveat(ranked)
    cause = f"{finding.cause} ({caveat})" if caveat else finding.cause
    lines = [("", as_sentence(cause)), ("Do", as_sentence(finding.action))]
    lines += [("Example", _example(evidence)) for evidence in finding.evidence[:1]]
    what_if, look = _commands(args, ranked)
    if what_if:
        lines.append(("Try", what_if))
    if finding.look or not what_if:
        lines.append(("Look", look))
    saving, bar = "", None
    if ranked.gain is not None:
        bar = ranked.gain.mid_ns / 1e6, ms_of(ranked.gain.low_ns), ms_of(ranked.gain.high_ns)
        if ranked.share is not None:
            saving = f"{in_ms(ranked.gain.mid_ns)} ({in_percent(ranked.share)})"
    card = Card(as_sentence(finding.title).removesuffix("."), saving, lines, bar, about)
    for evidence in finding.evidence[:1]:
        if evidence.step is not None:
            card = card._replace(step=str(evidence.step), seen=key_of(evidence.rank, evidence.name))
    return card


def _caveat(ranked: Ranked) -> str:
    """Join the finding's caveat and the interval of a saving that is not claimed."""
    gain, caveat = ranked.estimate, ranked.finding.caveat
    if ranked.gain is not None and ranked.finding.is_upper_bound:
        return f"upper bound: {caveat}"
    if gain is None or ranked.gain is not None:
        return caveat
    unclaimed = f"no saving is claimed: {in_ms(gain.low_ns or 0.0)} to {in_ms(gain.high_ns or 0.0)}"
    return f"{caveat}; {unclaimed}" if caveat else unclaimed


def _about(diagnosis: Diagnosis, ranked: Ranked) -> list[str]:
    """List the keys of a finding's boxes: its operations on its ranks, and its evidence."""
    finding = ranked.finding
    if diagnosis.answer:
        return []
    ranks = finding.scope.ranks or diagnosis.ranks
    keys = [key_of(rank, name) for name in finding.scope.operations for rank in ranks]
    keys += [key_of(evidence.rank, evidence.name) for evidence in finding.evidence]
    return list(dict.fromkeys(keys))[:_MOST_KEYS]


def _example(evidence: Evidence) -> str:
    name, took = brief(evidence.name), in_ms(evidence.dur_ns)
    if evidence.step is None:
        return f"{evidence.path}: {evidence.rank} has {name} open"
    return f"step {evidence.step}, {evidence.rank}: {name}, {took}, starting at {in_ms(evidence.start_ns)}"


def _not_shown(args: Namespace, diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.small:
        yield f"{counted(diagnosis.small, 'finding')} hidden: under 1 % of a step, or not significant."
    if diagnosis.skipped:
        kinds = ", ".join(dict.fromkeys(_words(skipped.kind) for skipped in diagnosis.skipped))
        yield f"Not checked (data missing): {kinds}{'' if args.full or args.html else ' (--full says why)'}."


def _real_notes(diagnosis: Diagnosis) -> Sequence[str]:
    """Note a cost of the profiler that is not known where it matters, or does not explain the step."""
    real, view = diagnosis.real, diagnosis.view
    if real is None or view is None:
        return ()
    is_noted = real.is_another or real.source == "measured" or (real.source == "unknown" and view.has_device)
    return real_notes(real)[-1:] if is_noted else ()


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _document(diagnosis: Diagnosis, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    import numpy as np

    times = diagnosis.iteration_ns / 1e6
    known = len(times) > 0
    return {
        "iteration_ms": {
            "median": float(np.median(times)) if known else None,
            "mean": float(times.mean()) if known else None,
            "p95": float(np.percentile(times, 95)) if known else None,
            "real": _real_record(diagnosis) if known else None,
        },
        "limit": diagnosis.limit,
        "ranks": list(diagnosis.ranks),
        "steps": list(diagnosis.numbers),
        "findings": records,
        "below_threshold": diagnosis.small,
        "skipped": [{"kind": skipped.kind, "reason": skipped.reason} for skipped in diagnosis.skipped],
    }


def _real_record(diagnosis: Diagnosis) -> dict[str, Any]:
    """Write the step without the profiler: the recorded one where nothing tells another."""
    if diagnosis.real is not None:
        return {**bounds_ms(diagnosis.real), "source": diagnosis.real.source}
    mean_ms = float(diagnosis.iteration_ns.mean()) / 1e6
    return {**dict.fromkeys(("low", "mid", "high"), mean_ms), "source": "recorded"}


def _record(args: Namespace, number: int, ranked: Ranked) -> dict[str, Any]:
    finding, (what_if, look) = ranked.finding, _commands(args, ranked)
    scope, span = finding.scope, finding.scope.span
    return {
        "id": number,
        "kind": finding.kind,
        "title": finding.title,
        "gain_ms": bounds_ms(ranked.gain),
        "bound": "upper" if ranked.gain is not None and ranked.finding.is_upper_bound else None,
        "gain_share": ranked.share,
        "gain_after_above_ms": ranked.gain and ms_of(ranked.after_above_ns),
        "change": " ".join(map(str, ranked.change)) or None,
        "scope": {
            "ranks": list(scope.ranks),
            "steps": list(scope.steps),
            "operations": list(scope.operations),
            **({} if span is None else {"from_step": span.first, "to_step": span.last}),
        },
        **({} if span is None else {"lost_s": span.lost_ns / 1e9}),
        "evidence": [
            {
                "path": evidence.path,
                "rank": evidence.rank,
                "step": evidence.step,
                "name": evidence.name,
                "ts_ms": evidence.start_ns / 1e6,
                "dur_ms": evidence.dur_ns / 1e6,
            }
            for evidence in finding.evidence
        ],
        "cause": finding.cause,
        "action": finding.action,
        "caveat": _caveat(ranked),
        "command": what_if or look,
        "look": look,
    }
