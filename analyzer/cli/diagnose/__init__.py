"""`--option diagnose`: what is slow, why, and what to do first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from analyzer import cli
from analyzer.base.errors import TraceError, UsageError, as_sentence, counted, listed
from analyzer.base.inputs import is_digest
from analyzer.base.names import brief
from analyzer.base.units import in_ms, in_percent, ms_of
from analyzer.cli import READING, add_flags, asked, command, refuse
from analyzer.report.result import Card, Chart, Column, Command, Result, Table, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
    from analyzer.answers.diagnose.finding import Evidence
    from replay.edit import EditRequest

HELP = (
    "what is slow, why, and what to do first: findings ranked by the time that a replay of the steps "
    "says they would save (also without --option)"
)
EXAMPLE = "analyze.py JOB"

#: The kind of what makes the answer less sure: no finding beside those that cost time.
_QUALITY = "capture_quality"
#: Keys of what a finding is about, at most.
_MOST_KEYS = 2_000

_BRIEF = (  # of a place, a `Ranked`, where it is, and the command that answers it: what a terminal shows
    Column("id", "#", "int", value=lambda row: row[0]),
    Column("gain_ms", "saves (ms)", "float", value=lambda row: _gain(row[1], "mid_ns")),
    Column("gain_low_ms", "95 %: from", "float", value=lambda row: _gain(row[1], "low_ns")),
    Column("gain_high_ms", "to", "float", value=lambda row: _gain(row[1], "high_ns")),
    Column("gain_share", "of a step", "percent", 0, value=lambda row: row[1].share),
    Column("title", "what", "sentence", value=lambda row: row[1].finding.title),
    Column("ranks", "where", value=lambda row: row[2]),
)
_FINDINGS = (
    *_BRIEF,
    Column("gain_after_above_ms", "after those above", "float", value=lambda row: _after_above_ms(row[1])),
    Column("kind", "kind", value=lambda row: _words(row[1].finding.kind)),
    Column("cause", "why", "sentence", value=lambda row: row[1].finding.cause),
    Column("action", "what to do", "sentence", value=lambda row: row[1].finding.action),
    Column("caveat", "caveat", "sentence", value=lambda row: _caveat(row[1])),
    Column("change", "what-if (--set)", value=lambda row: _change(row[1])),
    Column("command", "command", value=lambda row: row[3]),
)
_SKIPPED = (
    Column("kind", "not checked", value=lambda skipped: _words(skipped.kind)),
    Column("reason", "because", "sentence"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "head")


def run(args: Namespace) -> Result:
    """Diagnose the job at `--path`."""
    for path in filter(is_digest, args.path):
        raise UsageError(
            f"{path}: a digest has no single events: give the traces, or ask statistic or compare"
        )
    from trace_utils import held_by

    holds = held_by(args.path)
    if holds == "calls":
        return _of_dumps(args)
    if holds == "steps":
        return _of_step_log(args)
    from analyzer.answers.diagnose.diagnosis import diagnose
    from collector.network.network_evidence import read_evidence
    from dag_utils import load_steps, read_partitions

    network = read_evidence(args.path, jobs=args.jobs, progress=args.progress)
    loaded = load_steps(args.path, asked(args), partitions=read_partitions(args.path, network), sizes=True)
    return _result(
        args,
        diagnose(loaded, network.words),
        loaded.recording.notes,
        [*loaded.repairs, *network.repairs],
    )


def _of_dumps(args: Namespace) -> Result:
    """Return why the job hangs whose ranks wrote down what they waited in."""
    from analyzer.answers.diagnose.hangs.find_hang import find_hang, standing_of
    from analyzer.answers.diagnose.hangs.hang_findings import hang_diagnosis
    from analyzer.cli.diagnose.hang_tables import hang_tables
    from trace_utils import Request, read_ranks

    refuse(args, "has no effect on the dumps of a job that hangs", *READING)
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
    sources = listed(sorted({standing.rank_by for standing in ranks.values()}))
    result = _result(
        args,
        hang_diagnosis(hang, ranks, paths),
        [*notes, f"The ranks are taken from {sources}."],
        mapped.repairs,
    )
    tables = hang_tables(hang, ranks, paths)
    tables[1] = tables[1]._replace(full=True)
    more = [] if args.full else [command(args, "diagnose", "--full")]  # who is where in each group
    return result._replace(
        document={**result.document, "waits": tables[0]}, tables=tables, notes=[*result.notes, *more]
    )


def _of_step_log(args: Namespace) -> Result:
    from analyzer.answers.diagnose.step_logs.step_log_diagnosis import diagnose_step_log
    from analyzer.model.figures.job_figures import load_figures
    from analyzer.model.figures.rank_figures import Wanted

    job = load_figures(args.path, Wanted(rows=True), cli.asked(args))
    return _result(args, diagnose_step_log(job), (), job.repairs)


def _result(
    args: Namespace,
    diagnosis: Diagnosis,
    notes: Sequence[str],
    repairs: Sequence[str],
) -> Result:
    """Return a diagnosis as a result."""
    from analyzer.answers.diagnose.diagnosis import further, headline

    numbered = list(enumerate(diagnosis.findings, 1))[: args.head]
    flaws = [ranked for _, ranked in numbered if ranked.finding.kind == _QUALITY]
    shown = list(enumerate((ranked for _, ranked in numbered if ranked.finding.kind != _QUALITY), 1))
    charts: Sequence[Chart] = ()
    if diagnosis.view is not None:
        from analyzer.cli.diagnose.diagnosis_charts import path_shares

        charts = path_shares(diagnosis.view)
    if args.html and not diagnosis.answer:
        from analyzer.cli.diagnose.diagnosis_charts import diagnosis_charts

        charts = diagnosis_charts(diagnosis, shown, charts)
    rows = [
        (number, ranked, _where(ranked, len(diagnosis.ranks)), _command(args, ranked))
        for number, ranked in shown
    ]
    about = [_about(diagnosis, ranked) for _, ranked in shown]
    skipped = Table.of("skipped", "Not checked", _SKIPPED, diagnosis.skipped, full=True)
    ask = [] if diagnosis.view is None else [command(args, cli.WHAT_IF)]
    return Result(
        option="diagnose",
        title=_subject(args, diagnosis),
        headline=headline(diagnosis),
        further=further(diagnosis),
        document=_document(args, diagnosis, numbered),
        tables=[
            Table.of("findings", "Findings", _FINDINGS, rows, about=about, detail=True),
            *([Table.of("findings", "Findings", _BRIEF, rows, brief=True)] if rows else []),
            *([skipped] if diagnosis.skipped else []),
        ],
        charts=charts,
        cards=[_card(args, diagnosis, ranked) for _, ranked in shown],
        notes=[*map(_flaw, flaws), *_not_shown(args, diagnosis), *diagnosis.notes, *notes, *ask],
        repairs=repairs,
    )


def _subject(args: Namespace, diagnosis: Diagnosis) -> str:
    """Return the line above the headline: the paths, how many ranks, which steps."""
    numbers = diagnosis.numbers
    steps = [f"steps {numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else "one step"] if len(numbers) else []
    return " · ".join([*map(str, args.path), counted(len(diagnosis.ranks), "rank"), *steps])


def _flaw(ranked: Ranked) -> str:
    """Return a flaw of the recording as sentences: it makes the answer less sure."""
    finding = ranked.finding
    return f"{as_sentence(f'{finding.title}: {finding.cause}')} {as_sentence(finding.action)}"


def _where(ranked: Ranked, n_ranks: int) -> str:
    ranks = ranked.finding.scope.ranks
    if n_ranks == len(ranks) > 1:
        return "both ranks" if n_ranks == 2 else "all ranks"
    return ", ".join(ranks) if len(ranks) <= 2 else f"{len(ranks)} ranks"


def _gain(ranked: Ranked, bound: str) -> float | None:
    return None if ranked.gain is None else ms_of(getattr(ranked.gain, bound))


def _after_above_ms(ranked: Ranked) -> float | None:
    return None if ranked.gain is None else ms_of(ranked.after_above_ns)


def _card(args: Namespace, diagnosis: Diagnosis, ranked: Ranked) -> Card:
    """Return a finding with all its details."""
    finding = ranked.finding
    caveat = f" ({_caveat(ranked)})" if _caveat(ranked) else ""
    lines = [("", as_sentence(finding.cause + caveat)), ("Do", as_sentence(finding.action))]
    lines += [("Example", _seen(evidence)) for evidence in finding.evidence[:1]]
    if ranked.change:
        lines.append(("Try", command(args, *_what_if(ranked.change))))
    if finding.look or not ranked.change:
        lines.append(("Look", command(args, *_look(ranked))))
    bar = (
        None
        if ranked.gain is None
        else (ranked.gain.mid_ns / 1e6, _gain(ranked, "low_ns"), _gain(ranked, "high_ns"))
    )
    title = as_sentence(finding.title).removesuffix(".")
    card = Card(title, _worth(ranked), lines, bar, _about(diagnosis, ranked))
    for seen in finding.evidence[:1]:
        if seen.step is not None:
            card = card._replace(step=str(seen.step), seen=key_of(seen.rank, seen.name))
    return card


def _caveat(ranked: Ranked) -> str:
    """Caveats of a finding; one is that its saving may be none."""
    gain, caveat = ranked.estimate, ranked.finding.caveat
    if gain is None or ranked.gain is not None:
        return caveat
    unclaimed = f"no saving is claimed: {in_ms(gain.low_ns or 0.0)} to {in_ms(gain.high_ns or 0.0)}"
    return f"{caveat}; {unclaimed}" if caveat else unclaimed


def _change(ranked: Ranked) -> str:
    return " ".join(map(str, ranked.change))


def _what_if(edits: Sequence[EditRequest]) -> list[str]:
    """Return the arguments of the command that answers what some edits save."""
    return [cli.WHAT_IF, *map(str, edits)]


def _command(args: Namespace, ranked: Ranked) -> Command:
    """Return the command that answers the gain of a finding; else the one that shows more of it."""
    return command(args, *(_what_if(ranked.change) if ranked.change else _look(ranked)))


def _look(ranked: Ranked) -> Sequence[str]:
    """Return the words of the command that shows more of a finding."""
    return ranked.finding.look or ("critical",)


def _worth(ranked: Ranked) -> str:
    """Return the saving; "" where nothing is claimed."""
    if ranked.gain is None or ranked.share is None:
        return ""
    return f"{in_ms(ranked.gain.mid_ns)} ({in_percent(ranked.share)})"


def _about(diagnosis: Diagnosis, ranked: Ranked) -> list[str]:
    """Return the keys of what a finding is about: its operations on its ranks, and its evidence."""
    finding = ranked.finding
    if diagnosis.answer:
        return []
    ranks = finding.scope.ranks or diagnosis.ranks
    keys = [key_of(rank, name) for name in finding.scope.operations for rank in ranks]
    keys += [key_of(evidence.rank, evidence.name) for evidence in finding.evidence]
    return list(dict.fromkeys(keys))[:_MOST_KEYS]


def _seen(evidence: Evidence) -> str:
    name, took = brief(evidence.name), in_ms(evidence.dur_ns)
    if evidence.step is None:
        return f"{evidence.path}: {evidence.rank} has {name} open for {took} at least"
    return f"step {evidence.step}, {evidence.rank}: {name}, {took}, starting at {in_ms(evidence.start_ns)}"


def _not_shown(args: Namespace, diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.small:
        yield f"{counted(diagnosis.small, 'finding')} hidden: under 1 % of a step, or not significant."
    if diagnosis.skipped:
        kinds = ", ".join(dict.fromkeys(_words(skipped.kind) for skipped in diagnosis.skipped))
        yield f"Not checked (data missing): {kinds}{'' if args.full or args.html else ' (--full says why)'}."


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _document(
    args: Namespace, diagnosis: Diagnosis, numbered: Sequence[tuple[int, Ranked]]
) -> dict[str, Any]:
    import numpy as np

    times = diagnosis.iteration_ns / 1e6
    known = len(times) > 0
    return {
        "iteration_ms": {
            "median": float(np.median(times)) if known else None,
            "mean": float(times.mean()) if known else None,
            "p95": float(np.percentile(times, 95)) if known else None,
        },
        "ranks": list(diagnosis.ranks),
        "steps": list(diagnosis.numbers),
        "findings": [_record(args, number, ranked) for number, ranked in numbered],
        "below_threshold": diagnosis.small,
        "skipped": [{"kind": skipped.kind, "reason": skipped.reason} for skipped in diagnosis.skipped],
    }


def _record(args: Namespace, number: int, ranked: Ranked) -> dict[str, Any]:
    finding = ranked.finding
    scope, span = finding.scope, finding.scope.span
    return {
        "id": number,
        "kind": finding.kind,
        "title": finding.title,
        "gain_ms": {bound: _gain(ranked, f"{bound}_ns") for bound in ("low", "mid", "high")},
        "gain_share": ranked.share,
        "gain_after_above_ms": _after_above_ms(ranked),
        "change": _change(ranked) or None,
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
        "command": str(_command(args, ranked)),
        "look": str(command(args, *_look(ranked))),
    }
