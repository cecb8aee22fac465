"""The command line: ``[OPTION] PATH... [flags]``, or the same by flags; help, and suggestions."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from analyzer import cli
from analyzer.base.errors import UsageError, meant, whole_number
from analyzer.cli import WHAT_IF
from analyzer.report import FORMATS, PARQUET

VERSION = "2.0.0"
#: Where BytePS writes its traces.
_DIRECTORY = "BYTEPS_TRACE_DIR"
_WIDTH = 100
#: Options that write a trace or a picture, and options whose only `--output` is a table.
_WRITERS, _TABLES = ("combine", "collect", "graph", "3dcompare"), ("diagnose", "statistic", "compare")
#: Defaults of flags that only some options declare but shared code reads.
_NOT_GIVEN: dict[str, Any] = {flag: False if "action" in how else None for flag, how in cli.SHARED.items()}
_NOT_GIVEN |= {"sub_option": None, PARQUET: None, "filter": (), "comm": []}

_BRIEF = """\
analyze.py says where the milliseconds of a distributed training step go, and what would save some.

  analyze.py JOB                          what is slow, why, and what to do first
  analyze.py compare BASE NEW             what changed between two runs
  analyze.py whatif JOB bandwidth=2       how long a step takes with twice the bandwidth

JOB is what the job wrote: a directory, or files (chrome traces, DAGs in GML, digests, ...).
Without JOB it is the directory in $BYTEPS_TRACE_DIR, which is not set.

analyze.py --help lists all options, analyze.py OPTION --help the flags of one.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line with the flags of its option; raise UsageError."""
    if not argv and not os.environ.get(_DIRECTORY):
        sys.stderr.write(_BRIEF)
        raise SystemExit(UsageError.exit_code)
    option, words = split_option(argv)
    if option is None and not {"-h", "--help"}.isdisjoint(argv):
        sys.stdout.write(help_of_all())
        raise SystemExit(0)
    parser = parser_of(option or "diagnose")
    args, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        raise UsageError(_unrecognized(unknown[0], words, args, parser))
    for word in args.words[:1] if option is None else ():
        near = "" if os.path.exists(word) or "," in word else meant(word, [*cli.NAMES, "--version", "--help"])
        if near:
            raise UsageError(f"{word}: no such file or directory, nor an option{near}")
    args.path = expand_paths(_paths(args))
    del args.words
    _check_shown(args)
    return args


def split_option(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split the option's name from the rest of a command line."""
    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("--option", "--type", metavar="OPTION", type=_option)
    args, words = parser.parse_known_args(argv)
    if args.option is not None:
        return args.option, words
    first = next((i for i, word in enumerate(argv) if not word.startswith("-")), len(argv))
    for i, word in enumerate(argv):
        follows_flag = i > 0 and argv[i - 1].startswith("-")
        if word in cli.NAMES and (i == first or not (follows_flag or os.path.exists(word))):
            return word, [*argv[:i], *argv[i + 1 :]]
    return None, list(argv)


def _unrecognized(
    flag: str, argv: Sequence[str], args: argparse.Namespace, parser: argparse.ArgumentParser
) -> str:
    """Suggest a flag or an edit in place of a flag that the option does not have."""
    from replay.edit import as_edit

    name, _, value = flag.lstrip("-").partition("=")
    if instead := cli.REMOVED.get(flag.partition("=")[0]):
        return f"--{name} was removed: {instead}"
    message = f"unrecognized argument: {flag}"
    if name in FORMATS:
        return f"{message}; did you mean --format {name}?"
    for after in argv[argv.index(flag) + 1 :][:1] if "=" not in flag else ():
        value = "" if after.startswith("-") or os.path.exists(after) else after
    flags = [known.lstrip("-") for action in parser._actions for known in action.option_strings]
    near = meant(name, [*flags, "option"]).replace("mean ", "mean --")
    if not near and flag.startswith("--") and (edit := as_edit(name, value)):
        is_what_if = args.sub_option == WHAT_IF
        near = f"; did you mean {edit}?" if is_what_if else f"; for an edit: analyze.py whatif JOB {edit}"
    return f"{message}{near or ' (see --help)'}"


def _paths(args: argparse.Namespace) -> list[str]:
    """Take the paths from the words; the edits among the words of a what-if go to `--set`."""
    words = [*args.words, *(args.path or ())]
    if args.sub_option == WHAT_IF:
        args.set = [*args.set, *filter(_is_edit, words)]
        words = [word for word in words if not _is_edit(word)]
        for word in words[1:]:
            if not os.path.exists(word) and "/" not in word:
                raise UsageError(f"{word}: no such file, and an edit is name=value, such as bandwidth=2")
    elif edit := next((word for word in args.words if _is_edit(word) and "/" not in word), ""):
        raise UsageError(f"{edit}: no such file; for an edit: analyze.py whatif JOB {edit}")
    if words:
        return words
    for flag in ("html", "xlsx", "cluster"):  # these flags take the word after them
        value = getattr(args, flag)
        if isinstance(value, str) and os.path.exists(value):
            raise UsageError(f"--{flag} {value}: is taken as the value of --{flag}; write paths before it")
    if directory := os.environ.get(_DIRECTORY):
        return [directory]
    example = cli.load(args.option).EXAMPLE
    raise UsageError(f"no path is given, and {_DIRECTORY} is not set; e.g. {example}")


def _check_shown(args: argparse.Namespace) -> None:
    """Refuse flags on what is shown that do not fit together."""
    if args.brief and args.format != "json":
        raise UsageError("--brief shortens JSON: add --format json")
    drawn = "3dcompare.html" if args.option == "3dcompare" else ""
    if args.open and not args.html and Path(args.output or drawn).suffix != ".html":
        raise UsageError("--open shows a page: add --html")
    if args.format == PARQUET:
        if args.option in _WRITERS:
            raise UsageError(f"--format parquet has no effect with --option {args.option}; use --xlsx")
        if args.output is None:
            raise UsageError("--format parquet needs --output FILE.parquet")
        args.parquet, args.output = args.output, None
    elif args.output is not None and args.option in _TABLES:
        raise UsageError("--output has an effect only with --format parquet; --html and --xlsx name files")


def _is_edit(word: str) -> bool:
    """Tell edits, and `help`, from paths that exist."""
    return ("=" in word or word == "help") and not any(map(os.path.exists, (word, *word.split(","))))


def expand_paths(words: Sequence[str]) -> list[Path]:
    """Split words at their commas into paths; a word that exists as written is one path."""
    parts = [part for word in words for part in ([word] if os.path.exists(word) else word.split(","))]
    paths = [Path(part) for part in parts if part]
    if not paths:
        raise UsageError("--path: names no file or directory")
    return paths


# ---- help


def help_of_all() -> str:
    """Write the page of ``--help``: examples, options, and the flags that most options have."""
    first_clauses = {name: re.split(r"[:;(]", cli.load(name).HELP)[0].strip() for name in cli.MODULES}
    names = [f"  {name:<12}{text}" for name, text in {**first_clauses, **_SHORT_HELP}.items()]
    return "\n".join((_ALL_HEAD, *names, _ALL_TAIL))


_ALL_HEAD = """\
Where do the milliseconds of a distributed training step go, and what would save some?

  analyze.py JOB                            what is slow, why, and what to do first
  analyze.py statistic JOB --sort           how long each operation takes
  analyze.py compare BASE NEW               what changed between two runs
  analyze.py whatif JOB bandwidth=2         how long a step takes with twice the bandwidth
  analyze.py combine JOB --output all.json  one timeline of all ranks, on one clock

usage: analyze.py [OPTION] PATH... [flags]
       analyze.py --option OPTION --path PATH... [flags]

options (analyze.py OPTION --help lists the flags and variants of one):"""

#: Help for the short words of `cli.SHORT`.
_SHORT_HELP = {
    WHAT_IF: "how long an edited job takes (replay --sub_option whatif); without edits, those that save most",
    "breakdown": "computation, communication and idle time of each step (statistic --sub_option breakdown)",
    "collectives": "size, time and bandwidth of collectives (statistic --sub_option collectives)",
    "kernels": "time of each kind of kernel (statistic --group_by kernel_kind)",
}
_ALL_TAIL = """\

flags of most options:
  --sub_option, --group_by   a variant of the option; rows by operation, operator, kernel kind, ...
  --sort, --head N, --full   largest total (or part of the change) first; the first N rows; all of them
  --format FORMAT            table, json (with --brief in 4 kB), csv, markdown, or parquet --output FILE
  --html [FILE] [--open]     also one self-contained page (and show it); --xlsx [FILE] a workbook
  --quiet                    print the result only
  --output, --save FILE      the trace or picture; the job's digest, which can be a path later
  --step N, --real_step MS   one recorded step; the time of a step without the profiler
  --filter, --comm           keep only these communications; what else is communication
  --step_by, --rank_by       what marks a step; what tells the ranks in one file apart
  --jobs N, --cluster A      processes that read files; a Dask cluster that does

Standard output carries the result. In bash, complete -o default -C analyze analyze completes words.
Exit code: 0 done, 1 the data is unusable, 2 the command line is wrong, 3 slower than --fail_above.
"""


# ---- flags


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with argparse's message."""
        message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
        raise UsageError(f"{message} (see --help)")


def parser_of(option: str) -> argparse.ArgumentParser:
    """Build the parser of an option, or of `whatif`: its own flags, and those of all options."""
    module = cli.load(option)
    edits = " [NAME=VALUE...]" if option == WHAT_IF else ""
    parser = _Parser(
        prog=f"analyze.py {option}",
        usage=f"analyze.py {option} PATH...{edits} [flags]",
        description=f"{textwrap.fill(_SHORT_HELP.get(option, module.HELP), _WIDTH)}\n\ne.g. {module.EXAMPLE}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH),
        allow_abbrev=False,
    )
    parser.set_defaults(**_NOT_GIVEN, option=cli.option_of(option))
    parser._optionals.title = f"flags of {option}"
    module.add_arguments(parser)
    if parser.get_default("option") in _TABLES:
        parser.add_argument("--output", metavar="FILE", type=Path, help="file of --format parquet")
    if option in cli.SHORT:
        parser.set_defaults(**cli.SHORT[option][1])
    _add_common(parser.add_argument_group("flags of all options"))
    return parser


def _add_common(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--version", action="version", version=f"analyze.py {VERSION}")
    add("words", nargs="*", metavar="PATH", help=argparse.SUPPRESS)
    add("--path", nargs="+", action="extend", metavar="PATH",
        help="files or directories; several as a comma list, separate words, or repeated "
        "(default: $BYTEPS_TRACE_DIR)")  # fmt: skip
    add("--format", choices=FORMATS, default="table", help="of standard output; parquet: of --output")
    add("--brief", action="store_true", help="with --format json: the answer in 4 kB")
    add("--xlsx", metavar="FILE", nargs="?", const=True, help="also write the tables as a workbook")
    add("--html", metavar="FILE", nargs="?", const=True, help="also write one self-contained page")
    add("--open", action="store_true", help="show the page of --html in a browser")
    add("--force", action="store_true",
        help="overwrite existing output files (never inputs)")  # fmt: skip
    add("--cluster", metavar="ADDRESS", nargs="?", const="",
        help="read files on a Dask cluster: tcp://host:8786, or a scheduler file (*.json) "
        "(default: $DASK_SCHEDULER_ADDRESS)")  # fmt: skip
    add("--jobs", metavar="N", type=cli.whole_above_zero,
        help="processes that read files (default: all cores)")  # fmt: skip
    add("--progress", action=argparse.BooleanOptionalAction, help="bars (default: on a terminal)")
    add("--logging_level", metavar="LEVEL", type=_level, default=logging.INFO, help="default 20 (INFO)")
    add("--quiet", "--pretty", action="store_true", help="print the result only")
    add("--full", action="store_true", help="show every row and every table")


def _option(text: str) -> str:
    if text not in cli.NAMES:
        near = meant(text, cli.MODULES) or f"; there are {', '.join(cli.MODULES)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not an option{near}")
    return text


def _level(text: str) -> int:
    level = whole_number(text)
    if level is None:
        level = logging.getLevelName(text.upper())
    if not isinstance(level, int):
        raise argparse.ArgumentTypeError(f"{text!r} is not a logging level such as DEBUG or WARNING")
    return level
