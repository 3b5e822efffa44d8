"""The added tracks of a native Perfetto file, made while it is written or later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from augment.arrays import Int64s, numbered
from augment.core import Annotation, CounterTrack, Flows, InstantTrack, SliceTrack, Texts
from augment.writers.perfetto import packets, wire

_COUNTERS, _OF_STREAMS = 2000, 4000  #: ranks below a device: its slices are first, then its counters, then streams


class Room(msgspec.Struct, frozen=True):
    """The state needed to add tracks later.

    Args:
        count: tracks of the file.
        homes: by track of the source, the track that what is added under it lies in.
        children: how many tracks were added in each of these.
        packets: descriptions of homes that are not in the file.
        suffixes: by track of the source, what ends the names of tracks added under it.
        processes: by track of the source, the process that it lies in; only where that is not its home.
        of_one: the file has a single trace.
        on_home: the name of a track that has no row of its own: it is drawn on that of its home.
    """

    count: int
    homes: dict[int, int]
    children: dict[int, int]
    packets: bytes
    suffixes: dict[int, str] = {}
    processes: dict[int, int] = {}
    of_one: bool = False
    on_home: str = ""


class AddedTracks(ABC):
    """Makes tracks for annotations; their descriptions wait in :meth:`take_packets`."""

    short = ""  #: appended to the names of added tracks: the trace that they belong to, if the file has several
    of_one = False  #: whether the file has a single trace
    on_home = ""  #: the name of a track that is drawn on the row of its home

    def __init__(self, count: int, children: Mapping[int, int] | None = None) -> None:
        """``count`` is the number of tracks of the file; ``children`` that of tracks added in each track."""
        self.count = count
        self._packets: list[bytes] = []
        self._children = dict(children or {})
        self._groups: dict[tuple[int, str], int] = {}  #: by parent track and name

    @abstractmethod
    def home_of(self, under: int) -> int:
        """The parent of tracks added under a track of the source."""

    def process_of(self, under: int) -> int:
        """The process of a track of the source; if unknown, the result of :meth:`home_of`."""
        return self.home_of(under)

    def suffix_of(self, _under: int) -> str:
        """The text that distinguishes a track from tracks of equal name on other devices."""
        return ""

    def take_packets(self) -> bytes:
        """The descriptions of the tracks made since the last call."""
        taken = b"".join(self._packets)
        self._packets.clear()
        return taken

    def of_annotation(self, annotation: Annotation) -> int:
        """A new track for an annotation."""
        assert not isinstance(annotation, Flows)
        of_process = isinstance(annotation, SliceTrack) and annotation.of_process
        if isinstance(annotation, SliceTrack) and annotation.on_top and self.of_one:
            of_process = False
        home = self.process_of(annotation.under) if of_process else self.home_of(annotation.under)
        if annotation.name == self.on_home:
            return home
        group = "" if isinstance(annotation, InstantTrack) else annotation.group
        if group:
            if (home, group) not in self._groups:  # the track of a group is at the top of its home
                self._groups[home, group] = self._add(home, group, rank=0, ordered=True)
            home = self._groups[home, group]
        counter = None
        if isinstance(annotation, CounterTrack):
            counter = wire.text(wire.COUNTER_CATEGORIES, f"augment.{annotation.analysis}")
            counter += wire.text(wire.COUNTER_UNIT_NAME, annotation.unit)
            if annotation.scale:
                counter += wire.text(wire.COUNTER_SHARE_KEY, f"{annotation.analysis} {annotation.scale}")
        below = _OF_STREAMS if "stream" in annotation.name else _COUNTERS if counter else 0
        self._children[home] = rank = self._children.get(home, 0) + 1
        name = annotation.name if of_process or group else annotation.name + self.suffix_of(annotation.under)
        return self._add(home, name + self.short, rank + below, annotation.description, counter)

    def _add(
        self,
        parent: int | None,
        name: str,
        rank: int | None = None,
        description: str = "",
        counter: bytes | None = None,
        ordered: bool = False,
    ) -> int:
        content = wire.text(wire.TRACK_NAME, name)
        if parent is not None:
            content += wire.number(wire.TRACK_PARENT, parent)
        if rank is not None:
            content += wire.number(wire.TRACK_RANK, rank)
        if description:
            content += wire.text(wire.TRACK_DESCRIPTION, description)
        if counter is not None:
            content += wire.message(wire.TRACK_COUNTER, counter)
        if ordered:
            content += wire.number(wire.TRACK_CHILD_ORDER, wire.BY_RANK)
        return self._describe(content)

    def _describe(self, content: bytes) -> int:
        self.count += 1
        self._packets.append(wire.descriptor(wire.number(wire.TRACK_UUID, self.count) + content))
        return self.count


class LaterTracks(AddedTracks):
    """Adds tracks to a file that was written earlier."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.count, room.children)
        self.of_one, self.on_home = room.of_one, room.on_home
        self._homes, self._suffixes, self._processes = room.homes, room.suffixes, room.processes
        self._packets.append(room.packets)

    def home_of(self, under: int) -> int:
        """The track stored in the room."""
        return self._homes[under]

    def process_of(self, under: int) -> int:
        """The process stored in the room."""
        return self._processes.get(under, self._homes[under])

    def suffix_of(self, under: int) -> str:
        """The suffix used when the file was written."""
        return self._suffixes.get(under, "")


def annotation_events(
    annotation: Annotation, arrows: Mapping[int, packets.Suffixes], tracks: AddedTracks, interned: packets.InternedTexts
) -> Iterator[packets.Events]:
    """The events of one annotation, in pieces in the order of writing. Flows and empty tracks have no events.

    ``arrows`` are the fields of the arrows of added tracks, by their ``id``.
    """
    if isinstance(annotation, Flows) or not len(annotation.ts):
        return
    track = tracks.of_annotation(annotation)
    category = interned.number(wire.INTERNED_CATEGORIES, f"augment.{annotation.analysis}")
    match annotation:
        case SliceTrack():
            suffixes_ = arrows.get(id(annotation), packets.NO_SUFFIXES)
            args = packets.slice_args(annotation, packets.ArgsEncoder(interned))
            names = _name_numbers(annotation.names, interned)
            shown = (
                args if annotation.colour is None else packets.with_suffixes(args, packets.colours(annotation.colour))
            )
            outer = packets.slices(
                annotation.ts, annotation.dur, track, category, names, packets.with_suffixes(shown, suffixes_)
            )
            yield from _with_inner(outer, annotation, track, category, args, interned)
        case CounterTrack():
            yield packets.counters(annotation.ts, annotation.values.astype(np.float64), track)
        case InstantTrack():
            count = len(annotation.ts)
            kind, track_, category_ = (packets.column(value, count) for value in (wire.INSTANT, track, category))
            yield packets.Events(kind, annotation.ts, track_, category_, _name_numbers(annotation.names, interned))


def _with_inner(
    outer: tuple[packets.Events, packets.Events],
    annotation: SliceTrack,
    track: int,
    category: int,
    args: packets.Blobs,
    interned: packets.InternedTexts,
) -> Iterator[packets.Events]:
    """The slices of a track and those inside them, in the order of :func:`slices`: each begins after the one around
    it.
    """
    rows = annotation.inner_rows()
    if annotation.inner is None or not len(rows):
        yield from outer
        return
    names = _name_numbers(annotation.inner.take(rows), interned)
    inner = packets.slices(annotation.ts[rows], annotation.dur[rows], track, category, names, args.take(rows))
    for outside, inside in zip(outer, inner, strict=True):
        yield outside
        yield inside


def _name_numbers(texts: Texts, interned: packets.InternedTexts) -> Int64s:
    """The number of each name; a missing text counts as the empty string."""
    none = len(texts.values)
    codes, which = numbered(np.where(texts.codes < 0, none, texts.codes))
    names = (texts.values[code] if code < none else "" for code in codes.tolist())
    return np.array([interned.number(wire.INTERNED_NAMES, name) for name in names], np.int64)[which]
