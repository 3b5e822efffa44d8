"""Annotations as templates of Chrome trace events: what each kind of track looks like in the file.

Every event is a line of its own and begins with its category, ``augment.ANALYSIS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, field

from augment.arrays.ordering import compressed
from augment.arrays.types import Int64s, Places
from augment.core.annotations import (
    Annotation,
    ArgColumn,
    CounterTrack,
    Ends,
    Flows,
    InstantTrack,
    SliceTrack,
    Texts,
    row_count,
)
from augment.core.trace import Trace
from augment.writers.chrome_layout import Layout, fresh_flow_ids
from augment.writers.perfetto_time import fitting_durations
from augment.writers.render import (
    MISSING,
    Column,
    Number,
    Piece,
    Rendered,
    Template,
    TemplateArgs,
    TemplateChoice,
    choice,
    json_text,
    micros,
    number,
)
from augment.writers.rendering import render


class ChromeEvents(Struct):
    """The events to add to a text. The counts are final when :meth:`render` has finished.

    ``base_ns`` is what the file subtracts from all times. Arrows need the ``trace``, because they may lead to its
    slices.
    """

    layout: Layout
    base_ns: int
    trace: Trace | None = None
    shortened: int = 0  #: slices whose ``dur`` was shortened, see ``perfetto_time``
    not_finite: int = 0  #: counter points left out
    early: int = 0  #: times before the file's time 0
    _next_flow: int = 0
    _threads: dict[int, tuple[int, int]] = field(default_factory=dict)  #: for added slice tracks, by their ``id``

    def render(self, annotations: Sequence[Annotation]) -> Iterator[Rendered]:
        """The text of all events: ``,`` and a line for each. The columns of one annotation at a time are in memory."""
        for annotation in annotations:
            if row_count(annotation):
                templates = self._templates(annotation)
                yield from (_opening(analysis) + text for analysis, text in self.layout.take_metadata())
                for template in templates:
                    yield from render(template)

    def _templates(self, annotation: Annotation) -> list[Template]:
        match annotation:
            case SliceTrack():
                return self._slices(annotation)
            case CounterTrack():
                return [self._counter(annotation)]
            case InstantTrack():
                return [self._instants(annotation)]
            case Flows():
                return [self._flows(annotation)]

    def _time(self, ts: Int64s) -> Number:
        in_file = ts - self.base_ns
        self.early += int(np.count_nonzero(in_file < 0))
        return micros(in_file)

    def _slices(self, track: SliceTrack) -> list[Template]:
        """The slices, followed by those inside them: of two equal slices, Perfetto takes the first in the file as the
        outer.
        """
        pid, tid = self._threads[id(track)] = self.layout.thread(track)
        dur = fitting_durations(track.ts, track.dur, self.base_ns)
        args = dict(track.args)
        changed = dur != track.dur
        if changed.any():
            self.shortened += int(changed.sum())
            args.setdefault("dur_ns", np.where(changed, track.dur, MISSING))

        def template(rows: Places, names: Texts) -> Template:
            chosen = {name: arg.take(rows) if isinstance(arg, Texts) else arg[rows] for name, arg in args.items()}
            return [
                _opening(track.analysis) + b'"ph":"X","ts":',
                self._time(track.ts[rows]),
                b',"dur":',
                micros(dur[rows]),
                b',"pid":%d,"tid":%d,"name":' % (pid, tid),
                _names(names.take(rows)),
                *(
                    [b',"args":{', TemplateArgs({name: _arg(arg) for name, arg in chosen.items()}), b"}}"]
                    if chosen
                    else [b"}"]
                ),
            ]

        rows = track.inner_rows()
        return [
            template(np.arange(len(dur)), track.names),
            *([template(rows, track.inner)] if track.inner and len(rows) else []),
        ]

    def _counter(self, track: CounterTrack) -> Template:
        """The key of the arg becomes part of the displayed name, so it is the unit: ``Memcpy HtoD bandwidth GB/s``."""
        pid, name = self.layout.counter(track)
        ts, values = track.ts, track.values
        if values.dtype.kind == "f":  # NaN is not JSON, and sends Perfetto into an endless loop
            finite = np.isfinite(values)
            self.not_finite += len(ts) - int(finite.sum())
            ts, values = ts[finite], values[finite]
        return [
            _opening(track.analysis) + b'"ph":"C","ts":',
            self._time(ts),
            b',"pid":%d,"name":%s,"args":{%s:' % (pid, json_text(name), json_text(track.unit or "value")),
            number(values),
            b"}}",
        ]

    def _instants(self, track: InstantTrack) -> Template:
        pid, tid = self.layout.thread(track)
        return [
            _opening(track.analysis) + b'"ph":"i","s":"t","ts":',
            self._time(track.ts),
            b',"pid":%d,"tid":%d,"name":' % (pid, tid),
            _names(track.names),
            b"}",
        ]

    def _flows(self, flows: Flows) -> Template:
        """Both ends of each arrow, at the beginnings of the slices that they bind to."""
        trace = self.trace
        assert trace is not None
        first, self._next_flow = fresh_flow_ids(trace, len(flows), self._next_flow)
        ids = Number(np.arange(first, first + len(flows)))
        threads: list[bytes] = []
        ts = np.stack([ends.times(trace) for ends in (flows.out, flows.into)])
        thread = np.stack([self._threads_of(trace, ends, threads) for ends in (flows.out, flows.into)])
        back = ts[0] > ts[1]
        ts[:, back], thread[:, back] = ts[::-1, back], thread[::-1, back]
        closing = b',"name":%s}' % json_text(flows.name)
        template: list[Piece] = []
        for end, opening in enumerate((b'"ph":"s","id":', b'"ph":"f","bp":"e","id":')):
            template += [_opening(flows.analysis) + opening, ids, b',"ts":', self._time(ts[end])]
            template += [b",", TemplateChoice(thread[end], threads), closing]
        return template

    def _threads_of(self, trace: Trace, ends: Ends, threads: list[bytes]) -> Int64s:
        """The thread of each end, as an index into ``threads``, to which new threads are added. Only the needed threads
        are listed.
        """
        known = len(threads)
        if ends.track is not None:
            threads.append(b'"pid":%d,"tid":%d' % self._threads[id(ends.track)])
            return np.full(len(ends.rows), known, np.int64)
        track = trace.events.track[ends.rows]
        used, place = compressed(track, len(trace.tracks))
        tracks = (trace.tracks[index] for index in used.tolist())
        threads += [b'"pid":%s,"tid":%s' % (_identity(track.pid), _identity(track.tid)) for track in tracks]
        return known + place[track].astype(np.int64)


def _opening(analysis: str) -> bytes:
    return b',\n{"cat":%s,' % json_text(f"augment.{analysis}")


def _arg(column: ArgColumn) -> Column:
    return choice(column) if isinstance(column, Texts) else number(column)


def _names(texts: Texts) -> TemplateChoice:
    """Names for events, all of which need one: a missing text becomes the empty string."""
    chosen = choice(texts)
    return TemplateChoice(np.where(chosen.codes == MISSING, len(chosen.values), chosen.codes), [*chosen.values, b'""'])


def _identity(value: object) -> bytes:
    return json_text(value) if isinstance(value, str) else json.dumps(value).encode()
