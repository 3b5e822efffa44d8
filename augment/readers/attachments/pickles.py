"""Reads pickles that hold data alone, without building anything: no class is looked up, no function is called.

Values are rows of a table (``augment/kernels/pickle_scan.py``), some 2 bytes for each byte of the file, which is read
in pieces. Lists of dicts become columns. What refers to code is refused, and so are deep nesting and what does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays import Int32s, Int64s
from augment.errors import LimitExceeded, MalformedTrace, UnknownFormat
from augment.kernels import pickle_scan as scan
from augment.kernels.native import native
from augment.readers.containers import CHUNK, open_text
from augment.readers.limits import UNLIMITED, Limits

_PIECE = 4 * CHUNK  #: bytes that are scanned at a time
_LONGEST = 64 << 20  #: bytes of one opcode: no snapshot has such a text
_MOST_NODES = (1 << 31) - (1 << 27)  #: nodes are numbered in 32 bits
_MOST_FIELDS = 64  #: of a dict that becomes columns
_DEEPEST, _MOST_PLAIN = 3, 64  #: of what :meth:`Pickled.plain` makes: levels, and items of each
_ROWS = 1 << 20  #: rows of columns that are made at a time
#: where ``state`` counts the values of a column; of those not named here there is one a node
_USED = {"starts": scan.RUNS, "counts": scan.RUNS, "following": scan.RUNS, "items": scan.ITEMS, "stack": scan.DEPTH,
         "marks": scan.MARKS, "memo": scan.MEMO, "texts": scan.TEXTS}  # fmt: skip


class Pickled:
    """The values of a pickle. ``root`` is the whole; nodes are int32 numbers, -1 stands for none.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it refers to code, or is of protocol 0 or 1.
        MalformedTrace: it is cut off or damaged.
        LimitExceeded: it is too large, or nests too deeply.
    """

    def __init__(self, path: str, limits: Limits = UNLIMITED) -> None:
        self.path = path
        self._state = np.zeros(scan.STATES, np.int64)
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(1024, kind)
            for name, kind in {
                "kind": np.uint8,
                "value": np.int64,
                "size": np.int32,
                "starts": np.int64,
                "counts": np.int64,
                "following": np.int32,
                "items": np.int32,
                "stack": np.int32,
                "marks": np.int64,
                "memo": np.int32,
                "texts": np.uint8,
            }.items()
        }
        self._columns["kind"][: scan.FIRST_FREE] = scan.INT
        self._columns["kind"][: scan.SMALL] = range(scan.SMALL)
        self._columns["value"][: scan.FIRST_FREE] = np.arange(scan.FIRST_FREE) - scan.SMALL
        self._state[scan.NODES] = scan.FIRST_FREE
        self._read(limits)
        self.root = int(self._columns["stack"][0])
        for name in ("stack", "marks", "memo"):
            del self._columns[name]
        for name, column in self._columns.items():
            column.resize(self._state[_USED.get(name, scan.NODES)], refcheck=False)  # gives back what was to spare
        #: of a text its number among :attr:`texts`, of a list, tuple or dict its first run, -1 without any
        self.kinds, self._values, self._items = (self._columns[name] for name in ("kind", "value", "items"))
        # the texts with the numbers that take the place of where they begin
        places = np.flatnonzero(self.kinds == scan.TEXT)
        arena, sizes = self._columns.pop("texts").data, self._columns.pop("size")
        known: dict[bytes, int] = {}
        for first in range(0, len(places), _ROWS):
            part = places[first : first + _ROWS]
            starts = self._values[part]
            bounds = zip(starts.tolist(), (starts + sizes[part]).tolist(), strict=True)
            self._values[part] = [known.setdefault(bytes(arena[start:end]), len(known)) for start, end in bounds]
        self._known = known

    def _read(self, limits: Limits) -> None:
        kernel = native("pickle_scan.scan")
        state, rest, base, wanted = self._state, b"", 0, _PIECE
        with open_text(self.path, limits, hashed=False) as text:
            while True:
                pieces, length = [rest], len(rest)
                while length < wanted and (piece := text.read(CHUNK)):
                    pieces.append(piece)
                    length += len(piece)
                data, before = np.frombuffer(b"".join(pieces), np.uint8), len(rest)
                for name, column in self._columns.items():
                    needed = int(state[_USED.get(name, scan.NODES)]) + len(data) + 1
                    needed += int(state[scan.DEPTH]) if name == "items" else 0
                    if name != "marks" and len(column) < needed:
                        column.resize(needed + needed // 8, refcheck=False)  # realloc moves pages, and copies nothing
                result = kernel(data, len(data), state, *self._columns.values())
                at = int(state[scan.AT])
                if result == scan.DONE:
                    return
                if result != scan.MORE:
                    raise self._refused(result, data, at, base)
                if len(data) == before:
                    why = text.damage or "the file is empty or cut off; copy it again"
                    raise MalformedTrace(self.path, base + at, f"the pickle ends too early: {why}")
                if state[scan.NEEDED] > _LONGEST or state[scan.NODES] > _MOST_NODES:
                    raise LimitExceeded(self.path, "a pickle with a text of more than 64 MB, or 2 billion values")
                rest, base = data[at:].tobytes(), base + at
                wanted = max(_PIECE, int(state[scan.NEEDED]))
                state[scan.AT] = 0

    def _refused(self, result: int, data: npt.NDArray[np.uint8], at: int, base: int) -> Exception:
        import pickletools

        if result == scan.TOO_DEEP:
            return LimitExceeded(self.path, f"a pickle that nests deeper than {scan.DEEPEST}; not a recording")
        if result == scan.BROKEN:
            return MalformedTrace(self.path, base + at, "the pickle is damaged")
        code = chr(int(data[at]))
        name = next((opcode.name for opcode in pickletools.opcodes if opcode.code == code), f"opcode {ord(code)}")
        return UnknownFormat(
            self.path,
            f"a pickle with {name} at byte {base + at}, which is no data: it is not loaded, as it can run code",
        )

    def children(self, node: int) -> Int32s:
        """The items of a list or tuple, or the keys and values of a dict in turn; none of other nodes."""
        if node < 0 or self.kinds[node] not in (scan.LIST, scan.TUPLE, scan.DICT):
            return np.empty(0, np.int32)
        starts, counts, following = (self._columns[name] for name in ("starts", "counts", "following"))
        runs, run = [], int(self._values[node])
        while run >= 0:
            start = int(starts[run])
            runs.append(self._items[start : start + int(counts[run])])
            run = int(following[run])
        return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, np.int32), *runs])

    def lengths(self, nodes: Int32s) -> Int64s:
        """How many items each of these lists has, int64; 0 of other nodes."""
        return self._runs(nodes)[1]

    def _runs(self, nodes: Int32s) -> tuple[Int64s, Int64s]:
        """Where the items of each of these lists begin, and how many there are."""
        starts, counts, following = (self._columns[name] for name in ("starts", "counts", "following"))
        listed = (nodes >= 0) & (self._values[nodes] >= 0)  # a negative node is the last one
        listed &= (self.kinds[nodes] == scan.LIST) | (self.kinds[nodes] == scan.TUPLE)
        run = np.where(listed, self._values[nodes], 0)
        if not len(starts):
            return run, np.zeros(len(nodes), np.int64)
        if (following[run[listed]] >= 0).any():
            raise LimitExceeded(self.path, "a pickle with more frames in a stack than a program has")
        return starts[run], np.where(listed, counts[run], 0)

    def lists(self, nodes: Int32s) -> tuple[Int32s, Int64s]:
        """The items of all these short lists one after the other, and how many each has.

        Raises:
            LimitExceeded: there are more than all lists of the file have, as lists are named repeatedly; or a list was
                written in parts, as long ones are.
        """
        start, count = self._runs(nodes)
        if count.sum() > len(self._items):
            raise LimitExceeded(self.path, "a pickle that repeats its values more often than it has any")
        places = np.repeat(start - np.cumsum(count) + count, count)
        places += np.arange(len(places))
        return self._items[places], count

    def fields(self, nodes: Int32s, names: Sequence[str]) -> list[Int32s]:
        """For each of ``names`` the values of the dicts ``nodes``: the node, -1 where a dict lacks the key, or the node
        is no dict."""
        columns = [np.full(len(nodes), -1, np.int32) for _ in names]
        codes = [self._known.get(name.encode(), -2) for name in names]
        for first in range(0, len(nodes), _ROWS):
            part = slice(first, first + _ROWS)
            self._fields(nodes[part], codes, [column[part] for column in columns])
        return columns

    def _fields(self, nodes: Int32s, codes: Sequence[int], columns: Sequence[Int32s]) -> None:
        starts, counts, following = (self._columns[name] for name in ("starts", "counts", "following"))
        safe = np.maximum(nodes, 0)
        run = np.where((nodes >= 0) & (self.kinds[safe] == scan.DICT), self._values[safe], -1)
        rows = np.flatnonzero(run >= 0)
        run = run[rows]
        for _ in range(_MOST_FIELDS):
            if not len(rows):
                return
            start, count = starts[run], counts[run]
            for pair in range(min(int(count.max(initial=0)) // 2, _MOST_FIELDS)):
                within = np.flatnonzero(count > 2 * pair + 1)
                at = start[within] + 2 * pair
                keys = self.codes(self._items[at])
                for code, column in zip(codes, columns, strict=True):
                    equal = np.flatnonzero(keys == code)
                    column[rows[within[equal]]] = self._items[at[equal] + 1]
            run = following[run].astype(np.int64)
            rows, run = rows[run >= 0], run[run >= 0]

    def field(self, node: int, name: str) -> int:
        """The value of a key of one dict; -1 without."""
        return int(self.fields(np.array([node], np.int32), [name])[0][0])

    def ints(self, nodes: Int32s, missing: int = -1) -> Int64s:
        """The integers that the nodes are; ``missing`` for any other node."""
        safe = np.maximum(nodes, 0)
        kinds = self.kinds[safe]
        numbers = np.where(kinds == scan.INT, self._values[safe], missing)
        truth = (kinds == scan.TRUE) | (kinds == scan.FALSE)
        numbers = np.where(truth, (kinds == scan.TRUE).astype(np.int64), numbers)
        return np.where(nodes >= 0, numbers, missing)

    def codes(self, nodes: Int32s) -> Int32s:
        """The numbers of the texts that the nodes are, into :attr:`texts`; -1 for any other node."""
        safe = np.maximum(nodes, 0)
        is_text = (nodes >= 0) & (self.kinds[safe] == scan.TEXT)
        return np.where(is_text, self._values[safe], -1).astype(np.int32)

    @cached_property
    def texts(self) -> list[str]:
        """All different texts; bytes that are no UTF-8 are replaced."""
        return [text.decode("utf-8", "replace") for text in self._known]

    def plain(self, node: int, depth: int = 0) -> Any:
        """A small value as Python has it; None for what lies too deep."""
        kind, value = (int(column[node]) for column in (self.kinds, self._values)) if node >= 0 else (scan.NONE, 0)
        if kind == scan.TEXT:
            return self.texts[value]
        if kind == scan.FLOAT:
            return struct.unpack("<d", struct.pack("<q", value))[0]
        if kind in (scan.LIST, scan.TUPLE, scan.DICT):
            if depth >= _DEEPEST:
                return None
            items = [self.plain(item, depth + 1) for item in self.children(node)[:_MOST_PLAIN].tolist()]
            return dict(zip(map(str, items[::2]), items[1::2], strict=False)) if kind == scan.DICT else items
        return value if kind == scan.INT else {scan.TRUE: True, scan.FALSE: False}.get(kind)
