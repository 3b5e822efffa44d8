"""The compiled packet scan's Python side: tables, addresses, and the packets that compiled code leaves to Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels import packet_layout as at
from augment.kernels.native import address, native
from augment.readers.perfetto.scan import PacketScanner
from augment.readers.perfetto.state import KEYS, Sequence
from augment.readers.raw import ABSENT

_MOST_IIDS = 1 << 20  #: of one kind; larger numbers are left to Python
_MOST_SEQUENCES = 1 << 16
_MASK = (1 << 64) - 1


class FastScanner(PacketScanner):
    """Takes packets in the order of the file. Compiled code handles nearly all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scan = native("packet_scan.scan_packets")
        self._state = np.zeros(at.STATE, np.int64)
        self._tables = np.zeros(at.TABLES, np.int64)
        self._texts = [np.frombuffer(key.encode(), np.uint8) for key in KEYS]
        self._keys = np.array(
            [(address(text), len(text), code) for text, code in zip(self._texts, KEYS.values(), strict=True)],
            np.int64,
        )
        self._track_slots, self._place_slots = _Slots(), _Slots()
        self._blocks: dict[int, _Block] = {}
        self._addresses = np.zeros(_MOST_SEQUENCES, np.int64)
        self._snapshots_seen = 0

    def scan(self, data: bytes, base: int) -> int:
        """Take the whole packets of ``data``, which is the text from byte ``base`` on. Returns the first byte not
        taken.

        Raises:
            Broken: the text there is neither a packet nor a field that may be skipped.
        """
        size = len(data)
        padded = np.frombuffer(data + b"\0" * 16, np.uint8)
        start = address(padded)
        state = self._state
        state[at.POSITION // 8] = 0
        while True:
            self._point()
            why = self._scan(start, start + size, base, address(self._tables), address(state))
            self._take_counts()
            position = int(state[at.POSITION // 8])
            if why == at.MORE:
                return position
            if why == at.GROW:
                for table in (self.rows.events, self.rows.ends, self.rows.sizes, self.rows.flows):
                    if table.count * 8 >= table.room * 7:
                        table.grow(table.room)
                continue
            after = self._by_hand(data, position, base)
            if after == position:
                return position
            state[at.POSITION // 8] = after

    def _by_hand(self, data: bytes, position: int, base: int) -> int:
        """Take one packet in Python."""
        for number, block in self._blocks.items():
            block.pull_clock(self.sequences[number])
        after = self.step(data, position, base)
        if self.snapshots != self._snapshots_seen:
            self._snapshots_seen = self.snapshots
            changed = list(self.sequences)
        else:
            changed = [self.last_sequence]
        for number in changed:
            if number in self.sequences and number < _MOST_SEQUENCES:
                self._refresh(number)
        return after

    def _refresh(self, number: int) -> None:
        sequence = self.sequences[number]
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
            self._addresses[number] = address(block.values)
        block.refresh(sequence, self)

    def _point(self) -> None:
        """Pass all addresses to the compiled code."""
        rows, state = self.rows, self._state
        self._track_slots.extend(((uuid, 0, 0), number) for uuid, number in _later(rows.tracks, self._track_slots))
        self._place_slots.extend((_as_numbers(key), number) for key, number in _later(rows.places, self._place_slots))
        tables = (rows.events, rows.ends, rows.sizes, rows.flows)
        columns = [address for table in tables for address in table.addresses]
        self._tables[:] = (
            *columns,
            *(table.room for table in tables),
            *self._track_slots.where(),
            *self._place_slots.where(),
            address(self._keys),
            len(self._keys),
            address(self._addresses),
            _MOST_SEQUENCES,
        )
        state[at.EVENTS // 8 :][:4] = [table.count for table in tables]
        state[at.PACKETS // 8] = self.packets

    def _take_counts(self) -> None:
        rows, state = self.rows, self._state.tolist()
        rows.events.count, rows.ends.count = state[at.EVENTS // 8], state[at.ENDS // 8]
        rows.sizes.count, rows.flows.count = state[at.SIZES // 8], state[at.FLOWS // 8]
        self.packets = state[at.PACKETS // 8]


def _later(numbers: dict[Any, int], slots: _Slots) -> list[tuple[Any, int]]:
    """The entries added since the slots were last filled, in insertion order."""
    new = len(numbers) - slots.taken
    if not new:
        return []
    slots.taken = len(numbers)
    latest = reversed(numbers.items())
    return [next(latest) for _ in range(new)]


def _as_numbers(place: tuple[Any, ...]) -> tuple[int, int, int] | None:
    """A place's key as integers for the compiled code; None if it cannot be represented."""
    numbers = [at.ABSENT if number is ABSENT else number for number in place]
    if all(type(number) is int and -(1 << 63) <= number < 1 << 63 for number in numbers):
        return (numbers[0], numbers[1], numbers[2])
    return None


class _Slots:
    """An open-addressing table from three integers to a number."""

    def __init__(self) -> None:
        self.taken = 0
        self._known: list[tuple[tuple[int, int, int], int]] = []
        self._slots = np.full((64, 4), -1, np.int64)

    def where(self) -> tuple[int, int]:
        """The address and the mask."""
        return address(self._slots), len(self._slots) - 1

    def extend(self, items: Any) -> None:
        """Add keys."""
        new = [(key, number) for key, number in items if key is not None]
        self._known += new
        if 2 * len(self._known) > len(self._slots):
            size = 64
            while size < 4 * len(self._known):
                size *= 2
            self._slots = np.full((size, 4), -1, np.int64)
            new = self._known
        for key, number in new:
            first, second, third = ((number + (1 << 63)) % (1 << 64) - (1 << 63) for number in key)
            slot = _slot_of(first, second, third) & (len(self._slots) - 1)
            while self._slots[slot, 3] >= 0:
                slot = (slot + 1) & (len(self._slots) - 1)
            self._slots[slot] = first, second, third, number


def _slot_of(first: int, second: int, third: int) -> int:
    """The Python version of the compiled ``slot_of``."""
    many = 0x9E3779B97F4A7C15
    hashed = (first * many ^ second * 0xC2B2AE3D27D4EB4F) & _MASK
    return (((hashed ^ third) & _MASK) * many & _MASK) >> 40


class _Block:
    """The state of a sequence in the form that compiled code uses."""

    def __init__(self) -> None:
        self.values = np.zeros(at.BLOCK, np.int64)
        self._numbers: list[npt.NDArray[np.int32]] = [np.zeros(64, np.int32) for _ in range(3)]
        self._taken = 0
        self._generation: object = None

    def pull_clock(self, sequence: Sequence) -> None:
        """Copy the progress of an incremental clock back to Python."""
        if self.values[at.CLOCK_KIND // 8] == at.MOVING_CLOCK:
            sequence.clocks[int(self.values[at.CLOCK_NUMBER // 8])].trace_ns = int(self.values[at.CLOCK_TRACE // 8])

    def refresh(self, sequence: Sequence, scanner: PacketScanner) -> None:
        """Update the block with new state."""
        now = sequence.now
        if now is not self._generation:
            self._generation, self._taken = now, 0
            self._numbers = [np.zeros(64, np.int32) for _ in range(3)]
        for kind, iid, number in now.news[self._taken :]:
            self._enter(kind, iid, number)
        self._taken = len(now.news)
        values = self.values
        values[at.VALID // 8], values[at.DEFAULT_TRACK // 8] = sequence.valid, _signed(sequence.track)
        for place, numbers in zip((at.NAMES, at.CATEGORIES, at.KEYS), self._numbers, strict=True):
            values[place // 8], values[place // 8 + 1] = address(numbers), len(numbers)
        self._set_clock(sequence, scanner)

    def _enter(self, kind: int, iid: int, number: int) -> None:
        if iid >= _MOST_IIDS:
            return
        numbers = self._numbers[kind]
        if iid >= len(numbers):
            larger = np.zeros(max(2 * len(numbers), iid + 1), np.int32)
            larger[: len(numbers)] = numbers
            self._numbers[kind] = numbers = larger
        numbers[iid] = number

    def _set_clock(self, sequence: Sequence, scanner: PacketScanner) -> None:
        values = self.values
        kind, known = at.TRACE_CLOCK, None
        try:
            known = scanner.clock(0, sequence)
        except KeyError:
            kind = at.NO_CLOCK
        if known is not None:
            kind = at.FIXED_CLOCK
            if known.incremental:  # a clock that several sequences share cannot advance here
                kind = at.MOVING_CLOCK if sequence.clocks.get(sequence.clock) is known else at.NO_CLOCK
            shifts = (known.trace_ns, known.shown)
            if not all(-(1 << 62) < shift < 1 << 62 for shift in shifts) or known.unit_ns > 1 << 20:
                kind = at.NO_CLOCK
            else:
                values[at.CLOCK_TRACE // 8], values[at.CLOCK_SHOWN // 8] = known.trace_ns, known.shown
                values[at.CLOCK_UNIT // 8] = known.unit_ns
        values[at.CLOCK_KIND // 8] = kind
        values[at.CLOCK_NUMBER // 8] = sequence.clock or scanner.trace_clock


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
