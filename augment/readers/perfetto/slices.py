"""Converts rows to raw events: pairs beginnings with ends, makes flow events of flow ids, removes what augment
added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.trace import COMPLETE, NO_CORRELATION, ON_DEVICE, Category, SparseColumn
from augment.readers.ascend import of_collectives
from augment.readers.dialects import ASCEND_COLLECTIVES_THREAD, ASCEND_PLANE, ASCEND_SYNC, ASCEND_TASK, CATEGORIES
from augment.readers.match import matched
from augment.readers.perfetto.rows import Rows
from augment.readers.perfetto.track_ids import FileTracks
from augment.readers.raw import COLUMNS, Place, RawEvents, Tally


def raw_events(rows: Rows, tracks: FileTracks, tally: Tally) -> RawEvents:
    """The raw events of all packets of a file."""
    events = rows.events
    columns = {name: events.take(name) for name in events.columns}
    kept = ~_added(rows, tracks, columns)
    phase = _close(rows, columns, tally, kept)
    _name_kernels(rows, tracks, columns, phase)
    flows = _flow_events(rows, columns, kept)
    order = np.argsort(np.concatenate([2 * np.flatnonzero(kept), 2 * flows.after + 1]), kind="stable")
    raw: dict[str, Any] = {}
    for name in COLUMNS:
        column = phase if name == "phase" else columns[name]
        raw[name] = np.concatenate([column[kept], flows.column(name, column)])[order]
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    new_row = np.cumsum(kept) - 1
    size_rows, sizes = rows.sizes.take("row"), rows.sizes.take("value")
    of_kept = kept[size_rows]
    first_flow = int(kept.sum())
    return RawEvents(
        **raw,
        sizes=SparseColumn(row_of[new_row[size_rows[of_kept]]], sizes[of_kept]),
        flows=SparseColumn(row_of[first_flow:], flows.id),
        strings=rows.strings.all,
        places=_places(rows, tracks),
        names=tracks.names(rows.tracks),
        tally=tally,
        event_count=len(order),
    )


def _added(rows: Rows, tracks: FileTracks, columns: dict[str, Any]) -> Bools:
    """The rows that augment added."""
    is_ours = np.array([text.startswith("augment.") for text in rows.strings.all], np.bool_)
    of_track = np.array([tracks[uuid].added for uuid in rows.tracks] or [False], np.bool_)
    added: Bools = is_ours[columns["category"]] | ((columns["kind"] == ord("C")) & of_track[columns["track"]])
    _name_counters(rows, tracks, columns, added)
    return added


def _name_counters(rows: Rows, tracks: FileTracks, columns: dict[str, Any], added: Bools) -> None:
    """Name the points of a counter after its track."""
    counters = np.flatnonzero((columns["kind"] == ord("C")) & ~added & (columns["name"] == 0))
    if len(counters):
        names = np.array([rows.strings.number(tracks[uuid].name) for uuid in rows.tracks], np.int32)
        columns["name"][counters] = names[columns["track"][counters]]


def _name_kernels(rows: Rows, tracks: FileTracks, columns: dict[str, Any], phase: Any) -> None:
    """Make slices without a category on a stream kernels, unless they wait: some vendors write no category."""
    bare = np.flatnonzero((columns["category"] == 0) & (phase == COMPLETE) & (columns["kind"] == ord("B")))
    if len(bare):
        is_stream = np.array(
            [tracks.is_stream(uuid) and not ASCEND_PLANE.fullmatch(tracks[uuid].name) for uuid in rows.tracks], np.bool_
        )
        bare = bare[is_stream[columns["track"][bare]]]
        waits = np.array([ASCEND_SYNC.fullmatch(text) is not None for text in rows.strings.all], np.bool_)
        numbers = rows.strings.number("kernel"), rows.strings.number("cuda_sync")
        idle = waits[columns["name"][bare]]
        if any(tracks[uuid].name.endswith(ASCEND_COLLECTIVES_THREAD) for uuid in rows.tracks):
            track, name = columns["track"][bare], columns["name"][bare]
            idle |= of_collectives(track, name, rows.strings.all, len(rows.tracks))
        columns["category"][bare] = np.where(idle, numbers[1], numbers[0])


def _close(rows: Rows, columns: dict[str, Any], tally: Tally, kept: Bools) -> Any:
    """Set the durations of slices. Returns the column of phases."""
    kind, dur = columns["kind"], columns["dur"]
    begins = np.flatnonzero(kind == ord("B"))
    ends = rows.ends
    before = np.searchsorted(begins, ends.take("before")) if len(begins) < len(kind) else ends.take("before")
    end_of = matched(
        columns["ts"][begins], columns["track"][begins], ends.take("ts"), ends.take("track"), before, len(rows.tracks)
    )
    closed = begins[end_of != NO_INDEX]
    lasted = ends.take("ts")[end_of[end_of != NO_INDEX]] - columns["ts"][closed]
    dur[closed] = np.where(dur[closed] < 0, dur[closed], lasted)
    phase = kind.copy()
    phase[closed] = COMPLETE
    open_ones = begins[(end_of == NO_INDEX) & kept[begins]]
    dur[open_ones] = 0
    for code, count in (
        ("slice_without_end", len(open_ones)),
        ("end_without_slice", ends.count - len(closed)),
    ):
        if count:
            tally.counts[code] += count
            tally.first.setdefault(code, int(columns["offset"][open_ones[0]]) if len(open_ones) else 0)
    return phase


_POSITIVE = np.int64(2**63 - 1)  #: a negative flow id would stand for a text


class _FlowEvents(Struct, frozen=True):
    """Beginnings, steps and ends of flows. Each has the time and place of the row ``after`` which it comes."""

    after: Int64s
    phase: Any
    name: Any
    id: Int64s

    def column(self, column: str, of_rows: Any) -> Any:
        """A column of the flow events."""
        if column == "phase":
            return self.phase
        if column in ("name", "category"):
            return self.name
        if column in ("dur", "length"):
            return np.zeros(len(self.after), of_rows.dtype)
        if column == "correlation":
            return np.full(len(self.after), NO_CORRELATION, np.int64)
        return of_rows[self.after]


def _flow_events(rows: Rows, columns: dict[str, Any], kept: Bools) -> _FlowEvents:
    """Each row of a flow leads to the next one in time. A flow ends where its id is reused."""
    row, ids, last = (rows.flows.take(name) for name in ("row", "value", "last"))
    chosen = kept[row]
    row, ids, last = row[chosen], ids[chosen], last[chosen]
    order = np.lexsort((row, columns["ts"][row], ids))
    row, ids, last = row[order], ids[order], last[order]
    linked = (ids[1:] == ids[:-1]) & (last[:-1] == 0)
    if not linked.any():
        return _FlowEvents(*(np.zeros(0, kind) for kind in (np.int64, np.uint8, np.int32, np.int64)))
    out, into = row[:-1][linked], row[1:][linked]
    category = _categories(rows, columns)
    on_gpu = np.isin(category, ON_DEVICE)
    back = on_gpu[out] & ~on_gpu[into]  # Perfetto could not draw these arrows, since clocks differ
    out, into = np.where(back, into, out), np.where(back, out, into)
    correlation = columns["correlation"]
    same = (correlation[out] == correlation[into]) & (correlation[out] != NO_CORRELATION)
    launched = same | (on_gpu[into] & ~on_gpu[out])
    numbers = [rows.strings.number(name) for name in ("ac2g", "fwdbwd", "flow")]
    hosts = (category[out] == Category.CPU_OP) & (category[into] == Category.CPU_OP)
    tasks = np.array([text.startswith(ASCEND_TASK) for text in rows.strings.all], np.bool_)
    hosts &= ~tasks[columns["name"][into]]  # from a queue
    name = np.where(launched, numbers[0], np.where(hosts, numbers[1], numbers[2])).astype(np.int32)
    flow_id = np.where(launched & (correlation[out] != NO_CORRELATION), correlation[out], ids[1:][linked])
    return _both_ends(out, into, name, flow_id & _POSITIVE)


def _both_ends(out: Int64s, into: Int64s, name: Any, flow_id: Int64s) -> _FlowEvents:
    """The events of arrows. All arrows of one id from one row share a beginning."""
    by_start = np.lexsort((flow_id, out))
    again = np.zeros(len(out), np.bool_)
    again[by_start[1:]] = (out[by_start[1:]] == out[by_start[:-1]]) & (flow_id[by_start[1:]] == flow_id[by_start[:-1]])
    first = ~again
    phase = np.concatenate([np.full(int(first.sum()), ord("s")), np.full(len(into), ord("f"))]).astype(np.uint8)
    return _FlowEvents(
        np.concatenate([out[first], into]),
        phase,
        np.concatenate([name[first], name]),
        np.concatenate([flow_id[first], flow_id]),
    )


def _categories(rows: Rows, columns: dict[str, Any]) -> Any:
    known = [CATEGORIES.get(text.lower(), Category.OTHER) for text in rows.strings.all]
    return np.array(known, np.uint8)[columns["category"]]


def _places(rows: Rows, tracks: FileTracks) -> list[Place]:
    uuids = list(rows.tracks)
    places: list[Place] = []
    for track, device, stream in rows.places:
        if track < 0:
            places.append((device, stream, device, stream))
        else:
            places.append(tracks.place(uuids[track], device, stream))
    return places
