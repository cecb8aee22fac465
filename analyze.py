#!/usr/bin/env python3
"""Analyse the traces of distributed training: parses arguments, runs one option, shows its result."""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the rest is imported an interrupt just ends this

import argparse
import atexit
import contextlib
import gc
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import options
from errors import AnalyzeError, UsageError, one_line, whole_number

__version__ = "1.0.0"

_DIRECTORY = "BYTEPS_TRACE_DIR"  # where BytePS writes its traces
_ERROR = "analyze.py: error: "
_LEAST_BYTES = 210 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one option; return the process's exit code (0 done, 1 unusable data, 2 wrong usage)."""
    # nothing here multiplies matrices, and threads that wait for some to come take a core at start-up
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        check_flags(parser, args)
        _set_up_logging(args.logging_level)
        from formats.stream import max_unpacked

        max_unpacked.set(args.max_unpacked)
        with warnings.catch_warnings():
            warnings.showwarning = _log_warning
            return _run(args)
    except AnalyzeError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:  # `--help | head` closed our standard output: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # what no one nearer to the file has translated
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{error.strerror or error}")
    except MemoryError:
        return _failed("not enough memory; --jobs 1 needs less")
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        return _failed(f"{error} (memory, or a limit of processes?)")
    except ModuleNotFoundError as error:
        return _failed(f"{error}; python3 -m pip install -r requirements.txt")
    except ImportError as error:  # a library that memory is too small for
        last = next(reversed(str(error).strip().splitlines()), type(error).__name__)
        return _failed(f"a library cannot be loaded: {last}")
    except KeyboardInterrupt:
        print("analyze.py: interrupted", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    _check_memory()
    from outputs.atomic import Outputs
    from outputs.rules import check_named, guard
    from parallel import progress
    from trace_utils import is_input

    args.path = expand_paths(args.path)
    with Outputs(guard(args, is_input)) as outputs:
        check_named(args, outputs)
        with _cluster(args), progress.heartbeat(args.progress):
            result = options.load(args.option).run(args)
        import report

        report.show(result, args, outputs)
    return result.exit_code


@contextlib.contextmanager
def _cluster(args: argparse.Namespace) -> Iterator[None]:
    """Let files be read on the cluster of `--cluster`, if there is one."""
    if args.cluster is None:
        yield
        return
    import parallel
    from parallel import cluster

    address = cluster.checked_address(args.cluster)
    with cluster.connected(address, args.jobs) as connected, parallel.working_on(connected):
        yield


def _check_memory() -> None:
    """Refuse to begin where `ulimit -v` leaves too little to load numpy and scipy, which then may hang."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < _LEAST_BYTES:
        raise AnalyzeError(f"{_LEAST_BYTES >> 20} MiB of address space are needed at least (ulimit -v)")


def _failed(message: str, code: int = AnalyzeError.exit_code) -> int:
    """Print `message` as one line, whatever the names in it hold; return `code`."""
    print(one_line(f"{_ERROR}{message}"), file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and end with exit code 2."""
        raise SystemExit(_failed(f"{message} (see --help)", UsageError.exit_code))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, with every option's own flags in a group."""
    parser = _Parser(
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


def check_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse (`UsageError`) flags that the chosen option does not heed, rather than ignore them."""
    heeded = options.load(args.option).FLAGS
    known = frozenset[str]().union(*(options.load(name).FLAGS for name in options.MODULES))
    for action in parser._actions:  # argparse offers no other list of what was declared
        flag = action.dest
        if flag in known - heeded and getattr(args, flag) != parser.get_default(flag):
            raise UsageError(f"{action.option_strings[0]} has no effect with --option {args.option}")


def expand_paths(words: Sequence[str] | None) -> list[Path]:
    """Return the paths meant by the words of `--path`.

    Without any word it is the directory that BytePS was told to trace into. A word that exists as written
    is one path; any other is split at its commas. What does not exist is reported by whoever opens it.

    Raises
    ------
    UsageError
        The words name no path at all.
    """
    if words is None:
        words = [os.environ.get(_DIRECTORY, "")]
        if not words[0]:
            raise UsageError(f"--path is missing, and {_DIRECTORY} is not set")
    paths: list[Path] = []
    for word in words:
        parts = [word] if os.path.exists(word) else word.split(",")
        paths.extend(Path(part) for part in parts if part)
    if not paths:
        raise UsageError("--path: names no file or directory")
    return paths


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--option", "--type", default="diagnose", choices=options.MODULES, metavar="OPTION",
        help=f"{', '.join(options.MODULES)} (default: diagnose)")  # fmt: skip
    add("--path", nargs="+", action="extend", metavar="PATH",
        help="files or directories; several as a comma list, separate words, or repeated "
        "(default: $BYTEPS_TRACE_DIR)")  # fmt: skip
    add("--sub_option", metavar="VARIANT", help="a variant of the option (listed with it)")
    add("--filter", metavar="A,B", type=_names, default=(),
        help="only these communication operations; all else stays")  # fmt: skip
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
    add("--head", metavar="N", type=_positive, help="only the first N rows")
    add("--format", choices=("table", "json", "csv"), default="table", help="of standard output")
    add("--output", metavar="FILE", type=Path, help="where the trace or picture goes (.gz compresses)")
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
    add("--jobs", metavar="N", type=_positive, help="processes that read files (default: all cores)")
    add("--max_unpacked", metavar="SIZE", type=_size, help="bytes that a .gz file may unpack to, such as 8G")
    add("--progress", action=argparse.BooleanOptionalAction, help="bars (default: on a terminal)")
    add("--logging_level", metavar="LEVEL", type=_level, default=logging.INFO, help="default 20 (INFO)")
    add("--pretty", action="store_true", help="only the result, no per-step commentary")
    add("--full", action="store_true", help="every row and every table on a terminal")
    add("--del_queue", action="store_true",
        help="a communication as its partitions and queue stages (critical, replay)")  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _some(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a part of a name is expected")
    return text


def _positive(text: str) -> int:
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


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


class _OneLine(logging.Formatter):
    """Each message as one line that can be printed, at most 300 characters long."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        return one_line(super().format(record))


def _set_up_logging(level: int) -> None:
    logging.raiseExceptions = False  # a closed standard error must not fail the run
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("analyze.py: %(levelname)s: %(message)s"))
    handler.addFilter(lambda record: record.name == "root" or level <= logging.DEBUG)  # no libraries' news
    logging.basicConfig(level=level, handlers=[handler])


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Take a library's warning for what it is: news for developers."""
    logging.getLogger("warnings").debug("%s:%d: %s: %s", filename, lineno, category.__name__, message)


def _terminated(signum: int, frame: object) -> None:
    """End as at any error, so that temporary files are removed."""
    sys.exit(128 + signum)


def _fill_closed_streams() -> None:
    """Open what is closed of the standard streams on nothing, so that no output file gets their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)


def _log_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Take an error in a library's clean-up, after an error that we report, for what it is."""
    logging.getLogger("warnings").debug("ignored: %r", ignored.exc_value)


if __name__ == "__main__":
    atexit.register(gc.freeze)  # what is left at the end goes with the process: no look at it for cycles
    gc.set_threshold(100_000, 20, 20)  # millions of small objects and hardly a cycle: it would find nothing
    sys.unraisablehook = _log_ignored
    _fill_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
