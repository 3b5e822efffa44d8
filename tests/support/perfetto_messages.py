"""Perfetto files made with Perfetto's own classes, for the tests of the reader."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from augment import Trace, read
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


@st.composite
def operators(
    draw: st.DrawFn, most: int, names: st.SearchStrategy[list[str]], values: st.SearchStrategy[Any], *categories: str
) -> Messages:
    """Operators of two sequences, whose keys and strings have a number or stand there, and now and then are cleared."""
    made = Messages()
    made.thread(5, 42, 43, "main")
    keys: dict[int, dict[str, int]] = {}
    strings: dict[int, dict[str, int]] = {}
    for number in range(draw(st.integers(1, most))):
        sequence = draw(st.sampled_from([1, 1, 1, 2]))
        packet = made.packet(sequence, timestamp=10 * number, sequence_flags=NEEDED)
        if sequence not in keys or draw(st.integers(0, 6)) == 0:
            packet.sequence_flags = CLEARED
            keys[sequence], strings[sequence] = {}, {}
        event = packet.track_event
        event.type, event.track_uuid, event.name = BEGIN, 5, f"op {number}"
        if categories:
            event.categories.append(draw(st.sampled_from(categories)))
        for name in draw(names):
            annotation, known = event.debug_annotations.add(), keys[sequence]
            if name in known or draw(st.booleans()):
                if name not in known:
                    known[name] = 7 * len(known) + draw(st.integers(0, 6)) + 1
                    packet.interned_data.debug_annotation_names.add(iid=known[name], name=name)
                annotation.name_iid = known[name]
            else:
                annotation.name = name
            value, texts = draw(values), strings[sequence]
            if isinstance(value, str) and draw(st.booleans()):
                if value not in texts:
                    texts[value] = len(texts) + 1
                    packet.interned_data.debug_annotation_string_values.add(iid=texts[value], str=value.encode())
                annotation.string_value_iid = texts[value]
            elif type(value) is int and (value >= 2**63 or (value >= 0 and draw(st.booleans()))):
                setattr(annotation, draw(st.sampled_from(["uint_value", "pointer_value"])), value)
            else:
                annotate(annotation, value)
        end = made.packet(sequence, timestamp=10 * number + 5, sequence_flags=NEEDED)
        end.track_event.type, end.track_event.track_uuid = END, 5
    return made


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
