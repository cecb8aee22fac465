#!/usr/bin/env python3
"""Analyse the traces of distributed training: parses arguments, runs one option, shows its result."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import options
from errors import AnalyzeError, UsageError

__version__ = "0.1.0"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one option; return the process's exit code (0 done, 1 unusable data, 2 wrong usage)."""
    # nothing here multiplies matrices, and threads that wait for some to come take a core at start-up
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = build_parser()
    args = parser.parse_args(argv)
    _set_up_logging(args.logging_level)
    try:
        args.path = expand_paths(args.path)
        result = options.load(args.option).run(args)
        import report

        report.show(result, args)
    except AnalyzeError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:  # `… | head` closed our standard output: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # what no one nearer to the file has translated
        return _failed(f"{error.filename or args.path[0]}: {error.strerror or error}", AnalyzeError.exit_code)
    except KeyboardInterrupt:
        print("analyze.py: interrupted", file=sys.stderr)
        return 130
    return result.exit_code


def _failed(message: str, code: int) -> int:
    """Print `message` as one line, whatever the names in it hold; return `code`."""
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    print(f"analyze.py: error: {line}", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, with every option's own flags in a group."""
    parser = argparse.ArgumentParser(
        prog="analyze.py",
        description="Analyse the traces of a distributed training job.",
        epilog="Standard output carries the result; messages go to standard error. "
        "Exit code: 0 done, 1 the data is unusable, 2 the command line is wrong.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"analyze.py {__version__}")
    _add_common(parser)
    for name in options.MODULES:
        module = options.load(name)
        group = parser.add_argument_group(
            f"--option {name}", f"{textwrap.fill(module.HELP, 76)}\ne.g. {module.EXAMPLE}"
        )
        module.add_arguments(group)
    return parser


def expand_paths(words: Sequence[str]) -> list[Path]:
    """Return the paths meant by the words of `--path`.

    A word that exists as written is one path; any other is split at its commas. Nothing is checked
    here: what does not exist is reported by whoever opens it.

    Raises
    ------
    UsageError
        The words name no path at all.
    """
    paths: list[Path] = []
    for word in words:
        parts = [word] if os.path.exists(word) else word.split(",")
        paths.extend(Path(part) for part in parts if part)
    if not paths:
        raise UsageError("--path: names no file or directory")
    return paths


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    names = ", ".join(options.MODULES)
    add("--option", "--type", required=True, choices=options.MODULES, metavar="OPTION", help=names)
    add("--path", required=True, nargs="+", action="extend", metavar="PATH",
        help="files or directories; several as a comma list, separate words, or repeated")  # fmt: skip
    add("--sub_option", metavar="VARIANT", help="a variant of the option (listed with it)")
    add("--filter", metavar="A,B", type=_names, default=(),
        help="only these communication operations; all else stays")  # fmt: skip
    add("--step_by", metavar="NAME", help="the annotation that marks a step")
    add("--sort", action="store_true", help="longest (or largest change) first")
    add("--head", metavar="N", type=_positive, help="only the first N rows")
    add("--format", choices=("table", "json", "csv"), default="table", help="of standard output")
    add("--output", metavar="FILE", type=Path, help="where the trace or picture goes (.gz compresses)")
    add("--xlsx", metavar="FILE", nargs="?", const=True, help="also write the tables as a workbook")
    add("--html", metavar="FILE", nargs="?", const=True, help="also write one self-contained page")
    add("--jobs", metavar="N", type=_positive, help="processes that read files (default: all cores)")
    add("--progress", action=argparse.BooleanOptionalAction, help="bars (default: on a terminal)")
    add("--logging_level", metavar="LEVEL", type=_level, default=logging.INFO, help="default 20 (INFO)")
    add("--pretty", action="store_true", help="only the result, no per-step commentary")
    add("--full", action="store_true", help="every row and every table on a terminal")
    add("--del_queue", action="store_true",
        help="a communication as its partitions and queue stages (critical, replay)")  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _level(text: str) -> int:
    if text.isdecimal():
        return int(text)
    level = logging.getLevelName(text.upper())
    if not isinstance(level, int):
        raise argparse.ArgumentTypeError(f"{text!r} is no logging level; DEBUG, INFO, WARNING, ERROR")
    return level


def _set_up_logging(level: int) -> None:
    logging.basicConfig(level=level, format="analyze.py: %(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its font cache is no news to the user


def _terminated(signum: int, frame: object) -> None:
    """End as at any error, so that temporary files are removed."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
