"""The general event scanner: any layout, no compiler. Small files, odd files, machines without numba."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from augment.readers.events import Row, decode_events, read_row, row_of
from augment.readers.raw import COLUMNS, Broken, Names, Place, RawEvents, Tally, Text
from augment.readers.structure import structure
from augment.trace import SparseColumn

_VALUE = rb'"(?:[^"\\]|\\["\\/bfnrtu])*"|[-0-9][0-9.eE+-]*|true|false|null'
_BARE = re.compile(rb"[\0-\x20,]*(?:(?:%s)(?=[\0-\x20,\]{\[\x22]|\Z)[\0-\x20,]*)*" % _VALUE, re.DOTALL)
_BARE_VALUE = re.compile(_VALUE, re.DOTALL)
_BLANK = bytes(range(33)) + b","  #: what may stand between elements: zeros, too, as a crash leaves them
_EXPECTED = "expected an event, ',' or ']'"
_LONGEST_WORD = 6  #: ``false`` and what comes after it


class GeneralScanner:
    """See :class:`augment.readers.raw.Scanner`."""

    def __init__(self, nesting: int) -> None:
        """Take elements that nest no deeper than ``nesting``."""
        self._nesting = nesting
        self.last_end: int | None = None
        self._columns: tuple[list[int], ...] = tuple([] for _ in COLUMNS)
        self._sizes: tuple[list[int], list[int]] = ([], [])
        self._flows: tuple[list[int], list[int]] = ([], [])
        self._strings: dict[str, int] = {"": 0}
        self._places: dict[Place, int] = {}
        self._names, self._tally = Names(), Tally()
        self.event_count = 0
        self._undivided = False  #: whether no comma has come since the last element

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
        at, taken, broken = start + base, 0, None
        try:
            taken = self._take_between(data, [0, *ends.tolist()], [*starts.tolist(), whole], at, bool(len(closing)))
        except Broken as error:
            broken = error
            ends = ends[at + ends <= error.offset]  # those before it are whole
        if len(ends):
            shallow = int(depth[: ends[-1]].max()) <= self._nesting
            self._take(data, starts[: len(ends)].tolist(), ends.tolist(), at, together=shallow)
            self.last_end = max(self.last_end or 0, at + int(ends[-1]))
        if len(closing) and piece[whole] != ord("]"):
            broken = broken or Broken(at + whole, _EXPECTED)
        if broken:
            raise broken
        if len(closing):
            self._undivided = False
            return start + whole, True
        return start + taken, False

    def _take_between(self, data: bytes, lefts: list[int], rights: list[int], at: int, closed: bool) -> int:
        """Between elements stand blanks, commas and bare values alone; the latter are counted.

        Returns how far the text is taken: unless it is ``closed``, what stands last may go on in the next piece.
        """
        end = 0
        for left, right in zip(lefts, rights, strict=True):
            between = data[left:right]
            if not between.strip(_BLANK):
                end = right
                self._divide(between, at + right, right != rights[-1])
                continue
            last = right == rights[-1] and not closed
            match = _BARE.match(between)
            end = left + (match.end() if match else 0)
            if end < right and not (last and self._may_go_on(data[end:right])):
                raise Broken(at + end, _EXPECTED)
            seen = 0
            for value in _BARE_VALUE.finditer(between, 0, end - left):
                if last and value.end() == len(between) and not between.endswith(b'"'):  # a string has its end
                    self._undivided &= b"," not in between[seen : value.start()]
                    return left + value.start()
                self._divide(between[seen : value.start()], at + left + value.start(), True)
                seen = value.end()
                self.event_count += 1
                self._tally.add("malformed_event", at + left + value.start())
                self.last_end = at + left + value.end()
            self._divide(between[seen : end - left], at + right, right != rights[-1])
        return end

    def _divide(self, between: bytes, at: int, element_follows: bool) -> None:
        """Count an element at byte ``at`` that no comma divides from the one before."""
        divided = b"," in between or not self._undivided
        if element_follows and not divided:
            self._tally.add("missing_comma", at)
        self._undivided = element_follows or not divided

    @staticmethod
    def _may_go_on(rest: bytes) -> bool:
        """Whether a piece of text may be the beginning of a value."""
        return rest[:1] in (b"{", b"[", b'"') or len(rest) < _LONGEST_WORD

    def _take(self, data: bytes, starts: list[int], ends: list[int], at: int, *, together: bool) -> None:
        pieces = [data[a:b] for a, b in zip(starts, ends, strict=True)]
        rows = self._rows_together(data, pieces, starts, ends, at) if together else None
        if rows is None:
            names, tally, most = self._names, self._tally, self._nesting
            rows = [read_row(piece, at + a, names, tally, most) for piece, a in zip(pieces, starts, strict=True)]
        for row, piece, a in zip(rows, pieces, starts, strict=True):
            if row is not None:
                self._append(row, at + a, len(piece))
        self.event_count += len(pieces)

    def _rows_together(
        self, data: bytes, pieces: list[bytes], starts: list[int], ends: list[int], at: int
    ) -> list[Row | None] | None:
        """The rows of all elements, decoded at once; None if one of them, or what is between them, prevents that."""
        try:
            events = decode_events(b"[" + data[starts[0] : ends[-1]] + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(events) != len(starts):  # bare values among the elements
            return None
        names, tally = self._names, self._tally
        return [
            row_of(event, piece, at + a, names, tally) for event, piece, a in zip(events, pieces, starts, strict=True)
        ]

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
        sizes, flows = (
            SparseColumn(np.array(r, np.int64), np.array(v, np.int64)) for r, v in (self._sizes, self._flows)
        )
        return RawEvents(
            **columns,
            sizes=sizes,
            flows=flows,
            strings=list(self._strings),
            places=list(self._places),
            names=self._names,
            tally=self._tally,
            event_count=self.event_count,
        )
