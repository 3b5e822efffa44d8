"""Identifies the rank that recorded a file from its first bytes, without reading the events."""

from __future__ import annotations

import contextlib
from typing import Any

from msgspec import Struct

from augment.batch import locations
from augment.errors import AugmentError
from augment.readers.assembly import distributed
from augment.readers.chrome import BYTE_ORDER_MARK
from augment.readers.containers import CHUNK, OpenText, open_text
from augment.readers.dialects import rank_in_name
from augment.readers.members import Ended, Members, TextWindow
from augment.readers.raw import Broken

_TRACE_EVENTS = "traceEvents"


class FileIdentity(Struct, frozen=True):
    """The rank of the process that recorded a trace, and the number of ranks of its job; None where unknown."""

    rank: int | None = None
    world_size: int | None = None


def identify(path: str) -> FileIdentity:
    """The identity of the trace at ``path``, which may be a URL: from the members before the events, else its name.

    The rules are those of the readers. A rank after the events is not found; no known profiler writes it there. A file
    that cannot be read has no identity: its conversion reports the reason.
    """
    try:
        members = _members_before_events(path)
    except (AugmentError, Broken, Ended, OSError, ValueError):
        members = {}
    rank = distributed(members, "rank")
    return FileIdentity(
        rank_in_name(locations.basename(path)) if rank is None else rank, distributed(members, "world_size")
    )


def has_events(path: str) -> bool:
    """Whether a file may be a trace: JSON with ``traceEvents`` or a list, or no JSON. True if it cannot be read: its
    conversion reports the reason."""
    try:
        return _TRACE_EVENTS in _members_before_events(path)
    except (AugmentError, Broken, Ended, OSError, ValueError):
        return True


def _members_before_events(path: str) -> dict[str, Any]:
    """The members before the events, and :data:`_TRACE_EVENTS` if there are events, or the text is no object."""
    members: dict[str, Any] = {}
    with _opened(path) as text:
        window = TextWindow(text, CHUNK)
        window.fill()
        if window.data[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
            window.drop(len(BYTE_ORDER_MARK))
        reader = Members(window)
        if reader.blank() != ord("{"):
            return {_TRACE_EVENTS: None}
        window.drop(1)
        with contextlib.suppress(Ended, Broken):  # keep the members before the damage
            while reader.blank() not in (-1, ord("}")):
                if (name := reader.key()) == _TRACE_EVENTS:
                    return {**members, _TRACE_EVENTS: None}
                members[name] = reader.value()
                if reader.blank() == ord(","):
                    window.drop(1)
    return members


def _opened(path: str) -> OpenText:
    """The text of the file; for a remote file, of its head."""
    import tempfile

    if not locations.protocol(path):
        return open_text(path)
    head = tempfile.TemporaryFile()  # noqa: SIM115 - OpenText closes it
    head.write(locations.head(path))
    head.seek(0)
    return OpenText(path, head)
