"""Reads CUDA memory snapshots: the pickle of ``torch.cuda.memory._dump_snapshot`` (PyTorch 2.1 on, protocols 2 to 5),
or of ``torch.cuda.memory_snapshot()``, a bare list of segments; also that within a page of PyTorch's MemoryViz.

Values become columns without any dict of them, and of a pickle nothing is built: no class is looked up, no function
called. A key that is absent is unknown, never zero.
"""

from __future__ import annotations

import os
import re
import struct
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays import Bools, Int32s, Int64s
from augment.core.attachments import ACTIONS, STATES, MemorySnapshot, Stacks
from augment.errors import LimitExceeded, MalformedTrace, UnknownFormat
from augment.facts.memory.held import SIGNS, signs_of, trimmed
from augment.kernels import pickle_scan as scan
from augment.kernels.native import native
from augment.readers.containers import CHUNK, OpenText, open_text
from augment.readers.limits import UNLIMITED, Limits

_OPERATOR = re.compile(r"at::_ops::(\w+?)::(?:call|redispatch)\b")
#: files of Python that are not the user's own
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|importlib|/torch/|runpy\.py")
_LIBRARYS, _USERS = 1, 2  #: whose code a Python frame is
_MOST_FRAMES = 2 << 20  #: frames of stacks that are looked at at a time
_MOST_ACTIONS = 1 << 20  #: actions that become columns at a time


def memory_snapshot(path: str, limits: Limits = UNLIMITED) -> MemorySnapshot:
    """The snapshot at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read, is damaged, or larger than ``limits`` allow.
        UnknownFormat: it is a pickle of something else.
    """
    data = Pickled(path, limits)
    is_list = data.kinds[data.root] == scan.LIST
    listed = data.root if is_list else data.field(data.root, "segments")
    segments = data.children(listed)
    first = data.fields(segments[:1], ("address", "total_size"))
    is_known = listed >= 0 and data.kinds[listed] == scan.LIST and (len(segments) > 0 or not is_list)
    if not is_known or any(value < 0 for value in np.concatenate(first).tolist()):
        raise UnknownFormat(path, "a pickle, but not a memory snapshot: it has no segments of memory")
    traces = data.children(-1 if is_list else data.field(data.root, "device_traces"))

    names = ["device", "address", "total_size", "stream", "segment_pool_id", "segment_type", "is_expandable", "blocks"]
    device, address, size, stream, pool, kind, expandable, blocks = data.fields(segments, names)
    blocks, block_count = data.lists(blocks)
    names = ["address", "size", "requested_size", "state", "frames", "history"]
    block_address, block_size, requested, state, block_frames, history = data.fields(blocks, names)
    of_segment = np.repeat(np.arange(len(segments)), block_count)
    block_sizes = data.ints(block_size, 0)
    # old files give no addresses of blocks: they follow each other from that of the segment on
    before = np.cumsum(block_sizes) - block_sizes
    at_first = np.append(before, 0)[np.cumsum(block_count) - block_count]
    block_at = data.ints(block_address)
    block_at = np.where(block_at < 0, data.ints(address)[of_segment] + before - at_first[of_segment], block_at)

    per_device = [data.children(trace) for trace in traces.tolist()]
    limits.expect_events(path, sum(map(len, per_device)))
    actions = np.concatenate([np.empty(0, np.int32), *per_device])
    if len(actions) > len(data.kinds):
        raise UnknownFormat(path, "a pickle that repeats its values; not a recording")
    action_kind, addr, action_size, action_stream, ts, frames, compiled = _actions(data, actions)
    del actions
    has_times = bool(len(ts)) and bool((ts > 0).all())
    texts = data.texts
    lists, stack = np.unique(np.concatenate([_of_history(data, history, block_frames), frames]), return_inverse=True)
    stack = stack - int(len(lists) > 0 and lists[0] < 0)
    lists = lists[lists >= 0]
    marks = data.children(-1 if is_list else data.field(data.root, "external_annotations"))
    stage, mark_name, mark_us = data.fields(marks, ("stage", "name", "time_us"))
    begins = np.flatnonzero((_numbered(data.codes(stage), texts, ("START",)) == 0) & (data.ints(mark_us) > 0))
    mark_codes = data.codes(mark_name)[begins].tolist()
    stacks, labels = _stacks(data, lists, texts)
    named = [code for code in np.unique(compiled).tolist() if code >= 0 and texts[code] not in ("N/A", "")]
    number_of = {code: len(labels) + at for at, code in enumerate(named)}
    compiled_of = np.array([number_of.get(code, -1) for code in range(len(texts))] + [-1], np.int32)
    labels += [texts[code] for code in number_of]
    settings = None if is_list else data.plain(data.field(data.root, "allocator_settings"))
    # a number of each pair of ids: 0 for the default pool
    numbers = {(0, 0): 0}
    pairs = [tuple(data.ints(data.children(node)).tolist()) or (0, 0) for node in pool.tolist()]
    return MemorySnapshot(
        name=os.path.basename(path),
        segment_device=data.ints(device, 0),
        segment_address=data.ints(address),
        segment_size=data.ints(size, 0),
        segment_stream=data.ints(stream, 0),
        segment_pool=np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int64),
        segment_is_large=1 - (_numbered(data.codes(kind), texts, ("small",)) == 0).astype(np.int64),
        segment_is_expandable=np.maximum(data.ints(expandable, 0), 0),
        block_segment=of_segment,
        block_address=block_at,
        block_size=block_sizes,
        block_requested=np.where(data.ints(requested) >= 0, data.ints(requested), block_sizes),
        block_state=np.maximum(_numbered(data.codes(state), texts, STATES), 0),
        block_stack=stack[: len(blocks)].astype(np.int32),
        action_device=np.repeat(np.arange(len(per_device)), [len(each) for each in per_device]).astype(np.int64),
        action_kind=action_kind,
        action_addr=addr,
        action_size=action_size,
        action_stream=action_stream,
        action_ts=ts if has_times else np.zeros(len(ts), np.int64),
        action_stack=stack[len(blocks) :].astype(np.int32),
        action_compiled=compiled_of[compiled],
        mark_name=[texts[code] if code >= 0 else "" for code in mark_codes],
        mark_ts=1000 * np.minimum(data.ints(mark_us)[begins], 1 << 53),
        stacks=stacks,
        settings=settings if isinstance(settings, dict) else {},
        has_times=has_times,
    )


def _actions(data: Pickled, actions: Int32s) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int32s, Int32s]:
    """Of each action its kind, address, size, stream and time (ns, 0 without), the node of its frames, and the number
    of the text that says what was compiled (-1: none)."""
    names = ["action", "addr", "size", "stream", "time_us", "frames", "compile_context", "device_free"]
    kind, addr, size, stream, ts = (np.empty(len(actions), np.int64) for _ in range(5))
    frames, compiled = (np.empty(len(actions), np.int32) for _ in range(2))
    for first in range(0, len(actions), _MOST_ACTIONS):  # with the nodes of all fields it would take twice the memory
        part = slice(first, first + _MOST_ACTIONS)
        what, at, of_bytes, of_stream, time_us, frames[part], context, free = data.fields(actions[part], names)
        kind[part] = _numbered(data.codes(what), data.texts, ACTIONS)
        addr[part] = np.where(kind[part] == ACTIONS.index("oom"), data.ints(free), data.ints(at))
        size[part], stream[part] = data.ints(of_bytes, 0), data.ints(of_stream, 0)
        times = data.ints(time_us, 0)
        ts[part] = np.where((times > 0) & (times < 1 << 53), 1000 * times, 0)
        compiled[part] = data.codes(context)
    return kind, addr, size, stream, ts, frames, compiled


def _numbered(codes: Int32s, texts: Sequence[str], known: Sequence[str]) -> Int64s:
    """Of each text its place in ``known``; -1 for others."""
    place = {text: at for at, text in enumerate(known)}
    return np.array([place.get(text, -1) for text in texts] + [-1], np.int64)[codes]


def _of_history(data: Pickled, history: Int32s, frames: Int32s) -> Int32s:
    """The frames of blocks; of the oldest files those of the newest entry of their history."""
    old = np.flatnonzero((frames < 0) & (history >= 0))
    if not len(old):
        return frames
    newest = np.array([children[0] if len(children := data.children(node)) else -1 for node in history[old].tolist()])
    frames = frames.copy()
    frames[old] = data.fields(newest.astype(np.int32), ("frames",))[0]
    return frames


def _stacks(data: Pickled, lists: Int32s, texts: Sequence[str]) -> tuple[Stacks, list[str]]:
    """What the frames of each of these lists say; innermost frames come first."""
    stacks = np.full((4, len(lists)), -1, np.int32)
    labels: dict[str, int] = {}
    number_of = np.full(len(data.kinds), -1, np.int32)  # of frames
    of_frames: Int32s = np.empty((3, 0), np.int32)
    before = np.cumsum(data.lengths(lists)) if len(lists) else np.empty(0, np.int64)
    low = 0
    while low < len(lists):
        done = int(before[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(before, done + _MOST_FRAMES, "right")))
        frames, count = data.lists(lists[low:high])
        new = np.unique(frames[number_of[frames] < 0])
        if len(new):
            number_of[new] = np.arange(len(new)) + of_frames.shape[1]
            of_frames = np.concatenate([of_frames, _frames(data, new, texts, labels)], axis=1)
        label, whose, signs = of_frames[:, number_of[frames]]
        operator = _first(signs & SIGNS["operator"] > 0, count)
        line = _first(whose == _USERS, count)
        for weaker in (_first(whose > 0, count), operator):
            line = np.where(line >= 0, line, weaker)
        of_stacks = stacks[:, low:high]
        for row, places in enumerate((line, _first(signs & SIGNS["forward"] > 0, count), operator)):
            of_stacks[row, places >= 0] = label[places[places >= 0]]
        full = count > 0
        of_stacks[3] = 0
        if full.any():
            of_stacks[3, full] = np.bitwise_or.reduceat(signs, (np.cumsum(count) - count)[full])
        low = high
    names = [*labels]
    return Stacks(stacks[0], stacks[1], stacks[2], stacks[3], names), names


def _first(chosen: Bools, count: Int64s) -> Int64s:
    """Of each stack, of so many frames, the place of the first chosen frame; -1 without."""
    places = np.flatnonzero(chosen)
    begin = np.cumsum(count) - count
    nearest = np.append(places, len(chosen))[np.searchsorted(places, begin)]
    return np.where(nearest < begin + count, nearest, -1)


def _frames(data: Pickled, frames: Int32s, texts: Sequence[str], labels: dict[str, int]) -> Int32s:
    """Of each frame the number of its label, whose code it is, and its signs: a row each."""
    name, file, line = data.fields(frames, ("name", "filename", "line"))
    rows = []
    codes = zip(data.codes(name).tolist(), data.codes(file).tolist(), data.ints(line, 0).tolist(), strict=True)
    for name_code, file_code, number in codes:
        function = texts[name_code] if name_code >= 0 else ""
        path = texts[file_code].replace("\\", "/") if file_code >= 0 else ""
        operator = _OPERATOR.search(function)
        is_python = path.endswith(".py")
        text = f"{trimmed(path)}:{number} {function}" if is_python else function or path
        text = f"aten::{operator[1]}" if operator else text
        whose = 0 if not is_python else _LIBRARYS if _LIBRARY.search(path) else _USERS
        signs = signs_of(function, path) | (SIGNS["operator"] if operator else 0)
        rows.append((labels.setdefault(text, len(labels)), whose, signs))
    columns: Int32s = np.array(rows, np.int32).reshape(-1, 3).T
    return columns


_HEAD = 1 << 13  #: bytes within which the pickle of a page begins
_PAGE = re.compile(rb'(?s)\s*<!DOCTYPE html>.{0,2000}?MemoryViz\.js.{0,2000}?"base64"\s*:\s*"')


def pickle_in(text: OpenText) -> Iterator[bytes]:
    """The pieces of a pickle, or of that which a page of MemoryViz has as base64."""
    piece = b""
    while len(piece) < _HEAD and (more := bytes(text.read(CHUNK))):
        piece += more
    if page := _PAGE.match(piece):
        rest, is_open = piece[page.end() :], True
        while rest and is_open:
            part, quote, _ = rest.partition(b'"')
            is_open, whole = not quote, len(part) // 4 * 4
            try:
                piece = a2b_base64(part[:whole])
            except ValueError:
                return  # cut off, or damaged
            if piece:
                yield piece
            rest = part[whole:] + more if is_open and (more := bytes(text.read(CHUNK))) else b""
        return
    while piece:
        yield piece
        piece = bytes(text.read(CHUNK))


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
            content = pickle_in(text)
            while True:
                pieces, length = [rest], len(rest)
                while length < wanted and (piece := next(content, b"")):
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
