"""The critical path's graph with a node for the start and the end of every event, as in HTA.

:func:`critical_graph` has nodes only where something depends on them. This graph adds, between those nodes, the starts
and ends of each thread's slices in order, and the ends of GPU work. The added nodes leave the length of every path
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Bytes, EventRow, EventRows, Int64s, Places, distinct, each, is_among
from augment.core import LAUNCHES, Category, Trace
from augment.facts.critical.critical_graph import CriticalGraph, critical_graph
from augment.facts.critical.longest_path import BoundBy, delay_kinds, host_kinds
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import call_stacks, thread_bounds
from augment.facts.host.occupancy import host_segments
from augment.facts.waits.dependencies import DependencyKind

DECIDES, WAY, OTHER = range(
    3
)  #: ranks of edges: the edge that decided when its target came; along a thread or GPU work; any other


class EventGraph(Struct, frozen=True):
    """Nodes and edges, in columns. Every edge leads to a node that is not earlier; no two edges join the same nodes.

    Nodes: ``ts`` (int64 ns); ``row`` (int64, into the event table): the event of which the node is the start
    (``is_start``) or the end. ``row`` is -1 for the recording's start (the first node) and end (the last), and for
    slices that are neither operator nor call (Python functions, annotations).

    Edges: ``source``, ``target`` (int64 nodes); ``weight`` (int64 ns), as in :class:`CriticalGraph`, so the longest
    path is as long as the recording; ``bound_by`` (uint8, a :class:`BoundBy`); ``event`` (int64, into the event table;
    -1 none): the slice that the time belongs to, for a delay the slice that is late. If several paths to a node are
    equally long, the critical path takes the node's first edge.
    """

    ts: Int64s
    row: EventRows
    is_start: Bools
    source: Int64s
    target: Int64s
    weight: Int64s
    bound_by: Bytes
    event: Int64s


class _Chain(Struct, frozen=True):
    """The events of a thread: the slice (``row``, int64) that it entered or left at each ``ts``, ascending.

    Their nodes begin at ``first_node``. ``lane`` holds the thread's nodes in the :class:`CriticalGraph`.
    """

    track: int
    ts: Int64s
    row: EventRows
    is_start: Bools
    first_node: int
    lane: slice


_Edges = tuple[Int64s, Int64s, Int64s, Bytes, Int64s, Bytes]  # source, target, weight, bound_by, event, rank


def event_graph(trace: Trace) -> EventGraph:
    """The event graph of the whole recording."""
    graph, work, events = critical_graph(trace), gpu_work(trace), trace.events
    chains = list(_chains(trace, graph))
    first_work = 1 + sum(len(chain.ts) for chain in chains)
    nodes = first_work + 2 * len(work) + 1
    ts, row, is_start = np.empty(nodes, np.int64), np.full(nodes, NO_INDEX, EventRow), np.zeros(nodes, np.bool_)
    ts[0], ts[-1] = graph.ts[0], graph.ts[-1]
    has_node = np.zeros(256, np.bool_)
    has_node[[Category.CPU_OP, *LAUNCHES]] = True
    for chain in chains:
        nodes_of = slice(chain.first_node, chain.first_node + len(chain.ts))
        ts[nodes_of], is_start[nodes_of] = chain.ts, chain.is_start
        row[nodes_of] = np.where((chain.row >= 0) & has_node[events.category[chain.row]], chain.row, NO_INDEX)
    start = first_work + 2 * np.arange(len(work))
    run = np.maximum(work.end - work.ts, 0)
    ts[start], ts[start + 1] = work.ts, work.ts + run
    row[start], row[start + 1], is_start[start] = work.row, work.row, True
    runs = (start, start + 1, run, np.uint8(BoundBy.KERNEL_COMPUTATION) + work.type, work.row, _all(WAY, len(run)))
    parts = [_across(trace, graph, chains, start, run), *(_along(trace, graph, chain) for chain in chains), runs]
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    # in order of rank; of several edges between the same nodes, the deciding one stays, else the heaviest
    source, target, weight, *_, rank = columns
    order = np.lexsort((-weight, rank, target, source))
    pair = source[order] * nodes + target[order]
    kept = np.sort(order[np.flatnonzero(np.diff(pair, prepend=-1))])
    kept = kept[np.argsort(rank[kept], kind="stable")]
    return EventGraph(ts, row, is_start, *(column[kept] for column in columns[:-1]))


def _all(value: int, count: int) -> Bytes:
    return np.full(count, value, np.uint8)


def _chains(trace: Trace, graph: CriticalGraph) -> Iterator[_Chain]:
    """The chain of each thread in the graph."""
    stacks = call_stacks(trace)
    lanes = graph.lane[1 : graph.first_work]
    bounds = thread_bounds(trace)
    node = 1
    for track, places in each(lanes, len(trace.tracks)):
        lane = slice(1 + int(places[0]), 2 + int(places[-1]))
        ts, row, is_start = _boundaries(trace, stacks.row[slice(*bounds[track : track + 2])], graph.ts[lane])
        yield _Chain(track, ts, row, is_start, node, lane)
        node += len(ts)


def _boundaries(trace: Trace, row: EventRows, moments: Int64s) -> tuple[Int64s, EventRows, Bools]:
    """Starts and ends of a thread's slices ``row`` (from outer to inner), and the ``moments`` without any of them.

    At one moment the thread first leaves the slices that end there, inner before outer. Then it enters the slices that
    begin there, outer before inner, and leaves slices without duration at once.
    """
    start, dur = trace.events.ts[row], np.maximum(trace.events.dur[row], 0)
    place, empty = np.arange(len(row)), dur == 0
    other = distinct(moments)
    other = other[~is_among(other, np.sort(np.concatenate((start, start + dur))))]
    ts = np.concatenate((start, start + dur, other))
    entered = np.concatenate((np.ones(len(row), np.bool_), empty, np.ones(len(other), np.bool_)))
    tie = np.concatenate((2 * place, np.where(empty, 2 * place + 1, -place), np.zeros(len(other), np.intp)))
    order = np.lexsort((tie, entered, ts))
    whose = np.concatenate((row, row, np.full(len(other), NO_INDEX, EventRow)))
    return ts[order], whose[order], order < len(row)


def _along(trace: Trace, graph: CriticalGraph, chain: _Chain) -> _Edges:
    """The edges along a thread. Their time belongs to the innermost slice; where the thread only waits, it is 0."""
    segments = host_segments(trace)
    part = segments.of(chain.track)
    ts, dur = chain.ts[:-1], np.diff(chain.ts)
    innermost = segments.row[part.start + np.searchsorted(segments.ts[part], ts, side="right") - 1]
    at_once = np.where(chain.is_start[:-1], chain.row[:-1], np.where(chain.is_start[1:], NO_INDEX, chain.row[1:]))
    event = np.where(dur > 0, innermost, at_once)
    way = np.flatnonzero(graph.kind == DependencyKind.THREAD)
    waits = np.zeros(len(graph), np.bool_)
    waits[graph.source[way]] = graph.weight[way] == 0
    between = chain.lane.start + np.searchsorted(graph.ts[chain.lane], ts, side="right") - 1
    weight = np.where(waits[between], 0, dur)
    source = chain.first_node + np.arange(len(ts))
    return source, source + 1, weight, host_kinds(trace, event), event, _all(WAY, len(ts))


def _across(trace: Trace, graph: CriticalGraph, chains: list[_Chain], start: Places, run: Int64s) -> _Edges:
    """The edges of the graph's dependencies. They lead from the end of work (its start, if it still runs), or from the
    last node of a moment, to the first node of a moment."""
    first, last = np.zeros(len(graph), np.int64), np.zeros(len(graph), np.int64)
    for chain in chains:
        moments = graph.ts[chain.lane]
        first[chain.lane] = chain.first_node + np.searchsorted(chain.ts, moments, side="left")
        last[chain.lane] = chain.first_node + np.searchsorted(chain.ts, moments, side="right") - 1
    works = slice(graph.first_work, graph.first_work + len(start))
    first[works] = last[works] = start
    first[-1] = last[-1] = start[-1] + 2 if len(start) else 1 + sum(len(chain.ts) for chain in chains)
    edges = np.flatnonzero(graph.kind != DependencyKind.THREAD)
    place = graph.source[edges] - graph.first_work
    of_work = (place >= 0) & (place < len(start))
    place[~of_work] = 0
    ended = of_work & (graph.self_ns[edges] == run[place]) if len(run) else of_work
    running = of_work & ~ended & (graph.self_ns[edges] > 0)
    weight = graph.weight[edges] - np.where(ended, graph.self_ns[edges], 0)
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
