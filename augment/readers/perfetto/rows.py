"""Growing columns for the rows of packets: one table for beginnings and whole events, one for ends of slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from augment.core.trace import NO_CORRELATION
from augment.kernels.native import address
from augment.kernels.packet_layout import PacketScan
from augment.readers.perfetto.state import Strings

#: of events: ``kind`` is ``ord`` of B, X, i or C; ``dur`` that of X, or a negative one that B tells; ``track`` counts
#: tracks in order of appearance, ``place`` counts (track, device, stream); ``correlation`` -1 is none
EVENT_COLUMNS: dict[str, Any] = {
    "ts": np.int64,
    "dur": np.int64,
    "kind": np.uint8,
    "category": np.int32,
    "name": np.int32,
    "track": np.int32,
    "place": np.int32,
    "correlation": np.int64,
    "offset": np.int64,
    "length": np.int32,
}
#: of ends: ``before`` is how many events came before it in the file
END_COLUMNS: dict[str, Any] = {"ts": np.int64, "track": np.int32, "before": np.int64}
#: pairs of a row and the size of what it copied; and flows that a row is part of, ``last`` where they end there
SIZE_COLUMNS: dict[str, Any] = {"row": np.int64, "value": np.int64}
FLOW_COLUMNS: dict[str, Any] = {"row": np.int64, "value": np.int64, "last": np.int64}
_FIRST_ROOM = 1 << 12


class Table:
    """Columns of equal length that grow."""

    def __init__(self, columns: dict[str, Any], table: Any) -> None:
        """Keep the columns of ``table``, by which kernels know them."""
        self.columns = {name: np.zeros(_FIRST_ROOM, kind) for name, kind in columns.items()}
        self._table = table
        self._tell()

    def _tell(self) -> None:
        for name, column in self.columns.items():
            setattr(self._table, name, address(column))
        self._table.room = self.room

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._table.count  # type: ignore[no-any-return]

    @property
    def room(self) -> int:
        """The number of rows that fit before :meth:`grow`."""
        return len(next(iter(self.columns.values())))

    def grow(self, at_least: int) -> None:
        """Make room for at least ``at_least`` more rows."""
        count = self.count
        if count + at_least <= self.room:
            return
        room = max(2 * self.room, count + at_least)
        for name, column in self.columns.items():
            larger = np.zeros(room, column.dtype)
            larger[:count] = column[:count]
            self.columns[name] = larger
        self._tell()

    def append(self, *values: int) -> int:
        """Add a row. Returns its number."""
        self.grow(1)
        row = self.count
        for column, value in zip(self.columns.values(), values, strict=True):
            column[row] = value
        self._table.count = row + 1
        return row

    def take(self, name: str) -> Any:
        """A column, cut to the length of the table."""
        return self.columns[name][: self.count]


class Rows:
    """All tables, and the objects that their numbers refer to."""

    def __init__(self) -> None:
        self.scan = scan = PacketScan()
        self.events, self.ends = Table(EVENT_COLUMNS, scan.events), Table(END_COLUMNS, scan.ends)
        self.sizes, self.flows = Table(SIZE_COLUMNS, scan.sizes), Table(FLOW_COLUMNS, scan.flows)
        self.strings = Strings()
        self.tracks: dict[int, int] = {}  #: number by uuid
        self.places: dict[tuple[Any, ...], int] = {}

    def track(self, uuid: int) -> int:
        """The number of a track."""
        return self.tracks.setdefault(uuid, len(self.tracks))

    def place(self, track: int, device: Any, stream: Any) -> int:
        """The number of a place."""
        return self.places.setdefault((track, device, stream), len(self.places))

    def add_flows(self, row: int, ids: list[int], last: int) -> None:
        """Record that a row is part of flows."""
        for flow_id in ids:
            self.flows.append(row, flow_id - (1 << 64) if flow_id >> 63 else flow_id, last)


__all__ = ["EVENT_COLUMNS", "NO_CORRELATION", "Rows", "Table"]
