"""Plans what each row of the source becomes in a native Perfetto file, from the columns alone, before any text is
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays.columns import Values, narrowed
from augment.arrays.ordering import combinations, each, order_of
from augment.arrays.types import NO_INDEX, Bytes, Int32s, Int64s
from augment.core.annotations import Annotation, Ends, Flows
from augment.core.trace import COMPLETE, Category, EventTable, SparseColumn, Trace
from augment.facts.source.event_args import blocks, decoded
from augment.writers.perfetto import flows
from augment.writers.perfetto.lanes import Slices, by_start, lanes_and_slices
from augment.writers.perfetto.packets import Blobs, blobs_of
from augment.writers.perfetto.pairs import BEGINS, ENDS, STEPS, pairs, rows_of_phases
from augment.writers.perfetto.suffixes import Part, Suffixes, SuffixNumbers, suffixes
from augment.writers.perfetto.tracks import Tracks
from augment.writers.perfetto.wire import BEGIN, INSTANT

NEVER = np.iinfo(np.int64).max  #: the end of a slice that never ends, and how long it lasts
_AS_RECORDED = np.iinfo(np.int64).min  #: the other duration of slices that have none
_BLOCK = 1 << 16  #: rows
_ROUNDING_NS = 2  #: of a recorded end, and of the correction of its clock


class Plan(Struct):
    """Columns over the trace's rows, and lists of rows.

    ``kind`` uint8 is 0 for rows that make no event of their own; ``other_dur`` int64 is how long slices last that
    another event ends, :data:`NEVER` if none does; ``track`` int64, the uuid. ``order`` are the rows that make events,
    as their text lies in the file; of them, those in ``late`` are to be written last, in its order. ``suffix_places``
    index ``order``; ``added_suffixes`` are those of added tracks, by their ``id``.
    """

    kind: Bytes
    other_dur: SparseColumn
    track: Values[np.int64]
    slice_rows: Values[np.int64]
    order: Values[np.int64]
    late: Int64s
    suffix_places: Int64s
    suffixes: Blobs
    added_suffixes: dict[int, Suffixes]
    texts: dict[int, dict[str, Any]]
    ended_by: dict[int, int]
    repairs: Counter[str]

    def dur(self, events: EventTable, rows: Int64s) -> Int64s:
        """How long the slices at ``rows`` last, int64 ns."""
        other = self.other_dur.at(rows, _AS_RECORDED)
        return np.where(other == _AS_RECORDED, np.maximum(events.dur[rows], 0), other)


def plan(trace: Trace, tracks: Tracks, annotations: Sequence[Annotation], part: Part) -> Plan:
    """The plan of a trace, which is ``part`` of its file. Makes the tracks of the trace."""
    made, arrows = _without_suffixes(trace, tracks)
    numbers = SuffixNumbers(trace, *_places(len(trace.events), made.order[:], made.late), annotations, part)
    of_source, made.added_suffixes = suffixes(numbers, Flows("", "", Ends(arrows.out), Ends(arrows.into)), made.repairs)
    made.suffix_places, made.suffixes = of_source
    return made


def _without_suffixes(trace: Trace, tracks: Tracks) -> tuple[Plan, flows.Arrows]:
    """The plan without suffixes, and the arrows of the source."""
    events, repairs = trace.events, Counter[str]()
    place = tracks.place_of_track.take(events.track[:])
    texts = _texts(trace)
    groups: dict[int, tuple[int, str]] = {}
    kind, end, other_dur, ended_by = _kinds(trace, place, texts, repairs, groups)
    other_dur = _around_last_kernels(trace, place, end, other_dur)
    slice_place, group_names = _with_groups(tracks, place, groups)
    rows = by_start(np.flatnonzero(kind == BEGIN), events.ts, end)
    slices = Slices(rows, slice_place, events.ts, end, events.correlation[:])
    flow_rows = flows.flow_rows(trace)
    points = flows.points(trace, flow_rows, slice_place)
    lane, next_slice = lanes_and_slices(slices, points, len(tracks.places) + len(group_names))
    slices = replace(slices, end=np.empty(0, np.int64), mark=np.empty(0, np.int64))
    del end, points  # frees memory for what follows
    repairs["overlapping_slices"] = int(np.count_nonzero(lane))
    flows.bind_to_next(next_slice, flow_rows, slices, texts)

    def in_order() -> tuple[Values[np.int64], Int64s]:
        return narrowed(_in_text(np.flatnonzero(kind), events.offset)), _late(slices, events.offset)

    calls: tuple[Callable[[], Any], ...] = (
        partial(flows.arrows, trace, flow_rows, next_slice),
        in_order,
        partial(_uuids, tracks, kind, slice_place, lane, group_names),
    )
    arrows, (order, late), track = trace.context.threads.all(calls)
    repairs["flow_without_slices"] = arrows.lost
    none = np.empty(0, np.int64), blobs_of(())
    return Plan(kind, other_dur, track, narrowed(rows), order, late, *none, {}, texts, ended_by, repairs), arrows


def _in_text(rows: Int64s, offset: Values[np.int64]) -> Int64s:
    """``rows`` as their text lies in the file."""
    offsets = offset[rows]
    return rows[order_of(offsets)] if (offsets[1:] < offsets[:-1]).any() else rows


def _places(count: int, order: Int64s, late: Int64s) -> tuple[Int32s, Int32s]:
    """The place of each event in ``order``, and its place in the order of writing: those in ``late`` come after all
    others.
    """
    place = np.full(count, NO_INDEX, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    written = place
    if len(late):
        written = place.copy()
        written[late] = len(order) + np.arange(len(late))
    return place, written


def _texts(trace: Trace) -> dict[int, dict[str, Any]]:
    """The members of events for which the columns are not sufficient."""
    rows = np.concatenate(
        [rows_of_phases(trace, BEGINS | ENDS | STEPS | frozenset(b"EC")), flows.rows_to_look_at(trace)]
    )
    rows = rows[order_of(trace.events.offset[rows])]
    offsets, lengths = trace.events.offset[rows], trace.events.length[rows]
    parsed = (
        event
        for block in blocks(trace.source.text, offsets, lengths)
        for event in decoded(block, offsets, lengths, trace.source.decode)
    )
    return dict(zip(rows.tolist(), parsed, strict=True)) if len(rows) else {}


def _kinds(
    trace: Trace,
    place: Int32s,
    texts: dict[int, dict[str, Any]],
    repairs: Counter[str],
    groups: dict[int, tuple[int, str]],
) -> tuple[Bytes, Int64s, SparseColumn, dict[int, int]]:
    events = trace.events
    kind = np.zeros(len(events), np.uint8)
    kind[events.phase == COMPLETE] = BEGIN
    dur = events.dur[:]
    end = events.ts + np.maximum(dur, 0)
    repairs["negative_duration"] = int(np.count_nonzero(dur < 0))
    kind[(events.phase != COMPLETE)] = INSTANT
    for phase in b"stfCE":
        kind[events.phase == phase] = 0
    known = frozenset(b"XstfCBEiIRbenSTpFP")
    repairs["phase_as_instant"] = len(rows_of_phases(trace, frozenset(range(256)) - known))
    paired = pairs(trace, place, texts)
    groups.update(paired.groups)
    begins = list(paired.ends)
    kind[begins + paired.lone_begins] = BEGIN
    kind[list(paired.ends.values())] = 0
    kind[paired.lone_ends] = INSTANT
    end[begins] = events.ts[list(paired.ends.values())]
    end[paired.lone_begins] = NEVER
    repairs["slice_without_end"] = len(paired.lone_begins)
    repairs["end_without_slice"] = len(paired.lone_ends)
    others = np.sort(np.array(begins + paired.lone_begins, np.int64))
    other_dur = np.where(end[others] == NEVER, NEVER, end[others] - events.ts[others])
    return kind, end, SparseColumn(others, other_dur), paired.ends


def _around_last_kernels(trace: Trace, place: Int32s, end: Int64s, other_dur: SparseColumn) -> SparseColumn:
    """Annotations of the GPU end with their last kernel. Where its recorded end is up to :data:`_ROUNDING_NS` later,
    because starts and durations are rounded on their own, ``end`` and the duration are prolonged, so that they nest.
    """
    events = trace.events
    complete = events.phase == COMPLETE
    of_annotation = events.category == Category.GPU_USER_ANNOTATION
    around = np.flatnonzero(complete & of_annotation)
    prolonged = [np.empty(0, np.intp)]
    for track, which in each(place[around], int(place.max(initial=0)) + 1):
        inside = np.flatnonzero((place == track) & complete & ~of_annotation)
        before = np.searchsorted(events.ts[inside], end[around[which]])
        rows, last = around[which[before > 0]], inside[before[before > 0] - 1]
        late = end[last] - end[rows]
        near = (late > 0) & (late <= _ROUNDING_NS) & (events.ts[last] >= events.ts[rows])
        end[rows[near]] = end[last[near]]
        prolonged.append(rows[near])
    rows = np.sort(np.concatenate([other_dur.rows[:], *prolonged]))
    dur = other_dur.at(rows, _AS_RECORDED)
    return SparseColumn(rows, np.where(dur == _AS_RECORDED, end[rows] - events.ts[rows], dur))


def _with_groups(
    tracks: Tracks, place: Int32s, groups: dict[int, tuple[int, str]]
) -> tuple[Int32s, list[tuple[int, str]]]:
    """The place of each row. Groups are numbered from the last place on."""
    if not groups:
        return place, []
    numbers: dict[tuple[int, str], int] = {}
    place = place.copy()
    for row, group in groups.items():
        place[row] = len(tracks.places) + numbers.setdefault(group, len(numbers))
    return place, list(numbers)


def _late(slices: Slices, offset: Values[np.int64]) -> Int64s:
    """Slices of one track and start whose text is not in the order outer before inner; returned in that order."""
    rows = slices.rows
    starts = slices.ts[rows]
    tied = np.zeros(len(rows) + 1, np.bool_)
    tied[1:-1] = starts[1:] == starts[:-1]
    rows = rows[tied[1:] | tied[:-1]]
    rows = rows[np.lexsort((np.arange(len(rows)), slices.place[rows], slices.ts[rows]))]
    same = np.zeros(len(rows), np.bool_)
    same[1:] = (slices.ts[rows[1:]] == slices.ts[rows[:-1]]) & (slices.place[rows[1:]] == slices.place[rows[:-1]])
    wrong = np.zeros(len(rows), np.bool_)
    wrong[1:] = same[1:] & (offset[rows[1:]] < offset[rows[:-1]])
    group = np.cumsum(~same) - 1
    bad = np.bincount(group, wrong) > 0 if len(rows) else wrong
    return rows[bad[group]] if len(rows) else rows


def _uuids(
    tracks: Tracks, kind: Bytes, place: Int32s, lane: Int32s, group_names: list[tuple[int, str]]
) -> Values[np.int64]:
    """The track of each row that becomes an event."""
    count = len(tracks.places)

    def uuid_of(index: int, number: int) -> int:
        if index < count:
            return tracks.lane(index, number)
        place_of_group, name = group_names[index - count]
        return tracks.of_group(place_of_group, name, number)

    used = np.zeros(count + len(group_names), np.bool_)
    for start in range(0, len(place), _BLOCK):
        block = slice(start, start + _BLOCK)
        used[place[block][kind[block] != 0]] = True
    uuids = np.zeros(len(used), np.int64)
    for index in np.flatnonzero(used).tolist():
        uuids[index] = uuid_of(index, 0)
    track = uuids.take(place)
    nested = np.flatnonzero(lane)
    pairs, which = combinations(place[nested], lane[nested])
    for pair, group in each(which, len(pairs[0])):
        track[nested[group]] = uuid_of(*(int(column[pair]) for column in pairs))
    return narrowed(track)
