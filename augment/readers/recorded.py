"""What is recorded beside a trace, as an input by itself: a trace without events, with the file attached.

The kinds are those of ``augment/core/attachment_kinds.py``; each is recognised by its first bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import numpy as np

from augment.arrays import Int32s, Int64s
from augment.core import Context, EventTable, Source, Trace, Track
from augment.core.attachment_kinds import Kind, kind_named, kind_of
from augment.core.trace import NOTHING
from augment.errors import UnknownFormat
from augment.readers.attachments import read_alone
from augment.readers.containers import CHUNK, OpenText
from augment.readers.dialects import rank_in_path

NAME = "recorded"
SUFFIXES: tuple[str, ...] = ()  #: in a folder of traces it is not looked for: it would be beside one
MOST_BEFORE = 1 << 26  #: bytes of a program's own output before NCCL's first line
_OF_NCCL = re.compile(rb"NCCL (?:INFO|WARN) ")
_GAVE_UP = re.compile(rb"Watchdog caught collective operation timeout")
_LONGEST_WORD = 48  #: bytes of what these match
_TEXT = b'{"traceEvents": []}'


class _NoEvents:
    """The text of a trace without events: what writers add their tracks to."""

    gzip_tail = None

    def read_at(self, _offsets: Int64s, _lengths: Int32s) -> list[bytes]:
        """Nothing, as no event has a text."""
        return []

    def chunks(self) -> Iterator[memoryview]:
        """The whole text."""
        yield memoryview(_TEXT)


def recognizes(head: bytes) -> bool:
    """Whether a text that begins with ``head`` is of one of the kinds."""
    return kind_of(head) is not None


def layout(head: bytes) -> str:
    """What the file is."""
    return (kind_of(head) or kind_named("nccl_log")).what


def read(path: str, text: OpenText, head: bytes) -> Trace:
    """A trace without events, with what the file holds.

    Raises:
        UnknownFormat: nothing can be said of such a file without its trace; or it is none.
        LimitExceeded: it is larger than the limits allow.
    """
    kind = kind_of(head)
    assert kind is not None
    return _alone(kind, path, text)


def read_log(path: str, text: OpenText, head: bytes) -> Trace | None:
    """The same of a text in which NCCL's lines come later than its first bytes tell; None if there are none in the
    first :data:`MOST_BEFORE` bytes. ``head`` was already read.

    Raises:
        UnknownFormat: PyTorch's watchdog gave a collective up in it, and NCCL logged nothing.
    """
    last, read, gave_up = head, len(head), _GAVE_UP.search(head) is not None
    while b"\0" not in last and read < MOST_BEFORE and (piece := bytes(text.read(CHUNK))):
        if _OF_NCCL.search(last[-_LONGEST_WORD:] + piece):
            return _alone(kind_named("nccl_log"), path, text)
        gave_up = gave_up or _GAVE_UP.search(last[-_LONGEST_WORD:] + piece) is not None
        last, read = piece, read + len(piece)
    if gave_up:
        what = (
            "a program's log, in which PyTorch's watchdog gives a collective up: it does not say which rank is missing"
        )
        how = (
            "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 (before PyTorch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
        raise UnknownFormat(path, f"{what}; set {how}, and give the dumps of all ranks")
    return None


def _alone(kind: Kind, path: str, text: OpenText) -> Trace:
    if not kind.alone:
        raise UnknownFormat(path, f"{kind.what}; name it beside its trace: augment run TRACE --{kind.option} FILE")
    attached = read_alone(kind, path, text.limits)
    name = os.path.basename(path)
    rank, rank_from = rank_in_path(path)
    source = Source(
        path=path,
        name=name,
        sha256=text.sha256(),
        format=NAME,
        event_count=0,
        text=_NoEvents(),
        text_bytes=len(_TEXT),
        insert_at=len(_TEXT) - 2,
        rank_from=rank_from,
    )
    track = Track(rank, 0, 0, process_name=kind.name.replace("_", " "), thread_name=name)
    wide, narrow, byte = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
    no_events = EventTable(wide, wide, byte, byte, narrow, narrow, narrow, wide, wide, narrow, NOTHING, NOTHING)
    return Trace(no_events, [""], (track,), source, context=Context([attached]))
