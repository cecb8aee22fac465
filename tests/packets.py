"""Packets of Perfetto's format, made by hand."""

from __future__ import annotations

from typing import Any

from analyzer.reading.formats.perfetto.trace_packets import messages


def annotation(**members: Any) -> bytes:
    packed: bytes = messages()["Annotation"](**members).SerializeToString()
    return packed


def two_threads() -> Any:
    """Return a trace of two threads as PyTorch writes one: interned names, arguments, an arrow."""
    trace = messages()["Trace"]()
    add = trace.packet.add

    def event(ts: int, kind: int, track: int, **members: Any) -> Any:
        packet = add(timestamp=ts, trusted_packet_sequence_id=1)
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        for key, value in members.items():
            setattr(packet.track_event, key, value)
        return packet

    add().track_descriptor.uuid = 1
    trace.packet[-1].track_descriptor.process.pid = 70
    trace.packet[-1].track_descriptor.process.process_name = b"python"
    for uuid, tid in ((2, 31), (3, 32)):
        add().track_descriptor.uuid = uuid
        thread = trace.packet[-1].track_descriptor.thread
        thread.pid, thread.tid = 70, tid
    first = event(1_000_001, 1, 2, name_iid=4)
    first.sequence_flags = 1
    first.interned_data.event_names.add(iid=4, name=b"aten::mm")
    first.interned_data.event_categories.add(iid=5, name=b"cpu_op")
    first.interned_data.debug_annotation_names.add(iid=6, name=b"External id")
    first.track_event.category_iids.append(5)
    first.track_event.flow_ids.append(9)
    first.track_event.debug_annotations.append(annotation(name_iid=6, int_value=17))
    event(1_002_000, 1, 2, name=b"inner")
    event(1_003_000, 2, 2)
    event(1_004_001, 2, 2)
    last = event(1_005_000, 1, 3, name_iid=4)
    last.track_event.category_iids.append(5)
    last.track_event.terminating_flow_ids.append(9)
    event(1_006_000, 2, 3)
    return trace
