"""Which rank recorded a file, told from its first bytes: the events are not read."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from typing import Any

from augment.batch import locations
from augment.errors import AugmentError
from augment.readers.assembly import distributed
from augment.readers.chrome import BYTE_ORDER_MARK
from augment.readers.containers import CHUNK, OpenText, open_text
from augment.readers.dialects import rank_in_name
from augment.readers.members import Ended, Members
from augment.readers.raw import Broken
from augment.readers.window import Window


@dataclass(frozen=True, slots=True)
class Identity:
    """The rank of the process that recorded a trace, and how many ranks its job has; None where nothing tells."""

    rank: int | None = None
    world_size: int | None = None


def identify(path: str) -> Identity:
    """The identity of the trace at ``path``, which may be a URL; from what stands before the events, else its name.

    The rules are the readers'. A rank that stands after the events, as no profiler is known to write it, is not found.
    What cannot be read has no identity: whoever converts it says why.
    """
    try:
        members = _members_before_events(path)
    except (AugmentError, Broken, Ended, OSError, ValueError):
        members = {}
    rank = distributed(members, "rank")
    return Identity(
        rank_in_name(locations.basename(path)) if rank is None else rank, distributed(members, "world_size")
    )


def _members_before_events(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with _opened(path) as text:
        window = Window(text, CHUNK)
        window.fill()
        if window.data[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
            window.drop(len(BYTE_ORDER_MARK))
        reader = Members(window)
        if reader.blank() != ord("{"):
            return found
        window.drop(1)
        with contextlib.suppress(Ended, Broken):  # what came before counts
            while reader.blank() not in (-1, ord("}")) and (name := reader.key()) != "traceEvents":
                found[name] = reader.value()
                if reader.blank() == ord(","):
                    window.drop(1)
    return found


def _opened(path: str) -> OpenText:
    """The text of the file; of a remote one, of its head."""
    if not locations.protocol(path):
        return open_text(path)
    head = tempfile.TemporaryFile()  # noqa: SIM115 - OpenText closes it
    head.write(locations.head(path))
    head.seek(0)
    return OpenText(path, head)
