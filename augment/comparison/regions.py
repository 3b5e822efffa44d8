"""Which annotations of recordings without steps could stand for steps: those that recur on both sides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from augment.arrays.ordering import sums
from augment.trace import Category, Trace

OFFERED = 3
_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class Region:
    """Annotations that differ in numbers alone: their names, how many there are, and their time together."""

    names: set[str] = field(default_factory=set)
    count: int = 0
    ns: int = 0


Regions = Mapping[str, Region]  #: by their pattern, numbers as ``*``


def regions_of(trace: Trace) -> Regions:
    """The annotations of the host, by pattern."""
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION)
    names = events.name[rows].astype("int64")
    count, ns = sums(names, rows * 0 + 1, len(trace.strings)), sums(names, events.dur[rows], len(trace.strings))
    found: dict[str, Region] = {}
    for code in count.nonzero()[0].tolist():
        name = trace.strings[code]
        one = found.setdefault(_DIGITS.sub("*", name), Region())
        one.names.add(name)
        one.count += int(count[code])
        one.ns += int(ns[code])
    return found


def offer(control: Regions, test: Regions) -> str:
    """What ``--region`` could be, of the annotations that recur on both sides those of most time; empty if none do."""
    both = [one for one in control if one in test and min(control[one].count, test[one].count) > 1]
    both.sort(key=lambda one: (-min(control[one].ns, test[one].ns), one))
    told = []
    for pattern in both[:OFFERED]:
        names = control[pattern].names | test[pattern].names
        counts = dict.fromkeys((control[pattern].count, test[pattern].count))
        name = names.pop() if len(names) == 1 else pattern
        told.append(f"--region '{name}' ({' and '.join(map(str, counts))} times)")
    return f"annotations that recur on both sides can be the steps: {', '.join(told)}" if told else ""
