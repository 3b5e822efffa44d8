"""Cuts a trace to some steps or to a period, with the GPU work that is launched in it, or to some categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_INDEX, Bools, EventRows, Int64s, combinations, distinct, each
from augment.core.trace import COMPLETE, Category, Identity, SparseColumn, Trace, moved_args
from augment.errors import UsageError
from augment.facts import gpu
from augment.facts.steps.step_windows import steps

NO_STEPS = "no annotation of a step (ProfilerStep#n, or an engine's)"


class _RowsInWhole(Struct, frozen=True):
    """Attached to a part of a trace: the ``rows`` in the whole of its rows."""

    rows: EventRows


def within(trace: Trace, first: int, last: int) -> Trace:
    """The trace of the steps ``first`` to ``last``, both included: :func:`chosen` says what that is.

    Raises:
        UsageError: the trace has no such step, or nothing happened in it.
    """
    part = only(trace, chosen(trace, *limits_of(trace, first, last)))
    if not len(part.events):
        raise UsageError(f"{trace.source.path}: nothing happened in the steps {first} to {last}: they took no time")
    return part


def limits_of(trace: Trace, first: int, last: int) -> tuple[int, int]:
    """The beginning of step ``first`` and the end of step ``last``, absolute ns.

    Raises:
        UsageError: the trace has no step from ``first`` to ``last``.
    """
    annotated = steps(trace)
    inside = np.flatnonzero((annotated.number >= first) & (annotated.number <= last))
    if not len(inside):
        raise UsageError(f"{trace.source.path}: {missing(first, last, annotated.number)}")
    return int(annotated.ts[inside[0]]), int(annotated.end[inside[-1]])


def chosen(trace: Trace, start: int, end: int, *, around: bool = False, launched_only: bool = False) -> Bools:
    """The events of the period ``[start, end)``, absolute ns: all that cuts a trace chooses them so.

    They are the events of the host that begin in it, and what belongs to them on devices: GPU work that they launched,
    however much later it runs; work of unknown launch that begins in the period (unless ``launched_only``);
    ``cuda_sync`` slices likewise; and annotations of the device whose first work belongs. So each event belongs to one
    of several periods in a row.

    With what goes on ``around`` its beginning, as in a recording that begins at that time: the host's slices that began
    earlier and reach into the period, and the work that devices still have to do. Without it they would seem to wait
    for the host.
    """
    events, work = trace.events, gpu.work(trace)
    keep: Bools = (events.ts >= start) & (events.ts < end)
    early = gpu.before_recording(trace)
    begun = np.where(work.launch == NO_INDEX, work.ts, events.ts[work.launch])
    belongs = (begun >= start) & (begun < end) & ~early
    if launched_only:
        belongs &= work.launch != NO_INDEX
    if around:
        keep |= (events.phase == COMPLETE) & (events.ts < start) & (events.end > start)
        belongs |= ((begun < start) | early) & (work.end > start)
    keep[work.row] = belongs
    syncs = events.slices_of(Category.CUDA_SYNC)
    calls = gpu.calls(trace).of(events.correlation[syncs])
    keep[syncs[calls != NO_INDEX]] = keep[calls[calls != NO_INDEX]]
    notes = events.slices_of(Category.GPU_USER_ANNOTATION)
    pieces_of = dict(each(events.track[work.row], len(trace.tracks)))
    for track, index in each(events.track[notes], len(trace.tracks)):
        rows, pieces = notes[index], pieces_of.get(track)
        if pieces is not None:
            following = np.searchsorted(work.ts[pieces], events.ts[rows])
            known = following < len(pieces)
            keep[rows[known]] = belongs[pieces[following[known]]]
    return keep


def only(trace: Trace, keep: Bools) -> Trace:
    """The trace of the rows to ``keep``."""
    rows = trace.events.where(keep)
    events = trace.events
    columns = ("ts", "dur", "phase", "category", "category_name", "name", "track", "correlation", "offset", "length")
    new_row = np.where(keep, np.cumsum(keep) - 1, -1)
    # the ends of slices that are written as two events; a slice keeps its duration if its end is left out
    moved = SparseColumn(events.ends.rows, new_row[events.ends.values[:]]).moved(new_row)
    known = moved.values >= 0
    table = replace(
        events,
        **{name: getattr(events, name)[rows] for name in columns},
        bytes=events.bytes.moved(new_row),
        flow_id=events.flow_id.moved(new_row),
        args=events.args and moved_args(events.args, new_row),
        ends=SparseColumn(moved.rows[known], moved.values[known]),
    )
    return trace.changed(_RowsInWhole(rows_in_whole(trace, rows)), events=table)


def rows_in_whole(part: Trace, rows: EventRows) -> EventRows:
    """The rows in the whole trace of these ``rows`` of ``part``."""
    whole = part.context.attached(_RowsInWhole)
    return whole.rows[rows] if whole else rows


def missing(first: int, last: int, numbers: Int64s) -> str:
    """Says that a trace with steps of these ``numbers`` has none from ``first`` to ``last``."""
    wanted = f"no step {first}" if first == last else f"no step of {first} to {last}"
    if not len(numbers):
        return f"{wanted}; it has {NO_STEPS}"
    there = f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers.min()} to {numbers.max()}"
    return f"{wanted}; it has {there}"


_ARROWS = [ord(phase) for phase in "stf"]


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
    rows = events.where(np.isin(events.phase, _ARROWS))
    if len(rows):
        ids = events.flow_id.at(rows, -1)
        _, arrow = combinations(events.category_name[rows], events.name[rows], ids)
        lost = np.zeros(int(arrow.max()) + 1, np.bool_)
        slices = events.phase == COMPLETE
        nowhere = ~_on_slices(trace, rows, slices)
        lost[arrow[~np.where(nowhere, keep[rows], _on_slices(trace, rows, keep & slices))]] = True
        keep[rows] = ~lost[arrow]
    return keep


def _on_slices(trace: Trace, rows: EventRows, chosen: Bools) -> Bools:
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
