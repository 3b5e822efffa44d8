"""The GPU work: kernels, copies and memsets, by device and stream, and by time; and the calls that launched it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from augment.arrays import (
    NO_INDEX,
    Bools,
    Bytes,
    EventRows,
    Int32s,
    Int64s,
    Places,
    WorkIndex,
    WorkIndexes,
    distinct,
    group_bounds,
    grouped,
    is_among,
    occurring,
    settled,
)
from augment.core import GPU_WORK, NO_CORRELATION, Category, Identity, Trace, derived
from augment.facts.names import types_of


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

    def where(self, chosen: Bools) -> WorkIndexes:
        """The indexes of the ``chosen`` pieces of work, ascending."""
        return cast("WorkIndexes", np.flatnonzero(chosen))

    def stream_of(self, places: WorkIndexes) -> Places:
        """The index in ``streams`` of the stream of each of ``places``."""
        return np.searchsorted([stream.start for stream in self.streams], places, side="right") - 1

    def device_of(self, places: WorkIndexes) -> Places:
        """The index in ``devices`` of the device of each of ``places``."""
        return np.searchsorted([device.start for device in self.devices], places, side="right") - 1


@derived
def gpu_work(trace: Trace) -> GpuWork:
    """Kernels, copies and memsets, each with the call that launched it."""
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    # the streams as (rank, device, stream, first track), ascending, and a table from track to stream
    used = np.zeros(len(trace.tracks), np.bool_)
    used[events.track[rows]] = True
    tracks_of: dict[tuple[int | None, Identity, Identity], list[int]] = {}
    for index in np.flatnonzero(used).tolist():
        line = trace.tracks[index]
        tracks_of.setdefault((line.rank, line.device, line.stream), []).append(index)
    identities = sorted(tracks_of, key=lambda key: tuple(map(sort_key, key)))
    keys = [(*key, tracks_of[key][0]) for key in identities]
    code_of_track = np.zeros(len(trace.tracks), np.int32)
    for number, key in enumerate(identities):
        code_of_track[tracks_of[key]] = number
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
    devices: list[Device] = []
    for stream in streams:
        start, track = stream.start, stream.track
        if devices and (devices[-1].rank, devices[-1].device) == (stream.rank, stream.device):
            last = devices.pop()
            start, track = last.start, last.track
        devices.append(Device(stream.rank, stream.device, track, start, stream.stop))
    return GpuWork(
        row=row,
        ts=ts,
        end=end,
        type=types_of(trace, events.name[row], events.category[row]),
        launch=launches(trace).of(correlations_of(trace, row)),
        by_time=_by_time(order, code, streams, devices, ts, end),
        streams=streams,
        devices=tuple(devices),
    )


def sort_key(identity: Identity) -> tuple[int, int, str]:
    """A key for sorting: numbers first, then strings, then None."""
    if isinstance(identity, int):
        return 0, identity, ""
    return (2, 0, "") if identity is None else (1, 0, identity)


def work_of_several_processes(trace: Trace) -> int:
    """The number of pieces of work on streams that several processes share, as when ranks were merged into one file."""
    work = gpu_work(trace)
    pids: dict[tuple[Identity, Identity], set[Identity]] = {}
    for index in occurring(trace.events.track[work.row], len(trace.tracks)).tolist():
        track = trace.tracks[index]
        pids.setdefault((track.device, track.stream), set()).add(track.pid)
    return sum(stream.stop - stream.start for stream in work.streams if len(pids[stream.device, stream.stream]) > 1)


def _by_time(
    order: Places, code: Int32s, streams: Sequence[Stream], devices: Sequence[Device], ts: Int64s, end: Int64s
) -> WorkIndexes:
    """The places in the order of device, ``ts``, ``end``.

    ``order`` was made from rows in order of time, so its inverse restores that order without another sort.
    """
    by_time = np.empty(len(order), WorkIndex)
    by_time[order] = np.arange(len(order))
    if len(devices) > 1:
        starts = [device.start for device in devices]
        device_of = np.searchsorted(starts, [stream.start for stream in streams], side="right") - 1
        by_time = by_time[grouped(device_of[code], len(devices))]
    if len(streams) == len(devices):
        return np.arange(len(order), dtype=WorkIndex)
    tied = ts[by_time[1:]] == ts[by_time[:-1]]
    for device in devices[1:]:
        tied[device.start - 1] = False
    better = settled(tied, end[by_time])
    return by_time if better is None else by_time[better]


class Launches(Struct, frozen=True):
    """The launching call of each correlation."""

    correlation: Int64s  #: ascending and distinct
    row: EventRows  #: the call
    disputed: Int64s  #: ascending; correlations of calls of several processes, as when traces were merged into one file

    def of(self, correlation: Int64s) -> EventRows:
        """The row of the call that launched each ``correlation``, int64; :data:`NO_INDEX` where there is none."""
        if not len(self.row):
            return np.full(len(correlation), NO_INDEX, self.row.dtype)
        lowest, highest = int(self.correlation[0]), int(self.correlation[-1])
        if highest - lowest < 4 * (len(self.row) + len(correlation)):  # close together: a table is faster than a search
            table = np.full(
                highest - lowest + 2, NO_INDEX, self.row.dtype
            )  # the last entry stands for every id outside
            table[self.correlation - lowest] = self.row
            outside = (correlation < lowest) | (correlation > highest)
            rows: EventRows = table[np.where(outside, highest - lowest + 1, correlation - lowest)]
            return rows
        place = np.minimum(np.searchsorted(self.correlation, correlation), len(self.row) - 1)
        return np.where(self.correlation[place] == correlation, self.row[place], NO_INDEX)


@derived
def launches(trace: Trace) -> Launches:
    """The launching call of each correlation.

    Of several, runtime calls come before driver calls, then earlier, then longer. A runtime call such as
    ``cudaLaunchKernel`` makes a driver call with the same correlation, and lasts longer.
    """
    events = trace.events
    rows = np.concatenate([events.slices_of(Category.CUDA_RUNTIME), events.slices_of(Category.CUDA_DRIVER)])
    correlation = correlations_of(trace, rows)
    linked = correlation != NO_CORRELATION
    if not linked.all():
        rows, correlation = rows[linked], correlation[linked]
    order = np.argsort(correlation, kind="stable")  # stable: the preferred call is the first of equals
    correlation, category, ts = correlation[order], events.category[rows[order]], events.ts[rows[order]]
    tied = (correlation[1:] == correlation[:-1]) & (category[1:] == category[:-1]) & (ts[1:] == ts[:-1])
    if (longest_first := settled(tied, -events.dur[rows[order]])) is not None:
        order = order[longest_first]
    first = np.ones(len(order), np.bool_)
    first[1:] = correlation[1:] != correlation[:-1]
    process = _numbers_of([track.pid for track in trace.tracks])[events.track[rows[order]]]
    disputed = distinct(correlation[1:][~first[1:] & (process[1:] != process[:-1])])
    return Launches(correlation[first], rows[order[first]], disputed)


# The correlation of GPU work without args: the id of the arrow that leads to it.
#
# Before PyTorch 2.4, Kineto wrote no args for AMD's kernels and copies, but an ``ac2g`` flow from each launch to its
# work. The flow's id is the correlation. ``output_json.cpp`` writes each end directly after the slice that it belongs
# to.
#
# Ascend's ``trace_view`` has arrows ``HostToDevice`` from within a call of the runtime to the start of each piece of
# work that it launched. There, the correlation is the number of the call.


_ASCEND_CALL = "AscendCL@"  #: how the calls of its runtime begin


def correlations_of(trace: Trace, rows: EventRows) -> Int64s:
    """The correlation of each of ``rows``, int64. If no row has one, the ids of their arrows."""
    correlation = trace.events.correlation[rows]
    if (correlation != NO_CORRELATION).any():
        return correlation
    if not _is_of_ascend(trace):
        # the id of the arrow after each slice in the file, if time and thread agree; else NO_CORRELATION
        events, flows = trace.events, trace.events.flow_id
        correlations = np.full(len(rows), NO_CORRELATION, np.int64)
        arrow, number = flows.rows[:], flows.values[:]
        chosen = (events.category[arrow] == Category.AC2G) & (number > 0)
        arrow, number = arrow[chosen], number[chosen]
        if not len(arrow) or not len(rows):
            return correlations
        in_file = np.argsort(events.offset[rows])
        place = np.searchsorted(events.offset[rows[in_file]], events.offset[arrow], side="right") - 1
        before = in_file[np.maximum(place, 0)]
        thread = _numbers_of([(track.pid, track.tid) for track in trace.tracks])
        matches = (place >= 0) & (events.ts[rows[before]] == events.ts[arrow])
        matches &= thread[events.track[rows[before]]] == thread[events.track[arrow]]
        correlations[before[matches]] = number[matches]
        return correlations
    # the number of the call that launched each, or that each is
    arrows, arrow = _arrows_of_calls(trace), _arrow_to(trace, rows)
    correlations = np.full(len(rows), NO_CORRELATION, np.int64)
    correlations[arrow >= 0] = arrows.call[arrow[arrow >= 0]] + 1
    is_call = is_among(rows, distinct(arrows.call))
    correlations[is_call] = rows[is_call] + 1
    return correlations


def launch_moments(trace: Trace, rows: EventRows, launch: EventRows) -> Int64s:
    """When each of ``rows`` of GPU work was launched by its call ``launch`` (a row), int64 ns: where the arrow begins
    within the call if the trace has one (a call of Ascend's launches several kernels), else the start of the call."""
    moments: Int64s = trace.events.ts[launch]
    if _is_of_ascend(trace):
        arrows = _arrows_of_calls(trace)
        arrow = _arrow_to(trace, rows)
        known = np.flatnonzero(arrow >= 0)
        known = known[arrows.call[arrow[known]] == launch[known]]
        moments[known] = arrows.begin[arrow[known]]
    return moments


def _numbers_of(keys: Sequence[object]) -> Int32s:
    """The number of each key, int32; equal for equal keys."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)


@derived
def _is_of_ascend(trace: Trace) -> bool:
    return any(name.startswith(_ASCEND_CALL) for name in trace.strings)


def _arrow_to(trace: Trace, rows: EventRows) -> Int64s:
    """The place of the arrow that ends at the start of each of ``rows``, in :class:`_Arrows`; -1 for none."""
    arrows = _arrows_of_calls(trace)
    arrow = np.full(len(rows), -1, np.int64)
    key = arrows.thread_of[trace.events.track[rows]].astype(np.int64)
    order = np.lexsort((arrows.end, arrows.to))
    for number in distinct(key).tolist():
        index, ends = np.flatnonzero(key == number), order[arrows.to[order] == number]
        following = np.searchsorted(arrows.end[ends], trace.events.ts[rows[index]])
        known = following < len(ends)
        known[known] = arrows.end[ends[following[known]]] == trace.events.ts[rows[index[known]]]
        arrow[index[known]] = ends[following[known]]
    return arrow


class _Arrows(Struct, frozen=True):
    """The arrows from calls, equal-length int64 columns: the row of the ``call`` (the outermost on its thread), when
    the arrow begins and ends (ns), and the number of the thread that it leads ``to``. ``thread_of``: the number of the
    thread of each track."""

    call: Int64s
    begin: Int64s
    end: Int64s
    to: Int64s
    thread_of: Int32s


@derived
def _arrows_of_calls(trace: Trace) -> _Arrows:
    """The arrows that begin within a call of the runtime."""
    events = trace.events
    thread = _numbers_of([(track.pid, track.tid) for track in trace.tracks])
    arrows = np.flatnonzero((events.category == Category.AC2G) & np.isin(events.phase, (ord("s"), ord("f"))))
    ids = events.flow_id.at(arrows, NO_CORRELATION)
    begins, ends = (arrows[events.phase[arrows] == ord(phase)] for phase in "sf")
    begin_ids, end_ids = (ids[events.phase[arrows] == ord(phase)] for phase in "sf")
    order = np.argsort(begin_ids, kind="stable")
    nearest = np.minimum(np.searchsorted(begin_ids[order], end_ids), max(len(order) - 1, 0))
    met = begin_ids[order[nearest]] == end_ids if len(order) else np.zeros(len(ends), np.bool_)
    begins, ends = begins[order[nearest[met]]], ends[met]
    call = np.full(len(begins), NO_CORRELATION, np.int64)
    runtime = events.slices_of(Category.CUDA_RUNTIME)
    for number in distinct(thread[events.track[begins]]).tolist():
        index = np.flatnonzero(thread[events.track[begins]] == number)
        rows = runtime[thread[events.track[runtime]] == number]
        reach = np.maximum.accumulate(events.end[rows]) if len(rows) else rows
        rows = rows[np.append(True, events.ts[rows[1:]] >= reach[:-1])[: len(rows)]]
        last = np.searchsorted(events.ts[rows], events.ts[begins[index]], side="right") - 1
        inside = last >= 0
        inside[inside] = events.end[rows[last[inside]]] >= events.ts[begins[index[inside]]]
        call[index[inside]] = rows[last[inside]]
    known = call != NO_CORRELATION
    begins, ends = begins[known], ends[known]
    to = thread[events.track[ends]].astype(np.int64)
    return _Arrows(call[known], events.ts[begins], events.ts[ends], to, thread)
