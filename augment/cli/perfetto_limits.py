"""What Perfetto will drop, alter or refuse in a trace, judged by the event table.

Observed with Perfetto 52, and in its sources up to 58; docs/formats.md describes the experiments.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from augment.arrays.types import Int64s
from augment.core.trace import COMPLETE, Trace
from augment.readers import perfetto

_MEMORY = (
    (8_500_000_000, "the 64-bit engine runs out of memory"),
    (2_000_000_000, "browsers with the 32-bit engine run out of memory"),
)  #: bytes of text
_EXACT_US = 1 << 43  #: beyond this, a double in microseconds cannot represent nanoseconds
_MAX_ID = (1 << 32) - 1
_ZSTD = b"\x28\xb5\x2f\xfd"


def perfetto_findings(trace: Trace) -> list[dict[str, Any]]:
    """What Perfetto would show differently, or not at all, if it opened the source itself."""
    return [{"code": code, "count": count, "message": message} for code, count, message in _findings(trace) if count]


def partly_overlapping(trace: Trace) -> int:
    """The number of slices that partly overlap another of their thread, so that Perfetto drops them.

    Perfetto (before 57) processes a thread's slices by start, longer ones first, and drops a slice that ends after the
    slice that it begins in.
    """
    events = trace.events
    rows = np.flatnonzero((events.phase == COMPLETE) & (events.dur > 0))
    numbers: dict[tuple[Any, Any], int] = {}
    thread = np.array([numbers.setdefault((str(t.pid), str(t.tid)), len(numbers)) for t in trace.tracks], np.int32)
    if not len(rows):
        return 0
    of_thread = thread[events.track[rows]]
    order = np.argsort(of_thread, kind="stable")  # rows ascend in time, so those of each thread do
    rows, of_thread = rows[order], of_thread[order]
    bounds = np.searchsorted(of_thread, np.arange(len(numbers) + 1)).tolist()
    dropped = 0
    for start, stop in pairwise(bounds):
        ts = events.ts[rows[start:stop]]
        end = ts + events.dur[rows[start:stop]]
        if np.any(ts[1:] < np.maximum.accumulate(end)[:-1]):
            dropped += _dropped(ts, end)
    return dropped


def _dropped(ts: Int64s, end: Int64s) -> int:
    """The number of dropped slices of one thread, whose ``ts`` ascend."""
    order = np.lexsort((-end, ts))
    ts, end = ts[order], end[order]
    if _nested(ts, end):
        return 0
    dropped = 0
    open_ends: list[int] = []
    for one_ts, one_end in zip(ts.tolist(), end.tolist(), strict=True):
        while open_ends and open_ends[-1] <= one_ts:
            open_ends.pop()
        if open_ends and one_end > open_ends[-1]:
            dropped += 1
        else:
            open_ends.append(one_end)
    return dropped


def _nested(ts: Int64s, end: Int64s) -> bool:
    """Whether no slices partly overlap: then equally many are open after each start as before the matching end."""
    count = len(ts)
    place = np.arange(count)
    after_start = place + 1 - np.searchsorted(np.sort(end), ts, side="right")
    closing = np.lexsort((-place, end))  # of slices that end together, the one that began last closes first
    closed_before = np.empty(count, np.int64)
    closed_before[closing] = place
    before_end = np.searchsorted(ts, end, side="left") - closed_before
    return bool(np.array_equal(after_start, before_end))


def _findings(trace: Trace) -> Iterator[tuple[str, int, str]]:
    if trace.source.format != perfetto.NAME:
        yield from _of_json(trace)
    with open(trace.source.path, "rb") as file:
        yield "zstd", int(file.read(4) == _ZSTD), "zstd is refused before version 58 (augmented files are not zstd)"


def _of_json(trace: Trace) -> Iterator[tuple[str, int, str]]:
    """Limits that apply to JSON only."""
    events, source = trace.events, trace.source
    yield "partly_overlapping", partly_overlapping(trace), "slices partly overlap another of their thread: dropped"
    in_file = events.ts - source.base_ns
    yield "negative_times", int((in_file < 0).sum()), "events have a time before 0: dropped"
    last = int(np.abs(in_file).max()) if len(in_file) else 0
    if last // 1000 >= _EXACT_US:
        step = int(np.spacing(last / 1000) * 1000)
        broken = int((in_file % 1000 != 0).sum())
        yield "epoch_times", broken, f"times since 1970 have fractions of a microsecond: rounded to {step} ns"
    ids = [number for track in trace.tracks for number in (track.pid, track.tid) if isinstance(number, int)]
    yield "ids_out_of_range", sum(not 0 <= id_ <= _MAX_ID for id_ in ids), "pids or tids do not fit 32 bits: become 0"
    yield "text_pids", sum(isinstance(track.pid, str) for track in trace.tracks), "tracks have a text as pid: numbered"
    if trace.partial and source.closing == b"]}":
        yield "not_closed", 1, "the JSON is not closed: refused (the augmented file is closed)"
    for limit, message in _MEMORY:
        if source.text_bytes > limit:
            yield "too_large", 1, f"{message}; open the native format (--to perfetto)"
            break
