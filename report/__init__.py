"""Faces: how a result is shown, one module per face."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from result import Result


def show(result: Result, args: Namespace) -> None:
    """Print `result` on standard output in the chosen format; write the files that were asked for."""
    json.dump({**result.document, "repairs": list(result.repairs)}, sys.stdout, indent=1)
    print()
