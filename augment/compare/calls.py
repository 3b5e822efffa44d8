"""One side of a comparison: its calls (operators and annotations) as a tree, and the GPU work that they launch."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, Bools, Bytes, EventRows, Int32s, Int64s, StackIndexes, compressed
from augment.core import Category, Trace

CALLS = (Category.CPU_OP, Category.USER_ANNOTATION)


class Calls(Struct, frozen=True):
    """Operators and annotations, and Python functions on request: equal-length columns, each thread in preorder.

    ``row`` int64, into the event table. ``parent`` int32, an index into these columns; :data:`NO_INDEX` for an
    outermost call. ``depth`` int32; ``thread`` int32, the track. ``step`` int32, the index among the chosen steps of
    the step in which the call began, or :data:`NO_INDEX`. ``name`` and ``path`` int32, numbers that both sides share.
    Times are int64: ``cpu_ns``, and ``cpu_self_ns`` without the calls in it; ``gpu_self_ns``, the durations of GPU work
    that the call launched itself, and ``gpu_ns``, with all calls in it.
    """

    row: EventRows
    parent: Int32s
    depth: Int32s
    thread: Int32s
    step: Int32s
    name: Int32s
    path: Int32s
    cpu_ns: Int64s
    cpu_self_ns: Int64s
    gpu_ns: Int64s
    gpu_self_ns: Int64s

    def __len__(self) -> int:
        return len(self.row)


class CallWork(Struct, frozen=True):
    """The GPU work in the order of ``gpu_work``: equal-length columns.

    ``row`` int64. ``call`` int32, the innermost call that launched it, or :data:`NO_INDEX`. ``step`` int32, the index
    among the chosen steps of the step in which it was launched, or :data:`NO_INDEX`. ``path`` int32: that of the call;
    for a kernel of a CUDA graph with its capture (``in_capture``), the captured operator within that call. ``name``
    int32, ``family`` int32: the number of the name of its kind of work, ``type`` uint8, ``ns`` int64: its duration.
    """

    row: EventRows
    call: Int32s
    path: Int32s
    in_capture: Bools
    step: Int32s
    name: Int32s
    family: Int32s
    type: Bytes
    ns: Int64s

    def __len__(self) -> int:
        return len(self.row)


class Side(Struct, frozen=True):
    """Control or test: a trace, the chosen steps, the calls, and the GPU work."""

    trace: Trace
    steps: facts.steps.StepWindows
    calls: Calls
    work: CallWork

    def __repr__(self) -> str:
        return f"<Side {self.trace.summary}; {len(self.steps)} steps>"


def side_of(
    trace: Trace, chosen: facts.steps.StepWindows, names: Names, paths: Paths, *, functions: bool = False
) -> Side:
    """Collect the calls and GPU work of one side.

    Args:
        trace: the recording.
        chosen: its steps to compare.
        names: the names of both sides; extended.
        paths: the call paths of both sides; extended.
        functions: whether Python functions count as calls.
    """
    stacks = facts.host.stacks(trace)
    # whether each slice of the call stacks is a call; steps are not
    wanted = np.zeros(256, np.bool_)
    wanted[[*CALLS, *([Category.PYTHON_FUNCTION] if functions else [])]] = True
    kept: Bools = wanted[trace.events.category[stacks.row]]
    kept[stacks.place_of[facts.steps.recorded(trace).row]] = False
    places = stacks.where(kept)
    parent = facts.host.directly_around(trace, places)
    row = stacks.row[places]
    depth = np.zeros(len(parent), np.int32)
    above: Int32s = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        depth[climbing] += 1
        above[climbing] = parent[above[climbing]]
        climbing = climbing[above[climbing] >= 0]
    name = names.of(trace.events.name[row], trace.strings)
    path = np.full(len(parent), NO_INDEX, np.int32)
    for level in levels(depth):
        above = np.where(parent[level] >= 0, path[parent[level]], np.int32(NO_INDEX))
        path[level] = paths.of(above, name[level])
    work = _work(trace, places, chosen, paths, path)
    dur = np.maximum(trace.events.dur[row], 0)
    gpu_self = np.zeros(len(row), np.int64)
    np.add.at(gpu_self, work.call[work.call >= 0], work.ns[work.call >= 0])
    inside = np.zeros(len(row), np.int64)
    np.add.at(inside, parent[parent >= 0], dur[parent >= 0])
    calls = Calls(
        row=row,
        parent=parent,
        depth=depth,
        thread=trace.events.track[row],
        step=chosen.of_host(trace.events.ts[row]).astype(np.int32),
        name=name,
        path=path,
        cpu_ns=dur,
        cpu_self_ns=dur - inside,
        gpu_ns=_with_descendants(parent, depth, gpu_self),
        gpu_self_ns=gpu_self,
    )
    return Side(trace, chosen, calls, work)


def levels(depth: Int32s) -> list[npt.NDArray[np.intp]]:
    """The calls of each depth, outermost first, each ascending."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1)))


def _work(
    trace: Trace, places: StackIndexes, chosen: facts.steps.StepWindows, paths: Paths, path_of_call: Int32s
) -> CallWork:
    work, names, graphs = facts.gpu.work(trace), paths.names, facts.operators.graphs(trace)
    launched = work.launch != NO_INDEX
    call = np.full(len(work), NO_INDEX, np.int32)
    families = facts.operators.work_families(trace)
    call[launched] = facts.host.enclosing(trace, places)[facts.host.stacks(trace).place_of[work.launch[launched]]]
    path = np.append(path_of_call, np.int32(NO_INDEX))[call]  # NO_INDEX reads the last entry
    captured = graphs.owner >= 0
    if captured.any():
        operator = np.array([names.number(called.operator) for called in graphs.calls], np.int32)
        path[captured] = paths.of(path[captured], operator[graphs.kind[graphs.owner[captured]]])
    return CallWork(
        row=work.row,
        call=call,
        path=path,
        in_capture=captured,
        step=facts.steps.step_of_work(trace, chosen).astype(np.int32),
        name=names.of(trace.events.name[work.row], trace.strings),
        family=names.of(families.family, families.names),
        type=work.type,
        ns=np.maximum(work.end - work.ts, 0),
    )


def _with_descendants(parent: Int32s, depth: Int32s, self_ns: Int64s) -> Int64s:
    """The sum of ``self_ns`` over each call and all calls in it."""
    total: Int64s = self_ns.copy()
    for level in levels(depth)[:0:-1]:
        np.add.at(total, parent[level], total[level])
    return total


# Names and call paths as numbers that both sides share.


#: patterns of what differs between runs in names of the same thing, and the replacements; extend them here
RUN_DEPENDENT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^ProfilerStep\s*#\s*\d+$"), "ProfilerStep"),
    # steps of engines: their batches differ
    (re.compile(r"^execute_(?:\d+_)?context_0\(.*\)$"), "execute (decode)"),
    (re.compile(r"^execute_(?:\d+_)?context_\d+\(.*\)_generation_0\(.*\)$"), "execute (prefill)"),
    (re.compile(r"^execute_(?:\d+_)?(?:context|new)_\d+.*$"), "execute"),
    (re.compile(r"^(step\[\w+)\b.*\]$|^((?:prefill|decode)\[)bs=.*\]$"), r"\1\2]"),
    (re.compile(r"^((?:\[Executor\] )?_forward_step)\b.* reqs$"), r"\1"),
    (re.compile(r"^(Torch-Compiled Region): \d+/\d+(?:_\d+)*$"), r"\1"),  # numbered in order of compilation
    (re.compile(r"^(enumerate\(DataLoader\))#_\w+\.__next__$"), r"\1"),  # loading in one process or in several
    (re.compile(r"0x[0-9a-fA-F]{5,}"), "0x…"),  # addresses
    (re.compile(r"\b(?=\w*\d)[0-9a-z]{24,}\b"), "…"),  # the digest of a compiled graph
)


def settled_name(name: str) -> str:
    """``name`` without the parts that differ between runs."""
    for pattern, stands_for in RUN_DEPENDENT:
        name = pattern.sub(stands_for, name)
    return name


def short_name(name: str) -> str:
    """HTA's short name: without everything in ``<>`` and ``()``, and only the part after the last blank.

    Copies, memsets, and names without such brackets are unchanged; so are names of which nothing would be left.
    """
    if name.startswith(("Memcpy", "Memset")) or not ("<" in name or "(" in name):
        return name
    kept: list[str] = []
    depth = 0
    for char in name.replace("->", ""):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            kept.append(char)
    return "".join(kept).strip().rsplit(" ", 1)[-1] or name


class Names:
    """The names of both sides: equal names have equal numbers."""

    def __init__(self, *, short: bool = False) -> None:
        self.texts: list[str] = []
        self._short = short
        self._numbers: dict[str, int] = {}

    def of(self, codes: Int32s, strings: Sequence[str]) -> Int32s:
        """The numbers of ``codes``, which are indexes into ``strings``."""
        distinct, place_of = compressed(codes, len(strings))
        numbers = np.array([self.number(strings[code]) for code in distinct.tolist()], np.int32)
        result: Int32s = numbers[place_of[codes]] if len(codes) else codes
        return result

    def number(self, name: str) -> int:
        """The number of ``name``."""
        text = settled_name(name)
        if self._short:
            text = short_name(text)
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


class Paths:
    """The call paths of both sides: a number for each chain of names from the outermost call inwards."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.parent: list[int] = []
        self.name: list[int] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, parent: Int32s, name: Int32s) -> Int32s:
        """The paths of calls ``name`` within calls of the paths ``parent`` (:data:`NO_INDEX` for none)."""
        key = (parent.astype(np.int64) + 1) << 32 | name
        distinct, which = np.unique(key, return_inverse=True)
        numbers = []
        for code in distinct.tolist():
            call = above, called = (code >> 32) - 1, code & 0xFFFFFFFF
            if call not in self._numbers:
                self._numbers[call] = len(self.parent)
                self.parent.append(above)
                self.name.append(called)
            numbers.append(self._numbers[call])
        return np.array(numbers, np.int32)[which]

    def chain(self, path: int) -> list[int]:
        """The paths from the outermost to ``path`` itself."""
        paths = []
        while path != NO_INDEX:
            paths.append(path)
            path = self.parent[path]
        return paths[::-1]

    def text(self, path: int) -> str:
        """The path as text, ``outer > inner``; empty for no path."""
        return " > ".join(self.names.texts[self.name[each]] for each in self.chain(path))
