"""Pairs the two events of slices that the source writes as separate beginnings and ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from augment.arrays.types import Int32s, Int64s
from augment.core.trace import Trace

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
    """The pairs of a trace. ``texts`` holds the members of asynchronous events."""
    ends, phase = trace.events.ends, trace.events.phase
    is_lone = phase == ord("E")
    is_lone[ends.values[:]] = False
    lone_ends = np.flatnonzero(is_lone).tolist()
    lone_begins = np.flatnonzero(phase == ord("B")).tolist()
    result = Pairs(dict(zip(ends.rows.tolist(), ends.values.tolist(), strict=True)), {}, lone_begins, lone_ends)
    _asynchronous(trace, place, texts, result)
    result.lone_begins.sort()
    result.lone_ends.sort()
    return result


def _asynchronous(trace: Trace, place: Int32s, texts: Mapping[int, dict[str, Any]], result: Pairs) -> None:
    """Pair asynchronous events. Events of one category and id (in older phases, also one name) share a stack and a
    track.
    """
    events = trace.events
    rows = rows_of_phases(trace, BEGINS | ENDS | STEPS)
    stacks: dict[Any, tuple[int, str, dict[str, list[int]]]] = {}
    names = _Names(trace)
    for row, category in zip(rows.tolist(), events.category_name[rows].tolist(), strict=True):
        event, phase = texts[row], int(events.phase[row])
        older = names[row] if chr(phase) in "STpF" else None
        key = (category, older, _identity(event))
        where, name, begun = stacks.setdefault(key, (int(place[row]), names[row] or "async", defaultdict(list)))
        result.groups[row] = where, name
        if phase not in STEPS:
            result.open_or_close(begun, row, phase in ENDS, names[row])
    result.lone_begins += [row for _, _, begun in stacks.values() for row in begun[""] if row not in result.ends]


def _identity(event: dict[str, Any]) -> str:
    local = event.get("id2")
    if isinstance(local, dict) and "local" in local:
        return repr((event.get("pid"), local["local"]))
    return repr((event.get("id"), local, event.get("scope")))


def rows_of_phases(trace: Trace, phases: frozenset[int]) -> Int64s:
    """The rows of any of these phases."""
    wanted = np.zeros(256, np.bool_)
    wanted[list(phases)] = True
    counts = np.bincount(trace.events.phase, minlength=256)
    if not counts[wanted].any():
        return np.zeros(0, np.int64)
    return np.flatnonzero(wanted[trace.events.phase])


class _Names:
    """Names by row."""

    def __init__(self, trace: Trace) -> None:
        self._strings, self._name = trace.strings, trace.events.name[:]

    def __getitem__(self, row: int) -> str:
        return str(self._strings[self._name[row]])
