"""Limits on how much of a trace a reader accepts. They protect programs that read untrusted files."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from augment.errors import LimitExceeded

if TYPE_CHECKING:
    from augment.core import Track

SMALL_TEXT = 64 << 20  #: bytes that any file may decompress to, whatever its compression ratio
NESTING = 128  #: far more than any profiler writes, and far less than JSON decoders can handle
LEAST_NESTING = 16  #: compiled code does not check shallower nesting


class Limits(Struct, frozen=True):
    """Limits on a trace. None means no limit.

    Attributes:
        text_bytes: the most bytes that the file, and each of its layers, may decompress to.
        text_ratio: the same as a multiple of the file's size. Deflate cannot exceed about 1032:1; a chain of containers
            that does is an attack.
        events: the most events, or packets.
        devices: the most devices that have work, and that the header describes. Each costs time and memory, whatever
            its work.
        streams: the most streams of all devices.
        name_bytes: the longest string among names, categories and identities.
        nesting: the greatest depth of braces and brackets in a JSON event, including its own. A deeper event is left
            out, and a diagnostic counts it. At least :data:`LEAST_NESTING`. The reader of native traces has a limit of
            its own for values, below this default.
    """

    text_bytes: int | None = None
    text_ratio: int = 2_000
    events: int | None = None
    devices: int | None = None
    streams: int | None = None
    name_bytes: int | None = None
    nesting: int = NESTING

    def most_text(self, file_bytes: int) -> int:
        """The most bytes of text that a file of this size may hold."""
        honest = max(SMALL_TEXT, self.text_ratio * file_bytes)
        return honest if self.text_bytes is None else min(self.text_bytes, honest)

    def expect_text(self, path: str, text_bytes: int, file_bytes: int) -> None:
        """Raise LimitExceeded for a text that is too large."""
        if text_bytes <= self.most_text(file_bytes):
            return
        if self.text_bytes is not None and text_bytes > self.text_bytes:
            raise LimitExceeded(path, f"decompresses to more than {self.text_bytes} bytes")
        raise LimitExceeded(path, f"decompresses to more than {self.text_ratio} times its size; not a trace")

    def expect_events(self, path: str, count: int) -> None:
        """Raise LimitExceeded for too many events."""
        if self.events is not None and count > self.events:
            raise LimitExceeded(path, f"has more than {self.events} events; record fewer steps")

    def expect_described(self, path: str, listed: object) -> None:
        """Raise LimitExceeded for a header that describes too many devices."""
        if self.devices is not None and isinstance(listed, list) and len(listed) > self.devices:
            raise LimitExceeded(path, f"describes {len(listed)} devices, more than {self.devices}")

    def expect_tracks(self, path: str, tracks: Collection[Track]) -> None:
        """Raise LimitExceeded for work on too many devices or streams."""
        streams = {(track.device, track.stream) for track in tracks if track.device is not None}
        for most, count, what in (
            (self.devices, len({device for device, _ in streams}), "devices"),
            (self.streams, len(streams), "streams of devices"),
        ):
            if most is not None and count > most:
                raise LimitExceeded(path, f"has work on {count} {what}, more than {most}; split it by rank or by time")

    def expect_names(self, path: str, strings: Collection[str]) -> None:
        """Raise LimitExceeded for a name that is too long."""
        if self.name_bytes is not None and (longest := max(map(len, strings), default=0)) > self.name_bytes:
            raise LimitExceeded(path, f"has a name of {longest} characters; at most {self.name_bytes} are taken")


UNLIMITED = Limits()
