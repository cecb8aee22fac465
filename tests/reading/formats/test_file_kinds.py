"""Files of other kinds are recognised by their content, and refused with the remedy."""

from __future__ import annotations

import cProfile
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from analyzer.base.errors import TraceError
from analyzer.reading.formats.file_kinds import (
    CHAKRA,
    CHECKPOINT,
    NCCL_EXAMPLE,
    NSIGHT_COMPUTE,
    NSIGHT_SYSTEMS,
    SUMMARY,
    TABLE,
    XLA_PROFILE,
    foreign,
    named,
)
from analyzer.reading.traces.ranks import read_ranks

_SPAN = b'[\n{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 1}'
_TENSOR = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
_PLANE = b"\x08\x01\x12\x10Task Environment\x1a\x02\x08\x01"


def _archive(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, pickle.dumps({}))
    return file.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"NVR\0\1\2", NSIGHT_COMPUTE),
        (b"PAR1\x15\x04", TABLE),
        (_archive("model/data.pkl"), CHECKPOINT),
        (struct.pack("<Q", len(_TENSOR)) + _TENSOR, CHECKPOINT),
        (b"Time (%),Total Time (ns),Instances,Name\n50,9,1,a\n50,9,1,b\n", SUMMARY),
        (b'[{"Time (%)": 50.0, "Name": "a"}]', SUMMARY),
        (b'"Name","Calls","TotalDurationNs","AverageNs"\n"a",1,9,9\n', SUMMARY),
        (b"FIT Profiler Report\n\n---\n|  Action  |  Mean duration (s)\n", SUMMARY),
        (b"\n---- DeepSpeed Flops Profiler ----\n", SUMMARY),
        (b"-----  -----\n  Name  Self CPU %  Self CPU\n", SUMMARY),
        (b"-----\n  Environment Summary\n-----\n", SUMMARY),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', CHAKRA),
        (b"\x07\n\x050.0.4\x20\x08\x01", CHAKRA),
        (_SPAN, NCCL_EXAMPLE),
        (b"\n" + bytes([len(_PLANE)]) + _PLANE, XLA_PROFILE),
        (b'{"traceEvents": [{"ph": "X", "name": "Self CPU %"}]}', ""),
        (_SPAN + b',{"ph": "X"}', ""),
        (b'{"step": 1, "step_ms": 5}\n', ""),
    ],
)
def test_a_file_of_another_kind_is_named(head: bytes, kind: str) -> None:
    assert foreign(head) == kind


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 870000000\n",
            "a pointer of Git LFS, its 870 MB are not here; git lfs pull brings them",
        ),
        (
            "<!DOCTYPE html><html><head><title>403 Forbidden</title></head>",
            'a web page ("403 Forbidden"), not the file behind it; download it again, signed in',
        ),
        (
            '{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
            "samples of py-spy, without steps; open it at speedscope.app; for steps, record with "
            "torch.profiler or viztracer",
        ),
    ],
)
def test_a_refusal_has_a_remedy(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError) as refused:
        read_ranks([path])
    assert str(refused.value) == f"{path}: not a trace: {line}"


def test_samples_of_cprofile_are_named(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.runcall(json.dumps, [1])
    profile.dump_stats(tmp_path / "a.prof")
    assert foreign((tmp_path / "a.prof").read_bytes()).startswith("samples of cProfile, without steps")


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.qdrep", "A.QDSTRM"])
def test_reports_of_nsight_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\1\2\3")
    assert named(name) == NSIGHT_SYSTEMS
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(TraceError) as refused:
            read_ranks([path])
        assert str(refused.value) == f"{tmp_path / name}: not a trace: {NSIGHT_SYSTEMS}"


@pytest.mark.parametrize("address", ["s3://bucket/a.json", "gs://bucket/a", "https://host/a.json.gz"])
def test_an_address_is_refused(address: str) -> None:
    with pytest.raises(TraceError, match=f"^{address}: not a trace: an address, not a file; copy it here"):
        read_ranks([Path(address)])
