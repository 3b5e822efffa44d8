"""The fields that make arrows and colours. They are appended to the args of slices.

Slices have numbers here: the slices of the source by their place in ``Plan.order``, then those of each added track.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.core.annotations import Annotation, Ends, Flows, SliceTrack
from augment.core.trace import Trace
from augment.kernels.native import address, native
from augment.writers.perfetto.packets import Blobs, blobs_of
from augment.writers.perfetto.wire import EVENT_CORRELATION, EVENT_FLOW, EVENT_LAST_FLOW, varint

FIELD_BYTES = 10
_FIELD = np.dtype([("tag", "u1", 2), ("id", "<i8")])


_ARROWS = 1 << 40  #: more arrows than any trace has
_LINKS = 1 << 62  #: ids from here on belong to links


class Links(Struct, frozen=True):
    """Ends of arrows that lead from slices of one trace to slices of others in the same file.

    ``rows`` are int64 rows of ``Trace.events`` or of an added ``track``; ``ids`` are int64 in [0, 2**62); both have
    equal length. Slices of one id are linked in the order of time, whatever trace they belong to.
    """

    rows: Int64s
    ids: Int64s
    track: SliceTrack | None = None


class Part(Struct, frozen=True):
    """A trace among several in a file: the number of traces before it, its name, and its links to the others."""

    number: int = 0
    name: str = ""
    links: tuple[Links, ...] = ()


class Suffixes(NamedTuple):
    """A field for each of ``rows``, which ascend; a row may have several."""

    rows: Int64s
    blobs: Blobs


NO_SUFFIXES = Suffixes(np.zeros(0, np.int64), blobs_of(()))


class SuffixNumbers(Struct):
    """The number of every slice of a file, and its place in the order of writing.

    Args:
        trace: whose events are the source's slices.
        place: the number of each event; :data:`NO_INDEX` where it makes none.
        written: the same, but in the order in which events are written.
        annotations: in the order in which they are written, after all events.
        part: what the trace is in the file.
    """

    trace: Trace
    place: Int32s | Int64s
    written: Int32s | Int64s
    annotations: Sequence[Annotation]
    part: Part = field(default_factory=Part)
    source_count: int = 0
    base_of: dict[int, int] = field(default_factory=dict)  #: the first number of each added track, by its ``id``

    def __post_init__(self) -> None:
        count = self.source_count = int(self.written.max(initial=NO_INDEX)) + 1
        for annotation in self.annotations:
            if isinstance(annotation, SliceTrack):
                self.base_of[id(annotation)] = count
                count += len(annotation.ts)

    def of(self, ends: Ends) -> tuple[Int64s, Int64s]:
        """The number of each slice, and its place in the order of writing."""
        if ends.track is None:
            place, written = (column[ends.rows] for column in (self.place, self.written))
            return place.astype(np.int64, copy=False), written.astype(np.int64, copy=False)
        added = self.base_of[id(ends.track)] + ends.rows
        return added, added


def suffixes(numbers: SuffixNumbers, source: Flows, repairs: Counter[str]) -> tuple[Suffixes, dict[int, Suffixes]]:
    """The fields of all arrows, those of ``source`` and those among the annotations: for the source's slices by their
    place, and for added tracks, by their ``id``, by row.

    Perfetto draws arrows forward in time alone: others are turned round, which is a repair of the source's.
    """
    firsts, seconds = [], []
    for flows in (source, *(annotation for annotation in numbers.annotations if isinstance(annotation, Flows))):
        (out, out_written), (into, into_written) = numbers.of(flows.out), numbers.of(flows.into)
        out_ts, into_ts = flows.out.times(numbers.trace), flows.into.times(numbers.trace)
        turned = (out_ts > into_ts) | ((out_ts == into_ts) & (out_written > into_written))
        if flows is source:
            repairs["flow_turned_round"] = int(np.count_nonzero(out_ts > into_ts))
        drawn = (out != NO_INDEX) & (into != NO_INDEX) & (out != into)
        repairs["flow_without_slices"] += int(np.count_nonzero(~drawn))
        firsts.append(np.where(turned, into, out)[drawn])
        seconds.append(np.where(turned, out, into)[drawn])
    fields = _fields(np.concatenate(firsts), np.concatenate(seconds), numbers)
    return _between(fields, 0, numbers.source_count), {
        id(annotation): _between(fields, numbers.base_of[id(annotation)], len(annotation.ts))
        for annotation in numbers.annotations
        if isinstance(annotation, SliceTrack)
    }


def _fields(first: Int64s, second: Int64s, numbers: SuffixNumbers) -> Suffixes:
    """The fields of arrows between slices, by their numbers, and of links to other traces."""
    count, part = len(first), numbers.part
    none = np.empty(0, np.int64)
    linked = np.concatenate([none, *(numbers.of(Ends(link.rows, link.track))[0] for link in part.links)])
    ids = np.concatenate([none, *(link.ids for link in part.links)])
    drawn = linked != NO_INDEX
    rows = np.concatenate([first, second, linked[drawn]])
    record = np.zeros(len(rows) + 1, _FIELD)
    record["tag"][:] = np.frombuffer(varint(EVENT_FLOW << 3 | 1), np.uint8)
    record["tag"][count : 2 * count] = np.frombuffer(varint(EVENT_LAST_FLOW << 3 | 1), np.uint8)
    record["id"][: 2 * count] = np.tile(np.arange(1, count + 1) + part.number * _ARROWS, 2)
    record["id"][2 * count : -1] = ids[drawn] + _LINKS
    order = np.argsort(rows, kind="stable")
    start, size = order * FIELD_BYTES, np.full(len(rows), FIELD_BYTES, np.int64)
    return Suffixes(rows[order], Blobs(record.view(np.uint8), start, size))


def colours(numbers: Int64s) -> Suffixes:
    """The fields by which the UI colours slices, their ``correlation_id``: in [0, 2**48), or -1 for a slice without
    one.

    Each is a varint, padded to eight bytes.
    """
    rows = np.flatnonzero(numbers >= 0)
    record = np.zeros((len(rows), FIELD_BYTES), np.uint8)
    record[:, :2] = np.frombuffer(varint(EVENT_CORRELATION << 3), np.uint8)
    record[:, 2:] = numbers[rows, None] >> np.arange(0, 56, 7) & 127
    record[:, 2:-1] |= 128
    data = np.append(record.ravel(), np.zeros(8, np.uint8))
    return Suffixes(rows, Blobs(data, np.arange(len(rows)) * FIELD_BYTES, np.full(len(rows), FIELD_BYTES, np.int64)))


def _between(all_: Suffixes, base: int, count: int) -> Suffixes:
    first, stop = np.searchsorted(all_.rows, (base, base + count)).tolist()
    return Suffixes(all_.rows[first:stop] - base, all_.blobs.take(slice(first, stop)))


def with_suffixes(blobs: Blobs, added: Suffixes) -> Blobs:
    """``blobs`` with the fields of their rows appended."""
    if not len(added.rows):
        return blobs
    rows, fields = np.unique(added.rows, return_counts=True)
    size = blobs.size[rows]
    whole = size + FIELD_BYTES * fields
    start = np.cumsum(whole) - whole
    at_own = np.arange(len(rows)) + np.cumsum(fields) - fields  # each row's own bytes, then its fields
    at_field = np.arange(len(added.rows)) + np.repeat(np.arange(len(rows)), fields) + 1
    begins, length = (np.empty(len(rows) + len(added.rows), np.int64) for _ in range(2))
    begins[at_own], length[at_own] = address(blobs.data) + blobs.start[rows], size
    begins[at_field], length[at_field] = address(added.blobs.data) + added.blobs.start, added.blobs.size
    data = np.zeros(int(whole.sum()) + 8, np.uint8)
    native("encode_packets.join_pieces")(begins, length, address(data))
    starts, sizes = blobs.start.copy(), blobs.size.copy()
    starts[rows], sizes[rows] = len(blobs.data) + start, whole
    return Blobs(np.concatenate([blobs.data, data]), starts, sizes)
