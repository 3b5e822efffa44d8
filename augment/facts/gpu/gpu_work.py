"""The GPU work: kernels, copies and memsets, in the order of device and stream, and of device and time."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import compressed, group_bounds, grouped, settled
from augment.arrays.types import Bytes, EventRows, Int32s, Int64s, Places, WorkIndexes
from augment.core.context import derived
from augment.core.trace import GPU_WORK, Identity, Trace
from augment.facts.gpu.arrow_correlations import correlations_of
from augment.facts.gpu.launches import launches
from augment.facts.names.kernel_types import types_of


class Stream(Struct, frozen=True):
    """The work of one stream: the places ``[start, stop)``. ``track`` is the first of its tracks in the source."""

    rank: int | None
    device: Identity
    stream: Identity
    track: int
    start: int
    stop: int

    @property
    def places(self) -> slice:
        """The stream's places in :class:`GpuWork`'s columns."""
        return slice(self.start, self.stop)


class Device(Struct, frozen=True):
    """The work of one device: the places ``[start, stop)``. ``track`` is that of its first stream."""

    rank: int | None
    device: Identity
    track: int
    start: int
    stop: int

    @property
    def places(self) -> slice:
        """The device's places in :class:`GpuWork`'s columns."""
        return slice(self.start, self.stop)


class GpuWork(Struct, frozen=True):
    """Kernels, copies and memsets: equal-length columns, ascending device, stream, ``ts``, ``end``, then file order."""

    row: EventRows  #: its event
    ts: Int64s  #: ns
    end: Int64s  #: ns
    type: Bytes  #: a ``KernelType``
    launch: EventRows  #: the launching call, ``NO_INDEX`` where unknown
    by_time: WorkIndexes  #: all in the order of device, ``ts``, ``end``; a device's are ``by_time[device.places]``
    streams: tuple[Stream, ...]  #: ascending: numbers, then strings
    devices: tuple[Device, ...]  #: ascending: numbers, then strings

    def __len__(self) -> int:
        """The number of pieces of work."""
        return len(self.row)

    def stream_of(self, places: Places) -> Places:
        """The index in ``streams`` of the stream of each of ``places``."""
        return np.searchsorted([stream.start for stream in self.streams], places, side="right") - 1

    def device_of(self, places: Places) -> Places:
        """The index in ``devices`` of the device of each of ``places``."""
        return np.searchsorted([device.start for device in self.devices], places, side="right") - 1


@derived
def gpu_work(trace: Trace) -> GpuWork:
    """The trace's GPU work."""
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    keys, code_of_track = _streams(trace, events.track[rows])
    code = code_of_track.take(events.track[rows])
    order = grouped(code, len(keys))
    bounds = group_bounds(code, len(keys)).tolist()
    streams = tuple(Stream(*key, start, stop) for key, start, stop in zip(keys, bounds, bounds[1:], strict=False))
    row = rows[order]
    ts = events.ts[row]
    end = ts + events.dur[row]
    tied = (ts[1:] == ts[:-1]) & (code[order[1:]] == code[order[:-1]])
    if (better := settled(tied, end)) is not None:
        row, end, order = row[better], end[better], order[better]
    devices = _devices(streams)
    return GpuWork(
        row=row,
        ts=ts,
        end=end,
        type=types_of(trace, events.name[row], events.category[row]),
        launch=launches(trace).of(correlations_of(trace, row)),
        by_time=_by_time(order, code, streams, devices, ts, end),
        streams=streams,
        devices=devices,
    )


def sort_key(identity: Identity) -> tuple[int, int, str]:
    """A key for sorting: numbers first, then strings, then None."""
    if isinstance(identity, int):
        return 0, identity, ""
    return (2, 0, "") if identity is None else (1, 0, identity)


def _streams(trace: Trace, track: Int32s) -> tuple[list[tuple[int | None, Identity, Identity, int]], Int32s]:
    """The streams on ``track`` as (rank, device, stream, first track), ascending, and a table from track to stream."""
    used = np.zeros(len(trace.tracks), np.bool_)
    used[track] = True
    tracks_of: dict[tuple[int | None, Identity, Identity], list[int]] = {}
    for index in np.flatnonzero(used).tolist():
        line = trace.tracks[index]
        tracks_of.setdefault((line.rank, line.device, line.stream), []).append(index)
    keys = sorted(tracks_of, key=lambda key: tuple(map(sort_key, key)))
    table = np.zeros(len(trace.tracks), np.int32)
    for code, key in enumerate(keys):
        table[tracks_of[key]] = code
    return [(*key, tracks_of[key][0]) for key in keys], table


def work_of_several_processes(trace: Trace) -> int:
    """The number of pieces of work on streams that several processes share, as when ranks were merged into one file."""
    work = gpu_work(trace)
    pids: dict[tuple[Identity, Identity], set[Identity]] = {}
    for index in compressed(trace.events.track[work.row], len(trace.tracks))[0].tolist():
        track = trace.tracks[index]
        pids.setdefault((track.device, track.stream), set()).add(track.pid)
    return sum(stream.stop - stream.start for stream in work.streams if len(pids[stream.device, stream.stream]) > 1)


def _devices(streams: tuple[Stream, ...]) -> tuple[Device, ...]:
    """The devices of ascending ``streams``."""
    devices: list[Device] = []
    for stream in streams:
        start, track = stream.start, stream.track
        if devices and (devices[-1].rank, devices[-1].device) == (stream.rank, stream.device):
            last = devices.pop()
            start, track = last.start, last.track
        devices.append(Device(stream.rank, stream.device, track, start, stream.stop))
    return tuple(devices)


def _by_time(
    order: Places,
    code: Int32s,
    streams: tuple[Stream, ...],
    devices: tuple[Device, ...],
    ts: Int64s,
    end: Int64s,
) -> Places:
    """The places in the order of device, ``ts``, ``end``.

    ``order`` was made from rows in order of time, so its inverse restores that order without another sort.
    """
    by_time = np.empty(len(order), np.intp)
    by_time[order] = np.arange(len(order))
    if len(devices) > 1:
        starts = [device.start for device in devices]
        device_of = np.searchsorted(starts, [stream.start for stream in streams], side="right") - 1
        by_time = by_time[grouped(device_of[code], len(devices))]
    if len(streams) == len(devices):
        return np.arange(len(order))
    tied = ts[by_time[1:]] == ts[by_time[:-1]]
    for device in devices[1:]:
        tied[device.start - 1] = False
    better = settled(tied, end[by_time])
    return by_time if better is None else by_time[better]
