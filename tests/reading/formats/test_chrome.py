"""Reading a trace file leaves nothing behind but its columns."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from analyzer.reading.formats import chrome, native
from analyzer.reading.formats.builder import Builder


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_a_decoder_does_not_outlive_its_file(tmp_path: Path, scan: bool) -> None:
    if scan and native.library() is None:
        pytest.skip("no compiler")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]))
    gc.collect()
    gc.disable()  # as good as disabled it is in a process that reads hundreds of files
    try:
        chrome.read_rows(path, scan=scan)
        assert not [one for one in gc.get_objects() if type(one) is Builder]
    finally:
        gc.enable()
