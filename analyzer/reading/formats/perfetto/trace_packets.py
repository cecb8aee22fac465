"""The messages of Perfetto's format for slices, tracks and arrows, declared for `protobuf`.

A file is a `Trace`: repeated fields 1, each a `TracePacket`. Numbers and types of the fields are from
perfetto/protos/perfetto/trace/perfetto_trace.proto; other fields are skipped. Texts are declared as bytes,
because a damaged file has other texts than UTF-8. The arguments of an event, and packets that are only
counted, are bytes, too.
"""

from __future__ import annotations

from typing import Any

from analyzer.reading.formats.protobuf_messages import declared

START, END, INSTANT, COUNTER = 1, 2, 3, 4  # types of a TrackEvent
CLEARED = 1  # flag of a sequence: what was interned before is forgotten

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
