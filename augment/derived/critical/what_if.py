"""How much shorter would a recording be if all that has a certain name took no time in one step?

Exactly so much as the graph says: with those times taken out, the longest path through the step is found anew. Other
paths become critical then, so that the answer is often less than the time that the name holds on the critical path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.arrays.intervals import expand, least_over
from augment.arrays.ordering import combinations, distinct, each, sums
from augment.arrays.types import Bools, Bytes, Int32s, Int64s, Places
from augment.derived.critical.critical_graph import critical_graph
from augment.derived.critical.critical_loops import saved
from augment.derived.critical.critical_path import BoundBy, critical_path, host_kinds, latest_of_nodes, node_slack
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.host_segments import host_segments
from augment.derived.steps.steps import steps
from augment.derived.waits.dependencies import Kind
from augment.trace import Trace

NAMED = (
    BoundBy.CPU_OPERATOR,
    BoundBy.RUNTIME_CALL,
    BoundBy.DATA_LOADING,
    BoundBy.OUTSIDE_OPERATORS,
    BoundBy.KERNEL_COMPUTATION,
    BoundBy.KERNEL_COMMUNICATION,
    BoundBy.KERNEL_MEMORY,
)  #: what is someone's work, not a delay


@dataclass(frozen=True, slots=True)
class NamedTimes:
    """One name and kind of time in one window: equal-length columns, ascending window, then most time on the path, then
    name.

    ``window`` int64 (a place in ``steps``, or 0 where there are none), ``name`` int32 (into ``Trace.strings``),
    ``bound_by`` uint8, ``count`` int64 (slices on the path), ``ns`` (on the path), ``total_ns`` (on the path or not),
    ``slack_ns`` (the least of those off the path; -1 where all are on it), ``saved_ns``: int64.
    """

    window: Int64s
    name: Int32s
    bound_by: Bytes
    count: Int64s
    ns: Int64s
    total_ns: Int64s
    slack_ns: Int64s
    saved_ns: Int64s


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What was done under the names in question, on the path or not, cut where windows and edges begin and end.

    ``code`` of window, name and kind; ``dur`` int64 ns; ``edge``, whose weight it is part of (-1: of none, but it
    counts); ``slack`` int64 ns (-1: it has been told with another piece).
    """

    code: Int64s
    dur: Int64s
    edge: Int64s
    slack: Int64s


def windows(trace: Trace) -> tuple[Int64s, Int64s]:
    """Start and end of each step; of the whole recording where there are none; int64 ns."""
    if len(known := steps(trace)):
        return known.ts, np.maximum(known.end, known.ts)
    return critical_graph(trace).ts[[0]], critical_graph(trace).ts[[-1]]


def longest_names(trace: Trace, name_count: int) -> NamedTimes:
    """The names that hold most time on the critical path of each step, and how much shorter it would be without."""
    path = critical_path(trace)
    window = path.step if len(steps(trace)) else np.zeros(len(path), np.int64)
    named = np.flatnonzero(np.isin(path.bound_by, NAMED) & (path.row >= 0) & (window >= 0))
    first = np.empty(len(trace.events), np.int32)
    first[path.row[named[::-1]]] = named[::-1]
    new = first[path.row[named]] == named
    (window, name, kind), which = combinations(window[named], trace.events.name[path.row[named]], path.bound_by[named])
    codes = (window * len(trace.strings) + name) * len(BoundBy) + kind
    ns, count = sums(which, path.dur[named], len(codes)), sums(which, new.astype(np.int64), len(codes))
    order = np.lexsort((kind, _by_name(trace, name), -ns, window))
    window = window[order]
    rank = np.arange(len(order)) - np.searchsorted(window, window, side="left")
    order = order[rank < name_count]
    codes, ns, count = codes[order], ns[order], count[order]
    by_code = np.argsort(codes)
    total, slack, gained = (np.empty_like(codes) for _ in range(3))
    total[by_code], slack[by_code], gained[by_code] = _without(trace, codes[by_code])
    window, key = np.divmod(codes, _size(trace))
    name, kind = np.divmod(key, len(BoundBy))
    return NamedTimes(window, name.astype(np.int32), kind.astype(np.uint8), count, ns, total, slack, gained)


def _by_name(trace: Trace, name: Int64s) -> Int64s:
    """The place of each of ``name`` in the order of the alphabet, whatever the order of ``Trace.strings``."""
    used, which = np.unique(name, return_inverse=True)
    place = np.empty(len(used), np.int64)
    names = [trace.strings[code] for code in used.tolist()]
    place[sorted(range(len(used)), key=names.__getitem__)] = np.arange(len(used))
    found: Int64s = place[which]
    return found


def _size(trace: Trace) -> int:
    """How many codes a window has."""
    return len(BoundBy) * len(trace.strings)


def _code(trace: Trace, window: Int64s, bound_by: Bytes, row: Int64s) -> Int64s:
    """Of window, name and kind."""
    return (window * len(trace.strings) + trace.events.name[row]) * len(BoundBy) + bound_by


def _without(trace: Trace, codes: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Of ascending ``codes``: all time, the least slack off the path (-1 none), and what is gained without."""
    graph = critical_graph(trace)
    names = np.zeros(len(trace.strings), np.bool_)
    names[codes // len(BoundBy) % max(len(trace.strings), 1)] = True
    parts = [_on_host(trace, names), _of_edges(trace, names), _of_work(trace, names)]
    code, dur, edge, slack = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("code", "dur", "edge", "slack")
    )
    which = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
    asked = np.flatnonzero(codes[which] == code) if len(codes) else which[:0]
    which, dur, edge, slack = which[asked], dur[asked], edge[asked], slack[asked]
    told = slack >= 0
    least = np.full(len(codes), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, which[slack > 0], slack[slack > 0])
    cuts = np.flatnonzero((edge >= 0) & (graph.weight[edge] > 0))
    cuts = cuts[np.argsort(which[cuts], kind="stable")]
    bounds = np.searchsorted(which[cuts], np.arange(len(codes) + 1))
    gained = _gained(trace, codes // _size(trace), edge[cuts], dur[cuts], bounds)
    return (
        sums(which[told], dur[told], len(codes)),
        np.where(least == np.iinfo(np.int64).max, -1, least),
        gained,
    )


def _gained(trace: Trace, window: Int64s, edge: Int64s, ns: Int64s, bounds: Int64s) -> Int64s:
    """What each window gains if edges take ``ns`` less: those at the places ``bounds[i]`` to ``bounds[i + 1]``."""
    graph, (start, end) = critical_graph(trace), windows(trace)
    moments = graph.ts[graph.order]
    first, stop = np.searchsorted(moments, start), np.searchsorted(moments, end)
    over = np.empty(len(graph), np.int32)  # of each node, how many windows are over by then
    windows_over = np.arange(len(end) + 1, dtype=np.int32)
    over[graph.order] = np.repeat(windows_over, np.diff(stop, prepend=0, append=len(graph)))
    leaving, into = _leaving(trace, over, len(end), edge, np.repeat(window, np.diff(bounds)))
    by_window = np.argsort(into, kind="stable")
    leaving = leaving[by_window]
    due = latest_of_nodes(trace)[graph.target[leaving]]
    left = np.searchsorted(into[by_window], np.arange(len(end) + 1))
    jobs = np.stack([first[window], stop[window], left[window], left[window + 1], bounds[:-1], bounds[1:]], axis=1)
    return saved(
        graph.order, graph.head, graph.following, graph.source, graph.weight, graph.ts, due, leaving, edge, ns,
        jobs.astype(np.int64),
    )  # fmt: skip


def _leaving(
    trace: Trace, over: Int32s, window_count: int, cut_edge: Int64s, cut_window: Int64s
) -> tuple[Int64s, Int64s]:
    """The edges that lead out of or past each window, as far as they may decide what it gains: edges and windows.

    An edge that began before a window, and of which nothing is cut there, has as much room as ever: of those that pass
    a window so, only the one with the least is given.
    """
    graph = critical_graph(trace)
    edges = np.flatnonzero(over[graph.source] < over[graph.target])
    first, stop = (over[node[edges]].astype(np.int64) for node in (graph.source, graph.target))
    place_of = np.full(len(graph.kind), -1, np.int64)
    place_of[edges] = np.arange(len(edges))
    place = place_of[cut_edge]
    inside = np.flatnonzero(place >= 0)
    inside = inside[(first[place[inside]] < cut_window[inside]) & (cut_window[inside] < stop[place[inside]])]
    (whose, into), _ = combinations(
        np.concatenate((np.arange(len(edges)), place[inside])), np.concatenate((first, cut_window[inside]))
    )
    until = stop[whose]  # it passes all windows from the next one on until then
    again = np.flatnonzero(whose[1:] == whose[:-1])
    until[again] = into[again + 1]
    room = latest_of_nodes(trace)[graph.target[edges]] - graph.ts[graph.source[edges]] - graph.weight[edges]
    order = np.argsort(room[whose], kind="stable")
    least = least_over(into[order] + 1, until[order], np.arange(len(order)), window_count)
    passed = np.flatnonzero(least < len(order))
    return np.concatenate((edges[whose], edges[whose[order[least[passed]]]])), np.concatenate((into, passed))


def _on_host(trace: Trace, names: Bools) -> _Pieces:
    """What the threads of the graph did, cut at their nodes, too."""
    graph, segments, late, (start, end) = critical_graph(trace), host_segments(trace), node_slack(trace), windows(trace)
    along = np.flatnonzero(graph.kind == Kind.THREAD)
    edge_from = np.full(len(graph), -1, np.int64)
    edge_from[graph.source[along]] = along
    on_thread = np.flatnonzero(graph.lane[: graph.first_work] >= 0)
    parts = []
    for track, own in each(graph.lane[on_thread], len(trace.tracks)):
        nodes = on_thread[own]
        held = segments.row[segments.of(track)][:-1]
        own = np.flatnonzero((held >= 0) & names[trace.events.name[held]]) + segments.of(track).start
        cuts = distinct(np.concatenate((graph.ts[nodes], start, end)))
        whose, ts, dur = _split(segments.ts[own], segments.ts[own + 1], cuts)
        row = segments.row[own[whose]].astype(np.int64)
        node = nodes[np.searchsorted(graph.ts[nodes], ts, side="right") - 1]
        edge = edge_from[node]
        room = late[graph.target[edge]] + graph.ts[graph.target[edge]] - graph.ts[node] - graph.weight[edge]
        code = _code(trace, _window(trace, ts), host_kinds(trace, row), row)
        parts.append(_Pieces(code, dur, edge, room))
    return _joined(parts)


def _of_edges(trace: Trace, names: Bools) -> _Pieces:
    """What the work at the start of each edge adds to it."""
    graph, work, (start, end) = critical_graph(trace), gpu_work(trace), windows(trace)
    edges = np.flatnonzero(graph.own > 0)
    place = graph.source[edges] - graph.first_work
    edges = edges[names[trace.events.name[work.row[place]]]]
    begun = graph.ts[graph.source[edges]]
    whose, ts, dur = _split(begun, begun + graph.own[edges], distinct(np.concatenate((start, end))))
    place = graph.source[edges[whose]] - graph.first_work
    code = _code(trace, _window(trace, ts), work.type[place] + np.uint8(BoundBy.KERNEL_COMPUTATION), work.row[place])
    return _Pieces(code, dur, edges[whose], np.full(len(ts), -1, np.int64))


def _of_work(trace: Trace, names: Bools) -> _Pieces:
    """The work itself: how long it took, and its slack."""
    graph, work, (start, end) = critical_graph(trace), gpu_work(trace), windows(trace)
    places = np.flatnonzero(names[trace.events.name[work.row]])
    until = np.maximum(work.end[places], work.ts[places])  # what ends before it starts holds no time
    whose, ts, dur = _split(work.ts[places], until, distinct(np.concatenate((start, end))))
    place = places[whose]
    code = _code(trace, _window(trace, ts), work.type[place] + np.uint8(BoundBy.KERNEL_COMPUTATION), work.row[place])
    return _Pieces(code, dur, np.full(len(ts), -1, np.int64), node_slack(trace)[graph.first_work + place])


def _window(trace: Trace, ts: Int64s) -> Int64s:
    """The window in which each moment lies; -1 none."""
    return steps(trace).at(ts) if len(steps(trace)) else np.zeros(len(ts), np.int64)


def _split(start: Int64s, end: Int64s, cuts: Int64s) -> tuple[Places, Int64s, Int64s]:
    """The parts of ``[start, end)`` between ascending ``cuts``: of which each is a part, its start and its length."""
    whose, after = expand(np.searchsorted(cuts, start, side="right"), np.searchsorted(cuts, end, side="left") + 1)
    padded = np.concatenate((start[:1], cuts, end[:1]))  # the first and last are overruled by the interval's own
    ts = np.where(after == 0, start[whose], np.maximum(padded[after], start[whose]))
    until = np.where(after == len(cuts), end[whose], np.minimum(padded[after + 1], end[whose]))
    return whose, ts, until - ts


def _joined(parts: list[_Pieces]) -> _Pieces:
    empty = np.empty(0, np.int64)
    return _Pieces(*(np.concatenate([empty, *(getattr(one, name) for one in parts)]) for name in _Pieces.__slots__))
