"""Selects the events that stay when a trace is cut: whole slices, and arrows with both ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays.ordering import combinations, distinct, each
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.trace import COMPLETE, ON_DEVICE, Identity, Trace
from augment.errors import UsageError
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.steps.steps import steps
from augment.facts.steps.window import choose_on_devices, missing

_ARROWS = [ord(phase) for phase in "stf"]


def of_steps(trace: Trace, first: int, last: int) -> Bools:
    """The events of these steps, both included: what the host does within them, and the GPU work that it launches.

    Work that the devices still do for earlier steps when the first begins stays, too. Without it the devices would seem
    to wait for the host. Its launches are removed, as in a recording that begins at that time.

    Raises:
        UsageError: the trace has no such step.
    """
    known = steps(trace)
    chosen = np.flatnonzero((known.number >= first) & (known.number <= last))
    if not len(chosen):
        raise UsageError(f"{trace.source.label}: {missing(first, last, known.number)}")
    start, end = int(known.ts[chosen[0]]), int(known.end[chosen[-1]])
    keep = of_time(trace, start, end)
    keep &= ~np.isin(trace.events.category, ON_DEVICE)
    on_devices = np.zeros(len(keep), np.bool_)
    choose_on_devices(trace, on_devices, start, end)
    work = gpu_work(trace)
    launched = np.where(work.launch == NO_INDEX, work.ts, trace.events.ts[work.launch])
    on_devices[work.row[(launched < start) & (work.end > start)]] = True
    return keep | on_devices


def of_time(trace: Trace, start: int, end: int) -> Bools:
    """The slices that lie within ``[start, end)``, absolute ns, and the other events in that period."""
    events = trace.events
    dur = events.dur[:]
    lasting = (events.phase == COMPLETE) & (dur > 0)
    keep: Bools = (events.ts < end) & np.where(lasting, events.ts + dur > start, events.ts >= start)
    return keep


def without(trace: Trace, categories: Sequence[str]) -> Bools:
    """The events outside of ``categories``, which are named as in the trace.

    Raises:
        UsageError: the trace has no event of one of these categories.
    """
    used = sorted({trace.strings[code] for code in distinct(trace.events.category_name[:]).tolist()} - {""})
    for name in categories:
        if name not in used:
            raise UsageError(f"--drop {name}: {trace.source.label} has no event of it, only of {', '.join(used)}")
    codes = [code for code, name in enumerate(trace.strings) if name in categories]
    return ~np.isin(trace.events.category_name[:], codes)


def whole(trace: Trace, keep: Bools) -> Bools:
    """``keep`` without arrows that lost an end, and with the ends of slices that are written as two events."""
    events = trace.events
    keep = keep.copy()
    keep[events.ends.values[:]] = keep[events.ends.rows[:]]
    rows = np.flatnonzero(np.isin(events.phase, _ARROWS))
    if len(rows):
        ids = events.flow_id.at(rows, -1)
        _, arrow = combinations(events.category_name[rows], events.name[rows], ids)
        lost = np.zeros(int(arrow.max()) + 1, np.bool_)
        slices = events.phase == COMPLETE
        nowhere = ~_on_slices(trace, rows, slices)
        lost[arrow[~np.where(nowhere, keep[rows], _on_slices(trace, rows, keep & slices))]] = True
        keep[rows] = ~lost[arrow]
    return keep


def _on_slices(trace: Trace, rows: Int64s, chosen: Bools) -> Bools:
    """Whether each of ``rows`` lies on one of the ``chosen`` slices of its thread or stream, ends included.

    Arrows have no device, so their place is known by pid and tid alone.
    """
    events, numbers = trace.events, dict[tuple[Identity, Identity], int]()
    place_of = np.array([numbers.setdefault((track.pid, track.tid), len(numbers)) for track in trace.tracks], np.int64)
    slices = np.flatnonzero(chosen)
    of_place = dict(each(place_of[events.track[slices]], len(numbers)))
    covered = np.zeros(len(rows), np.bool_)
    for place, points in each(place_of[events.track[rows]], len(numbers)):
        if place in of_place:
            on_track = slices[of_place[place]]
            reach = np.maximum.accumulate(events.ts[on_track] + events.dur[on_track])
            last = np.searchsorted(events.ts[on_track], events.ts[rows[points]], side="right") - 1
            covered[points] = (last >= 0) & (reach[last] >= events.ts[rows[points]])
    return covered
