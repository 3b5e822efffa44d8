"""What each piece of GPU work belongs to (annotation, module, step of an optimizer), and GPU time divided by such keys.

Every piece of work has one key, so the parts of a device add up to all of its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s, StackIndex, combinations, grouped, settled, sums
from augment.core import Category, Diagnostic, Identity, Trace, derived
from augment.facts import host, names
from augment.facts.gpu.gpu_work import Device, Stream, gpu_work
from augment.facts.host.call_stacks import call_stacks, crossed, crossing_diagnostics, enclosing, innermost
from augment.facts.host.occupancy import timelines


class TimeShare(NamedTuple):
    """The work of one device and key: the number of pieces, and the sum of their durations, also as a share of all work
    of the device (None if that takes no time)."""

    device: Device
    key: int
    kernel_count: int
    gpu_ns: int
    gpu_ratio: float | None


def gpu_time_by(trace: Trace, key: Int64s) -> list[TimeShare]:
    """GPU time divided by ``key``, an int64 for each piece of ``gpu_work``, ``NO_INDEX`` where unknown: the shares
    by device in ``gpu_work``'s order, then by ascending key."""
    work, device_of, ns = gpu_work(trace), device_of_work(trace), gpu_work(trace).end - gpu_work(trace).ts
    keys, code = combinations(device_of, key)
    whole = sums(device_of, ns, len(work.devices)).tolist()
    columns = (*keys, np.bincount(code, minlength=len(keys[0])), sums(code, ns, len(keys[0])))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        TimeShare(work.devices[device], of, count, gpu_ns, gpu_ns / whole[device] if whole[device] else None)
        for device, of, count, gpu_ns in rows
    ]


def device_of_work(trace: Trace) -> Int64s:
    """The index of the device of each place of ``gpu_work``."""
    devices = gpu_work(trace).devices
    return np.repeat(np.arange(len(devices)), [device.stop - device.start for device in devices])


def busiest_devices(trace: Trace) -> list[Identity]:
    """The devices, those that work longest first."""
    work = gpu_work(trace)
    ns = {device.device: int((work.end - work.ts)[device.places].sum()) for device in work.devices}
    return sorted(ns, key=lambda device: -ns[device])


def busiest_stream(trace: Trace) -> Stream | None:
    """The stream of the busiest device that works longest; None without GPU work."""
    work, devices = gpu_work(trace), busiest_devices(trace)
    streams = [stream for stream in work.streams if stream.device == devices[0]]
    ns = (work.end - work.ts).clip(min=0)
    return max(streams, key=lambda stream: int(ns[stream.places].sum())) if streams else None


class ModuleWork(Struct, frozen=True):
    """For each piece of ``gpu_work``: the ``path`` of the innermost module (int64, an index into
    ``modules(trace).paths``, or :data:`NO_INDEX`), and whether the work is ``backward``."""

    path: Int64s
    backward: Bools


def module_work(trace: Trace) -> ModuleWork:
    """The modules of all GPU work.

    A piece of work belongs to the module around its launch. If the launch lies in an operator of the backward pass, the
    module is the one around the forward operator that the flow names, unless a module within that backward operator
    is around the launch (a recomputed forward pass).
    """
    stacks, tree, links = call_stacks(trace), host.module_calls(trace), host.backward(trace)
    launch = gpu_work(trace).launch
    known = np.flatnonzero(launch != NO_INDEX)
    place = stacks.place_of[launch[known]]
    frame = tree.frame_of[place]
    paths = tree.path_of(frame)
    backward = np.zeros(len(known), np.bool_)
    if len(links):
        target = np.sort(stacks.place_of[links.backward]).astype(StackIndex)
        which = enclosing(trace, target)[place]
        around = np.where(which >= 0, target[which], -1)
        forward = links.forward_of(np.where(which >= 0, stacks.row[around], NO_INDEX))
        linked = tree.path_of(tree.frame_of[stacks.place_of[forward]])
        nearer = around > np.where(frame >= 0, tree.frame[frame], -1) if len(tree.frame) else which >= 0
        backward = nearer & (forward != NO_INDEX) & (linked != NO_INDEX)
        paths = np.where(backward, linked, paths)
    path = np.full(len(launch), NO_INDEX, np.int64)
    is_backward = np.zeros(len(launch), np.bool_)
    path[known], is_backward[known] = paths, backward
    return ModuleWork(path, is_backward)


def annotations_of_work(trace: Trace, *, include_steps: bool) -> Int64s:
    """The row of the leaf annotation of each piece of ``gpu_work``, int64; :data:`NO_INDEX` where there is none.

    The leaf is the innermost ``gpu_user_annotation`` of the stream in which the work begins. If there is none, it is
    the innermost annotation of the host that encloses its launch. The innermost is the one that began last, whether
    annotations nest or cross.
    """
    work, events = gpu_work(trace), trace.events
    named = None if include_steps else ~names.starting(trace, names.STEP)
    leaf = np.full(len(work), NO_INDEX, np.int64)
    rows = events.slices_of(Category.GPU_USER_ANNOTATION)
    if named is not None:
        rows = rows[named[events.name[rows]]]
    number = {(stream.rank, stream.device, stream.stream): index for index, stream in enumerate(work.streams)}
    none = len(number)
    stream_of = np.array([number.get((row.rank, row.device, row.stream), none) for row in trace.tracks], np.int32)
    rows = rows[grouped(stream_of[events.track[rows]], none + 1)]
    group = stream_of[events.track[rows]]
    line, bounds = timelines(rows, events.ts[rows], events.ts[rows] + events.dur[rows], group, none + 1)
    for index in np.flatnonzero(np.diff(bounds[:-1])).tolist():
        part = slice(*bounds[index : index + 2])
        start, end, row = line.start[part], line.end[part], line.row[part]
        places = work.streams[index].places
        ts = work.ts[places]
        last = np.maximum(np.searchsorted(start, ts, side="right") - 1, 0)
        inside = (start[last] <= ts) & (ts < end[last])
        leaf[places] = np.where(inside, row[last], NO_INDEX)
    rest = np.flatnonzero((leaf == NO_INDEX) & (work.launch != NO_INDEX))
    leaf[rest] = innermost(trace, work.launch[rest], (Category.USER_ANNOTATION,), named)
    return leaf


def annotation_diagnostics(trace: Trace) -> list[Diagnostic]:
    """Counts slices of the host that cross, and annotations of the devices that cross."""
    events = trace.events
    rows = events.slices_of(Category.GPU_USER_ANNOTATION)
    rows = rows[grouped(events.track[rows], len(trace.tracks))]
    ts, track = events.ts[rows], events.track[rows]
    end = ts + events.dur[rows]
    if (outer_first := settled((ts[1:] == ts[:-1]) & (track[1:] == track[:-1]), -end)) is not None:
        end = end[outer_first]
    count = int(np.count_nonzero(crossed(ts, end, track)))
    message = "annotations of a stream end before an annotation that began in them (the later counts as the innermost)"
    diagnostics = [Diagnostic("gpu_annotations_cross", count, message)] if count else []
    return [*crossing_diagnostics(trace), *diagnostics]


@derived
def steps_of_optimizers(trace: Trace) -> Bools:
    """For each string whether it names a step of an optimizer."""
    return names.starting(trace, names.UPDATE)


@derived(until="diagnosis")
def in_optimizer(trace: Trace) -> Bools:
    """Whether each piece of ``gpu_work`` was launched in a step of an optimizer."""
    work = gpu_work(trace)
    inside = np.zeros(len(work), np.bool_)
    known = np.flatnonzero(work.launch != NO_INDEX)
    if steps_of_optimizers(trace).any() and len(known):
        around = innermost(trace, work.launch[known], (Category.USER_ANNOTATION,), steps_of_optimizers(trace))
        inside[known] = around >= 0
    return inside
