"""Packets of Perfetto's format, made by hand."""

from __future__ import annotations

from typing import Any

from analyzer.reading.formats.protobuf_messages import declared

_MESSAGES = """
Trace packet:1:*TracePacket
TracePacket timestamp:8:uint64 timestamp_clock_id:58:uint32 trusted_packet_sequence_id:10:uint32
 sequence_flags:13:uint32 incremental_state_cleared:41:bool interned_data:12:InternedData
 trace_packet_defaults:59:Defaults
 track_event:11:TrackEvent track_descriptor:60:TrackDescriptor
 compressed_packets:50:bytes zstd_compressed_packets:133:bytes ftrace_events:1:bytes process_tree:2:bytes
 sys_stats:7:bytes process_stats:9:bytes profile_packet:37:bytes battery:38:bytes android_log:39:bytes
 process_descriptor:43:bytes thread_descriptor:44:bytes gpu_counter_event:52:bytes perf_sample:66:bytes
 gpu_render_stage_event:53:bytes streaming_profile_packet:54:bytes etw_events:95:bytes
Defaults timestamp_clock_id:58:uint32 track_event_defaults:11:EventDefaults
EventDefaults track_uuid:11:uint64
InternedData event_categories:1:*Interned event_names:2:*Interned debug_annotation_names:3:*Interned
 debug_annotation_string_values:29:*Interned
Interned iid:1:uint64 name:2:bytes
TrackDescriptor uuid:1:uint64 parent_uuid:5:uint64 name:2:bytes static_name:10:bytes
 process:3:Process thread:4:Thread counter:8:CounterTrack
Process pid:1:int32 process_name:6:bytes
Thread pid:1:int32 tid:2:int64 thread_name:5:bytes
CounterTrack unit_name:6:bytes
TrackEvent category_iids:3:*uint64 categories:22:*bytes name_iid:10:uint64 name:23:bytes type:9:int32
 track_uuid:11:uint64 counter_value:30:int64 double_counter_value:44:double flow_ids:47:*fixed64
 terminating_flow_ids:48:*fixed64
 debug_annotations:4:*bytes legacy_event:6:bytes
Annotation name_iid:1:uint64 name:10:bytes bool_value:2:bool uint_value:3:uint64 int_value:4:int64
 double_value:5:double pointer_value:7:uint64 legacy_json_value:9:bytes string_value:6:bytes
 string_value_iid:17:uint64 dict_entries:11:*Annotation array_values:12:*Annotation
"""


def messages() -> dict[str, Any]:
    """Map names of messages to their classes."""
    return declared(_MESSAGES)


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
