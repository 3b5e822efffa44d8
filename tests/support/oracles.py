"""What kernels do, done once more without any, as plainly as it can be said; and kernels as plain Python."""

from __future__ import annotations

import bisect
import ctypes
import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, sizeof
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from augment.core.trace import Trace
from augment.kernels.memory import IntArray, Structure
from augment.readers.events import read_row
from augment.readers.perfetto.scan import PacketScanner
from augment.readers.raw import Tally, TrackNames


class Checked(np.ndarray[Any, Any]):
    """A column as compiled code has it: no index counts from the end, and none is beyond it."""

    def __getitem__(self, index: Any) -> Any:
        assert 0 <= index < len(self)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert 0 <= index < len(self)
        assert np.iinfo(self.dtype).min <= value <= np.iinfo(self.dtype).max
        super().__setitem__(index, value)


class Memory:
    """The memory that kernels may touch: arrays and records whose address was asked for, while anybody has them."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._starts, self._ends = list[int](), list[int]()
        self._start = self._end = 0  # what was touched last
        self.called: set[str] = set()  #: the kernels that ran

    def address(self, memory: Any) -> int:
        """In place of :func:`augment.kernels.native.address`."""
        assert not isinstance(memory, np.ndarray) or memory.flags.c_contiguous
        self._known[id(memory)] = memory
        return _place(memory)[0]

    def begin_call(self, name: str) -> None:
        """Look where everything is now, before a kernel runs."""
        self.called.add(name)
        for number in [each for each in self._known if self._is_gone(each)]:
            del self._known[number]
        places = sorted(map(_place, self._known.values()))
        self._starts = [start for start, _ in places]
        self._ends = list(itertools.accumulate((end for _, end in places), max))  # views lie within other arrays
        self._start = self._end = 0

    def _is_gone(self, number: int) -> bool:
        """Whether nobody else has it. A weak reference would tell, but forbid to resize an array."""
        return sys.getrefcount(self._known[number]) <= 2

    def at(self, kind: Any, address: Any) -> Any:
        """In place of ``memory._at``: the value of a C type, which must lie within one of them."""
        start = int(address)
        end = start + sizeof(kind)
        if not self._start <= start <= end <= self._end:
            place = bisect.bisect_right(self._starts, start) - 1
            assert place >= 0, f"{sizeof(kind)} bytes before all columns"
            beyond = end - self._ends[place]
            assert beyond <= 0, f"{beyond} bytes beyond a column"
            self._start, self._end = self._starts[place], self._ends[place]
        return kind.from_address(start)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def _place(memory: Any) -> tuple[int, int]:
    """Where it begins and ends."""
    is_array = isinstance(memory, np.ndarray)
    start = memory.ctypes.data if is_array else addressof(memory)
    return start, start + (memory.nbytes if is_array else sizeof(memory))


class PlainKernel:
    """A kernel as the plain Python that it is written in."""

    def __init__(self, name: str, memory: Memory | None = None) -> None:
        module, function = name.split(".")
        self._name, self._memory = name, memory
        self._kernel = getattr(importlib.import_module(f"augment.kernels.{module}"), function)

    def __call__(self, *arguments: Any) -> int:
        if self._memory is not None:
            self._memory.begin_call(self._name)
        checked = (each.view(Checked) if isinstance(each, np.ndarray) else each for each in arguments)
        with np.errstate(over="ignore"):  # words wrap around
            return int(self._kernel(*checked))

    def prepared(self, *arguments: Any) -> Callable[[], int]:
        return partial(self, *arguments)


@contextmanager
def plain_kernels() -> Iterator[Memory]:
    """Have all kernels run as plain Python, which touches no memory but that of columns."""
    memory = Memory()
    with (
        patch("augment.kernels.native._native", partial(PlainKernel, memory=memory)),
        patch("augment.kernels.native._address", memory.address),
        patch("augment.kernels.memory._at", memory.at),
        patch.object(Structure, "__setattr__", lambda *each: ctypes.Structure.__setattr__(*map(_plain, each))),
        patch.object(IntArray, "__setitem__", lambda *each: ctypes.Array.__setitem__(*map(_plain, each))),
    ):
        yield memory


def with_unknown_decoder(trace: Trace) -> Trace:
    """``trace``, each of whose events is decoded as a whole when its args are asked for: no kernel knows its format."""
    decode = trace.source.decode
    return trace.changed(source=replace(trace.source, decode=lambda text, at: decode(text, at)))


class PacketsByHand(PacketScanner):
    """Every packet is taken by Python."""

    def scan(self, data: bytes, base: int) -> int:
        at = 0
        while at < len(data) and (after := self.step(data, at, base)) != at:
            at = after
        return at


@contextmanager
def packets_by_hand() -> Iterator[None]:
    """Have native traces read without kernels."""
    with patch("augment.readers.perfetto.reading.FastScanner", PacketsByHand):
        yield


def events_one_by_one(elements: list[tuple[int, bytes]], nesting: int) -> dict[str, Any]:
    """What an event scanner hands on of the elements of ``traceEvents`` at these offsets, as :func:`handed_on` has it.

    Strings and places are numbered in the order of first appearance: of an event its category, its name, its flow.
    """
    names, tally = TrackNames(), Tally()
    strings: dict[str, int] = {"": 0}
    places: dict[Any, int] = {}
    rows, sizes, flows = [], [], []
    for offset, text in elements:
        row = read_row(text, offset, names, tally, nesting)
        if row is None:
            continue
        numbers = [strings.setdefault(each, len(strings)) for each in (row.category, row.name)]
        place = places.setdefault((row.pid, row.tid, row.device, row.stream), len(places))
        if row.size is not None:
            sizes.append((len(rows), row.size))
        if isinstance(row.flow_id, int):
            flows.append((len(rows), row.flow_id))
        elif row.flow_id is not None:
            flows.append((len(rows), -2 - strings.setdefault(row.flow_id, len(strings))))
        rows.append((row.ts, row.dur, row.phase, *numbers, place, row.correlation, offset, len(text)))
    return {
        "rows": rows,
        "sizes": sizes,
        "flows": flows,
        "strings": list(strings),
        "places": list(places),
        "names": names,
        "tally": tally,
        "event_count": len(elements),
    }


def handed_on(scanner: Any) -> dict[str, Any]:
    """What an event scanner took, ready to be compared."""
    raw = scanner.finish()
    columns = (raw.ts, raw.dur, raw.phase, raw.category, raw.name, raw.place, raw.correlation, raw.offset, raw.length)
    rows = [row for row in zip(*(column.tolist() for column in columns), strict=True) if row[2]]
    number = {row: place for place, row in enumerate([i for i, phase in enumerate(raw.phase.tolist()) if phase])}
    sizes, flows = (
        [(number[row], value) for row, value in zip(flow.rows.tolist(), flow.values.tolist(), strict=True)]
        for flow in (raw.sizes, raw.flows)
    )
    return {
        "rows": rows,
        "sizes": sizes,
        "flows": flows,
        "strings": raw.strings,
        "places": raw.places,
        "names": raw.names,
        "tally": raw.tally,
        "event_count": raw.event_count,
    }


_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')


def elements_of(text: bytes) -> list[tuple[int, bytes]]:
    """The elements of the first ``traceEvents``, by Python's own JSON decoder.

    Raises:
        ValueError: one is no JSON, or no list begins.
    """
    if (opening := _OPENING.search(text)) is None:
        raise ValueError("no list of events")
    at, result, decoder = opening.end(), [], json.JSONDecoder(strict=False)
    characters = text.decode("latin-1")  # a character a byte
    while True:
        while at < len(text) and text[at] in b" \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == ord("]"):
            return result
        _, end = decoder.raw_decode(characters, at)
        result.append((at, text[at:end]))
        at = end
