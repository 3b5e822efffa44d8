"""Plans what each row of the source becomes in a native Perfetto file, from the columns alone, before any text is
read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import NO_INDEX, Bytes, Int32s, Int64s, Values, combinations, each, narrowed, order_of
from augment.core import COMPLETE, Annotation, Category, Ends, EventTable, Flows, SparseColumn, Trace
from augment.facts.source.event_args import blocks, decoded
from augment.writers.perfetto import flows, wire
from augment.writers.perfetto.flows import TrackSlices, by_start, lanes_and_slices
from augment.writers.perfetto.packets import Blobs, Part, Suffixes, SuffixNumbers, blobs_of, suffixes
from augment.writers.perfetto.tracks import Tracks

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
    order, late = made.order[:], made.late
    place = np.full(len(trace.events), NO_INDEX, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    written = place
    if len(late):  # they come after all others
        written = place.copy()
        written[late] = len(order) + np.arange(len(late))
    del order
    numbers = SuffixNumbers(trace, place, written, annotations, part)
    of_source, made.added_suffixes = suffixes(numbers, Flows("", "", Ends(arrows.out), Ends(arrows.into)), made.repairs)
    made.suffix_places, made.suffixes = of_source
    return made


def _without_suffixes(trace: Trace, tracks: Tracks) -> tuple[Plan, flows.Arrows]:
    """The plan without suffixes, and the arrows of the source."""
    events, repairs = trace.events, Counter[str]()
    place = tracks.place_of_track.take(events.track[:])
    # the members of events for which the columns are not sufficient
    rows = np.concatenate(
        [rows_of_phases(trace, BEGINS | ENDS | STEPS | frozenset(b"EC")), flows.rows_to_look_at(trace)]
    )
    rows = rows[order_of(events.offset[rows])]
    begins, lengths = events.offset[rows], events.length[rows]
    parsed = (
        event
        for block in blocks(trace.source.text, begins, lengths)
        for event in decoded(block, begins, lengths, trace.source.decode)
    )
    texts: dict[int, dict[str, Any]] = dict(zip(rows.tolist(), parsed, strict=True)) if len(rows) else {}
    groups: dict[int, tuple[int, str]] = {}
    kind, end, other_dur, ended_by = _kinds(trace, place, texts, repairs, groups)
    other_dur = _around_last_kernels(trace, place, end, other_dur)
    slice_place, numbers = place, dict[tuple[int, str], int]()
    if groups:  # they are numbered from the last place on
        slice_place = place.copy()
        for row, group in groups.items():
            slice_place[row] = len(tracks.places) + numbers.setdefault(group, len(numbers))
    group_names = list(numbers)
    rows = by_start(np.flatnonzero(kind == wire.BEGIN), events.ts, end)
    slices = TrackSlices(rows, slice_place, events.ts, end, events.correlation[:])
    flow_rows = flows.flow_rows(trace)
    points = flows.points(trace, flow_rows, slice_place)
    lane, next_slice = lanes_and_slices(slices, points, len(tracks.places) + len(group_names))
    slices = replace(slices, end=np.empty(0, np.int64), mark=np.empty(0, np.int64))
    del end, points  # frees memory for what follows
    repairs["overlapping_slices"] = int(np.count_nonzero(lane))
    flows.bind_to_next(next_slice, flow_rows, slices, texts)

    def in_order() -> tuple[Values[np.int64], Int64s]:
        drawn = np.flatnonzero(kind)
        offsets = events.offset[drawn]
        drawn = drawn[order_of(offsets)] if (offsets[1:] < offsets[:-1]).any() else drawn
        return narrowed(drawn), _late(slices, events.offset)

    calls: tuple[Callable[[], Any], ...] = (
        partial(flows.arrows, trace, flow_rows, next_slice),
        in_order,
        partial(_uuids, tracks, kind, slice_place, lane, group_names),
    )
    arrows, (order, late), track = trace.context.threads.all(calls)
    repairs["flow_without_slices"] = arrows.lost
    none = np.empty(0, np.int64), blobs_of(())
    return Plan(kind, other_dur, track, narrowed(rows), order, late, *none, {}, texts, ended_by, repairs), arrows


def _kinds(
    trace: Trace,
    place: Int32s,
    texts: dict[int, dict[str, Any]],
    repairs: Counter[str],
    groups: dict[int, tuple[int, str]],
) -> tuple[Bytes, Int64s, SparseColumn, dict[int, int]]:
    events = trace.events
    kind = np.zeros(len(events), np.uint8)
    kind[events.phase == COMPLETE] = wire.BEGIN
    dur = events.dur[:]
    end = events.ts + np.maximum(dur, 0)
    repairs["negative_duration"] = int(np.count_nonzero(dur < 0))
    kind[(events.phase != COMPLETE)] = wire.INSTANT
    for phase in b"stfCE":
        kind[events.phase == phase] = 0
    known = frozenset(b"XstfCBEiIRbenSTpFP")
    repairs["phase_as_instant"] = len(rows_of_phases(trace, frozenset(range(256)) - known))
    paired = pairs(trace, place, texts)
    groups.update(paired.groups)
    begins = list(paired.ends)
    kind[begins + paired.lone_begins] = wire.BEGIN
    kind[list(paired.ends.values())] = 0
    kind[paired.lone_ends] = wire.INSTANT
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


def _late(slices: TrackSlices, offset: Values[np.int64]) -> Int64s:
    """TrackSlices of one track and start whose text is not in the order outer before inner; returned in that order."""
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


BEGINS, ENDS, STEPS = frozenset(b"bS"), frozenset(b"eF"), frozenset(b"nTp")  #: phases of asynchronous events


class Pairs(Struct):
    """``ends`` maps the row of a beginning to that of its end; ``groups`` that of an asynchronous event to its track:
    the row's place and a name. ``lone_ends`` have no beginning; ``lone_begins`` no end."""

    ends: dict[int, int] = field(default_factory=dict)
    groups: dict[int, tuple[int, str]] = field(default_factory=dict)
    lone_begins: list[int] = field(default_factory=list)
    lone_ends: list[int] = field(default_factory=list)

    def open_or_close(self, begun: dict[str, list[int]], row: int, is_end: bool, name: str) -> None:
        """Process one event of a stack. An end closes the latest beginning of its name, or of any name if it has none.

        ``begun`` holds the beginnings by name, and all of them under the empty name. Some of them may be closed
        already.
        """
        if not is_end:
            for key in {name, ""}:
                begun[key].append(row)
            return
        while begun[name]:
            begin = begun[name].pop()
            if begin not in self.ends:
                self.ends[begin] = row
                return
        self.lone_ends.append(row)


def pairs(trace: Trace, place: Int32s, texts: Mapping[int, dict[str, Any]]) -> Pairs:
    """The pairs of a trace. ``texts`` holds the members of asynchronous events, of which those of one category and id
    (in older phases, also one name) share a stack and a track.
    """
    ends, phase = trace.events.ends, trace.events.phase
    is_lone = phase == ord("E")
    is_lone[ends.values[:]] = False
    lone_ends = np.flatnonzero(is_lone).tolist()
    lone_begins = np.flatnonzero(phase == ord("B")).tolist()
    result = Pairs(dict(zip(ends.rows.tolist(), ends.values.tolist(), strict=True)), {}, lone_begins, lone_ends)
    events = trace.events
    rows = rows_of_phases(trace, BEGINS | ENDS | STEPS)
    stacks: dict[Any, tuple[int, str, dict[str, list[int]]]] = {}
    columns = rows.tolist(), events.category_name[rows].tolist(), events.name[rows].tolist()
    for row, category, name_index in zip(*columns, strict=True):
        event, code, name = texts[row], int(phase[row]), trace.strings[name_index]
        older = name if chr(code) in "STpF" else None
        local = event.get("id2")
        if isinstance(local, dict) and "local" in local:
            identity = repr((event.get("pid"), local["local"]))
        else:
            identity = repr((event.get("id"), local, event.get("scope")))
        key = category, older, identity
        where, track, begun = stacks.setdefault(key, (int(place[row]), name or "async", defaultdict(list)))
        result.groups[row] = where, track
        if code not in STEPS:
            result.open_or_close(begun, row, code in ENDS, name)
    result.lone_begins += [row for _, _, begun in stacks.values() for row in begun[""] if row not in result.ends]
    result.lone_begins.sort()
    result.lone_ends.sort()
    return result


def rows_of_phases(trace: Trace, phases: frozenset[int]) -> Int64s:
    """The rows of any of these phases."""
    wanted = np.zeros(256, np.bool_)
    wanted[list(phases)] = True
    counts = np.bincount(trace.events.phase, minlength=256)
    if not counts[wanted].any():
        return np.zeros(0, np.int64)
    return np.flatnonzero(wanted[trace.events.phase])
