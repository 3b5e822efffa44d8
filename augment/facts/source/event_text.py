"""The text of many events, read in one pass over the source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from augment.arrays.types import Bytes, Int32s, Int64s
from augment.core.trace import Decode, SourceBytes, json_event

_BLOCK_BYTES = 4 << 20
_MOST_ROWS = 1 << 18  #: the size of a block
PADDING = 16  #: bytes before and after the text that compiled code may load, but not interpret


class Block(NamedTuple):
    """A block of text with whole events: those at ``[start, stop)``. ``data[PADDING]`` is byte ``base`` of the text."""

    start: int
    stop: int
    data: Bytes
    base: int


@runtime_checkable
class PacketDecode(Protocol):
    """Decodes packets of Perfetto's format, whose strings are defined by other packets. Here, packets are any
    object.
    """

    def __call__(self, text: bytes, offset: int, /) -> dict[str, Any]:
        """The event in a packet."""

    def strings_at(self, sequence: int, offset: int) -> tuple[Any, int, int]:
        """The strings that a sequence has at a byte, and the range of bytes in which it has them."""

    def arg(self, annotation: bytes, strings: Any) -> tuple[str, Any] | None:
        """Key and value of a ``DebugAnnotation``; None if it is damaged, or has several keys."""


def blocks(text: SourceBytes, offsets: Int64s, lengths: Int32s) -> Iterator[Block]:
    """The events at the ascending ``offsets``, block by block; a block is valid until the next."""
    data = np.zeros(_BLOCK_BYTES + 2 * PADDING, np.uint8)
    size = base = done = 0
    ends = offsets + lengths
    for chunk in text.chunks():
        if done == len(offsets):
            break
        if size + len(chunk) > len(data) - 2 * PADDING:
            whole = done + int(np.searchsorted(ends[done : done + _MOST_ROWS], np.int64(base + size), side="right"))
            if whole > done:
                yield Block(done, whole, data, base)
                done = whole
            first = min(int(offsets[done]) if done < len(offsets) else base + size, base + size)
            kept = data[PADDING + first - base : PADDING + size].copy()
            base, size = first, len(kept)
            if size + len(chunk) > len(data) - 2 * PADDING:
                data = np.zeros(2 * (size + len(chunk)) + 2 * PADDING, np.uint8)
            data[PADDING : PADDING + size] = kept
        data[PADDING + size : PADDING + size + len(chunk)] = np.frombuffer(chunk, np.uint8)
        size += len(chunk)
    if done < len(offsets):
        yield Block(done, len(offsets), data, base)


def decoded(block: Block, offsets: Int64s, lengths: Int32s, decode: Decode = json_event) -> Iterator[dict[str, Any]]:
    """Each event of a block; empty where it is none of ``decode``'s (of a Chrome file: no JSON object at all)."""
    offsets_ = offsets[block.start : block.stop].tolist()
    for offset, length in zip(offsets_, lengths[block.start : block.stop].tolist(), strict=True):
        start = offset - block.base + PADDING
        yield decoded_event(block.data[start : start + length].tobytes(), offset, decode)


def decoded_event(text: bytes, offset: int = 0, decode: Decode = json_event) -> dict[str, Any]:
    """The members of an event."""
    try:
        event = decode(text, offset)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
