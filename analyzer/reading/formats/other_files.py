"""Files that are no traces: what each is, by its beginning, and what to do with it."""

from __future__ import annotations

import re

from analyzer.reading.formats.stream import PIECE

_HEAD = 1 << 10  # bytes by which it is judged what a file is
LONG_ROW = f"its first row is longer than {PIECE >> 20} MiB, which no row of a step log is"
WRITE_ROWS = (
    "write a row for each rank and step, as JSON lines or CSV, with the step's number, the rank and "
    "durations (step, rank, data_ms, step_ms)"
)
#: A line of a log, as of Megatron, DeepSpeed or `torchrun`: ``[2026-11-27 10:00:01] …``, ``[rank0]: …``.
_LOG_LINE = re.compile(rb"\[(?:\d{4}-\d\d-\d\d[ T]|[a-z]*\d+\]:)")
_GRAPH = re.compile(rb"(?:Creator[^\n]*\n\s*)?graph\s*\[")
_ARCHIVE = "an archive; unpack it and give what was in it"
_KINDS = (
    ((b"PK\x03\x04",), _ARCHIVE),
    ((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"), "packed, twice or not by gzip; unpack it"),
    ((b"\xff\xfe", b"\xfe\xff"), "text in UTF-16; write it in UTF-8"),
    (
        (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\x0a\x0d\x0d\x0a"),
        "a capture of network packets; name it .pcap and read it by --option collect --sub_option pcap",
    ),
)


def is_log(head: bytes) -> bool:
    """Whether a file that begins with `head` is a log of text."""
    return _LOG_LINE.match(head) is not None


def kind_of(head: bytes) -> str:
    """Name, from its beginning, a file that is not a trace, with the remedy."""
    text = head.lstrip()
    if is_log(text):
        return f"a log of text; {WRITE_ROWS}"
    if head[257:262] == b"ustar":
        return _ARCHIVE
    if _GRAPH.match(text):
        return "a GML graph; name it .gml for --option graph, or give the trace"
    if head[:1] == b"\n" and any(plane in head[:_HEAD] for plane in (b"/host:", b"/device:")):
        return "a profile in protobuf (.xplane.pb); give the .trace.json.gz beside it"
    for beginnings, kind in _KINDS:
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
