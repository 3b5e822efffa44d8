"""The critical path's graph with a node for the start and the end of every event, as HTA's users know it.

:func:`critical_graph` has nodes only where something depends on them. Between these, a thread went through the starts
and ends of its slices, one after the other; GPU work has an end, too. No path becomes longer or shorter by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import Bools, Bytes, Int64s, Places
from augment.derived.critical.critical_graph import Graph, critical_graph
from augment.derived.critical.critical_path import BoundBy, delay_kinds, host_kinds
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.call_stacks import call_stacks, thread_bounds
from augment.derived.host.host_segments import host_segments
from augment.derived.waits.dependencies import Kind
from augment.trace import LAUNCHES, Category, Trace

NO_ROW = -1
DECIDES, WAY, OTHER = range(3)  #: of edges to one node: the one that decided, the way there, the rest


@dataclass(frozen=True, slots=True)
class EventGraph:
    """Nodes and edges, in columns; every edge leads to a node that is not earlier, and no two join the same nodes.

    Nodes: ``ts`` (int64 ns); ``row`` (int64, into the event table) and ``is_start``: whose start or end it is. -1: the
    recording's start (the first node) or end (the last), or where a slice begins or ends that is neither operator nor
    call (a Python function, an annotation).

    Edges: ``source``, ``target`` (int64 nodes); ``weight`` (int64 ns), as in :class:`Graph`: the longest path is as
    long as the recording; ``bound_by`` (uint8, a :class:`BoundBy`); ``event`` (int64, into the event table; -1 none):
    the slice that the time belongs to, of a delay the one that is late. Where ways to a node are equally long, that of
    its first edge is the critical path's.
    """

    ts: Int64s
    row: Int64s
    is_start: Bools
    source: Int64s
    target: Int64s
    weight: Int64s
    bound_by: Bytes
    event: Int64s


@dataclass(frozen=True, slots=True)
class _Chain:
    """What a thread went through: which slice (``row``, int64) it entered or left at each ``ts``, ascending.

    The nodes are ``first_node`` and following; ``lane`` are the thread's in the graph.
    """

    track: int
    ts: Int64s
    row: Int64s
    is_start: Bools
    first_node: int
    lane: slice


_Edges = tuple[Int64s, Int64s, Int64s, Bytes, Int64s, Bytes]  # source, target, weight, bound_by, event, rank


def event_graph(trace: Trace) -> EventGraph:
    """The graph of the whole recording."""
    graph, work, events = critical_graph(trace), gpu_work(trace), trace.events
    chains = list(_chains(trace, graph))
    first_work = 1 + sum(len(one.ts) for one in chains)
    nodes = first_work + 2 * len(work) + 1
    ts, row, is_start = np.empty(nodes, np.int64), np.full(nodes, NO_ROW, np.int64), np.zeros(nodes, np.bool_)
    ts[0], ts[-1] = graph.ts[0], graph.ts[-1]
    has_node = np.zeros(256, np.bool_)
    has_node[[Category.CPU_OP, *LAUNCHES]] = True
    for one in chains:
        own = slice(one.first_node, one.first_node + len(one.ts))
        ts[own], is_start[own] = one.ts, one.is_start
        row[own] = np.where((one.row >= 0) & has_node[events.category[one.row]], one.row, NO_ROW)
    start = first_work + 2 * np.arange(len(work))
    run = np.maximum(work.end - work.ts, 0)
    ts[start], ts[start + 1] = work.ts, work.ts + run
    row[start], row[start + 1], is_start[start] = work.row, work.row, True
    runs = (start, start + 1, run, np.uint8(BoundBy.KERNEL_COMPUTATION) + work.type, work.row, _all(WAY, len(run)))
    parts = [_across(trace, graph, chains, start, run), *(_along(trace, graph, one) for one in chains), runs]
    return EventGraph(ts, row, is_start, *_distinct(nodes, [np.concatenate(one) for one in zip(*parts, strict=True)]))


def _all(value: int, count: int) -> Bytes:
    return np.full(count, value, np.uint8)


def _distinct(nodes: int, columns: Sequence[Any]) -> list[Any]:
    """The edges, of several between the same nodes the one that decides or weighs most; in the order of their rank."""
    source, target, weight, *_, rank = columns
    order = np.lexsort((-weight, rank, target, source))
    pair = source[order] * nodes + target[order]
    kept = np.sort(order[np.flatnonzero(np.diff(pair, prepend=-1))])
    kept = kept[np.argsort(rank[kept], kind="stable")]
    return [column[kept] for column in columns[:-1]]


def _chains(trace: Trace, graph: Graph) -> Iterator[_Chain]:
    """What each thread that the graph has went through."""
    stacks = call_stacks(trace)
    lanes = graph.lane[1 : graph.first_work]
    bounds = thread_bounds(trace)
    node = 1
    for one, own in each(lanes, len(trace.tracks)):
        lane = slice(1 + int(own[0]), 2 + int(own[-1]))
        ts, row, is_start = _boundaries(trace, stacks.row[slice(*bounds[one : one + 2])], graph.ts[lane])
        yield _Chain(one, ts, row, is_start, node, lane)
        node += len(ts)


def _boundaries(trace: Trace, row: Int64s, moments: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Starts and ends of ``row``, a thread's slices from outer to inner, and those ``moments`` at which there is none.

    At one moment it leaves what ends there, the inner first, then enters what begins there, the outer first; what takes
    no time is left at once.
    """
    start, dur = trace.events.ts[row], np.maximum(trace.events.dur[row], 0)
    place, empty = np.arange(len(row)), dur == 0
    other = np.setdiff1d(moments, np.concatenate((start, start + dur)))
    ts = np.concatenate((start, start + dur, other))
    entered = np.concatenate((np.ones(len(row), np.bool_), empty, np.ones(len(other), np.bool_)))
    tie = np.concatenate((2 * place, np.where(empty, 2 * place + 1, -place), np.zeros(len(other), np.intp)))
    order = np.lexsort((tie, entered, ts))
    whose = np.concatenate((row, row, np.full(len(other), NO_ROW, np.int64)))
    return ts[order], whose[order], order < len(row)


def _along(trace: Trace, graph: Graph, chain: _Chain) -> _Edges:
    """From each node of a thread to the next: it was in its innermost slice; where it only waited, it takes no time."""
    segments = host_segments(trace)
    own = segments.of(chain.track)
    ts, dur = chain.ts[:-1], np.diff(chain.ts)
    innermost = segments.row[own.start + np.searchsorted(segments.ts[own], ts, side="right") - 1]
    at_once = np.where(chain.is_start[:-1], chain.row[:-1], np.where(chain.is_start[1:], NO_ROW, chain.row[1:]))
    event = np.where(dur > 0, innermost, at_once)
    way = np.flatnonzero(graph.kind == Kind.THREAD)
    waits = np.zeros(len(graph), np.bool_)
    waits[graph.source[way]] = graph.weight[way] == 0
    between = chain.lane.start + np.searchsorted(graph.ts[chain.lane], ts, side="right") - 1
    weight = np.where(waits[between], 0, dur)
    source = chain.first_node + np.arange(len(ts))
    return source, source + 1, weight, host_kinds(trace, event), event, _all(WAY, len(ts))


def _across(trace: Trace, graph: Graph, chains: list[_Chain], start: Places, run: Int64s) -> _Edges:
    """The graph's dependencies: from the end of work, unless it had not ended yet, or from the last node of a moment,
    to the first."""
    first, last = np.zeros(len(graph), np.int64), np.zeros(len(graph), np.int64)
    for one in chains:
        first[one.lane] = one.first_node + np.searchsorted(one.ts, graph.ts[one.lane], side="left")
        last[one.lane] = one.first_node + np.searchsorted(one.ts, graph.ts[one.lane], side="right") - 1
    works = slice(graph.first_work, graph.first_work + len(start))
    first[works] = last[works] = start
    first[-1] = last[-1] = start[-1] + 2 if len(start) else 1 + sum(len(one.ts) for one in chains)
    edges = np.flatnonzero(graph.kind != Kind.THREAD)
    place = graph.source[edges] - graph.first_work
    of_work = (place >= 0) & (place < len(start))
    place[~of_work] = 0
    ended = of_work & (graph.own[edges] == run[place]) if len(run) else of_work
    running = of_work & ~ended & (graph.own[edges] > 0)
    weight = graph.weight[edges] - np.where(ended, graph.own[edges], 0)
    kinds, event = delay_kinds(graph.kind[edges], weight), graph.to_row[edges]
    if running.any():
        work = gpu_work(trace)
        kinds[running] = np.uint8(BoundBy.KERNEL_COMPUTATION) + work.type[place[running]]
        event = np.where(running, work.row[place], event)
    rank = _all(OTHER, len(edges))
    decides = np.zeros(len(graph.kind), np.bool_)
    decides[graph.binding[graph.binding >= 0]] = True
    rank[decides[edges]] = DECIDES
    return last[graph.source[edges]] + ended, first[graph.target[edges]], weight, kinds, event.astype(np.int64), rank
