"""Traces cut to some steps or to a period, with the GPU work that was launched in it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays.ordering import each
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.trace import Category, SparseColumn, Trace, moved_args
from augment.errors import UsageError
from augment.facts.gpu.gpu_work import gpu_work, launches
from augment.facts.gpu.launched_work import before_recording
from augment.facts.steps.steps import steps


class _RowsInWhole(Struct, frozen=True):
    """Attached to a part of a trace: the ``rows`` in the whole of its rows."""

    rows: Int64s


def within(trace: Trace, first: int, last: int) -> Trace:
    """The trace of the steps ``first`` to ``last``, both included.

    It spans the time :func:`between` the beginning of the first and the end of the last.

    Raises:
        UsageError: the trace has no such step, or nothing happened in it.
    """
    annotated = steps(trace)
    chosen = np.flatnonzero((annotated.number >= first) & (annotated.number <= last))
    if not len(chosen):
        raise UsageError(f"{trace.source.path}: {missing(first, last, annotated.number)}")
    part = between(trace, int(annotated.ts[chosen[0]]), int(annotated.end[chosen[-1]]))
    if not len(part.events):
        raise UsageError(f"{trace.source.path}: nothing happened in the steps {first} to {last}: they took no time")
    return part


def between(trace: Trace, start: int, end: int, *, launched_only: bool = False) -> Trace:
    """The trace of what the host began within ``[start, end)``, absolute ns.

    It has the events of the host that begin in that period, and what belongs to them on devices: GPU work that they
    launched, however much later it runs; work of unknown launch that begins in the period (unless ``launched_only``);
    ``cuda_sync`` slices likewise; and annotations of the device whose first work belongs. Events that began earlier are
    left out, however long they last. Rows are numbered anew; tracks, strings, source and the offsets of the rows' bytes
    stay the same.
    """
    keep = (trace.events.ts >= start) & (trace.events.ts < end)
    choose_on_devices(trace, keep, start, end, launched_only)
    return only(trace, keep)


def choose_on_devices(trace: Trace, keep: Bools, start: int, end: int, launched_only: bool = False) -> None:
    """Choose, in ``keep``, what lies on devices and belongs to what the host does in ``[start, end)``: :func:`between`
    says what that is."""
    work = gpu_work(trace)
    begun = np.where(work.launch == NO_INDEX, work.ts, trace.events.ts[work.launch])
    belongs = (begun >= start) & (begun < end) & ~before_recording(trace)
    if launched_only:
        belongs &= work.launch != NO_INDEX
    keep[work.row] = belongs
    syncs = trace.events.slices_of(Category.CUDA_SYNC)
    calls = launches(trace).of(trace.events.correlation[syncs])
    keep[syncs[calls != NO_INDEX]] = keep[calls[calls != NO_INDEX]]
    notes = trace.events.slices_of(Category.GPU_USER_ANNOTATION)
    pieces_of = dict(each(trace.events.track[work.row], len(trace.tracks)))
    for track, index in each(trace.events.track[notes], len(trace.tracks)):
        rows, pieces = notes[index], pieces_of.get(track)
        if pieces is not None:
            following = np.searchsorted(work.ts[pieces], trace.events.ts[rows])
            known = following < len(pieces)
            keep[rows[known]] = belongs[pieces[following[known]]]


def only(trace: Trace, keep: Bools) -> Trace:
    """The trace of the rows to ``keep``."""
    rows = np.flatnonzero(keep)
    events = trace.events
    columns = ("ts", "dur", "phase", "category", "category_name", "name", "track", "correlation", "offset", "length")
    new_row = np.where(keep, np.cumsum(keep) - 1, -1)
    table = replace(
        events,
        **{name: getattr(events, name)[rows] for name in columns},
        bytes=events.bytes.moved(new_row),
        flow_id=events.flow_id.moved(new_row),
        args=events.args and moved_args(events.args, new_row),
        ends=_ends(events.ends, new_row),
    )
    return trace.changed(_RowsInWhole(rows_in_whole(trace, rows)), events=table)


def _ends(ends: SparseColumn, new_row: Int64s) -> SparseColumn:
    """The ends of slices that are written as two events; a slice keeps its duration if its end is left out."""
    moved = SparseColumn(ends.rows, new_row[ends.values[:]]).moved(new_row)
    known = moved.values >= 0
    return SparseColumn(moved.rows[known], moved.values[known])


def rows_in_whole(part: Trace, rows: Int64s) -> Int64s:
    """The rows in the whole trace of these ``rows`` of ``part``."""
    whole = part.context.attached(_RowsInWhole)
    return whole.rows[rows] if whole else rows


def missing(first: int, last: int, numbers: Int64s) -> str:
    """Says that a trace with steps of these ``numbers`` has none from ``first`` to ``last``."""
    wanted = f"no step {first}" if first == last else f"no step of {first} to {last}"
    return f"{wanted}; it has {_steps_text(numbers) if len(numbers) else 'no ProfilerStep annotation'}"


def _steps_text(numbers: Int64s) -> str:
    return f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers.min()} to {numbers.max()}"
