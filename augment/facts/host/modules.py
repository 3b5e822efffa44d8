"""The ``nn.Module`` that each slice of the host runs in, from frames of Python stacks with such names."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import combinations
from augment.arrays.types import NO_INDEX, Int32s, Int64s, StackIndexes
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import call_stacks, places_of
from augment.facts.host.enclosing import directly_around, enclosing

PREFIX = "nn.Module: "  #: torch.profiler's prefix of a module's call, before its class and number: Linear_3
_CATEGORIES = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP)


class Modules(Struct, frozen=True):
    """The calls of modules, and their paths among modules."""

    frame: StackIndexes  #: the calls, ascending
    path: Int64s  #: of each call, an index of ``paths``
    paths: list[str]  #: such as ``Block_1/Linear_4``
    parent: list[int]  #: of each path the index of the path above it, which comes before it, or ``NO_INDEX``
    frame_of: Int32s  #: of each call stack the innermost module call around it: an index of ``frame``, or -1

    def path_of(self, frame: Int32s) -> Int64s:
        """The path of each index into ``frame``; :data:`NO_INDEX` for -1."""
        return np.where(frame >= 0, self.path[frame], NO_INDEX) if len(self.path) else np.full(len(frame), NO_INDEX)


@derived(until="breakdowns")
def modules(trace: Trace) -> Modules:
    """The trace's modules."""
    stacks = call_stacks(trace)
    frame = places_of(trace, *_CATEGORIES).where(lambda name: name.startswith(PREFIX))
    frame_of = enclosing(trace, frame)
    name = trace.events.name[stacks.row[frame]]
    outer = directly_around(trace, frame)
    path = np.full(len(frame), NO_INDEX, np.int64)
    paths: list[str] = []
    parent: list[int] = []
    level = np.flatnonzero(outer < 0)
    todo = np.flatnonzero(outer >= 0)
    while len(level):  # one round per level of nesting
        keys, code = combinations(np.where(outer[level] >= 0, path[outer[level]], NO_INDEX), name[level])
        path[level] = code + len(paths)
        for above, code_of_name in zip(*(key.tolist() for key in keys), strict=True):
            module = trace.strings[code_of_name].removeprefix(PREFIX)
            paths.append(module if above == NO_INDEX else f"{paths[above]}/{module}")
            parent.append(above)
        ready = path[outer[todo]] != NO_INDEX
        level, todo = todo[ready], todo[~ready]
    return Modules(frame, path, paths, parent, frame_of)
