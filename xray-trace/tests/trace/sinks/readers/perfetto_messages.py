"""Reads a trace with Perfetto's own messages, as the trace processor does.

It follows sequences, defaults, interned names and tracks.
"""

import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type:
            repeated = field.label == field.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated
            for part in value if repeated else [value]:
                known(part)

def value(note):
    """The value of an annotation; of a dictionary, the values by their names."""
    if note.dict_entries:
        return {entry.name: value(entry) for entry in note.dict_entries}
    return getattr(note, note.WhichOneof("value"))

trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
known(trace)
tracks, states, events, clocks = {}, {}, [], None
for packet in trace.packet:
    sequence = packet.trusted_packet_sequence_id
    assert sequence
    if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        states[sequence] = {"names": {}, "categories": {}}
    state = states[sequence]
    if packet.HasField("clock_snapshot"):
        assert clocks is None
        clocks = packet.clock_snapshot
    if packet.HasField("trace_packet_defaults"):
        state["defaults"] = packet.trace_packet_defaults
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks
        parent = tracks[track.parent_uuid] if track.parent_uuid else None
        assert not parent or not track.HasField("thread") or parent.process.pid == track.thread.pid
        tracks[track.uuid] = track
    for name in packet.interned_data.event_names:
        state["names"][name.iid] = name.name
    for name in packet.interned_data.event_categories:
        state["categories"][name.iid] = name.name
    if packet.HasField("track_event"):
        event = packet.track_event
        assert packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert state["defaults"].timestamp_clock_id == clocks.primary_trace_clock == pb.BUILTIN_CLOCK_MONOTONIC
        track = tracks[state["defaults"].track_event_defaults.track_uuid]
        within = tracks[track.parent_uuid] if not track.HasField("thread") else track
        thread = within.thread
        name = state["names"][event.name_iid] if event.name_iid else event.name
        row = [thread.pid, thread.tid, pb.TrackEvent.Type.Name(event.type)[5:], name, packet.timestamp]
        for iid in event.category_iids:
            row.append(state["categories"][iid])
        for note in event.debug_annotations:
            row.append({note.name: value(note)})
        if within is not track:
            row.append({"track": track.name})
        events.append(row)
names = [
    [t.thread.tid, t.thread.thread_name]
    if t.HasField("thread")
    else [t.process.pid, t.process.process_name or t.name]
    for t in tracks.values()
]
clocks = [[c.clock_id, c.timestamp] for c in clocks.clocks]
print(json.dumps({"events": events, "tracks": names, "clocks": clocks}))
