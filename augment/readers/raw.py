"""The result of a scanner: columns in file order and in the file's notation. ``assembly.py`` makes a Trace of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays import Bytes, Int32s, Int64s
from augment.core.jsontext import clean
from augment.core.trace import NOTHING, ArgColumn, Identity, SparseColumn, args_of_event


class Absent:
    """The device or stream that an event's args do not give (they may give null)."""


ABSENT = Absent()
Place = tuple[Identity, Identity, Identity | Absent, Identity | Absent]  #: pid, tid, device, stream


class Tally(Struct):
    """Counts of what could not be used or was repaired, with the byte of each first occurrence."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, code: str, offset: int, count: int = 1) -> None:
        """Count one more ``code``, or ``count`` more, at byte ``offset`` of the text."""
        self.counts[code] += count
        self.first[code] = min(offset, self.first.get(code, offset))


class TrackNames(Struct):
    """The names in metadata (``M``) events of processes and threads."""

    processes: dict[Identity, str] = field(default_factory=dict)
    threads: dict[tuple[Identity, Identity], str] = field(default_factory=dict)
    renamed: int = 0  #: names that took the place of others

    def add(self, event: dict[str, Any]) -> None:
        """Take one metadata event."""
        name = args_of_event(event).get("name")
        if not isinstance(name, str):
            return
        if event.get("name") == "process_name":
            pid = identity(event.get("pid"))
            self.renamed += self.processes.get(pid, name) != name
            self.processes[pid] = name
        elif event.get("name") == "thread_name":
            thread = identity(event.get("pid")), identity(event.get("tid"))
            self.renamed += self.threads.get(thread, name) != name
            self.threads[thread] = name


#: the columns of every row, in the scanners' order, and their types
COLUMNS: dict[str, type[np.generic]] = {
    "ts": np.int64,
    "dur": np.int64,
    "phase": np.uint8,
    "category": np.int32,
    "name": np.int32,
    "place": np.int32,
    "correlation": np.int64,
    "offset": np.int64,
    "length": np.int32,
}


class RawEvents(Struct):
    """Columns with one entry per row, in file order. Times are those of the file in ns. Rows of phase 0 are empty.

    ``name`` and ``category`` index ``strings``, ``place`` indexes ``places``; ``args`` are as in the table.
    """

    ts: Int64s
    dur: Int64s
    phase: Bytes
    category: Int32s
    name: Int32s
    place: Int32s
    correlation: Int64s
    offset: Int64s
    length: Int32s
    sizes: SparseColumn
    flows: SparseColumn
    strings: list[str]
    places: list[Place]
    names: TrackNames
    tally: Tally
    event_count: int
    args: Mapping[str, ArgColumn] | None = None
    ends: SparseColumn = NOTHING


Text = npt.NDArray[np.uint8]  #: padded by at least 8 bytes


class Broken(Exception):
    """The text is not JSON at this offset. Readers convert this error to MalformedTrace."""

    def __init__(self, offset: int, because: str) -> None:
        super().__init__(because)
        self.offset, self.because = offset, because


def identity(value: Any) -> Identity:
    """A pid, tid, device or stream from its JSON value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return clean(value) if isinstance(value, str) else str(value)
