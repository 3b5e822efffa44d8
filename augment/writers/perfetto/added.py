"""The added tracks of a native Perfetto file, made while it is written or later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from augment.core.annotations import Annotation, CounterTrack, Flows, InstantTrack, SliceTrack
from augment.writers.perfetto.wire import (
    BY_RANK,
    COUNTER_CATEGORIES,
    COUNTER_SHARE_KEY,
    COUNTER_UNIT_NAME,
    PACKET_DESCRIPTOR,
    TRACK_CHILD_ORDER,
    TRACK_COUNTER,
    TRACK_DESCRIPTION,
    TRACK_NAME,
    TRACK_PARENT,
    TRACK_RANK,
    TRACK_UUID,
    message,
    number,
    packet,
    text,
)

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
    """

    count: int
    homes: dict[int, int]
    children: dict[int, int]
    packets: bytes
    suffixes: dict[int, str] = {}
    processes: dict[int, int] = {}


class AddedTracks(ABC):
    """Makes tracks for annotations; their descriptions wait in :meth:`take_packets`."""

    short = ""  #: appended to the names of added tracks: the trace that they belong to, if the file has several

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
        home = self.process_of(annotation.under) if of_process else self.home_of(annotation.under)
        group = "" if isinstance(annotation, InstantTrack) else annotation.group
        home = self._group(home, group) if group else home
        counter = None
        if isinstance(annotation, CounterTrack):
            counter = text(COUNTER_CATEGORIES, f"augment.{annotation.analysis}")
            counter += text(COUNTER_UNIT_NAME, annotation.unit)
            if annotation.scale:
                counter += text(COUNTER_SHARE_KEY, f"{annotation.analysis} {annotation.scale}")
        below = _OF_STREAMS if "stream" in annotation.name else _COUNTERS if counter else 0
        self._children[home] = rank = self._children.get(home, 0) + 1
        name = annotation.name if of_process or group else annotation.name + self.suffix_of(annotation.under)
        return self._add(home, name + self.short, rank + below, annotation.description, counter)

    def _group(self, home: int, name: str) -> int:
        """The track of a group, at the top of ``home``."""
        if (home, name) not in self._groups:
            self._groups[home, name] = self._add(home, name, rank=0, ordered=True)
        return self._groups[home, name]

    def _add(
        self,
        parent: int | None,
        name: str,
        rank: int | None = None,
        description: str = "",
        counter: bytes | None = None,
        ordered: bool = False,
    ) -> int:
        content = text(TRACK_NAME, name)
        if parent is not None:
            content += number(TRACK_PARENT, parent)
        if rank is not None:
            content += number(TRACK_RANK, rank)
        if description:
            content += text(TRACK_DESCRIPTION, description)
        if counter is not None:
            content += message(TRACK_COUNTER, counter)
        if ordered:
            content += number(TRACK_CHILD_ORDER, BY_RANK)
        return self._describe(content)

    def _describe(self, content: bytes) -> int:
        self.count += 1
        self._packets.append(packet(message(PACKET_DESCRIPTOR, number(TRACK_UUID, self.count) + content)))
        return self.count


class LaterTracks(AddedTracks):
    """Adds tracks to a file that was written earlier."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.count, room.children)
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
