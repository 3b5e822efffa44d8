"""Slices that the source gives as two events: which end belongs to which beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augment.trace import Int32s, Int64s, Trace

BEGINS, ENDS, STEPS = frozenset(b"bS"), frozenset(b"eF"), frozenset(b"nTp")  #: phases of asynchronous events


@dataclass
class Pairs:
    """``ends`` maps the row of a beginning to that of its end; ``groups`` that of an asynchronous event to its track:
    the row's place and a name. ``lone_ends`` have no beginning; ``lone_begins`` no end."""

    ends: dict[int, int] = field(default_factory=dict)
    groups: dict[int, tuple[int, str]] = field(default_factory=dict)
    lone_begins: list[int] = field(default_factory=list)
    lone_ends: list[int] = field(default_factory=list)

    def open_or_close(self, open_rows: list[int], row: int, is_end: bool, names: Any) -> None:
        """Take one event of a stack of ``open_rows``: an end closes the nearest beginning of its name."""
        if not is_end:
            open_rows.append(row)
            return
        for at in range(len(open_rows) - 1, -1, -1):
            if not names[row] or names[open_rows[at]] == names[row]:
                self.ends[open_rows.pop(at)] = row
                return
        self.lone_ends.append(row)


def pairs(trace: Trace, place: Int32s, texts: Mapping[int, dict[str, Any]]) -> Pairs:
    """The pairs of a trace; ``texts`` has the asynchronous events' members."""
    ends, phase = trace.events.ends, trace.events.phase
    lone_ends = np.setdiff1d(np.flatnonzero(phase == ord("E")), ends.values).tolist()
    lone_begins = np.flatnonzero(phase == ord("B")).tolist()
    found = Pairs(dict(zip(ends.rows.tolist(), ends.values.tolist(), strict=True)), {}, lone_begins, lone_ends)
    _asynchronous(trace, place, texts, found)
    found.lone_begins.sort()
    found.lone_ends.sort()
    return found


def _asynchronous(trace: Trace, place: Int32s, texts: Mapping[int, dict[str, Any]], found: Pairs) -> None:
    """Events of one category and id (of the older phases, also of one name) are one stack and lie on one track."""
    events = trace.events
    rows = rows_of_phases(trace, BEGINS | ENDS | STEPS)
    stacks: dict[Any, tuple[int, str, list[int]]] = {}
    names = _Names(trace)
    for row in rows.tolist():
        event, phase = texts[row], int(events.phase[row])
        older = names[row] if chr(phase) in "STpF" else None
        key = (int(events.category_name[row]), older, _identity(event))
        where, name, open_rows = stacks.setdefault(key, (int(place[row]), names[row] or "async", []))
        found.groups[row] = where, name
        if phase not in STEPS:
            found.open_or_close(open_rows, row, phase in ENDS, names)
    found.lone_begins += [row for _, _, stack in stacks.values() for row in stack]


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
        self._strings, self._name = trace.strings, trace.events.name

    def __getitem__(self, row: int) -> str:
        return str(self._strings[self._name[row]])
