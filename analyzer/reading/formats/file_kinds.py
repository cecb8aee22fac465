"""The kind of a file by its beginning: a format that is read, or the words on what it is and the remedy.

`foreign` comes before all readers, because some of these files look like traces: a table of totals like a
step log, an old checkpoint like the pickle of a flight recorder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from analyzer.reading.formats.event import fragment_start
from analyzer.reading.formats.protobuf_messages import is_xla_profile
from analyzer.reading.formats.stream import PIECE

#: Of step logs in a directory; packed ones also have ``.gz``.
STEP_SUFFIXES = (".jsonl", ".csv", ".tsv", ".log", ".out", ".err")
_HEAD = 4 << 10  # bytes by which most files are recognised
_FIRST_KEY = 64  # bytes with the first key of a pickle
LONG_ROW = f"its first row is longer than {PIECE >> 20} MiB, which no row of a step log is"
WRITE_ROWS = (
    "write a row for each rank and step, as JSON lines or CSV, with the step's number, the rank and "
    "durations (step, rank, data_ms, step_ms)"
)
NSIGHT_SYSTEMS = (
    "a report of Nsight Systems in its own format; write one that can be read: nsys export --type sqlite FILE"
)
NSIGHT_COMPUTE = "a report of Nsight Compute, one kernel at a time; record with nsys profile"
TABLE = 'a table that is not read in this form; write it as CSV: df.to_csv("steps.csv")'
SUMMARY = "a summary: totals without steps and ranks; give the recording that it was made of"
CHAKRA = "an execution trace without device times; give the profiler's trace of the same run"
CHECKPOINT = "a checkpoint, not a recording"
NCCL_EXAMPLE = (
    "asynchronous spans of NCCL's profiler plugin only; record with torch.profiler, or give its Inspector's "
    "log"
)
XLA_PROFILE = "a profile in protobuf (.xplane.pb); give the .trace.json.gz beside it"
TRAINER_STATE = f"the state of a trainer, which has no durations of steps; {WRITE_ROWS}"
_RECORD_HEAD, _LONGEST_RECORD = 8, 1 << 32  # bytes of length before a DASF record, and of a record
_DUMP_HEAD = (
    rb'\s*\{\s*"(?:version|entries|pg_config|pg_status|nccl_version|comm_lib_version|nccl_comm_state'
    rb'|rank)"\s*:'
)
_DUMP_KEYS = (b'"pg_status"', b'"pg_config"', b'"collective_seq_id"')
_ARCHIVE = "an archive; unpack it and give what was in it"
_SAMPLES = (
    "samples of {}, without steps; open it at speedscope.app; for steps, record with torch.profiler or "
    "viztracer"
)

#: A line of a log, as of Megatron, DeepSpeed or `torchrun`: ``[2026-11-27 10:00:01] …``, ``[rank0]: …``.
_LOG_LINE = re.compile(rb"(?:[\w.-]*\d: *)?\[(?:\d{4}-\d\d-\d\d[ T]|[a-z]*\d+\]:)")
_GRAPH = re.compile(rb"(?:Creator[^\n]*\n\s*)?graph\s*\[")
_LFS = re.compile(rb"version https://(?:git-lfs\.github|hawser\.github)\.com/spec/v1\b")
_SIZE = re.compile(rb"^size (\d{1,15})\s*$", re.MULTILINE)
_PAGE = re.compile(
    rb"(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype html|html|head|error)\b", re.I | re.DOTALL
)
_TITLE = re.compile(rb"<(title|code|h1)\b[^>]*>\s*(.*?)\s*</\1>", re.I | re.DOTALL)
_SPEEDSCOPE = re.compile(rb"speedscope\.app/file-format-schema|\"\$schema\"\s*:\s*\"[^\"]*speedscope")
_EXPORTER = re.compile(rb'"exporter"\s*:\s*"([\w .-]{1,40})')
#: `cProfile`'s dump: `marshal`'s dictionary whose first key is the triple (file, line, function).
_MARSHAL = re.compile(rb"[{\xfb](?:[)\xa9]\x03|[(\xa8]\x03\0\0\0)")
_CHAKRA_JSON = re.compile(rb'"schema"\s*:\s*"[\d.]+(?:-chakra[^"]*)?"')
_CHAKRA_NODES = re.compile(rb'"(?:nodes|start_ts|inputs|ctrl_deps|rf_id)"\s*:')
#: The length of a message, and Chakra's `GlobalMetadata`, which begins with the version of its schema.
_CHAKRA_PACKED = re.compile(rb"[\x03-\x7f]\n[\x03-\x20]v?\d+\.\d+\.\d+")
_TORCH_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAFETENSORS = re.compile(rb'.{8}\{\s*"', re.DOTALL)
_SUMMARIES = re.compile(
    rb"\"Time ?\(%\)\"|Time ?\(%\)\W{1,20}(?:Total )?Time|\bTotalDurationNs\b|Self CPU %"
    rb"|Self (?:CPU|CUDA) time total"
    rb"|Profiler Report\b|Mean duration \(s\)|DeepSpeed Flops Profiler"
    rb"|Environment Summary\s*\n\s*-|cProfile output|\d function calls (?:\([^)]*\) )?in [\d.]+ seconds"
)
_STATE = re.compile(rb'"log_history"\s*:\s*\[')
_NCCL_SPANS = re.compile(rb'"cat"\s*:\s*"(?:GROUP|COLL|P2P|PROXY|NET|GPU)[^"]{0,20}"\s*,\s*"ph"\s*:\s*"b"')
_SLICE = re.compile(rb'"ph"\s*:\s*"[XB]"')
_EVENT = re.compile(rb'"(?:ph|traceEvents)"\s*:')
_MARKS = (
    ((b"NVR\0",), NSIGHT_COMPUTE),
    ((b"PAR1", b"PARE", b"ARROW1\0\0"), TABLE),
    ((_TORCH_PICKLE,), CHECKPOINT),
)
_PACKED = (
    ((b"PK\x03\x04",), _ARCHIVE),
    ((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"), "packed, twice or not by gzip; unpack it"),
    ((b"\xff\xfe", b"\xfe\xff"), "text in UTF-16; write it in UTF-8"),
    (
        (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\x0a\x0d\x0d\x0a"),
        "a capture of network packets; name it .pcap and read it by --option collect --sub_option pcap",
    ),
)
#: Reports without a public mark in their content, by their suffixes.
_BY_NAME = (
    ((".nsys-rep", ".qdrep", ".qdstrm"), NSIGHT_SYSTEMS),
    ((".ncu-rep", ".ncu-repz"), NSIGHT_COMPUTE),
)


def is_chrome(head: bytes) -> bool:
    """Check whether a file begins like a chrome trace (object, array or lines), or a part of one."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{" and (b'"traceEvents"' in text or b'"ph"' in text.split(b"\n", 1)[0]):
        return True
    if text[:1] == b"[":
        return b'"ph"' in text or text[1:].lstrip()[:1] in (b"]", b"")
    return b'"ph"' in text and fragment_start(text) is not None


def is_dump(head: bytes) -> bool:
    """Check whether a file begins like a pickle, or a flight recorder's dump in JSON."""
    if is_snapshot(head):
        return False
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    is_json = b'"traceEvents"' not in head and re.match(_DUMP_HEAD, head) is not None
    return is_json and any(key in head for key in _DUMP_KEYS)


def is_snapshot(head: bytes) -> bool:
    """Check whether a file begins like the pickle of an allocator's snapshot, by its first key."""
    return head[:1] == b"\x80" and any(key in head[:_FIRST_KEY] for key in (b"segments", b"device_traces"))


def is_database(head: bytes) -> bool:
    """Check whether a file is a database of SQLite, as of Nsight Systems."""
    return head.startswith(b"SQLite format 3\0")


def is_dasf(head: bytes) -> bool:
    """Check whether a file begins (by 9 bytes or more) like DASF's records, which are maps of MessagePack."""
    length, first = int.from_bytes(head[:_RECORD_HEAD], "big"), head[_RECORD_HEAD : _RECORD_HEAD + 1]
    return 0 < length < _LONGEST_RECORD and (b"\x80" <= first < b"\x90" or first in (b"\xde", b"\xdf"))


def is_log(head: bytes) -> bool:
    """Check whether a file that begins with `head` is a log of text."""
    return _LOG_LINE.match(head) is not None


def named(name: str) -> str:
    """Name the kind of a file known only by its suffix, and the remedy; "" for any other file."""
    return next((kind for ends, kind in _BY_NAME if name.lower().endswith(ends)), "")


def foreign(head: bytes) -> str:
    """Name the kind of a foreign file by its beginning, and the remedy; "" for a file that may be a trace."""
    for beginnings, kind in _MARKS:
        if head.startswith(beginnings):
            return kind
    text = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"[") and _EVENT.search(head[:_HEAD]):
        return NCCL_EXAMPLE if _NCCL_SPANS.search(text) and not _SLICE.search(head[: 16 * _HEAD]) else ""
    return next((kind for rule in _RULES if (kind := rule(head, text))), "")


def _of_checkpoint(head: bytes, text: bytes) -> str:
    is_archive = head[:4] == b"PK\x03\x04" and b"/data.pkl" in head[:_HEAD]
    length = int.from_bytes(head[:8], "little")
    is_tensors = 1 < length < 1 << 30 and _SAFETENSORS.match(head) and b'"dtype"' in head[: 16 * _HEAD]
    return CHECKPOINT if is_archive or is_tensors else ""


def _of_pointer(head: bytes, text: bytes) -> str:
    if not _LFS.match(text):
        return ""
    size = _SIZE.search(text)
    amount = f"its {_amount(int(size[1]))} are" if size else "its content is"
    return f"a pointer of Git LFS, {amount} not here; git lfs pull brings them"


def _of_page(head: bytes, text: bytes) -> str:
    if not _PAGE.match(text):
        return ""
    title = _TITLE.search(text)
    words = " ".join(title[2].decode("utf-8", "replace").split())[:60] if title else ""
    quoted = f' ("{words}")' if words else ""
    return f"a web page{quoted}, not the file behind it; download it again, signed in"


def _of_samples(head: bytes, text: bytes) -> str:
    if _MARSHAL.match(head):
        return _SAMPLES.format("cProfile")
    if text[:1] != b"{" or not _SPEEDSCOPE.search(head):
        return ""
    exporter = _EXPORTER.search(head)
    name = exporter[1].decode().strip() if exporter else "py-spy"
    return _SAMPLES.format("py-spy" if name == "speedscope" else name)


def _of_execution(head: bytes, text: bytes) -> str:
    is_json = text[:1] == b"{" and _CHAKRA_JSON.search(text) and _CHAKRA_NODES.search(head[: 16 * _HEAD])
    return CHAKRA if is_json or _CHAKRA_PACKED.match(head) else ""


#: Each names a kind of files by its beginning, and the text there; "" for other files.
_RULES: Sequence[Callable[[bytes, bytes], str]] = (
    _of_checkpoint,
    _of_pointer,
    _of_page,
    _of_samples,
    _of_execution,
    lambda head, text: SUMMARY if _SUMMARIES.search(text) else "",
    lambda head, text: XLA_PROFILE if is_xla_profile(head[:_HEAD]) else "",
    lambda head, text: TRAINER_STATE if text[:1] == b"{" and _STATE.search(head) else "",
)


def kind_of(head: bytes) -> str:
    """Name the kind of a file that no reader recognises, by its beginning, and the remedy."""
    text = head.lstrip()
    if is_log(text):
        return f"a log of text; {WRITE_ROWS}"
    if head[257:262] == b"ustar":
        return _ARCHIVE
    if _GRAPH.match(text):
        return "a GML graph; name it .gml for --option graph, or give the trace"
    for beginnings, kind in _PACKED:
        if head.startswith(beginnings):
            return kind
    first = text[:_HEAD].split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    is_text = first.replace("\t", "").isprintable() and not first.startswith(("[", "{"))
    if not is_text or not max(map(first.count, ",;\t")):
        return "neither JSON nor a DASF profile"
    if len(head) >= PIECE > len(first) and head.count(b"\n") == 1:
        return LONG_ROW
    return (
        "a table without rows of a step log: one for each step and rank, with its number (step, iteration) "
        "and a duration (_ms, _s), numbers without a unit and with a decimal point"
    )


def _amount(n_bytes: int) -> str:
    """Write a size in words.

    >>> [_amount(n) for n in (870_000_000, 1_500, 12)]
    ['870 MB', '1.5 kB', '12 bytes']
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.3g} {name}"
    return f"{n_bytes} bytes"
