"""The general event scanner: any layout, no compiler. Small files, odd files, machines without numba."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from augment.readers.events import Event, Row, decode_events, parse_event, row_of
from augment.readers.raw import COLUMNS, Broken, Names, Place, RawEvents, Tally, Text
from augment.readers.structure import structure

_BARE = re.compile(rb'[\s,]*(?:(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)[\s,]*)*', re.DOTALL)
_BARE_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,]+', re.DOTALL)


class GeneralScanner:
    """See :class:`augment.readers.raw.Scanner`."""

    def __init__(self) -> None:
        self.last_end: int | None = None
        self._columns: tuple[list[int], ...] = tuple([] for _ in COLUMNS)
        self._sizes: tuple[list[int], list[int]] = ([], [])
        self._flows: tuple[list[int], list[int]] = ([], [])
        self._strings: dict[str, int] = {"": 0}
        self._places: dict[Place, int] = {}
        self._names, self._tally = Names(), Tally()
        self._count = 0

    def scan(self, text: Text, start: int, size: int, base: int) -> tuple[int, bool]:
        """See :meth:`augment.readers.raw.Scanner.scan`."""
        piece = text[start:size]
        found = structure(piece)
        closing = np.flatnonzero(found.depth < 0)
        whole = int(closing[0]) if len(closing) else len(piece)
        depth, brackets = found.depth[:whole], found.brackets[:whole]
        starts = np.flatnonzero((brackets == 1) & (depth == 1))
        ends = np.flatnonzero((brackets == -1) & (depth == 0)) + 1
        starts = starts[: len(ends)]
        data = piece.tobytes()
        taken = int(ends[-1]) if len(ends) else 0
        at = start + base
        self._check_between(data, starts, ends, at, whole if len(closing) else taken)
        if len(ends):
            self._take(data, starts.tolist(), ends.tolist(), at)
            self.last_end = at + taken
        if len(closing):
            return start + whole, True
        return start + taken, False

    def _check_between(self, data: bytes, starts: Any, ends: Any, at: int, whole: int) -> None:
        """Between elements stand blanks, commas and bare values alone; the latter are counted."""
        edges = zip([0, *ends.tolist()], [*starts.tolist(), whole], strict=True)
        for left, right in edges:
            between = data[left:right]
            if not between.strip(b" \t\r\n,"):
                continue
            match = _BARE.match(between)
            good = match.end() if match else 0
            if good < len(between):
                raise Broken(at + left + good, "expected an event, ',' or ']'")
            for value in _BARE_VALUE.finditer(between):
                self._count += 1
                self._tally.add("malformed_event", at + left + value.start())
                self.last_end = at + left + value.end()

    def _take(self, data: bytes, starts: list[int], ends: list[int], at: int) -> None:
        events: list[Event | None]
        try:
            events = [*decode_events(b"[" + data[starts[0] : ends[-1]] + b"]")]
            if len(events) != len(starts):  # bare values among the elements
                raise msgspec.DecodeError
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = [parse_event(data[a:b]) for a, b in zip(starts, ends, strict=True)]
        for event, a, b in zip(events, starts, ends, strict=True):
            row = row_of(event, data[a:b], at + a, self._names, self._tally)
            if row is not None:
                self._append(row, at + a, b - a)
        self._count += len(events)

    def _append(self, row: Row, offset: int, length: int) -> None:
        place = self._places.setdefault((row.pid, row.tid, row.device, row.stream), len(self._places))
        values = (row.ts, row.dur, row.phase, self._intern(row.category), self._intern(row.name), place)
        number = len(self._columns[0])
        for column, value in zip(self._columns, (*values, row.correlation, offset, length), strict=True):
            column.append(value)
        if row.size is not None:
            self._sizes[0].append(number)
            self._sizes[1].append(row.size)
        if row.flow_id is not None:
            known = row.flow_id if isinstance(row.flow_id, int) else -2 - self._intern(row.flow_id)
            self._flows[0].append(number)
            self._flows[1].append(known)

    def _intern(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def finish(self) -> RawEvents:
        """See :meth:`augment.readers.raw.Scanner.finish`."""
        columns: dict[str, Any] = {
            name: np.array(values, kind) for (name, kind), values in zip(COLUMNS.items(), self._columns, strict=True)
        }
        sizes, flows = ((np.array(r, np.int64), np.array(v, np.int64)) for r, v in (self._sizes, self._flows))
        return RawEvents(
            **columns,
            sizes=sizes,
            flows=flows,
            strings=list(self._strings),
            places=list(self._places),
            names=self._names,
            tally=self._tally,
            event_count=self._count,
        )
