"""GPU work as Perfetto's render stages: what its table ``gpu_slice`` and its pages about GPUs show.

A stage is called as its specification, which is interned; so each name of a kernel is a specification. These packets
have a sequence of their own, by which the reader knows that they repeat what track events tell.
"""

from __future__ import annotations

import json

from augment.core.trace import GPU_WORK, Trace, args_of_event
from augment.facts.source.event_args import blocks, decoded
from augment.writers.perfetto import wire

MEMBER = "gpuRenderStages"  #: of a source that has render stages
_COMPUTE = 2  #: RenderStageCategory


def write_stages(trace: Trace, file: wire.Writable, shift_ns: int) -> None:
    """Write all kernels, copies and sets, with their args. ``shift_ns`` is added to all times."""
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    rows = rows[events.offset[rows].argsort(kind="stable")]
    offsets, lengths = events.offset[rows], events.length[rows]
    known: dict[str, int] = {}
    flags = wire.CLEARED | wire.NEEDED
    for block in blocks(trace.source.text, offsets, lengths):
        some = rows[block.start : block.stop]
        columns = (
            events.ts[some].tolist(),
            events.dur[some].tolist(),
            events.correlation[some].tolist(),
            events.track[some].tolist(),
            trace.names_of(some),
            decoded(block, offsets, lengths, trace.source.decode),
        )
        for ts, dur, correlation, track, name, event in zip(*columns, strict=True):
            place = trace.tracks[track]
            queue = f"GPU {place.device} stream {place.stream}"
            new = b""
            for text in (queue, name):
                if text not in known:
                    known[text] = len(known) + 1
                    entry = wire.number(1, known[text]) + wire.text(2, text) + wire.number(4, _COMPUTE)
                    new += wire.message(wire.INTERNED_STAGES, entry)
            stage = wire.number(wire.STAGE_ID, max(correlation, 0)) + wire.number(wire.STAGE_DURATION, max(dur, 0))
            if isinstance(place.device, int):
                stage += wire.number(wire.STAGE_GPU, place.device)
            stage += wire.number(wire.STAGE_QUEUE_IID, known[queue]) + wire.number(wire.STAGE_KIND_IID, known[name])
            for key, value in args_of_event(event).items():
                if not isinstance(value, str):
                    value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                stage += wire.message(wire.STAGE_EXTRA, wire.text(1, key) + wire.text(2, value))
            packet = wire.number(wire.PACKET_TIMESTAMP, ts + shift_ns) + wire.number(wire.PACKET_FLAGS, flags)
            packet += wire.message(wire.PACKET_INTERNED, new) if new else b""
            packet += wire.message(wire.PACKET_STAGE, stage)
            file.write(wire.packet(packet, wire.STAGES_SEQUENCE))
            flags = wire.NEEDED
