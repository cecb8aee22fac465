"""Which words of a command line go with digests."""

from __future__ import annotations

from argparse import Namespace

from errors import UsageError
from outputs.marks import is_digest


def check_digests(args: Namespace) -> None:
    """Refuse (`UsageError`) what needs single events of a digest, and a digest of less than a whole job."""
    digests = [path for path in args.path if is_digest(path)]
    if digests and args.filter:
        raise UsageError(f"--filter: {digests[0]} is a digest, which holds no single events; give the traces")
    if args.save is None:
        return
    if args.filter:
        raise UsageError("--save: a digest is of all operations; leave out --filter")
    if args.path[-1] in digests:
        raise UsageError(f"--save: {args.path[-1]} is a digest already")
