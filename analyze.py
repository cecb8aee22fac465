#!/usr/bin/env python3
"""Analyse the traces of distributed training: parses arguments, runs one option, shows its result."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes some milliseconds to load

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # while the rest is imported an interrupt just ends this

import atexit
import contextlib
import gc
import logging
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import NoReturn, TextIO

import options
from errors import AnalyzeError, one_line
from options import arguments
from outputs.interrupts import abandon, ended

_ERROR = "analyze.py: error: "
_LEAST_BYTES = 210 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one option; return the process's exit code (0 done, 1 unusable data, 2 wrong usage)."""
    # nothing here multiplies matrices, and threads that wait for some to come take a core at start-up
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        args = arguments.parse(sys.argv[1:] if argv is None else argv)
        _set_up_logging(args.logging_level)
        with warnings.catch_warnings():
            warnings.showwarning = _log_warning
            return _run(args)
    except AnalyzeError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:  # `--help | head` closed our standard output: nothing is wrong
        abandon(sys.stdout)
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


def _run(args: Namespace) -> int:
    _check_memory()
    from outputs.atomic import Outputs
    from outputs.rules import check_named, guard
    from parallel import progress
    from trace_utils import is_input

    with Outputs(guard(args, is_input)) as outputs:
        check_named(args, outputs)
        with _cluster(args), progress.heartbeat(args.progress):
            result = options.load(args.option).run(args)
        import report

        report.show(result, args, outputs)
    return result.exit_code


@contextlib.contextmanager
def _cluster(args: Namespace) -> Iterator[None]:
    """Let files be read on the cluster of `--cluster`, if there is one."""
    if args.cluster is None:
        yield
        return
    import parallel
    from parallel import cluster

    address = cluster.checked_address(args.cluster)
    with cluster.connected(address, args.jobs) as connected, parallel.working_on(connected.map):
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


def run_command() -> NoReturn:
    """Run the command line of this process, and exit."""
    atexit.register(gc.freeze)  # what is left at the end goes with the process: no look at it for cycles
    gc.set_threshold(100_000, 20, 20)  # millions of small objects and hardly a cycle: it would find nothing
    sys.unraisablehook = _log_ignored
    _fill_closed_streams()
    sys.exit(ended(main))


if __name__ == "__main__":
    run_command()
