"""Converts Perfetto's debug annotations to args: as JSON values one by one, and as columns in compiled code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from augment.arrays import Int64s
from augment.facts.source.event_args import PADDING, Block, ScanTask, plain
from augment.kernels import packet_args as layout
from augment.kernels.native import Kernel, address, native
from augment.kernels.packet_layout import DEEPEST, LEAST_DEEP_BYTES
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.state import Generation, PacketSequence, strings_at
from augment.readers.perfetto.wire_format import DamagedError, double, fields, signed, text

MOST_VALUES = 1 << 16  #: the most decoded args that are kept for a generation
_NESTING = (wire.VALUE_DICT, wire.VALUE_ARRAY)
_OLD_NESTING = (3 << 3 | wire.LENGTH, 4 << 3 | wire.LENGTH)  #: of NestedValue: dictionaries and arrays


def key_and_value(data: bytes, start: int, stop: int, now: Generation, depth: int = 0) -> tuple[str, Any]:
    """Key and value of a ``DebugAnnotation``. The key of an array's element is empty."""
    key, value = "", None
    entries: dict[str, Any] = {}
    elements: list[Any] = []
    for tag, at, end in fields(data, start, stop):
        if tag == wire.VALUE_KEY_IID:
            key = now.keys.get(at, "")
        elif tag == wire.VALUE_KEY:
            key = text(data, at, end)
        elif tag in (wire.VALUE_DICT, wire.VALUE_ARRAY):
            if depth >= DEEPEST:
                continue
            inner, element = key_and_value(data, at, end, now, depth + 1)
            if tag == wire.VALUE_DICT:
                entries[inner] = element
            else:
                elements.append(element)
        else:
            value = _plain_value(value, tag, data, at, end, now)
    return key, entries or elements or value


def _plain_value(before: Any, tag: int, data: bytes, at: int, end: int, now: Generation) -> Any:
    """The value in a field; ``before`` if the field holds no value."""
    if tag in (wire.VALUE_UINT, wire.VALUE_POINTER):
        return at
    if tag == wire.VALUE_INT:
        return signed(at)
    if tag == wire.VALUE_STRING_IID:
        return interned_value(at, now)
    if tag == wire.VALUE_STRING:
        return text(data, at, end)
    if tag == wire.VALUE_BOOL:
        return bool(at)
    if tag == wire.VALUE_DOUBLE:
        return double(at)
    if tag == wire.VALUE_JSON:
        return _json(text(data, at, end))
    return _nested(data, at, end) if tag == wire.VALUE_NESTED else before


def interned_value(iid: int, now: Generation) -> Any:
    """The value of a string, by its number."""
    return _json(now.values[iid]) if iid in now.values else now.strings.get(iid, "")


def nests_too_deeply(data: bytes, start: int, stop: int) -> bool:
    """Whether a ``DebugAnnotation`` has values that are left out because they nest too deeply."""
    try:
        return stop - start >= LEAST_DEEP_BYTES and _is_deep(data, start, stop, 0, _NESTING)
    except DamagedError:
        return False


def _is_deep(data: bytes, start: int, stop: int, depth: int, nesting: tuple[int, int]) -> bool:
    for tag, at, end in fields(data, start, stop):
        if tag in nesting and (depth == DEEPEST or _is_deep(data, at, end, depth + 1, nesting)):
            return True
        if tag == wire.VALUE_NESTED and nesting is _NESTING and _is_deep(data, at, end, 0, _OLD_NESTING):
            return True
    return False


def scalar(data: bytes, start: int, stop: int, now: Generation) -> Any:
    """The value of a ``DebugAnnotation`` for a column: a number or a text; None for other values."""
    _, value = key_and_value(data, start, stop, now, DEEPEST)
    return value if isinstance(value, (int, float, str)) else None


def event_args(data: bytes, start: int, stop: int, now: Generation) -> dict[str, Any]:
    """All args of a ``TrackEvent``; a counter's is its ``value``."""
    args: dict[str, Any] = {}
    for tag, at, end in fields(data, start, stop):
        if tag == wire.EVENT_ANNOTATION:
            made = now.decoded.get(data[at:end])
            if made is None:
                made = key_and_value(data, at, end, now)
                if not isinstance(made[1], (int, float)) and len(now.decoded) < MOST_VALUES:  # numbers rarely recur
                    now.decoded[data[at:end]] = made
            args[made[0]] = made[1]
        elif tag == wire.EVENT_DOUBLE_COUNTER:
            args["value"] = double(at)
        elif tag == wire.EVENT_COUNTER:
            args["value"] = signed(at)
    return args


def stage_args(data: bytes, start: int, stop: int, now: Generation) -> dict[str, Any]:
    """All args of a ``GpuRenderStageEvent``: its extra data, which are texts, and the args of its launch."""
    args: dict[str, Any] = {}
    for tag, at, end in fields(data, start, stop):
        if tag == wire.STAGE_EXTRA:
            key = value = ""
            for inner, first, last in fields(data, at, end):
                if inner == wire.EXTRA_NAME:
                    key = text(data, first, last)
                elif inner == wire.EXTRA_VALUE:
                    value = text(data, first, last)
            digits = value.removeprefix("-")
            is_number = digits.isascii() and digits.isdigit() and len(digits) < 20
            args[key] = int(value) if is_number else value
        elif tag == wire.STAGE_LAUNCH:
            args.update(_launch_args(data, at, end, now))
    return args


def _launch_args(data: bytes, start: int, stop: int, now: Generation) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for tag, at, end in fields(data, start, stop):
        if tag == wire.LAUNCH_ARG:
            key, value = _launch_arg(data, at, end, now)
            args[key] = value
        elif tag in (wire.LAUNCH_GRID, wire.LAUNCH_GROUP):
            sides = dict.fromkeys((wire.SIZE_X, wire.SIZE_Y, wire.SIZE_Z), 1)
            sides.update((inner, value) for inner, value, _ in fields(data, at, end) if inner in sides)
            args["grid" if tag == wire.LAUNCH_GRID else "block"] = list(sides.values())
    return args


def _launch_arg(data: bytes, start: int, stop: int, now: Generation) -> tuple[str, Any]:
    key = ""
    value: Any = None
    for tag, at, end in fields(data, start, stop):
        if tag == wire.ARG_KEY_IID:
            key = now.launch_keys.get(at, "")
        elif tag == wire.ARG_KEY:
            key = text(data, at, end)
        elif tag in (wire.ARG_INT, wire.ARG_UINT):
            value = signed(at) if tag == wire.ARG_INT else at
        elif tag == wire.ARG_DOUBLE:
            value = double(at)
        elif tag == wire.ARG_STRING:
            value = text(data, at, end)
        elif tag == wire.ARG_STRING_IID:
            value = now.strings.get(at)
    return key, value


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _nested(data: bytes, start: int, stop: int, depth: int = 0) -> Any:
    """A value in the older form, which newer files do not use."""
    keys: list[str] = []
    values: list[Any] = []
    value: Any = None
    for tag, at, end in fields(data, start, stop):
        number, kind = tag >> 3, tag & 7
        if tag in _OLD_NESTING:
            if depth < DEEPEST:
                values.append(_nested(data, at, end, depth + 1))
        elif kind == wire.LENGTH and number in (2, 8):
            part = text(data, at, end)
            value = part if number == 8 else value
            keys += [part] if number == 2 else []
        elif kind == wire.VARINT and number in (5, 7):
            value = signed(at) if number == 5 else bool(at)
        elif kind == wire.FIXED64 and number == 6:
            value = double(at)
    return dict(zip(keys, values, strict=False)) if keys else values or value


def as_event(data: bytes, now: Generation) -> dict[str, Any]:
    """The args of the packet ``data``, in the form that an event of a Chrome file has.

    Raises:
        DamagedError: the bytes are not a packet.
    """
    args: dict[str, Any] = {}
    for tag, at, end in fields(data, 0, len(data)):
        if tag == wire.PACKET_EVENT:
            args = event_args(data, at, end, now)
        elif tag == wire.PACKET_STAGE:
            args = stage_args(data, at, end, now)
    return {"args": args}


def metadata(data: bytes, start: int, stop: int) -> dict[str, Any]:
    """The members in a ``ChromeEventBundle``."""
    members: dict[str, Any] = {}
    for tag, at, end in fields(data, start, stop):
        if tag != wire.BUNDLE_METADATA:
            continue
        name, value = "", None
        for inner, first, last in fields(data, at, end):
            if inner == wire.METADATA_NAME:
                name = text(data, first, last)
            elif inner in (wire.METADATA_TEXT, wire.METADATA_JSON):
                value = _json(text(data, first, last))
            elif inner in (wire.METADATA_BOOL, wire.METADATA_INT):
                value = bool(first) if inner == wire.METADATA_BOOL else signed(first)
        members[name] = value
    return members


_MOST_IIDS = 1 << 20  #: larger numbers are left to Python
_LARGEST = 1 << 54  #: the most values of strings: they share 64 bits with a flag


class ArgScan:
    """Fills the columns of a job, block by block: in compiled code, and in Python where that meets odd packets."""

    def __init__(self, sequences: Mapping[int, PacketSequence]) -> None:
        self._scan: Kernel = native("packet_args.scan_args")
        self._sequences = sequences
        self._state = layout.ArgScanState()
        self._state.begins = self._state.ends = -1
        self._known: dict[int, _Strings] = {}  # the strings last used, by sequence: generations come in order
        self._now: _Strings | None = None

    def __call__(self, job: ScanTask, block: Block) -> None:
        """Take the rows of a block."""
        span = slice(block.start, block.stop)
        taken = [np.ascontiguousarray(each[span]) for each in (job.offsets, job.lengths, job.categories, job.rows)]
        state = self._state
        state.row = 0
        targets, why = np.empty(0, np.int64), layout.ODD_ROW
        while True:
            if why != layout.OTHER_STRINGS:  # Python may have added entries
                targets = job.room_for(len(taken[0]) - state.row)
            why = self._scan(address(block.data) + PADDING, block.base, *taken, targets, state)
            if why == layout.DONE:
                return
            place = state.row
            if why == layout.OTHER_STRINGS:
                self._turn_to(job, state.sequence, int(taken[0][place]))
                continue
            for column in job.columns:  # the entries stored before the new or unusual part was met
                column.take_back(int(taken[3][place]))
            if why == layout.MISS and self._now and self._now.learn(job, state.miss_column, state.miss_iid):
                continue
            plain(job, block._replace(start=block.start + place, stop=block.start + place + 1))
            state.row = place + 1

    def _turn_to(self, job: ScanTask, number: int, offset: int) -> None:
        """Switch to the strings that a sequence has at a byte."""
        generation, begins, ends = strings_at(self._sequences, number, offset)
        known = self._known.get(number)
        if known is None or known.generation is not generation:
            known = self._known[number] = _Strings(job, generation)
        self._now, state = known, self._state
        state.begins, state.ends = begins, ends
        state.keys, state.key_count, state.value_count = address(known.keys), len(known.keys), known.count
        for column, values in zip(job.columns, known.values, strict=True):
            column.table.known = address(values)


class _Strings:
    """Maps the numbered keys and strings of a generation to the columns of a job."""

    def __init__(self, job: ScanTask, generation: Generation) -> None:
        self.generation = generation
        column_of = {name: i for i, column in enumerate(job.columns) for name in (column.arg.name, *column.arg.also)}
        self.keys = np.full(_count(generation.keys), layout.UNWANTED, np.int64)
        for iid, name in generation.keys.items():
            if iid < len(self.keys):
                self.keys[iid] = column_of.get(name, layout.UNWANTED)
        self.count = max(_count(generation.strings), _count(generation.values))
        wanted = set(self.keys.tolist())
        self.values: list[Int64s] = [
            np.full(self.count if i in wanted else 0, layout.UNKNOWN, np.int64) for i in range(len(job.columns))
        ]

    def learn(self, job: ScanTask, column: int, iid: int) -> bool:
        """Store the value that a string has in a column; False if its number is too large."""
        flag, value = job.columns[column].stored(interned_value(iid, self.generation))
        if not -_LARGEST < value < _LARGEST:
            return False
        self.values[column][iid] = value << 8 | flag
        return True


def _count(strings: Mapping[int, str]) -> int:
    """The number of entries that a table has room for: all strings, if they are not too many."""
    return min(max(strings, default=-1) + 1, _MOST_IIDS)
