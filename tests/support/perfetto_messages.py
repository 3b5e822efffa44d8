"""Perfetto files made with Perfetto's own classes, for the tests of the reader."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from augment.core.trace import Trace
from augment.readers import read
from perfetto_schema import protos

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED, NEEDED = 1, 2


class Messages:
    """Packets in order."""

    def __init__(self) -> None:
        self.trace = protos.Trace()

    def packet(self, sequence: int = 1, **fields: Any) -> Any:
        """A packet."""
        return self.trace.packet.add(trusted_packet_sequence_id=sequence, **fields)

    def track(self, uuid: int, **fields: Any) -> Any:
        """A track's description."""
        described = self.packet().track_descriptor
        described.uuid = uuid
        for name, value in fields.items():
            setattr(described, name, value)
        return described

    def thread(self, uuid: int, pid: int, tid: int, name: str = "") -> None:
        """A thread's track."""
        thread = self.track(uuid).thread
        thread.pid, thread.tid, thread.thread_name = pid, tid, name

    def event(self, kind: int, ts: int, track: int = 0, name: str = "", category: str = "", **args: Any) -> Any:
        """A track event that says everything itself."""
        event = self.packet(timestamp=ts).track_event
        event.type = kind
        if track:
            event.track_uuid = track
        if name:
            event.name = name
        if category:
            event.categories.append(category)
        for key, value in args.items():
            annotate(event.debug_annotations.add(name=key), value)
        return event

    def slice(self, ts: int, dur: int, track: int, name: str, category: str = "cpu_op", **args: Any) -> Any:
        """A slice."""
        event = self.event(BEGIN, ts, track, name, category, **args)
        self.event(END, ts + dur, track)
        return event

    def bytes(self) -> bytes:
        """The file."""
        return bytes(self.trace.SerializeToString())

    def write(self, folder: Path, name: str = "t.pftrace") -> Path:
        """Write the file, compressed if its name ends in ``.gz``."""
        path = folder / name
        path.write_bytes(gzip.compress(self.bytes()) if name.endswith(".gz") else self.bytes())
        return path

    def read(self, folder: Path, **options: Any) -> Trace:
        """The trace, as both engines have it."""
        return read(str(self.write(folder)), **options)


def annotate(annotation: Any, value: Any) -> None:
    """Give a debug annotation its value."""
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, dict):
        for key, inner in value.items():
            annotate(annotation.dict_entries.add(name=key), inner)
    elif value is not None:
        for inner in value:
            annotate(annotation.array_values.add(), inner)


def rows(trace: Trace) -> list[tuple[str, int, int, str, str]]:
    """Phase, time, duration, category and name of each row."""
    events = trace.events
    return [
        (chr(phase), ts, dur, trace.strings[category], trace.strings[name])
        for phase, ts, dur, category, name in zip(
            events.phase.tolist(), events.ts.tolist(), events.dur.tolist(), events.category_name.tolist(),
            events.name.tolist(), strict=True,
        )
    ]  # fmt: skip


def diagnostic_counts(trace: Trace) -> dict[str, int]:
    """The diagnostics: code and count."""
    return {diagnostic.code: diagnostic.count for diagnostic in trace.diagnostics}


def places(trace: Trace) -> list[tuple[Any, ...]]:
    """Pid, tid, device and stream of each row."""
    tracks = [trace.tracks[index] for index in trace.events.track.tolist()]
    return [(track.pid, track.tid, track.device, track.stream) for track in tracks]
