"""Converts the source's events to Perfetto's: ends first, then beginnings and instants with their args, in text
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import numpy as np

from augment.arrays.columns import Values
from augment.arrays.types import Bools, Int64s
from augment.core.trace import COMPLETE, Decode, Trace, args_of_event, json_event
from augment.facts.source.event_args import Block, PacketDecode, blocks, decoded
from augment.writers.perfetto.args import ArgsEncoder, Interned
from augment.writers.perfetto.args_scan import ArgsScanner, PacketArgsScanner
from augment.writers.perfetto.packets import Blobs, Events, blobs_of, counters, ends, with_ends
from augment.writers.perfetto.plan import NEVER, Plan
from augment.writers.perfetto.tracks import Tracks
from augment.writers.perfetto.wire import BEGIN, INTERNED_CATEGORIES, INTERNED_NAMES

_ROWS = 1 << 18


class SourceEvents:
    """The events of a trace's source, in pieces in the order of writing."""

    def __init__(self, trace: Trace, plan: Plan, tracks: Tracks, interned: Interned) -> None:
        self._trace, self._plan, self._tracks = trace, plan, tracks
        self._encoder = ArgsEncoder(interned)
        events = trace.events
        columns = events.name, events.category_name
        names, categories = trace.context.threads.all([partial(_counts, trace, column, plan) for column in columns])
        self._names = _numbers(trace, names, interned, INTERNED_NAMES)
        self._categories = _numbers(trace, categories, interned, INTERNED_CATEGORIES)
        self._late: dict[int, bytes] = {}
        self._is_late = np.zeros(len(events), np.bool_)
        self._is_late[plan.late] = True
        self._add_extras()

    def all(self) -> Generator[Events | Callable[[], Events], None, None]:
        """All events, in the order of the file. What makes events may be called by any thread, once."""
        yield from self._ends()
        yield from self._beginnings()
        yield from self._late_ones()
        yield from self._counters()

    def _ends(self) -> Iterator[Events]:
        """The ends of slices with a duration. They may all come first, because Perfetto sorts by time."""
        plan, events = self._plan, self._trace.events
        for start in range(0, len(plan.slice_rows), _ROWS):
            rows = plan.slice_rows[start : start + _ROWS]
            dur = plan.dur(events, rows)
            lasting = np.flatnonzero((dur > 0) & (dur != NEVER))
            rows = rows[lasting]
            yield ends(events.ts[rows] + dur[lasting], plan.track[rows])

    def _beginnings(self) -> Iterator[Callable[[], Events]]:
        plan, events = self._plan, self._trace.events
        order = plan.order[:]
        offsets, lengths = events.offset[order], events.length[order]
        del order
        maker = _maker(self._encoder, plan, self._trace.source.decode)
        for block in blocks(self._trace.source.text, offsets, lengths):
            rows = plan.order[block.start : block.stop]
            blobs = maker.blobs(block, offsets, lengths)
            late = self._is_late[rows]
            if late.any():
                kept = blobs.take(np.flatnonzero(late)).pieces()
                self._late.update(zip(rows[late].tolist(), kept, strict=True))
            yield partial(self._begun, rows, blobs, ~late)

    def _begun(self, rows: Int64s, blobs: Blobs, drawn: Bools) -> Events:
        made = self._events(rows, blobs)
        if not drawn.all():
            made, rows = made.take(drawn), rows[drawn]
        return self._with_ends(rows, made)

    def _late_ones(self) -> Iterator[Events]:
        for start in range(0, len(self._plan.late), _ROWS):
            rows = self._plan.late[start : start + _ROWS]
            yield self._with_ends(rows, self._events(rows, blobs_of(self._late[row] for row in rows.tolist())))

    def _events(self, rows: Int64s, blobs: Blobs) -> Events:
        plan, events = self._plan, self._trace.events
        return Events(
            plan.kind[rows].astype(np.int64),
            events.ts[rows],
            plan.track[rows],
            self._categories.take(events.category_name[rows]),
            self._names.take(events.name[rows]),
            blobs,
        )

    def _with_ends(self, rows: Int64s, made: Events) -> Events:
        return with_ends(made, (made.kind == BEGIN) & (self._plan.dur(self._trace.events, rows) == 0))

    def _add_extras(self) -> None:
        """Add args that the text of a slice lacks: a negative duration, and the args of the event that ends the
        slice.
        """
        plan, events = self._plan, self._trace.events
        extras: dict[int, dict[str, Any]] = {}
        for row in np.flatnonzero((events.dur < 0) & (events.phase == COMPLETE)).tolist():
            extras[row] = {"dur_ns": int(events.dur[row])}
        for row, end in plan.ended_by.items():
            if args := args_of_event(plan.texts.get(end, {})):
                extras[row] = args
        if not extras:
            return
        place = np.empty(len(events), np.int64)
        place[plan.order[:]] = np.arange(len(plan.order))
        more = blobs_of(self._encoder.args(args) for args in extras.values())
        places = np.concatenate([plan.suffix_places, place[list(extras)]])
        order = np.argsort(places, kind="stable")
        known = plan.suffixes
        data = np.concatenate([known.data, more.data])
        start = np.concatenate([known.start, more.start + len(known.data)])[order]
        plan.suffix_places = places[order]
        plan.suffixes = Blobs(data, start, np.concatenate([known.size, more.size])[order])

    def _counters(self) -> Iterator[Events]:
        """Each number in the args of a counter event becomes a point of a separate counter."""
        trace, plan = self._trace, self._plan
        points: dict[int, tuple[list[int], list[float]]] = {}
        rows = np.flatnonzero(trace.events.phase == ord("C"))
        places = self._tracks.place_of_track[trace.events.track[rows]]
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            event = plan.texts[row]
            for key, value in args_of_event(event).items():
                number = _number(value)
                if number is None:
                    plan.repairs["counter_without_number"] += 1
                    continue
                name = " ".join(filter(None, (str(event.get("name") or ""), _identity(event), key)))
                ts, values = points.setdefault(self._tracks.of_counter(place, name), ([], []))
                ts.append(int(trace.events.ts[row]))
                values.append(number)
        for track, (ts, values) in points.items():
            yield counters(np.array(ts, np.int64), np.array(values), track)


def _identity(event: dict[str, Any]) -> str:
    return "" if event.get("id") is None else f"id: {event['id']}"


def _number(value: Any) -> float | None:
    """A counter's value. A number may be quoted, as in Perfetto."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) or not isinstance(value, str) else None


def _counts(trace: Trace, column: Values[np.int32], plan: Plan) -> Int64s:
    """How many events have each string of the trace."""
    counts = np.zeros(len(trace.strings), np.int64)
    for start in range(0, len(column), _ROWS):
        block = slice(start, start + _ROWS)
        counts += np.bincount(column[block][plan.kind[block] != 0], minlength=len(counts))
    return counts


def _numbers(trace: Trace, counts: Int64s, interned: Interned, kind: int) -> Int64s:
    """The number of each string of the trace that occurs. Frequent strings get small numbers, which take fewer
    bytes.
    """
    numbers = np.zeros(len(counts), np.int64)
    for index in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist():
        if trace.strings[index] or kind == INTERNED_NAMES:
            numbers[index] = interned.number(kind, trace.strings[index])
    return numbers


def _maker(encoder: ArgsEncoder, plan: Plan, decode: Decode) -> Any:
    if decode is json_event:  # the kernel reads this form
        return ArgsScanner(encoder, plan.suffix_places, plan.suffixes)
    if isinstance(decode, PacketDecode):
        return PacketArgsScanner(encoder, plan.suffix_places, plan.suffixes, decode)
    return _PlainBlobs(encoder, plan, decode)


class _PlainBlobs:
    """As :class:`ArgsScanner`, for sources that are neither JSON nor packets."""

    def __init__(self, encoder: ArgsEncoder, plan: Plan, decode: Decode) -> None:
        self._encoder, self._decode = encoder, decode
        self._places, self._suffixes = plan.suffix_places, plan.suffixes

    def blobs(self, block: Block, offsets: Int64s, lengths: Any) -> Blobs:
        """The blobs of the rows of a block."""
        made = [self._encoder.args(args_of_event(event)) for event in decoded(block, offsets, lengths, self._decode)]
        first, last = np.searchsorted(self._places, (block.start, block.stop)).tolist()
        part = slice(first, last)
        for place, piece in zip(self._places[part].tolist(), self._suffixes.take(part).pieces(), strict=True):
            made[place - block.start] += piece
        return blobs_of(made)
