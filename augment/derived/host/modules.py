"""Which ``nn.Module`` each slice of the host runs in: the frames of Python stacks that are called so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.arrays.ordering import combinations
from augment.arrays.types import Int32s, Int64s, Places
from augment.derived.host.call_stacks import call_stacks, places_of
from augment.derived.host.enclosing import directly_around, enclosing
from augment.trace import Category, Trace, derived

PREFIX = "nn.Module: "  #: how torch.profiler names the call of a module, then its class and a number: Linear_3
NO_MODULE = -1
_CATEGORIES = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP)


@dataclass(frozen=True, slots=True)
class Modules:
    """The calls of modules, and where they stand among modules.

    ``frame``: the places of the calls in the call stacks, ascending. ``path`` int64: of each call, an index into
    ``paths``, such as ``Block_1/Linear_4``; ``parent`` is of each path the one above it, which comes before it, or
    :data:`NO_MODULE`. ``frame_of`` int32: of each place of the call stacks the innermost call around it, an index into
    ``frame``, or -1.
    """

    frame: Places
    path: Int64s
    paths: list[str]
    parent: list[int]
    frame_of: Int32s

    def path_of(self, frame: Int32s) -> Int64s:
        """The path of each index into ``frame``; :data:`NO_MODULE` of -1."""
        return np.where(frame >= 0, self.path[frame], NO_MODULE) if len(self.path) else np.full(len(frame), NO_MODULE)


@derived
def modules(trace: Trace) -> Modules:
    """The trace's modules."""
    stacks = call_stacks(trace)
    frame = places_of(trace, *_CATEGORIES).where(lambda name: name.startswith(PREFIX))
    frame_of = enclosing(trace, frame)
    name = trace.events.name[stacks.row[frame]]
    outer = directly_around(trace, frame)
    path = np.full(len(frame), NO_MODULE, np.int64)
    paths: list[str] = []
    parent: list[int] = []
    level = np.flatnonzero(outer < 0)
    todo = np.flatnonzero(outer >= 0)
    while len(level):  # as often as modules are nested
        keys, code = combinations(np.where(outer[level] >= 0, path[outer[level]], NO_MODULE), name[level])
        path[level] = code + len(paths)
        for own_parent, own_name in zip(*(key.tolist() for key in keys), strict=True):
            own = trace.strings[own_name].removeprefix(PREFIX)
            paths.append(own if own_parent == NO_MODULE else f"{paths[own_parent]}/{own}")
            parent.append(own_parent)
        ready = path[outer[todo]] != NO_MODULE
        level, todo = todo[ready], todo[~ready]
    return Modules(frame, path, paths, parent, frame_of)
