"""Damaged input never makes the functions in C read or write where they must not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from analyzer.reading.formats import native

_FLAGS = ("-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_ROUNDS = 15_000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fuzzer, made with sanitizers; the test is skipped where that cannot be done."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = tmp_path_factory.mktemp("fuzz") / "fuzz"
    source = Path(__file__).with_name("fuzz.c")
    include = f"-I{Path(native.__file__).parent}"
    subprocess.run([compiler, _FLAGS[0], include, "-o", made, source], check=True)  # as it is on any machine
    done = subprocess.run([compiler, *_FLAGS, include, "-o", made, source], capture_output=True, text=True)
    if done.returncode != 0 or subprocess.run([made, "1"], capture_output=True).returncode != 0:
        pytest.skip(f"no sanitizers here: {done.stderr[-200:]}")
    return made


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 11))
def test_damaged_input_in_memory_of_exactly_its_size(fuzzer: Path, seed: int) -> None:
    done = subprocess.run([fuzzer, str(_ROUNDS), str(seed)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > _ROUNDS  # whole events were among them
