"""Perfetto's native protobuf: every event of the source and every annotation, as plain track events.

What JSON cannot have: nanoseconds exactly, slices that overlap on one track (side by side on tracks of one name),
tracks that lie within each other, and units.

Of the source it keeps every event that has a time, with all its args under ``debug.``: slices, pairs of events that
begin and end one (``B``, ``E`` and the asynchronous ``b``, ``e``, ``S``, ``F``), moments, counters; flows as arrows
between slices; names of processes and threads; the members of the outer object that are texts or numbers, as metadata.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeAlias

import numpy as np
from msgspec.structs import replace

from augment.arrays import NO_INDEX
from augment.core import Annotation, AugmentedTrace, Diagnostic, Ends, Flows, SliceTrack, Trace, output_files
from augment.writers.compression import fastest
from augment.writers.perfetto import flames, wire
from augment.writers.perfetto.added import AddedTracks, LaterTracks, Room, annotation_events
from augment.writers.perfetto.packets import (
    Events,
    InternedTexts,
    Part,
    Suffixes,
    SuffixNumbers,
    encode,
    suffixes,
    suffixes_of_ids,
)
from augment.writers.perfetto.plan import plan
from augment.writers.perfetto.source import STAGES_MEMBER, SourceEvents, write_stages
from augment.writers.perfetto.tracks import Tracks
from augment.writers.seams import Addable, Seam, Written, at_seam, homes_of

Piece: TypeAlias = Events | Callable[[], Events]

NAME = "perfetto"
PACKED_BYTES = 1 << 20  #: bytes of packets that are compressed together
SUFFIX = ".augmented.pftrace"

_MESSAGES = {
    "overlapping_slices": "slices partly overlap others of their track (drawn on a second track of that name)",
    "negative_duration": "slices have a negative duration (drawn with 0; dur_ns has the original)",
    "slice_without_end": "slices have no end (drawn until the end of the trace)",
    "end_without_slice": "ends have no slice (drawn as instants)",
    "negative_time": "events are before time 0, which Perfetto drops (all times are shifted so that the first is 0)",
    "phase_as_instant": "events have a phase that Perfetto does not draw (drawn as instants)",
    "flow_without_slices": "flows lack a slice at an end, or a second end (not drawn)",
    "flow_turned_round": "flows go back in time (drawn in the opposite direction)",
    "counter_without_number": "values of counters are not numbers (not drawn)",
}


class PerfettoSeam(Seam, frozen=True, tag=NAME):
    """The place for additions: ``at`` a byte of the file, which was its end at first. ``shift_ns`` was added to all
    times. A class below is a format that says more, and writes it.
    """

    NAME: ClassVar[str] = NAME
    SUFFIX: ClassVar[str] = SUFFIX
    WITH_STAGES: ClassVar[bool] = False  #: the GPU work once more as render stages
    WITH_FLAMES: ClassVar[bool] = False  #: time by call stack

    shift_ns: int
    room: Room

    @classmethod
    def write_seamed(cls, augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> Written:
        """Write the source's events, the annotations, and what else the format has, to ``path``; equal traces give
        equal files. Tracks can be added ``under`` these of the source.

        Raises:
            OutputError: ``path`` cannot be written.
        """
        trace, (_, later) = augmented.trace, at_seam(augmented.annotations)
        tracks = Tracks(trace)
        shift_ns = max(0, -int(trace.events.ts.min(initial=0)))  # no time may be negative: Perfetto drops such events
        with output_files.replacing(path, trace.source.path) as file:
            diagnostics = write_part(augmented, file, tracks, Part(), shift_ns, seamed=True)
            packed = Packed(file)
            if cls.WITH_STAGES or STAGES_MEMBER in trace.source.metadata:  # what came as render stages is kept as such
                write_stages(trace, packed, shift_ns)
            if cls.WITH_FLAMES:
                stacks = flames.time_by_stack(trace)
                out = EventsFile(packed, tracks, InternedTexts(), first=False)
                out.shift_ns = shift_ns
                out.write(flames.nested_slices(*stacks, tracks, out.interned))
                pids = {each.device.track: tracks.pid_of(each.device.track) for each in stacks[1]}
                flames.write_samples(*stacks, pids, packed, shift_ns)
            packed.flush()
            at, room = file.tell(), tracks.room(sorted({*under, *homes_of(later)}))
            add(file, room, shift_ns, later)
        return Written(diagnostics, cls(at, shift_ns, room))

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`."""
        output_files.copy_bytes(old, new, self.at)
        add(new, self.room, self.shift_ns, annotations)


class GpuSlices(PerfettoSeam, frozen=True, tag="gpu_slices"):
    """As ``perfetto``, and the GPU work once more as render stages, for Perfetto's table ``gpu_slice`` and pages on
    GPUs.

    The file is up to half as large again. What reads it leaves the repetition out.
    """

    NAME: ClassVar[str] = "gpu_slices"
    SUFFIX: ClassVar[str] = ".augmented.gpu.pftrace"
    WITH_STAGES: ClassVar[bool] = True


class Flamegraph(PerfettoSeam, frozen=True, tag="flamegraph"):
    """As ``perfetto``, and time by call stack, of which Perfetto draws a flame graph for each selected area.

    On each device the tracks ``GPU time by stack``, ``Idle time by stack`` and ``Exposed communication by stack``.
    """

    NAME: ClassVar[str] = "flamegraph"
    SUFFIX: ClassVar[str] = ".augmented.flame.pftrace"
    WITH_FLAMES: ClassVar[bool] = True


write_seamed = PerfettoSeam.write_seamed


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """As :func:`write_seamed`, for whoever adds nothing later."""
    return write_seamed(augmented, path).diagnostics


def add(file: wire.Writable, room: Room, shift_ns: int, annotations: Sequence[Addable]) -> int:
    """Write ``annotations`` after the end of a file that was left with this ``room``. Returns the number of its
    tracks.
    """
    tracks = LaterTracks(room)
    if annotations:
        packed = Packed(file)
        out = EventsFile(packed, tracks, InternedTexts(), first=False)
        out.shift_ns = shift_ns
        out.write(out.of_annotations(annotations, suffixes_of_ids(annotations)))
        packed.flush()
    return tracks.count


def write_part(
    augmented: AugmentedTrace,
    file: wire.Writable,
    tracks: Tracks,
    part: Part,
    shift_ns: int = 0,
    *,
    seamed: bool = False,
) -> list[Diagnostic]:
    """Write the events and annotations of one of several traces in a file, after those of earlier traces.

    Args:
        augmented: the trace.
        file: what to write to.
        tracks: makes the trace's tracks.
        part: what the trace is in the file.
        shift_ns: what to add to all times.
        seamed: without the tracks at a seam.
    """
    trace, annotations, interned = augmented.trace, augmented.annotations, InternedTexts()
    if seamed:  # their arrows have ends in the source
        annotations = [each for each in annotations if not (isinstance(each, SliceTrack) and each.seamed)]
    planned = plan(trace, tracks, annotations, part)
    packed = Packed(file)
    out = EventsFile(packed, tracks, interned, first=part.number == 0)
    out.shift_ns = shift_ns
    out.write_metadata(trace, part.name)
    with closing(SourceEvents(trace, planned, tracks, interned).all()) as events:
        write = out.write_beside if trace.context.threads.count > 1 else out.write
        write(events)
    write(out.of_annotations(annotations, planned.added_suffixes))
    packed.flush()
    planned.repairs["negative_time"] = int(np.count_nonzero(trace.events.ts < 0))
    counts = planned.repairs
    return [Diagnostic(f"perfetto_{code}", counts[code], text_) for code, text_ in _MESSAGES.items() if counts[code]]


def write_annotations(augmented: AugmentedTrace, file: wire.Writable) -> tuple[int, Tracks]:
    """Write only the annotations that stay, on the clock of the source's text.

    Returns:
        The number of arrows left out because they link slices of the source, and the tracks that were made.
    """
    trace, (annotations, later), repairs = augmented.trace, at_seam(augmented.annotations), Counter[str]()
    tracks = Tracks(trace)
    out = EventsFile(file, tracks, InternedTexts())
    out.shift_ns = -trace.source.base_ns
    none, no_rows = np.full(len(trace.events), NO_INDEX, np.int64), Ends(np.zeros(0, np.int64))
    arrows = suffixes(SuffixNumbers(trace, none, none, annotations), Flows("", "", no_rows, no_rows), repairs)
    out.write(out.of_annotations(annotations, arrows[1]))
    return repairs["flow_without_slices"] + sum(len(each) for each in later if isinstance(each, Flows)), tracks


class Packed:
    """Writes whole packets compressed, some :data:`PACKED_BYTES` of them within one (``compressed_packets``)."""

    def __init__(self, file: wire.Writable) -> None:
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._compressor, self._out, self._size = fastest(zlib.MAX_WBITS, level=1)[1], bytearray(), 0

    def write(self, data: bytes | memoryview, /) -> None:
        """Add whole packets."""
        self._out += self._compressor.compress(data)
        self._size += len(data)
        if self._size >= PACKED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._size:
            self._out += self._compressor.flush()
            self._file.write(wire.packet(wire.message(wire.PACKET_COMPRESSED, bytes(self._out))))
            self._begin()


class EventsFile:
    """Writes packets in order: anything that a packet refers to is written before it."""

    def __init__(
        self, file: wire.Writable, tracks: AddedTracks, interned: InternedTexts, *, first: bool = True
    ) -> None:
        self._file, self._tracks, self.interned = file, tracks, interned
        self.shift_ns = 0
        flags = wire.number(wire.PACKET_FLAGS, wire.CLEARED)
        file.write(wire.packet(flags + (wire.number(wire.PACKET_FIRST, 1) if first else b"")))

    def write(self, pieces: Iterable[Piece]) -> None:
        """Write events."""
        for events in pieces:
            self._put(self._before(), events)

    def write_beside(self, pieces: Iterable[Piece]) -> None:
        """As :meth:`write`, with a thread that encodes and writes a piece while the next one is made."""
        from concurrent.futures import Future, ThreadPoolExecutor

        with ThreadPoolExecutor(1) as executor:
            last: Future[None] | None = None
            for events in pieces:
                if last:
                    last.result()
                last = executor.submit(self._put, self._before(), events)
            if last:
                last.result()

    def _before(self) -> bytes:
        """The packets that must come before events made since the last call."""
        tracks, new = self._tracks.take_packets(), self.interned.take_new()
        return tracks + (wire.packet(wire.message(wire.PACKET_INTERNED, new)) if new else b"")

    def _put(self, before: bytes, piece: Piece) -> None:
        events = piece() if callable(piece) else piece
        if self.shift_ns:
            events = replace(events, ts=events.ts + self.shift_ns)
        self._file.write(before)
        for text_ in encode(events):
            self._file.write(text_)

    def of_annotations(self, annotations: Sequence[Annotation], arrows: Mapping[int, Suffixes]) -> Iterator[Events]:
        """The events of the annotations of analyses."""
        for annotation in annotations:
            yield from annotation_events(annotation, arrows, self._tracks, self.interned)

    def write_metadata(self, trace: Trace, part: str = "") -> None:
        """Write the outer object's members as Perfetto's metadata ``cr-NAME``. Nested members are written as their
        JSON.

        The members of a ``part`` of the file are named ``cr-PART NAME``.
        """
        properties = []
        for name, value in trace.source.metadata.items():
            content = wire.text(wire.METADATA_NAME, f"{part} {name}".strip())
            if isinstance(value, (dict, list)):
                content += wire.text(wire.METADATA_JSON, json.dumps(value, ensure_ascii=False))
            elif value is not None:
                content += wire.text(wire.METADATA_TEXT, str(value))
            if value is not None:
                properties.append(wire.message(wire.BUNDLE_METADATA, content))
        if properties:
            self._file.write(wire.packet(wire.message(wire.PACKET_CHROME_EVENTS, b"".join(properties))))
