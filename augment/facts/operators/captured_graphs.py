"""The operators behind the kernels of CUDA graphs: those that launched the same kernels while the graph was captured.

A capture records launching calls and the operators with shapes around them, but runs nothing. A replay runs the
kernels, but has no operators around them. The two are joined by the order of nodes: the n-th captured launch of a
kernel corresponds to the n-th kernel of a graph launch. The capture is in the trace itself, or in a trace given beside
it (:class:`~augment.core.attachments.GraphCapture`).

Kernels of one stream run in the order of the capture. Those of several streams do not, and a capture does not say
which stream a launch was for. Then their order is that of ``graph node id``, which the driver counts up while it
captures and keeps when the graph is instantiated (on CUDA, by Kineto from 2026 on; see PyTorch's
``torch/cuda/_graph_annotations.py``). Without it, captured names can do: the kernels of one name are interchangeable if
all operators that launched them are alike. Operators of which a kernel is not, are left out.

Strict conditions prevent accidental matches. ROCm records the names of captured kernels: all must be equal. CUDA does
not record them. Then the number of kernels must be equal, each operator of a matrix product must have a kernel whose
name does not indicate other work, and all captures that fit must agree in their operators. Otherwise the reason is
reported. Where a recording lacks the first or the last kernels of a graph, the other names must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_INDEX, EventRows, Int32s, Int64s, WorkIndexes, distinct, is_among
from augment.core import LAUNCHES, Category, GraphCapture, Trace, derived
from augment.core.args import Arg
from augment.facts import gpu, host
from augment.facts.names import KernelType, matching
from augment.facts.operators.counted_operators import counted
from augment.facts.operators.operator_calls import Call, Work
from augment.facts.source.event_args import args_of_rows

_GRAPH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_KERNEL = re.compile(r"^(cuda|cu|hip)\w*LaunchKernel")
_BEGIN, _END = (re.compile(rf"^(cuda|cu|hip)Stream{word}Capture") for word in ("Begin", "End"))


class GraphWork(Struct, frozen=True):
    """The operators of graphs' kernels: equal-length columns."""

    row: EventRows  #: the launch of the graph
    kind: Int32s  #: an index of ``calls`` and ``works``
    calls: tuple[Call, ...]  #: distinct calls
    works: tuple[Work, ...]  #: the work of each of ``calls``
    owner: Int32s  #: of each piece of GPU work the index in these columns of its operator, -1 where there is none
    reasons: tuple[str, ...]  #: why the kernels of a graph launch were not all joined, for each such launch


class _Section(Struct, frozen=True):
    """One capture. For each captured kernel, ``operator`` is the place of its operator among those that count (-1:
    none). ``names`` are the kernels' names, empty if not recorded. ``kind`` has an entry for each operator that counts.
    ``lack`` says why some of its operators are left out.
    """

    operator: Int64s
    names: tuple[str, ...]
    kind: Int32s
    calls: tuple[Call, ...]
    works: tuple[Work, ...]
    lack: str = ""

    def content(self) -> tuple[object, ...]:
        """The part of the capture that is joined. Captures with equal content are interchangeable."""
        _, which = np.unique(self.operator, return_inverse=True)
        return which.tolist(), [self.call(at) for at in self.operator.tolist()]

    def call(self, operator: int) -> tuple[object, ...] | None:
        """What is known of an operator. Operators of which it is equal are alike."""
        if operator < 0:
            return None
        kind = self.kind[operator]
        call = self.calls[kind]
        return call.operator, str(call.dims), tuple(call.types), self.works[kind]


@derived(until="operations")
def graph_work(trace: Trace) -> GraphWork:
    """The captured operators of the kernels of CUDA graphs.

    Empty without a capture.
    """
    work = gpu.work(trace)
    owner = np.full(len(work), -1, np.int32)
    rows: list[int] = []
    kinds: list[int] = []
    calls: list[Call] = []
    works: list[Work] = []
    reasons: list[str] = []
    first_kind: dict[int, int] = {}  # by identity of the calls, which all sections of a trace share
    joined: dict[int, tuple[Int64s, list[int]]] = {}  # by identity of the section
    known: dict[bytes, _Section | str] = {}
    sections = []
    if any(map(_GRAPH.match, trace.strings)):  # the captures in the trace given beside it, and in this one
        capture = trace.context.attached(GraphCapture)
        sections = [*(_captures(capture.trace, alone=True) if capture else ()), *_captures(trace, alone=False)]
    for launch, places, in_order in _launches_by_node(trace) if sections else ():
        key = trace.events.name[work.row[places]].tobytes() + bytes([in_order])
        if key not in known:
            known[key] = _fitting(trace, places, in_order, sections)
        section = known[key]
        if isinstance(section, str):
            reasons.append(section)
            continue
        reasons += [section.lack] * bool(section.lack)
        if id(section) not in joined:
            if id(section.calls) not in first_kind:
                first_kind[id(section.calls)] = len(calls)
                calls += section.calls
                works += section.works
            operators, which = np.unique(section.operator, return_inverse=True)
            at = np.where(section.operator >= 0, which - int(operators[0] < 0), -1)
            section_kinds = section.kind[operators[operators >= 0]] + first_kind[id(section.calls)]
            joined[id(section)] = at, section_kinds.tolist()
        at, of_section = joined[id(section)]
        place = np.where(at >= 0, len(rows) + at, -1)
        owner[places] = np.where(work.type[places] == KernelType.COMPUTATION, place, -1)
        rows += [launch] * len(of_section)
        kinds += of_section
    return GraphWork(
        np.array(rows, np.int64), np.array(kinds, np.int32), tuple(calls), tuple(works), owner, tuple(reasons)
    )


def graph_launches(trace: Trace) -> Iterator[tuple[int, WorkIndexes]]:
    """Each launch of a graph, and the places of its kernels in order of their start."""
    work, events = gpu.work(trace), trace.events
    is_graph = matching(trace, _GRAPH)
    places = work.where((work.launch != NO_INDEX) & (events.category[work.row] == Category.KERNEL))
    places = places[is_graph[events.name[work.launch[places]]]]
    places = places[np.lexsort((work.ts[places], work.launch[places]))]
    launch = work.launch[places]
    starts = np.flatnonzero(np.diff(launch, prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(places)]):
        yield int(launch[start]), places[start:stop]


def _launches_by_node(trace: Trace) -> Iterator[tuple[int, WorkIndexes, bool]]:
    """Each launch of a graph, the places of its kernels, and whether they are in the order of the graph's nodes: by
    their ids, or because one stream ran them.
    """
    work, launches = gpu.work(trace), list(graph_launches(trace))
    node = np.full(len(work), -1, np.int64)  # the id of the graph's node of each piece of work, -1 where unknown
    if launches:
        every = np.sort(np.concatenate([places for _, places in launches]))
        arg = Arg("graph node id", (Category.KERNEL,))
        node[every] = args_of_rows(trace, work.row[every], [arg])[arg.name].column.at(work.row[every], -1)
    for launch, places in launches:
        ids = node[places]
        if (ids >= 0).all() and len(distinct(ids)) == len(ids):
            yield launch, places[np.argsort(ids)], True
        else:
            yield launch, places, len(distinct(work.stream_of(places))) == 1


def _captures(trace: Trace, *, alone: bool) -> Iterator[_Section]:
    """The captures in a trace: its launches without work, between the begin and the end of each capture.

    If a trace holds only a capture (``alone``), the calls that begin and end it need not be recorded.
    """
    events = trace.events
    rows = events.slices_of(*LAUNCHES)
    names = events.name[rows]
    launches, begins, ends = (rows[matching(trace, pattern)[names]] for pattern in (_KERNEL, _BEGIN, _END))
    launches = launches[~is_among(launches, distinct(gpu.work(trace).launch))]
    begin, end = np.sort(events.ts[begins]), np.sort(events.ts[ends])
    ts = events.ts[launches]
    if len(begin) and len(begin) == len(end):
        bounds = list(zip(np.searchsorted(ts, begin).tolist(), np.searchsorted(ts, end).tolist(), strict=True))
    else:
        bounds = [(0, len(launches))] if alone else []
    if not len(launches) or not bounds:
        return
    place, kind, calls, works = counted(trace)
    operator = np.full(len(launches), -1, np.int64)  # of those that count, the one around each launch
    if len(place):
        at = host.stacks(trace).place_of[launches]
        operator[:] = np.where(at >= 0, np.append(host.enclosing(trace, place), -1)[at], -1)
    kernels: tuple[str, ...] = ()  # the names of the launches' kernels, which ROCm records; empty if any is missing
    if all(name.startswith("hip") for name in {*trace.names_of(launches)}):
        names_of_kernels = [args.get("kernel") for args in trace.args_of(launches)]
        kernels = tuple(name for name in names_of_kernels if isinstance(name, str))
        kernels = kernels if len(kernels) == len(names_of_kernels) else ()
    for first, last in bounds:
        if first < last:
            yield _Section(operator[first:last], kernels[first:last], kind, calls, works)


def _fitting(trace: Trace, places: WorkIndexes, in_order: bool, sections: Sequence[_Section]) -> _Section | str:
    """The capture that fits these kernels of a graph, or the reason why none does. ``in_order``: their order is that of
    the nodes.
    """
    names = tuple(trace.names_of(gpu.work(trace).row[places]))
    same = [section for section in sections if len(section.operator) == len(places)]
    if not same:
        cut = [part for section in sections if (part := _cut(section, names))] if in_order else []
        return _agreed(cut) if cut else f"no capture has {len(places)} kernels"
    equal = [section for section in same if section.names == names]
    if equal and in_order:
        return _agreed(equal)
    equal = [section for section in same if section.names and sorted(section.names) == sorted(names)]
    if equal:
        return _agreed([_by_name(section, names) for section in equal])
    same = [section for section in same if not section.names]
    if not same:
        return "the kernels of the capture have other names"
    if not in_order:
        return "the kernels run on several streams, without names in the capture and without node ids"
    likely = [section for section in same if _is_likely(trace, places, section)]
    return _agreed(likely) if likely else "the capture's operators are of other work than the kernels' names say"


def _cut(section: _Section, names: tuple[str, ...]) -> _Section | None:
    """The part of a section with exactly these names at its begin or end, if it is half of it or more: the recording
    lacks the other kernels. Operators that have some of those are left out.
    """
    count, whole = len(names), len(section.names)
    if not whole <= 2 * count < 2 * whole:
        return None
    for first in (0, whole - count):
        inside = slice(first, first + count)
        if section.names[inside] == names:
            lost = np.delete(section.operator, inside)
            operator = np.where(np.isin(section.operator[inside], lost), -1, section.operator[inside])
            return replace(section, operator=operator, names=names)
    return None


def _by_name(section: _Section, names: Sequence[str]) -> _Section:
    """The section in the order of kernels of these names, whose order is not that of the nodes. Operators are left out
    where others that are not alike launched kernels of the same name.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(section.names))}
    captured, ran = (np.array([numbers[name] for name in texts], np.int64) for texts in (section.names, names))
    alike: dict[tuple[object, ...] | None, int] = {}
    like = np.array([alike.setdefault(section.call(at), len(alike)) for at in section.operator.tolist()], np.int64)
    by_name = np.argsort(captured, kind="stable")
    first = np.flatnonzero(np.diff(captured[by_name], prepend=-1))
    same = np.minimum.reduceat(like[by_name], first) == np.maximum.reduceat(like[by_name], first)
    unclear = section.operator[~same[captured]]
    left_out = np.isin(section.operator, unclear[unclear >= 0])
    operator = np.empty(len(names), np.int64)
    operator[np.argsort(ran, kind="stable")] = np.where(left_out, -1, section.operator)[by_name]
    if not left_out.any():
        return replace(section, operator=operator, names=tuple(names))
    why = "the order of several streams is not known, and operators that differ launched kernels of one name"
    lack = f"{left_out.sum()} of {len(names)} kernels are not joined: {why}"
    return replace(section, operator=operator, names=tuple(names), lack=lack)


def _agreed(sections: Sequence[_Section]) -> _Section | str:
    first, *others = sections
    content = first.content() if others else None
    if all(section.content() == content for section in others):
        return first
    return "several captures fit, and differ in their operators"


def _is_likely(trace: Trace, places: WorkIndexes, section: _Section) -> bool:
    """Whether each matrix product has a kernel that may be a product by its name, and no other operator has one that
    surely is.
    """
    families = gpu.families(trace)
    names = np.array(families.names)[families.family[places]]
    for operator in distinct(section.operator[section.operator >= 0]).tolist():
        kinds = set(names[section.operator == operator].tolist())
        products = kinds & set(gpu.MATRIX_FAMILIES)
        work = section.works[section.kind[operator]]
        is_product = work.is_product or work.attends
        if not (products or gpu.UNKNOWN_FAMILY in kinds) if is_product else products:
            return False
    return True
