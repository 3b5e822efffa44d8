"""Finds annotations that can serve as steps in recordings without steps: those that recur on both sides."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from augment.arrays.ordering import sums
from augment.core.trace import Category, Trace

OFFERED = 3
_DIGITS = re.compile(r"\d+")


class Region(Struct):
    """Annotations whose names differ only in numbers: their names, count and total time."""

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
    regions: dict[str, Region] = {}
    for code in count.nonzero()[0].tolist():
        name = trace.strings[code]
        region = regions.setdefault(_DIGITS.sub("*", name), Region())
        region.names.add(name)
        region.count += int(count[code])
        region.ns += int(ns[code])
    return regions


def offer(control: Regions, test: Regions) -> str:
    """Suggestions for ``--region``: the annotations with most time that recur on both sides; empty if none do."""
    recurring = [
        pattern for pattern in control if pattern in test and min(control[pattern].count, test[pattern].count) > 1
    ]
    recurring.sort(key=lambda pattern: (-min(control[pattern].ns, test[pattern].ns), pattern))
    offers = []
    for pattern in recurring[:OFFERED]:
        names = control[pattern].names | test[pattern].names
        counts = dict.fromkeys((control[pattern].count, test[pattern].count))
        name = names.pop() if len(names) == 1 else pattern
        offers.append(f"--region '{name}' ({' and '.join(map(str, counts))} times)")
    return f"annotations that recur on both sides can be the steps: {', '.join(offers)}" if offers else ""
