"""What a run that a signal ends leaves behind, and its exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPO

_SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from outputs.atomic import open_output
from outputs.interrupts import ended

def main():
    try:
        with open_output(Path({folder!r}, "a.json")) as file:
            file.write(b"half")
            os.kill(os.getpid(), signal.{name})
    finally:
        {then}
    return 0

signal.signal(signal.{name}, signal.{before})
sys.exit(ended(main))
"""


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run(folder: Path, name: str, then: str = "pass", before: str = "SIG_DFL") -> tuple[int, str]:
    script = _SCRIPT.format(root=str(REPO), folder=str(folder), name=name, then=then, before=before)
    done = run_script(script)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU"])
def test_a_signal_leaves_nothing_and_ends_with_its_number(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, name) == (128 + getattr(signal, name), "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_limit_of_time_leaves_nothing(tmp_path: Path) -> None:
    """The shell's `ulimit -t` sets both limits, the second of which kills."""
    busy = _SCRIPT.format(root=str(REPO), folder=str(tmp_path), name="SIGXCPU", then="pass", before="SIG_DFL")
    busy = busy.replace("os.kill(os.getpid(), signal.SIGXCPU)", "while True: pass")
    command = ["bash", "-c", 'ulimit -t 2; exec "$@"', "-", sys.executable, "-c", busy]
    assert subprocess.run(command, timeout=60, check=False).returncode == 128 + signal.SIGXCPU
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_way_out_does_not_change_the_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "SIGINT", then="raise AttributeError") == (130, "")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    assert run(tmp_path, "SIGHUP", before="SIG_IGN") == (0, "")  # nohup
    assert (tmp_path / "a.json").read_text() == "half"


def test_a_module_that_is_being_loaded_is_loaded_first(tmp_path: Path) -> None:
    """Where a class of msgspec is made, an interrupt crashes the interpreter."""
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**6): pass\n"
    (tmp_path / "late.py").write_text(f"{text}print('whole')\n")
    script = (
        f"import signal, sys, time; sys.path[:0] = [{str(REPO)!r}, {str(tmp_path)!r}]\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "from outputs.interrupts import ended\n"
        "def main():\n    import late\n    time.sleep(60)\n"
        "sys.exit(ended(main))\n"
    )
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "whole\n", "")


def test_another_signal_while_files_are_removed_leaves_nothing(tmp_path: Path) -> None:
    script = (
        f"import os, signal, sys; sys.path[:0] = [{str(REPO)!r}]\n"
        "from pathlib import Path\n"
        "from outputs import atomic, interrupts\n"
        "class Disturbed(atomic.Outputs):\n"
        "    def _discard(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        super()._discard()\n"
        "def main():\n"
        "    with Disturbed() as outputs:\n"
        "        for name in 'abc':\n"
        f"            with outputs.open(Path({str(tmp_path)!r}, name)) as file: file.write(b'half')\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "    return 0\n"
        "sys.exit(interrupts.ended(main))\n"
    )
    done = run_script(script)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (129, "", [])


def test_a_signal_while_a_directory_is_made_leaves_nothing(tmp_path: Path) -> None:
    """It is held back, and raises before the directory is used."""
    script = (
        f"import os, signal, sys; sys.path[:0] = [{str(REPO)!r}]\n"
        "from pathlib import Path\n"
        "from outputs import interrupts, temporary\n"
        "class Interrupted(temporary.Temporary):\n"
        "    def __init__(self, *args, **flags):\n"
        "        super().__init__(*args, **flags)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "temporary.Temporary = Interrupted\n"
        "def main():\n"
        f"    with temporary.temporary_directory(Path({str(tmp_path)!r}, 'a')): return 0\n"
        "sys.exit(interrupts.ended(main))\n"
    )
    done = run_script(script)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (143, "", [])


@pytest.mark.parametrize("way", ["while a module is loaded", "to another thread"])
def test_a_signal_that_came_elsewhere_does_not_end_a_block_that_holds_it_back(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "late.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    in_thread = way == "to another thread"
    script = (
        f"import os, signal, sys, threading, time; sys.path[:0] = [{str(REPO)!r}, {str(tmp_path)!r}]\n"
        "from outputs.interrupts import ended, uninterrupted\n"
        "begun = threading.Event()\n"
        "def kill():\n"
        "    begun.wait()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "def main():\n"
        f"    if {in_thread}: threading.Thread(target=kill, daemon=True).start()\n"
        "    else: import late\n"
        "    with uninterrupted():\n"
        "        begun.set()\n"
        "        for _ in range(50): time.sleep(0.01)\n"
        "        print('whole', flush=True)\n"
        "    time.sleep(60)\n"
        "sys.exit(ended(main))\n"
    )
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (143, "whole\n", "")
