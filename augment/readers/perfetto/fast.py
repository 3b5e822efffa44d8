"""The compiled packet scan's Python side: tables, addresses, and the packets that compiled code leaves to Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels import packet_layout as at
from augment.kernels.native import address, native
from augment.readers.perfetto.scan import PacketScanner
from augment.readers.perfetto.state import KEYS, PacketSequence
from augment.readers.perfetto.wire_format import signed
from augment.readers.raw import ABSENT

_MOST_IIDS = 1 << 20  #: of one kind; larger numbers are left to Python
_MOST_SEQUENCES = 1 << 16
_MASK = (1 << 64) - 1


class FastScanner(PacketScanner):
    """Takes packets in the order of the file. Compiled code handles nearly all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scan = native("packet_scan.scan_packets")
        self._keys = (at.KeyText * len(KEYS))()  # type: ignore[operator]
        self._texts = [np.frombuffer(key.encode() + b"\0" * 8, np.uint8) for key in KEYS]
        for key, text, code in zip(self._keys, self._texts, KEYS.values(), strict=True):
            key.text, key.size, key.code = address(text), len(text) - 8, code
        self._track_slots, self._place_slots = _Slots(), _Slots()
        self._blocks: dict[int, _Block] = {}
        self._addresses = np.zeros(_MOST_SEQUENCES, np.int64)
        self._snapshots_seen = 0
        state = self.rows.scan
        state.key_texts, state.key_count = address(self._keys), len(KEYS)
        state.sequences, state.sequence_count = address(self._addresses), _MOST_SEQUENCES

    def scan(self, data: bytes, base: int) -> int:
        """Take the whole packets of ``data``, which is the text from byte ``base`` on. Returns the first byte not
        taken.

        Raises:
            Broken: the text there is neither a packet nor a field that may be skipped.
        """
        size = len(data)
        padded = np.frombuffer(data + b"\0" * 16, np.uint8)
        start = address(padded)
        state = self.rows.scan
        state.position = 0
        rows, tracks, places = self.rows, self._track_slots, self._place_slots
        while True:
            # the compiled code gets the numbers of new tracks and places
            if new := _later(rows.tracks, tracks):
                tracks.extend(((uuid, 0, 0), number) for uuid, number in new)
            if added := _later(rows.places, places):
                places.extend((_as_numbers(key), number) for key, number in added)
            state.track_slots, state.track_mask = tracks.where()
            state.place_slots, state.place_mask = places.where()
            state.packets = self.packets
            why = self._scan(start, start + size, base, state)
            self.packets, position = state.packets, state.position
            if why == at.MORE:
                return position
            if why == at.GROW:
                for table in (self.rows.events, self.rows.ends, self.rows.sizes, self.rows.flows):
                    if table.count * 8 >= table.room * 7:
                        table.grow(table.room)
                continue
            # Take one packet in Python
            for number, block in self._blocks.items():
                block.pull_clock(self.sequences[number])
            after = self.step(data, position, base)
            changed = [self.last_sequence]
            if self.snapshots != self._snapshots_seen:
                self._snapshots_seen = self.snapshots
                changed = list(self.sequences)
            for number in changed:
                if number in self.sequences and number < _MOST_SEQUENCES:
                    if number not in self._blocks:
                        self._blocks[number] = _Block()
                        self._addresses[number] = address(self._blocks[number].values)
                    self._blocks[number].refresh(self.sequences[number], self)
            if after == position:
                return position
            state.position = after


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
            # The Python version of the compiled ``slot_of``
            many = 0x9E3779B97F4A7C15
            hashed = (first * many ^ second * 0xC2B2AE3D27D4EB4F) & _MASK
            slot_of = (((hashed ^ third) & _MASK) * many & _MASK) >> 40
            slot = slot_of & (len(self._slots) - 1)
            while self._slots[slot, 3] >= 0:
                slot = (slot + 1) & (len(self._slots) - 1)
            self._slots[slot] = first, second, third, number


class _Block:
    """The state of a sequence in the form that compiled code uses."""

    def __init__(self) -> None:
        self.values = at.Sequence()
        self._numbers: list[npt.NDArray[np.int32]] = [np.zeros(64, np.int32) for _ in range(3)]
        self._taken = 0
        self._generation: object = None

    def pull_clock(self, sequence: PacketSequence) -> None:
        """Copy the progress of an incremental clock back to Python."""
        if self.values.clock_kind == at.MOVING_CLOCK:
            sequence.clocks[self.values.clock_number].trace_ns = self.values.clock_trace

    def refresh(self, sequence: PacketSequence, scanner: PacketScanner) -> None:
        """Update the block with new state."""
        now = sequence.now
        if now is not self._generation:
            self._generation, self._taken = now, 0
            self._numbers = [np.zeros(64, np.int32) for _ in range(3)]
        for kind, iid, number in now.news[self._taken :]:
            if iid < _MOST_IIDS:
                numbers = self._numbers[kind]
                if iid >= len(numbers):
                    larger = np.zeros(max(2 * len(numbers), iid + 1), np.int32)
                    larger[: len(numbers)] = numbers
                    self._numbers[kind] = numbers = larger
                numbers[iid] = number
        self._taken = len(now.news)
        values = self.values
        values.valid, values.default_track = sequence.valid, signed(sequence.track)
        for place, numbers in zip((values.names, values.categories, values.keys), self._numbers, strict=True):
            place.table, place.count = address(numbers), len(numbers)
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
                values.clock_trace, values.clock_shown = known.trace_ns, known.shown
                values.clock_unit = known.unit_ns
        values.clock_kind = kind
        values.clock_number = sequence.clock or scanner.trace_clock
