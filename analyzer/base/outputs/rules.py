"""Files that an output may replace: JSON with this program's mark as first member, or any with `--force`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from analyzer.base.errors import OutputError, UsageError
from analyzer.base.inputs import is_marked
from analyzer.base.outputs.atomic import Guard, Outputs, is_same

#: Suffixes of each flag's file, before a ``.gz``; a name without a suffix is fine.
_SUFFIXES = {"--xlsx": (".xlsx",), "--html": (".html", ".htm"), "--save": (".json",)}
_STILLS = (".svg", ".png", ".pdf")
_TIMELINE = (".json", ".trace")
#: Options whose `--output` is a timeline; the other options check the names of their pictures.
_TIMELINES = ("combine", "critical", "replay", "collect")
#: Options whose unnamed pages and workbooks lie beside their `--output`, or the first trace.
_BESIDE_OTHERS = ("combine", "3dcompare", "statistic")
#: Options that need no `--output`.
_MAY_WRITE_NOTHING = ("replay", "critical")
#: The `--output` without a file.
NO_FILE = Path("-")


def guard(args: Namespace, is_input: Callable[[Path, Sequence[Path]], bool]) -> Guard:
    """Make the check of an existing file before it is replaced.

    Inputs are never replaced; `is_input` tests a file against the paths of the command. Other files need
    `--force`, except empty files and JSON files with this program's mark.
    """

    def check(path: Path) -> None:
        if is_input(path, args.path):
            raise UsageError(f"{path}: is one of the inputs")
        if not args.force and path.stat().st_size and not is_marked(path):
            raise UsageError(f"{path}: exists; --force overwrites it")

    return check


def check_named(args: Namespace, outputs: Outputs) -> None:
    """Raise `UsageError` for an input, a directory, a file named twice, or another format's suffix."""
    flag_of: dict[Path, str] = {}
    for flag, path in _named(args):
        try:
            outputs.check(path)
        except (UsageError, OutputError) as error:
            raise type(error)(f"{flag} {error}") from None
        if path.exists() and not path.is_file():
            continue
        _check_suffix(args.option, flag, path)
        for target, other in flag_of.items():
            if is_same(path, target):
                raise UsageError(f"{flag} {path}: is the name that {other} gives")
        flag_of[path.resolve()] = flag


def _named(args: Namespace) -> Iterator[tuple[str, Path]]:
    """Yield (flag, path) for each output file that the command line names."""
    for flag in ("output", "xlsx", "html", "picture", "save"):
        value = getattr(args, flag)
        if value is None or (value is True and args.option in _BESIDE_OTHERS):
            continue
        path = default_file(args.path[0], args.option, flag) if value is True else Path(value)
        if path != NO_FILE:
            yield f"--{flag}", path
        elif flag != "output" or args.option not in _MAY_WRITE_NOTHING:
            raise UsageError(f"--{flag} -: nothing goes to standard output but the answer; name a file")


def default_file(beside: Path, name: str, suffix: str) -> Path:
    """Name a file that no flag names: in the directory `beside`, or beside that file."""
    return (beside if beside.is_dir() else beside.parent) / f"{name}.{suffix}"


def _check_suffix(option: str, flag: str, path: Path) -> None:
    if flag == "--picture":
        if path.suffix.lower() not in _STILLS:
            raise UsageError(f"--picture {path}: a picture ends in {' '.join(_STILLS)}")
        return
    allowed = _SUFFIXES.get(flag) or (_TIMELINE if option in _TIMELINES else ())
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    if name.suffix.lower() == ".pftrace":
        raise UsageError(f"{flag} {path}: write .json.gz, which Perfetto opens")
    if allowed and name.suffix.lower() not in ("", *allowed):
        raise UsageError(f"{flag} {path}: expected a name that ends in {' or '.join(allowed)}")
