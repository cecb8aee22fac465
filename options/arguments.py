"""The command line: ``[OPTION] PATH... [flags]``, or the same by flags; help, and what was perhaps meant."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import options
from errors import UsageError, listed, meant, whole_number

VERSION = "1.0.0"
#: Where BytePS writes its traces.
_DIRECTORY = "BYTEPS_TRACE_DIR"
_HELP = ("-h", "--help")
_FORMATS = ("table", "json", "csv", "markdown")
_WIDTH = 100

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
    """Return the flags of a command line, those that its words stand for among them.

    Raises
    ------
    UsageError
        The command line is wrong, or a flag has no effect with the option.
    """
    if not argv and not os.environ.get(_DIRECTORY):
        sys.stderr.write(_BRIEF)
        raise SystemExit(UsageError.exit_code)
    if not set(argv).isdisjoint(_HELP):
        asked = [word for word in argv if word in options.names()]
        page = help_of(asked[0]) if asked else help_of_all()
        sys.stdout.write(f"{page.rstrip()}\n")
        raise SystemExit(0)
    parser = _parser()
    args, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        raise UsageError(f"unrecognized argument: {unknown[0]}{_meant_by(unknown[0], argv, args, parser)}")
    _read_words(args)
    _check_flags(parser, args)
    if args.path is None and not os.environ.get(_DIRECTORY):
        example = options.load(args.option).EXAMPLE
        raise UsageError(f"no path is given, and {_DIRECTORY} is not set; e.g. {example}")
    args.path = expand_paths(args.path)
    return args


def _meant_by(
    flag: str, argv: Sequence[str], args: argparse.Namespace, parser: argparse.ArgumentParser
) -> str:
    """Return which other flag, or which edit, was perhaps meant by a flag that there is not."""
    from replay.edits import as_edit

    name, _, value = flag.lstrip("-").partition("=")
    if name in _FORMATS:
        return f"; did you mean --format {name}?"
    for after in argv[argv.index(flag) + 1 :][:1] if "=" not in flag else ():
        value = "" if after.startswith("-") or os.path.exists(after) else after
    is_what_if = options.WHAT_IF in (*args.words[:1], args.option, args.sub_option)
    edit = as_edit(name, value, alike=False) if flag.startswith("--") else ""
    if edit:
        return f"; did you mean {edit}?" if is_what_if else f"; for an edit: analyze.py whatif JOB {edit}"
    names = [known.lstrip("-") for action in parser._actions for known in action.option_strings]
    near = meant(name, names).replace("mean ", "mean --")
    if not near and is_what_if and (edit := as_edit(name, value, alike=True)):
        return f"; did you mean {edit}?"
    return near or " (see --help)"


def _read_words(args: argparse.Namespace) -> None:
    """Set the flags that the words mean: an option's name, then paths, after `whatif` edits as well."""
    words = args.words
    if words and args.option is None and words[0] in options.names():
        args.option = words.pop(0)
    for word in words[1:]:
        if word in options.names() and args.option is None and not os.path.exists(word):
            others = [other for other in words if other != word]
            raise UsageError(f"{word}: the option comes first: analyze.py {shlex.join([word, *others])}")
    edits = [word for word in words if _is_edit(word)]
    for name, variant in _variants(words):
        raise UsageError(
            f"{variant}: no such file; as a variant: analyze.py {name} JOB --sub_option {variant}"
        )
    if words and args.option is None and not os.path.exists(words[0]) and "," not in words[0]:
        near = meant(words[0], [*options.names(), "--version"])
        if near:
            raise UsageError(f"{words[0]}: no such file or directory, nor an option{near}")
        is_word = words[0].isalpha() and not meant(words[0], os.listdir())
        if is_word and any(map(os.path.exists, words[1:])):
            names = ", ".join(options.names())
            raise UsageError(f"{words[0]}: no such file or directory, nor an option; there are {names}")
    if options.WHAT_IF in (args.option, args.option == "replay" and args.sub_option):
        args.option, args.sub_option = "replay", args.sub_option or options.WHAT_IF
        given, args.path = [*words, *(args.path or ())], None
        words = [word for word in given if not _is_edit(word)]
        args.set = [*args.set, *filter(_is_edit, given)]
        for word in words[1:]:
            if not os.path.exists(word) and "/" not in word:
                raise UsageError(f"{word}: no such file, and an edit is name=value, such as bandwidth=2")
    elif edits[:1] == ["help"]:
        raise UsageError("analyze.py --help lists all options, analyze.py OPTION --help the flags of one")
    elif edits and "/" not in edits[0]:
        raise UsageError(f"{edits[0]}: no such file; for an edit: analyze.py whatif JOB {edits[0]}")
    elif args.option is None:
        args.option = "diagnose"
    args.path = [*words, *(args.path or ())] or None
    del args.words
    for flag in ("html", "xlsx", "cluster"):  # a word after these is theirs
        value = getattr(args, flag)
        if args.path is None and isinstance(value, str) and os.path.exists(value):
            raise UsageError(f"--{flag} {value}: is taken as the value of --{flag}; write paths before it")


def _variants(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the words that name a variant of an option and no path, each after its option."""
    for word in words:
        if not os.path.exists(word):
            yield from (
                (name, word)
                for name in options.MODULES
                if word in getattr(options.load(name), "VARIANTS", ())
            )


def _is_edit(word: str) -> bool:
    """Whether a word asks for an edit, or for the list of them; a path that exists does not."""
    return ("=" in word or word == "help") and not any(map(os.path.exists, (word, *word.split(","))))


def expand_paths(words: Sequence[str] | None) -> list[Path]:
    """Return the paths that the words mean, of which there is one (`UsageError`); without any, BytePS's.

    A word that exists as written is one path, any other is split at its commas. What does not exist is
    reported by whoever opens it.
    """
    if words is None:
        words = [os.environ[_DIRECTORY]]
    paths: list[Path] = []
    for word in words:
        parts = [word] if os.path.exists(word) else word.split(",")
        paths.extend(Path(part) for part in parts if part)
    if not paths:
        raise UsageError("--path: names no file or directory")
    return paths


def _check_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse (`UsageError`) flags that the chosen option does not use, rather than ignore them."""
    for action in _unheeded(parser, args.option):
        if getattr(args, action.dest) != parser.get_default(action.dest):
            flag = action.option_strings[0]
            heeding = [name for name in options.MODULES if action.dest in options.load(name).FLAGS]
            others = "; --html, --xlsx and --picture write what is shown" if action.dest == "output" else ""
            others += (
                f": analyze.py whatif JOB --set {shlex.quote(args.set[0])}" if action.dest == "set" else ""
            )
            names = listed(heeding, len(heeding))
            raise UsageError(f"{flag} has no effect with {args.option}; it is for {names}{others}")


def _unheeded(parser: argparse.ArgumentParser, option: str) -> list[argparse.Action]:
    """Return the flags that some options use and `option` does not."""
    known = frozenset[str]().union(*(options.load(name).FLAGS for name in options.MODULES))
    unheeded = known - options.load(option).FLAGS
    return [action for action in parser._actions if action.dest in unheeded]  # argparse has no other list


# ---- help


def help_of_all() -> str:
    """Return the page of ``--help``: examples, the options, and the flags that most of them take."""
    names = [f"  {name:<11}{_summary(options.load(name).HELP)}" for name in options.MODULES]
    return "\n".join((_ALL_HEAD, *names, _ALL_TAIL))


def _summary(text: str) -> str:
    """Return the first clause."""
    return re.split(r"[:;(]", text)[0].strip()


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

_WHAT_IF = "how long an edited job takes (replay --sub_option whatif); without edits, those that save most"
_SHARED = "flags that options share"
_ALL_TAIL = f"""\
  whatif     {_WHAT_IF}

flags of most options:
  --sub_option VARIANT   a variant of the option
  --filter A,B           only these communications; all else stays
  --sort, --head N       longest (or largest change) first; only the first N rows
  --format FORMAT        of standard output: table, json, csv or markdown
  --full                 every row and every table on a terminal
  --html [FILE]          also one self-contained page; --xlsx [FILE] a workbook, --picture FILE a chart
  --save FILE            also the job's digest, which can be a path later
  --step_by, --rank_by   what marks a step; what tells the ranks in one file apart
  --jobs N, --cluster A  processes that read files; a Dask cluster that does

Standard output carries the result; messages go to standard error.
Exit code: 0 done, 1 the data is unusable, 2 the command line is wrong."""


def help_of(option: str) -> str:
    """Return the page of one option: what it does, an example, its flags, then those that others share."""
    parser = _parser()
    for action in _unheeded(parser, option):
        action.help = argparse.SUPPRESS
    module = options.load(option)
    help_text, edits = (_WHAT_IF, " [NAME=VALUE...]") if option == options.WHAT_IF else (module.HELP, "")
    for group in parser._action_groups:
        if group.title != _SHARED:
            group.title = f"flags of {option}"  # some are declared by another option that has them, too
    parser.usage = f"analyze.py {option} PATH...{edits} [flags]"
    parser.description = f"{textwrap.fill(help_text, _WIDTH)}\n\ne.g. {module.EXAMPLE}"
    return parser.format_help()


# ---- flags


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong."""
        message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
        raise UsageError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, each option's own flags in a group."""
    parser = _Parser(
        prog="analyze.py",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH),
        allow_abbrev=False,
        add_help=False,
    )
    for name in options.MODULES:
        if declare := getattr(options.load(name), "add_arguments", None):
            declare(parser.add_argument_group(f"flags of {name}"))
    _add_common(parser.add_argument_group(_SHARED))
    return parser


def _add_common(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--version", action="version", version=f"analyze.py {VERSION}")
    add("words", nargs="*", metavar="PATH", help=argparse.SUPPRESS)
    add("--option", "--type", metavar="OPTION", type=_option, help="as the first word (default: diagnose)")
    add("--path", nargs="+", action="extend", metavar="PATH",
        help="files or directories; several as a comma list, separate words, or repeated "
        "(default: $BYTEPS_TRACE_DIR)")  # fmt: skip
    add("--sub_option", metavar="VARIANT", help="a variant of the option (listed with it)")
    add("--filter", metavar="A,B", type=_names, default=(),
        help="only these communications; all else stays")  # fmt: skip
    add("--comm", metavar="NAME", type=_some, action="append", default=[],
        help="operations with this in their name are communication, too (repeatable)")  # fmt: skip
    add("--step_by", metavar="NAME",
        help="what marks a step: an annotation, an instant, or args.KEY of the events")  # fmt: skip
    add("--rank_by", metavar="FIELD",
        help="what tells the ranks in one file apart: pid, tid or args.KEY of the events")  # fmt: skip
    add("--group_by", choices=("operation", "rank", *options.GROUPS),
        help="a row for each operation, or for each of each rank (default; of more than 16 ranks a table is "
        "by operation); of a device's work for each operator, module, annotation or kernel kind")  # fmt: skip
    add("--sort", action="store_true", help="longest (or largest change) first")
    number = options.whole_above_zero
    add("--head", metavar="N", type=number, help="only the first N rows")
    add("--format", choices=_FORMATS, default="table", help="of standard output")
    add("--output", metavar="FILE", type=Path,
        help="where the trace (.json) or picture goes (.gz packs it)")  # fmt: skip
    add("--xlsx", metavar="FILE", nargs="?", const=True, help="also write the tables as a workbook")
    add("--html", metavar="FILE", nargs="?", const=True, help="also write one self-contained page")
    add("--save", metavar="FILE", type=Path,
        help="also write the job's digest, which can be a path later (.gz packs it)")  # fmt: skip
    add("--picture", metavar="FILE", type=Path, help="also draw the first chart (.svg .png .pdf)")
    add("--force", action="store_true",
        help="replace files that this program did not write; inputs never")  # fmt: skip
    add("--cluster", metavar="ADDRESS", nargs="?", const="",
        help="read files on a Dask cluster: tcp://host:8786, a scheduler file (*.json) or local[:N] "
        "(default: $DASK_SCHEDULER_ADDRESS)")  # fmt: skip
    add("--jobs", metavar="N", type=number, help="processes that read files (default: all cores)")
    add("--max_unpacked", metavar="SIZE", type=_size, help="bytes that a .gz file may unpack to, such as 8G")
    add("--progress", action=argparse.BooleanOptionalAction, help="bars (default: on a terminal)")
    add("--logging_level", metavar="LEVEL", type=_level, default=logging.INFO, help="default 20 (INFO)")
    add("--pretty", action="store_true", help="only the result, no commentary on the way")
    add("--full", action="store_true", help="every row and every table on a terminal")
    add("--del_queue", action="store_true",
        help="a communication as its partitions and stages")  # fmt: skip


def _option(text: str) -> str:
    if text not in options.names():
        near = meant(text, options.MODULES) or f"; there are {', '.join(options.MODULES)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not an option{near}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _some(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a part of a name is expected")
    return text


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", text.upper(), re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 8G")
    return int(match[1] + "000" * " KMGT".index(match[2] or " "))


def _level(text: str) -> int:
    level = whole_number(text)
    if level is None:
        level = logging.getLevelName(text.upper())
    if not isinstance(level, int):
        raise argparse.ArgumentTypeError(f"{text!r} is not a logging level such as DEBUG or WARNING")
    return level
