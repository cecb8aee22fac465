#!/usr/bin/env python3
"""Analyse the traces of distributed training: parse the command line, run one option, show its result."""

try:
    import atexit
    import datetime  # noqa: F401  (a signal while msgspec imports it would end in a segmentation fault)
    import gc
    import logging
    import os
    import signal
    import sys
    from collections.abc import Sequence
    from typing import NoReturn

    from analyzer import cli
    from analyzer.base.errors import AnalyzeError, one_line
    from analyzer.cli import arguments
except KeyboardInterrupt:  # without a traceback
    raise SystemExit(130) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one option; return the process's exit code (0 done, 1 unusable data, 2 wrong usage)."""
    try:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no matrix is multiplied, so threads only cost
        args = arguments.parse(sys.argv[1:] if argv is None else argv)
        _set_up_logging(args.logging_level)
        from analyzer.report.show import show

        return int(cli.run(args, show).exit_code)
    except AnalyzeError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:  # `--help | head` closed standard output, which is no error
        from analyzer.base.outputs.atomic import abandon

        abandon(sys.stdout)
        return 0
    except OSError as error:  # that no code has translated
        return _failed(": ".join(filter(None, (error.filename, error.strerror or str(error)))))
    except MemoryError:
        return _failed("not enough memory; --jobs 1 needs less")
    except ImportError as error:
        return _failed(f"{error}; python3 -m pip install -r requirements.txt")
    except KeyboardInterrupt:
        print("analyze.py: interrupted", file=sys.stderr)
        return 130


def _failed(message: str, code: int = AnalyzeError.exit_code) -> int:
    print(one_line(f"analyze.py: error: {message}"), file=sys.stderr)
    return code


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def _set_up_logging(level: int) -> None:
    logging.raiseExceptions = False  # a closed standard error must not fail the run
    logging.captureWarnings(True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("analyze.py: %(levelname)s: %(message)s"))
    # libraries log only for debugging
    handler.addFilter(lambda record: record.name == "root" or level <= logging.DEBUG)
    logging.basicConfig(level=level, handlers=[handler])


def run_command() -> NoReturn:
    """Run the command line of this process, or complete it for a shell, and exit."""
    if (line := os.environ.get("COMP_LINE")) is not None:
        from analyzer.cli.completion import completions

        print("\n".join(completions(line[: int(os.environ.get("COMP_POINT", len(line)))], *sys.argv[2:3])))
        sys.exit(0)
    # millions of small objects and hardly a cycle: by default the collector takes 10 % of a diagnosis
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # removes temporary files
    sys.exit(main())


if __name__ == "__main__":
    run_command()
