"""The state that later packets refer to: interned strings, defaults and clocks, for each sequence of packets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from augment.kernels import packet_layout as layout
from augment.readers.perfetto import wire_format as wire
from augment.readers.perfetto.wire_format import fields, text

#: args that are columns, by the names that various writers use
KEYS = {
    "correlation": layout.CORRELATION_ARG,
    "corr_id": layout.CORRELATION_ARG,
    "device": layout.DEVICE_ARG,
    "stream": layout.STREAM_ARG,
    "bytes": layout.SIZE_ARG,
    "copy_bytes": layout.SIZE_ARG,
    "dur_ns": layout.DURATION_ARG,
    "src_agent": layout.AGENT_ARG,
}
BOOT_TIME = 6  #: the clock of a trace, unless a snapshot names another
_FIRST_OWN_CLOCK, _LAST_OWN_CLOCK = 64, 127  #: clocks of one sequence
_INT64_MAX = (1 << 63) - 1
MONOTONIC_CLOCKS = frozenset(range(1, 11))  #: known to all sequences: in ns


class Strings:
    """Gives texts numbers, from 0 on in the order in which they come."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def number(self, value: str) -> int:
        """The number of a text."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.all)
            self.all.append(value)
        return known


class Generation(Struct):
    """The strings of a sequence from byte ``begins`` on until they are cleared, by iid.

    ``categories`` and ``names`` are numbers of :class:`Strings`; ``values`` are the JSON texts among the strings.
    """

    begins: int
    categories: dict[int, int] = field(default_factory=dict)
    names: dict[int, int] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    stages: dict[int, tuple[str, int]] = field(default_factory=dict)
    kernels: dict[int, str] = field(default_factory=dict)
    launch_keys: dict[int, str] = field(default_factory=dict)
    decoded: dict[bytes, tuple[str, Any]] = field(default_factory=dict)  #: decoded args, by their bytes
    news: list[tuple[int, int, int]] = field(default_factory=list)  #: kind, iid, number, in the order of arrival


class PacketClock(Struct):
    """A clock at the last snapshot: it showed ``shown`` when the trace's clock showed ``trace_ns``."""

    shown: int
    trace_ns: int
    unit_ns: int = 1
    incremental: bool = False

    def trace_time(self, timestamp: int) -> int:
        """A packet's time on the trace's clock. This advances an incremental clock."""
        if self.incremental:
            self.trace_ns += timestamp * self.unit_ns
            return self.trace_ns
        return self.trace_ns + (timestamp - self.shown) * self.unit_ns


class PacketSequence(Struct):
    """The state that packets of one ``trusted_packet_sequence_id`` refer to."""

    generations: list[Generation] = field(default_factory=lambda: [Generation(-1)])
    valid: bool = False  #: whether the required state is complete
    track: int = 0
    clock: int = 0
    clocks: dict[int, PacketClock] = field(default_factory=dict)

    @property
    def now(self) -> Generation:
        """The current strings."""
        return self.generations[-1]

    def clear(self, offset: int) -> None:
        """Start a new generation."""
        self.generations.append(Generation(offset))
        self.valid, self.track, self.clock = True, 0, 0

    def at(self, offset: int) -> tuple[Generation, int, int]:
        """The strings that were current at a byte, and the range of bytes in which they were."""
        following = bisect_right(self.generations, offset, key=lambda generation: generation.begins)
        now = self.generations[following - 1]
        is_last = following == len(self.generations)
        return now, now.begins, _INT64_MAX if is_last else self.generations[following].begins

    def take_defaults(self, data: bytes, start: int, stop: int) -> None:
        """Take a ``TracePacketDefaults``."""
        for tag, value, end in fields(data, start, stop):
            if tag == wire.DEFAULT_CLOCK:
                self.clock = value
            elif tag == wire.DEFAULT_EVENT:
                for inner, uuid, _ in fields(data, value, end):
                    if inner == wire.DEFAULT_TRACK:
                        self.track = uuid

    def take_interned(self, data: bytes, start: int, stop: int, strings: Strings) -> None:
        """Take an ``InternedData``."""
        now = self.now
        for tag, value, end in fields(data, start, stop):
            if tag in (wire.INTERNED_CATEGORY, wire.INTERNED_NAME):
                iid, entry_name, _ = _entry(data, value, end)
                numbers = now.categories if tag == wire.INTERNED_CATEGORY else now.names
                numbers[iid] = strings.number(entry_name)
                now.news.append((tag == wire.INTERNED_CATEGORY, iid, numbers[iid]))
            elif tag in (wire.INTERNED_KEY, wire.INTERNED_STRING, wire.INTERNED_LAUNCH_KEY, wire.INTERNED_KERNEL):
                iid, entry_name, kind = _entry(data, value, end, tag == wire.INTERNED_KERNEL)
                kinds = {
                    wire.INTERNED_KEY: now.keys,
                    wire.INTERNED_STRING: now.values if kind else now.strings,
                    wire.INTERNED_LAUNCH_KEY: now.launch_keys,
                    wire.INTERNED_KERNEL: now.kernels,
                }
                kinds[tag][iid] = entry_name
                if tag == wire.INTERNED_KEY:
                    now.news.append((2, iid, KEYS.get(entry_name, 0)))
            elif tag == wire.INTERNED_STAGE:
                iid, entry_name, kind = _entry(data, value, end)
                now.stages[iid] = entry_name, kind


def _entry(data: bytes, start: int, stop: int, is_kernel: bool = False) -> tuple[int, str, int]:
    """The iid of an ``InternedData`` entry, its text (for a kernel the readable one), and its kind.

    The kind of a stage is Perfetto's. The kind of a string is 1 if it is the JSON text of a value.
    """
    iid = kind = 0
    entry_name = ""
    for tag, value, end in fields(data, start, stop):
        if tag == wire.ENTRY_IID:
            iid = value
        elif (tag == wire.ENTRY_TEXT and not entry_name) or (tag == wire.ENTRY_DEMANGLED and is_kernel):
            entry_name = text(data, value, end)
        elif tag in (wire.ENTRY_KIND, wire.ENTRY_IS_JSON):
            kind = value
    return iid, entry_name, kind


def strings_at(sequences: Mapping[int, PacketSequence], number: int, offset: int) -> tuple[Generation, int, int]:
    """The strings that a sequence has at a byte, and the range of bytes in which it has them."""
    return (sequences.get(number) or PacketSequence()).at(offset)


class Clocks:
    """The clocks: those that all sequences share, and those of single sequences."""

    def __init__(self) -> None:
        self.trace_clock = BOOT_TIME
        self._shared: dict[int, PacketClock] = {}
        self._set = False

    def take_snapshot(self, data: bytes, start: int, stop: int, sequence: PacketSequence) -> None:
        """Take a ``ClockSnapshot``."""
        readings: list[tuple[int, PacketClock]] = []
        for tag, value, end in fields(data, start, stop):
            if tag == wire.SNAPSHOT_PRIMARY and not self._set:
                self.trace_clock, self._set = value, True
            elif tag == wire.SNAPSHOT_CLOCK:
                readings.append(_clock(data, value, end))
        trace_ns = self._trace_time(readings, sequence)
        if trace_ns is None:
            return
        for number, clock in readings:
            clock.trace_ns = trace_ns
            self._home(number, sequence)[number] = clock

    def _trace_time(self, readings: list[tuple[int, PacketClock]], sequence: PacketSequence) -> int | None:
        """The trace's time of a snapshot: from the trace's own clock, else from a clock that earlier snapshots related
        to it.
        """
        for number, clock in readings:
            if number == self.trace_clock:
                return clock.shown * clock.unit_ns
        for number, clock in readings:
            known = self._home(number, sequence).get(number)
            if known and not known.incremental:
                return known.trace_time(clock.shown)
        return None

    def _home(self, number: int, sequence: PacketSequence) -> dict[int, PacketClock]:
        return sequence.clocks if _FIRST_OWN_CLOCK <= number <= _LAST_OWN_CLOCK else self._shared

    def clock(self, number: int, sequence: PacketSequence) -> PacketClock | None:
        """The clock of this number. None if it is the trace's clock, or is taken for it because no snapshot relates the
        two.

        Raises:
            KeyError: the clock belongs to a sequence, and no snapshot has it.
        """
        if number in (0, self.trace_clock):
            return None
        known = self._home(number, sequence).get(number)
        if known is None and number not in MONOTONIC_CLOCKS:
            raise KeyError(number)
        return known


def _clock(data: bytes, start: int, stop: int) -> tuple[int, PacketClock]:
    number, clock = 0, PacketClock(0, 0)
    for tag, value, _ in fields(data, start, stop):
        if tag == wire.CLOCK_ID:
            number = value
        elif tag == wire.CLOCK_TIME:
            clock.shown = value
        elif tag == wire.CLOCK_INCREMENTAL:
            clock.incremental = bool(value)
        elif tag == wire.CLOCK_UNIT and value:
            clock.unit_ns = value
    return number, clock
