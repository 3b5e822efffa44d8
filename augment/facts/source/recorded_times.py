"""Whether a file with Unix times was recorded while a trace was, and how far their clocks are apart.

Kineto's times are Unix times, too (``baseTimeNanoseconds`` added from PyTorch 2.4 on). Times are never moved: the
offset is told, not applied.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s
from augment.core import Category, Trace

SINCE_2001_NS = 10**18  #: a clock that counts from 1970 says more
_LEAST_PAIRS = 2


class ComparedClocks(Struct, frozen=True):
    """How the times of a file lie to those of a trace.

    ``offset_ns``: what the file's clock is ahead by, the median of ``pairs`` moments that both have; ``spread_ns``: the
    median distance from it. None where too few moments are in both.
    """

    offset_ns: int | None = None
    spread_ns: int | None = None
    pairs: int = 0


def apart(trace: Trace, first_ns: int, last_ns: int, what: str) -> str:
    """Why ``what``, recorded from ``first_ns`` to ``last_ns`` (Unix), cannot be joined with the trace: a sentence with
    both periods; empty if they overlap. A trace without events has no period, and nothing is apart from it."""
    if not len(trace.events):
        return ""
    begin, end = int(trace.events.ts[0]), int(trace.events.end.max())
    if begin < SINCE_2001_NS or first_ns < SINCE_2001_NS:
        which = "the trace" if begin < SINCE_2001_NS else what
        return f"{which} has times that do not count from 1970, so the two cannot be joined by time"
    if last_ns < begin or first_ns > end:
        return f"{what} covers {period(first_ns, last_ns)}, the trace {period(begin, end)}: they do not overlap"
    return ""


def compared(trace: Trace, names: Sequence[str], ts: Int64s) -> ComparedClocks:
    """The clocks of a trace and of a file that overlaps it. ``names`` and ``ts`` (ns) are of the file's annotations:
    each is compared with the nearest of its name in the trace."""
    events = trace.events
    if not len(events):
        return ComparedClocks()
    rows = events.slices_of(Category.USER_ANNOTATION)
    begun: dict[str, list[int]] = {}
    wanted = set(names)
    for row, name in zip(rows.tolist(), trace.names_of(rows), strict=True):
        if name in wanted:
            begun.setdefault(name, []).append(int(events.ts[row]))
    ahead = []
    for name in begun:
        starts = np.array(begun[name], np.int64)
        marks = np.array([at for at, each in zip(ts.tolist(), names, strict=True) if each == name], np.int64)
        marks = marks[(marks >= int(events.ts[0])) & (marks <= int(events.end.max()))]
        ahead += [int(mark - starts[np.abs(starts - mark).argmin()]) for mark in marks]
    if len(ahead) < _LEAST_PAIRS:
        return ComparedClocks(pairs=len(ahead))
    offset = int(np.median(ahead))
    return ComparedClocks(offset, int(np.median(np.abs(np.array(ahead) - offset))), len(ahead))


def period(first_ns: int, last_ns: int) -> str:
    """``2026-11-23 14:20:01.123 to 14:20:55.456 UTC``; the second date only where it differs."""
    first, last = instant(first_ns), instant(last_ns)
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def instant(ns: int) -> str:
    """``2026-11-23 14:20:01.123``, in UTC; of times that no calendar has, the number."""
    try:
        moment = datetime.datetime.fromtimestamp(ns // 10**9, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns // 10**6 % 1000:03}"
