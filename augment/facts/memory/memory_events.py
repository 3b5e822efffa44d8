"""The allocators' events: ``[memory]`` instants by device, with each free paired to its allocation; the categories."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, EventRows, Int64s, Places, combinations, distinct, each
from augment.core import Category, Diagnostic, Identity, MemoryChanges, Trace, derived, text
from augment.facts import gpu, names, source

ARGS = ("Bytes", "Addr", "Total Allocated", "Total Reserved", "Device Type", "Device Id")
_NAME = "[memory]"
_UNKNOWN = np.iinfo(np.int64).min
#: device types by number, from c10/core/DeviceType.h
_KINDS = {0: "CPU", 1: "CUDA", 6: "HIP", 9: "XLA", 12: "XPU", 13: "MPS", 15: "HPU", 19: "MTIA", 20: "PrivateUse1"}


class DeviceMemory(Struct, frozen=True):
    """The events of one device's allocator: equal-length columns, ascending ``ts``."""

    rank: int | None  #: of the process, if known
    kind: str  #: the kind of device, such as CUDA
    device: Identity  #: which
    track: int  #: an index of ``trace.tracks``
    on_stream: bool  #: whether that track is a stream
    row: EventRows  #: its event
    ts: Int64s  #: ns
    size: Int64s  #: bytes; negative where memory is freed
    allocated: Int64s  #: bytes after the event
    reserved: Int64s | None  #: bytes after the event, None if not recorded
    is_relative: bool  #: no totals are recorded: ``allocated`` is a lower bound, the sum of sizes, never negative
    next: Places | None  #: index in these columns of the next event at the address, -1 if none; None without addresses
    previous: Places | None  #: likewise the previous event

    @property
    def label(self) -> str:
        """Suffix of the device's track name; empty when the track sits next to its streams."""
        if self.on_stream:
            return ""
        return f" {self.kind}" if self.device is None else f" {self.kind} {self.device}"

    @property
    def peak(self) -> int:
        """The place of the first event at which ``allocated`` is greatest."""
        return int(self.allocated.argmax())

    @property
    def peak_reserved(self) -> int:
        """The most that PyTorch held, bytes; 0 if that was not recorded."""
        return 0 if self.reserved is None else int(self.reserved.max())

    def live_at(self, place: int) -> Places:
        """The places of allocations up to ``place`` that were not freed until then. It requires addresses."""
        assert self.next is not None
        first = slice(0, place + 1)
        return np.flatnonzero((self.size[first] > 0) & ((self.next[first] < 0) | (self.next[first] > place)))

    def frees(self) -> tuple[Bools, Bools]:
        """Masks of the events that free memory, and of the frees without an earlier allocation at their address."""
        assert self.previous is not None
        frees = self.size < 0
        return frees, frees & ~((self.previous >= 0) & (self.size[self.previous] > 0))


def held_by_pytorch(trace: Trace) -> list[DeviceMemory]:
    """The memory of each device of which it was recorded what PyTorch holds."""
    return [events for events in memory_events(trace) if events.on_stream and events.reserved is not None]


@derived(until="breakdowns")
def memory_events(trace: Trace) -> tuple[DeviceMemory, ...]:
    """The events of each device's allocator.

    The devices with a ``[memory]`` instant that has ``Bytes``: accelerators, then CPU.
    """
    rows = memory_rows(trace)
    if not len(rows):  # avoids reading the source again
        return ()
    columns = source.args(trace)
    size_of = columns.ints("Bytes").at(rows, _UNKNOWN)
    known_size = size_of != _UNKNOWN
    row, size_of = rows[known_size], size_of[known_size]
    kind, device = (columns.ints(name).at(row, -1) for name in ("Device Type", "Device Id"))
    (_, kinds, devices), which = combinations((kind == 0).astype(np.int8), kind, device)
    return tuple(
        _device(trace, int(kinds[kind]), int(devices[kind]), row[places], size_of[places])
        for kind, places in each(which, len(kinds))
    )


def why_none(trace: Trace) -> str:
    """Why there are no such events, as the reason of an analysis that needs them."""
    return f"no [memory] instant with Bytes; record with {text.recording_words(trace.source.metadata).memory}"


def memory_rows(trace: Trace) -> Int64s:
    """The rows of all ``[memory]`` instants, ascending."""
    events = trace.events
    rows = np.flatnonzero(events.category == Category.CPU_INSTANT_EVENT)
    return rows[names.strings_where(trace, lambda name: name == _NAME)[events.name[rows]]]


def diagnostics(trace: Trace) -> list[Diagnostic]:
    """Diagnostics: repaired and dropped args of the instants, and allocations at addresses that were not free."""
    twice = sum(
        int(((event.size > 0) & (event.previous >= 0) & (event.size[event.previous] > 0)).sum())
        for event in memory_events(trace)
        if event.previous is not None
    )
    diagnostics_ = [Diagnostic("memory_allocated_twice", twice, "allocations at an address that was not freed before")]
    return [*source.args(trace).diagnostics(ARGS), *(diagnostic for diagnostic in diagnostics_ if diagnostic.count)]


def _device(trace: Trace, kind: int, device: int, row: EventRows, size: Int64s) -> DeviceMemory:
    columns = source.args(trace)
    allocated, reserved, address = (
        columns.ints(name).at(row, _UNKNOWN) for name in ("Total Allocated", "Total Reserved", "Addr")
    )
    is_relative = bool((allocated == _UNKNOWN).any())
    if is_relative:
        allocated = np.cumsum(size)
        allocated -= min(int(allocated.min()), 0)
    following = before = None
    if not (address == _UNKNOWN).any():  # the next and the previous event at the same address
        order = np.argsort(address, kind="stable")
        same = address[order[1:]] == address[order[:-1]]
        following, before = np.full((2, len(address)), -1, np.intp)
        following[order[:-1][same]] = order[1:][same]
        before[order[1:][same]] = order[:-1][same]
    thread = int(trace.events.track[row[0]])
    rank = trace.tracks[thread].rank
    identity: Identity = device if device >= 0 else None
    stream = next((each for each in gpu.work(trace).devices if (each.rank, each.device) == (rank, identity)), None)
    on_stream = stream is not None and kind != 0
    return DeviceMemory(
        rank=rank,
        kind=_KINDS.get(kind, f"device type {kind}"),
        device=identity,
        track=stream.track if stream is not None and on_stream else thread,
        on_stream=on_stream,
        row=row,
        ts=trace.events.ts[row],
        size=size,
        allocated=allocated,
        reserved=None if (reserved == _UNKNOWN).any() or not reserved.any() else reserved,
        is_relative=is_relative,
        next=following,
        previous=before,
    )


# Memory by PyTorch's categories: the sums of a memory timeline, and the device of the trace that it describes.
#
# A raw file of ``export_memory_timeline`` (torch/profiler/_memory_profiler.py) has a row ``[time, action, bytes,
# category]`` for each change of one device's memory. Times are those of the profiler's own events, ns since 1970 in
# every version, or -1 for memory held before the recording. The Chrome trace has the same clock, rounded down to whole
# microseconds before PyTorch 2.4. An allocation or free has exactly the time of its ``[memory]`` instant. The file does
# not name its device.


#: the categories, by their numbers in the file
CATEGORIES = ("Parameter", "Optimizer state", "Input", "Temporary", "Activation", "Gradient", "Autograd", "Unknown")
_CREATE, _DESTROY = 2, 4  #: the actions that have a ``[memory]`` instant


def held_by_category(changes: MemoryChanges, before: int) -> tuple[Int64s, Int64s]:
    """Moments (int64 ns, strictly ascending), and the bytes of each category from then on (moments × categories).

    Args:
        changes: the changes of a memory timeline.
        before: the moment at which memory held before the recording is added.
    """
    ts = np.where(changes.ts < 0, before, changes.ts)
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    last = np.append(ts[1:] != ts[:-1], True)[: len(ts)]
    size = np.zeros((len(ts), len(CATEGORIES)), np.int64)
    size[np.arange(len(ts)), changes.category[order]] = changes.size[order]
    return ts[last], np.cumsum(size, axis=0)[last]


class Instants(Struct, frozen=True):
    """The agreement between the allocations and frees of a memory timeline and the ``[memory]`` instants of a trace.

    ``device`` is the device with most agreeing instants, None if there are none to compare. Of the ``compared``
    allocations and frees, ``agreeing`` have an instant.
    """

    device: DeviceMemory | None
    agreeing: int
    compared: int


def compared_with_instants(trace: Trace, changes: MemoryChanges) -> Instants:
    """Compare the changes between the trace's first and last instant, to the microsecond, the resolution of older
    traces."""
    devices = memory_events(trace)
    us = changes.ts[np.isin(changes.action, (_CREATE, _DESTROY)) & (changes.ts >= 0)] // 1000
    known = [distinct(device.ts // 1000) for device in devices]
    if known:
        us = us[(us >= min(moments[0] for moments in known)) & (us <= max(moments[-1] for moments in known))]
    if not known or not len(us):
        return Instants(None, 0, 0)
    agreeing = [int(np.isin(us, moments).sum()) for moments in known]
    most = int(np.argmax(agreeing))
    return Instants(devices[most], agreeing[most], len(us))
