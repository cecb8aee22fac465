"""The command `analyze` of a copy that pip installed: `analyze.py` with its own folder first on the path.

The whole tree is installed as one folder of site-packages, so that modules called `errors` or `report` do not
meet others of these names: only this command has that folder on its path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the program and exit."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import analyze

    analyze.run_command()
