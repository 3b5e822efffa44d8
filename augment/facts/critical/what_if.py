"""How much shorter would a step be without the events of one name, or a recording if chosen time were not spent?

The answer comes from the graph: edges are shortened, and the longest path is computed again. Other paths may become
critical then, so the answer is often less than the name's time on the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment import arrays
from augment.core import Trace, derived
from augment.facts import gpu, host, waits
from augment.facts.critical.critical_graph import ROOT, CriticalGraph, bind, critical_graph, latest, saved, walk
from augment.facts.critical.handovers import launching_tracks, main_track
from augment.facts.critical.longest_path import (
    BoundBy,
    critical_path,
    kinds_of_host,
    latest_of_nodes,
    node_slack,
    windows,
)
from augment.facts.names import KernelType
from augment.kernels.native import native

# How much shorter would a recording be if chosen time were not spent: on a thread, by GPU work, or in waits?
#
# Here any time can be chosen, and the result covers the whole recording. So a gain in one step may help the next.
# Delays keep their length.


_GOING_ON = (
    waits.DependencyKind.THREAD,
    waits.DependencyKind.OPEN,
)  #: from a moment of a thread to its next, or the end
_HANDED_NS = 1_000_000  #: a thread that goes on later than that once another hands work to it waited for more than that
_REPLAYS = 4  #: of a recording that comes again and again
FOREVER_NS = 1 << 50  #: more than any recording lasts: an edge shortened by it decides nothing


class Cut(Struct, frozen=True):
    """Edges of the graph and the time by which each is shortened: int64 columns. An edge may occur more than once."""

    edge: arrays.Int64s
    ns: arrays.Int64s

    @staticmethod
    def nothing() -> Cut:
        """No edge."""
        return Cut(np.empty(0, np.int64), np.empty(0, np.int64))


def joined(cuts: Sequence[Cut]) -> Cut:
    """All edges of ``cuts``. If several name an edge, the greatest time counts."""
    edge = np.concatenate([np.empty(0, np.int64), *(cut.edge for cut in cuts)])
    ns = np.concatenate([np.empty(0, np.int64), *(cut.ns for cut in cuts)])
    edges, which = arrays.numbered(edge)
    most = np.zeros(len(edges), np.int64)
    np.maximum.at(most, which, ns)
    return Cut(edges, most)


def without_host_time(trace: Trace, track: arrays.Int32s, start: arrays.Int64s, end: arrays.Int64s) -> Cut:
    """The cut that makes threads take no time in the intervals ``[start, end)`` (int64 ns) of each ``track``, except
    that they still wait for GPU work there."""
    graph = critical_graph(trace)
    parts = []
    lanes = _lane_edges(trace)
    for lane, chosen in arrays.each(track, len(trace.tracks)):
        edges = lanes.get(lane)
        if edges is None:
            continue
        spans = arrays.union(start[chosen], end[chosen])
        moments = np.stack((spans.start, spans.end), axis=1).ravel()
        inside = np.tile(np.array([True, False]), len(spans.start))
        overlap = arrays.held_between(moments, inside, graph.ts[graph.source[edges]], graph.ts[graph.target[edges]])
        ns = np.minimum(overlap, graph.weight[edges])
        parts.append(Cut(edges[ns > 0], ns[ns > 0]))
    return joined(parts)


def without_work(trace: Trace, places: arrays.WorkIndexes, ns: arrays.Int64s) -> Cut:
    """The cut that makes GPU work at ``places`` of ``gpu_work`` take ``ns`` (int64, of each) less."""
    graph = critical_graph(trace)
    less = np.zeros(len(gpu.work(trace)), np.int64)
    less[places] = ns
    edges = np.flatnonzero(graph.self_ns > 0)
    less = less[graph.source[edges] - graph.first_work]
    edges, less = edges[less > 0], less[less > 0]
    return Cut(edges, np.minimum(less, graph.self_ns[edges]))


def taken_work_ns(trace: Trace, cut: Cut) -> int:
    """How much less GPU work there would be, ns."""
    return int(taken_of_work(trace, cut).sum())


def taken_of_work(trace: Trace, cut: Cut) -> arrays.Int64s:
    """How much less each piece of GPU work would take, ns: what a cut takes from all edges out of it. Waits for it are
    one of them."""
    graph = critical_graph(trace)
    taken = np.zeros(len(graph.self_ns), np.int64)
    np.maximum.at(taken, cut.edge, cut.ns)
    edges = np.flatnonzero(graph.self_ns > 0)
    least = np.full(len(gpu.work(trace)), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, graph.source[edges] - graph.first_work, np.minimum(taken[edges], graph.self_ns[edges]))
    return np.where(least < np.iinfo(np.int64).max, least, 0)


def fused(trace: Trace, places: arrays.WorkIndexes, ns: arrays.Int64s) -> Cut:
    """The cut that makes GPU work at ``places`` take ``ns`` (int64) less, as if it ran in fewer kernels: the delays
    between such kernels on a stream become shorter in proportion. Longer gaps have another cause, and stay.
    """
    graph, work = critical_graph(trace), gpu.work(trace)
    ratio = np.zeros(len(work) + 1)
    ratio[places] = ns / np.maximum(work.end[places] - work.ts[places], 1)
    chosen = np.zeros(len(work) + 1, np.bool_)
    chosen[places] = True
    edges = np.flatnonzero(
        (graph.kind == waits.DependencyKind.STREAM) & (graph.weight - graph.self_ns < waits.KERNEL_DELAY_NS)
    )
    for side in (graph.source, graph.target):
        edges = edges[chosen[side[edges] - graph.first_work]]
    source = graph.source[edges] - graph.first_work
    shorter = np.minimum((graph.weight[edges] * np.minimum(ratio[source], 1)).astype(np.int64), graph.weight[edges])
    return joined([without_work(trace, places, ns), Cut(edges, shorter)])


def without_waits(trace: Trace, calls: arrays.EventRows) -> Cut:
    """The cut that lets ``calls`` (int64 rows) return without waiting for GPU work."""
    graph = critical_graph(trace)
    edges = np.flatnonzero(graph.kind == waits.DependencyKind.SYNC)
    edges = edges[arrays.is_among(graph.to_row[edges], arrays.distinct(calls))]
    return Cut(edges, np.full(len(edges), FOREVER_NS, np.int64))


def saved_ns(trace: Trace, cut: Cut, *, of_work: bool = False) -> int:
    """How much shorter the recording would be, or ``of_work`` how much earlier its last GPU work ends: ns."""
    if not len(cut.edge):
        return 0
    graph = critical_graph(trace)
    return max(_gain(graph, cut, _ending(trace) if of_work else np.flatnonzero(graph.target == len(graph) - 1)), 0)


def _ending(trace: Trace) -> arrays.Int64s:
    """The edges from the last work of each stream to the recording's end."""
    graph = critical_graph(trace)
    return np.flatnonzero((graph.target == len(graph) - 1) & (graph.source >= graph.first_work))


def host_saved_ns(trace: Trace, cut: Cut, until: int) -> int:
    """How much earlier the main thread would be where it is at ``until`` (ns), ns; never below 0. It does not wait for
    room in queues: those are full of work of before the recording, which would take less time, too."""
    full = np.flatnonzero(critical_graph(trace).kind == waits.DependencyKind.FULL_QUEUE)
    room = Cut(full, np.full(len(full), FOREVER_NS, np.int64))
    return max(_gain(critical_graph(trace), joined([cut, room]), _going_on(trace, until)), 0)


def busy_host_ns(trace: Trace, spans: arrays.Intervals, waiting: arrays.Intervals) -> arrays.Int64s:
    """What the host takes in each of ``spans``, ns, however fast the devices are: the time in which a thread that
    launches does more than wait (for a device, for room in a full queue, for another such thread), none of it in the
    spans ``waiting``."""
    graph, lanes, nothing = critical_graph(trace), _lane_edges(trace), np.empty(0, np.int64)
    edges = np.concatenate([nothing, *(lanes.get(track, nothing) for track in launching_tracks(trace))])
    handed = np.flatnonzero((graph.kind == waits.DependencyKind.HANDOVER) & (graph.weight <= _HANDED_NS))
    handed = handed[graph.ts[graph.source[handed]] + graph.weight[handed] == graph.ts[graph.target[handed]]]
    edges = np.append(edges, handed)
    edges = edges[graph.weight[edges] > 0]  # of a wait that did wait, the weight is 0
    busy = arrays.union(graph.ts[graph.source[edges]], graph.ts[graph.target[edges]])
    _, which, parts = arrays.clip(arrays.subtract(busy, waiting), spans)
    return arrays.sums(which, parts.end - parts.start, len(spans.start))


def _going_on(trace: Trace, until: int) -> arrays.Int64s:
    """The edges by which the main thread goes on from its last moment before ``until``."""
    graph = critical_graph(trace)
    nodes = np.flatnonzero((graph.lane == main_track(trace)) & (graph.ts <= until))
    return np.flatnonzero(arrays.is_any(graph.kind, _GOING_ON) & arrays.is_any(graph.source, nodes[-1:].tolist()))


def lasting_ns(trace: Trace, cut: Cut, host: tuple[int, int], since: int) -> int:
    """How long the recording would be each time if it came again and again, ns: with ``cut``, or an empty one.

    A host that is faster than the devices is further ahead each time, until they never wait for it. So the recording is
    replayed with work that begins later by what the host has gained, until it gains no more. ``host``: when it began
    the first step and left the last, ns, as it may wait for the devices behind that. ``since`` earlier work was done:
    the devices may begin then.
    """
    graph, work = critical_graph(trace), gpu.work(trace)
    going_on = _going_on(trace, host[1])
    ending = _ending(trace)
    first = graph.first_work + np.array([stream.start for stream in work.streams])
    begins = np.flatnonzero(arrays.is_any(graph.kind, (waits.DependencyKind.LAUNCH, waits.DependencyKind.OPEN)))
    begins = begins[np.isin(graph.target[begins], first)]
    head = max(min(graph.ts[first].tolist(), default=since) - since, 0)  # in which devices idle until the first launch
    whole = int((graph.ts[graph.source[ending]] + graph.weight[ending]).max(initial=since)) - since
    ahead, length = 0, whole
    for _ in range(_REPLAYS):
        later = Cut(np.append(cut.edge, begins), np.append(cut.ns, np.full(len(begins), -max(ahead - head, 0))))
        of_host = host[1] - host[0] - _gain(graph, later, going_on)
        of_devices = whole - ahead - _gain(graph, later, ending)
        length = min(length, max(of_host, of_devices))
        if of_devices <= of_host:
            break
        ahead += of_devices - of_host
    return length


class Decided(Struct, frozen=True):
    """What decides how long a recording takes: time along its critical path, ns."""

    host: int = 0  #: on threads, from one to another, and from launches to the begin of their work
    computing: int = 0
    communication: int = 0
    copies: int = 0
    gaps: int = 0  #: between work on a stream
    other: int = 0  #: waits for other streams, and what is unknown

    @property
    def ns(self) -> int:
        """All of it."""
        return self.host + self.computing + self.communication + self.copies + self.gaps + self.other


_ON_HOST = (
    waits.DependencyKind.THREAD,
    waits.DependencyKind.HANDOVER,
    waits.DependencyKind.LAUNCH,
    waits.DependencyKind.FULL_QUEUE,
)


def decided(trace: Trace, cut: Cut, start: int, end: int) -> tuple[Decided, Decided]:
    """What is left with ``cut`` of that which decides now how long the part ``[start, end)`` of the recording (ns)
    takes, and what would decide it with ``cut``. Where that is more, other work decides in place of what was cut.

    The part is that of the recorded times: edges that reach into it count whole.
    """
    graph, work = critical_graph(trace), gpu.work(trace)
    weight = graph.weight.copy()
    np.subtract.at(weight, cut.edge, cut.ns)
    arrival = weight + _earliest(graph, weight)[graph.source]
    binding = bind(graph.source, graph.target, arrival, len(graph))[2]
    del arrival

    def time_of(binding: arrays.Int32s) -> Decided:
        path = walk(binding, graph.source, len(graph) - 1)
        path = path[(graph.ts[graph.target[path]] > start) & (graph.ts[graph.source[path]] < end)]
        of_work = np.flatnonzero(graph.source[path] >= graph.first_work)
        delay, kind, edge = np.maximum(weight[path], 0), graph.kind[path], path[of_work]
        running = np.clip(graph.self_ns[edge] - (graph.weight[edge] - weight[edge]), 0, delay[of_work])
        delay[of_work] -= running
        by_type = arrays.sums(work.type[graph.source[edge] - graph.first_work], running, len(KernelType))
        computing, communication, copies = (int(by_type[kind]) for kind in KernelType)
        held, gaps = (
            int(delay[arrays.is_any(kind, kinds)].sum()) for kinds in (_ON_HOST, (waits.DependencyKind.STREAM,))
        )
        return Decided(held, computing, communication, copies, gaps, int(delay.sum()) - held - gaps)

    return time_of(graph.binding), time_of(binding)


def _earliest(graph: CriticalGraph, weight: arrays.Int64s) -> arrays.Int64s:
    """The earliest time of each node if edges weigh so much, int64 ns: less its latest in the graph backwards, of which
    the recording's start is the last."""
    head, following, _ = bind(graph.target, graph.source, weight, len(graph))
    backwards = np.ascontiguousarray(graph.order[::-1])
    return -latest(backwards, head, following, graph.target, weight, -int(graph.ts[ROOT]), last=ROOT)


def earlier_ns(trace: Trace, cut: Cut) -> arrays.Int64s:
    """By how much earlier each piece of GPU work would begin, int64 ns."""
    graph = critical_graph(trace)
    weight = graph.weight.copy()
    np.subtract.at(weight, cut.edge, cut.ns)
    work = slice(graph.first_work, graph.first_work + len(gpu.work(trace)))
    earlier: arrays.Int64s = np.maximum(graph.ts[work] - _earliest(graph, weight)[work], 0)
    return earlier


def _gain(graph: CriticalGraph, cut: Cut, leaving: arrays.Int64s) -> int:
    """By how much earlier the last of the edges ``leaving`` ends, ns."""
    ends = graph.ts[graph.source[leaving]] + graph.weight[leaving]
    jobs = np.array([[0, len(graph), 0, len(leaving), 0, len(cut.edge)]], np.int64)
    columns = (graph.order, graph.head, graph.following, graph.source, graph.weight, graph.ts)
    return int(saved(*columns, np.full(len(leaving), ends.max(initial=0)), leaving, cut.edge, cut.ns, jobs)[0])


@derived(until="diagnosis")
def _lane_edges(trace: Trace) -> dict[int, arrays.Int64s]:
    """The edges along each thread, in the order of time."""
    graph: CriticalGraph = critical_graph(trace)
    along = np.flatnonzero(graph.kind == waits.DependencyKind.THREAD)
    lane = graph.lane[graph.source[along]]
    return {track: along[places] for track, places in arrays.each(lane, len(trace.tracks))}


class NamedTimes(Struct, frozen=True):
    """Equal-length columns, with a row for each name and kind of time in a window. The order is window, then most time
    on the path, then name.

    ``window``: int64, a place in ``steps``, or 0 without steps. ``name``: int32, into ``Trace.strings``. ``bound_by``:
    uint8. ``count``: int64, slices on the path. ``ns``: int64, time on the path. ``total_ns``: int64, time on the path
    or not. ``slack_ns``: int64, the least slack off the path; -1 if all slices are on it. ``saved_ns``: int64.
    """

    window: arrays.Int64s
    name: arrays.Int32s
    bound_by: arrays.Bytes
    count: arrays.Int64s
    ns: arrays.Int64s
    total_ns: arrays.Int64s
    slack_ns: arrays.Int64s
    saved_ns: arrays.Int64s


def longest_names(trace: Trace, name_count: int) -> NamedTimes:
    """The names with the most time on the critical path of each step, and the time saved without them."""
    names = critical_path(trace).names
    window, name, kind = (column.astype(np.int64) for column in (names.window, names.name, names.bound_by))
    codes, ns, count = (window * len(trace.strings) + name) * len(BoundBy) + kind, names.ns, names.count
    # the alphabetical rank of each name, independent of the order of ``Trace.strings``
    used, which = np.unique(name, return_inverse=True)
    alphabetical = np.empty(len(used), np.int64)
    texts = [trace.strings[code] for code in used.tolist()]
    alphabetical[sorted(range(len(used)), key=texts.__getitem__)] = np.arange(len(used))
    order = np.lexsort((kind, alphabetical[which], -ns, window))
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


def _size(trace: Trace) -> int:
    """The number of codes per window."""
    return len(BoundBy) * len(trace.strings)


def _without(trace: Trace, codes: arrays.Int64s) -> tuple[arrays.Int64s, arrays.Int64s, arrays.Int64s]:
    """For ascending ``codes``: total time, least slack off the path (-1: none), and the time saved without them."""
    total, least, key, edge, dur = _sums_and_cuts(trace, codes)
    order, bounds = arrays.grouped(key, len(codes)), arrays.group_bounds(key, len(codes))
    edge, dur = edge[order].astype(np.int64), dur[order]
    del key, order  # frees memory for what follows
    # the time that each window gains if its edges, at places ``bounds[i]`` to ``bounds[i + 1]``, take ``dur`` less
    window = codes // _size(trace)
    graph, (start, end) = critical_graph(trace), windows(trace)
    moments = graph.ts[graph.order]
    first, stop = np.searchsorted(moments, start), np.searchsorted(moments, end)
    over = np.empty(len(graph), np.int32)  # for each node, the number of windows that are over by then
    windows_over = np.arange(len(end) + 1, dtype=np.int32)
    over[graph.order] = np.repeat(windows_over, np.diff(stop, prepend=0, append=len(graph)))
    del moments
    leaving, into = _leaving(trace, over, len(end), edge, np.repeat(window, np.diff(bounds)))
    del over
    by_window = np.argsort(into, kind="stable")
    leaving = leaving[by_window]
    due = latest_of_nodes(trace)[graph.target[leaving]]
    left = np.searchsorted(into[by_window], np.arange(len(end) + 1))
    jobs = np.stack([first[window], stop[window], left[window], left[window + 1], bounds[:-1], bounds[1:]], axis=1)
    columns = (graph.order, graph.head, graph.following, graph.source, graph.weight, graph.ts)
    gained = saved(*columns, due, leaving, edge, dur, jobs.astype(np.int64))
    return total, np.where(least == np.iinfo(np.int64).max, -1, least), gained


def _sums_and_cuts(trace: Trace, codes: arrays.Int64s) -> tuple[npt.NDArray[Any], ...]:
    """The results of :func:`_on_threads`, of GPU work, too."""
    graph = critical_graph(trace)
    names = np.zeros(len(trace.strings), np.bool_)
    names[codes // len(BoundBy) % max(len(trace.strings), 1)] = True
    total, least, *of_threads = _on_threads(trace, codes, names)
    cuts = [of_threads]
    work, none = gpu.work(trace), np.full(1, -1, np.int64)
    # edges during which the source's work runs, then whole pieces of work: their duration and slack
    edges = np.flatnonzero(graph.self_ns > 0)
    edges = edges[names.take(trace.events.name[work.row[graph.source[edges] - graph.first_work]])]
    sources, begun = graph.source[edges].astype(np.intp) - graph.first_work, graph.ts[graph.source[edges]]
    places = np.flatnonzero(names.take(trace.events.name[work.row]))
    until = np.maximum(work.end[places], work.ts[places])  # work that ends before it starts has no duration
    for place, start, end, edge, slack in (
        (sources, begun, begun + graph.self_ns[edges], edges, none),
        (places, work.ts[places], until, none, node_slack(trace)[graph.first_work + places]),
    ):
        whose, code, dur = _split(trace, place, start, end)
        key = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
        asked = np.flatnonzero(codes[key] == code) if len(codes) else key[:0]
        key, dur, whose = key[asked], dur[asked], whose[asked]
        edge, slack = (column[whose] if column is not none else np.full(len(whose), -1) for column in (edge, slack))
        has_slack = slack >= 0
        total += arrays.sums(key[has_slack], dur[has_slack], len(codes))
        np.minimum.at(least, key[slack > 0], slack[slack > 0])
        shorter = np.flatnonzero((edge >= 0) & (graph.weight[edge] > 0))
        cuts.append([key[shorter], edge[shorter], dur[shorter]])
    return total, least, *(np.concatenate(column) for column in zip(*cuts, strict=True))


def _on_threads(trace: Trace, codes: arrays.Int64s, names: arrays.Bools) -> list[npt.NDArray[Any]]:
    """Of the pieces of innermost slices on the graph's threads: total time and least slack above 0 of each of ``codes``
    (the largest int64 if there is none); and for each edge that they shorten the place in ``codes``, the edge, and ns.
    """
    graph, segments, (start, end) = critical_graph(trace), host.host_segments(trace), windows(trace)
    along = np.flatnonzero(graph.kind == waits.DependencyKind.THREAD)
    edge_from = np.full(len(graph), -1, np.int32)
    edge_from[graph.source[along]] = along
    window, key = np.divmod(codes, _size(trace))
    most = len(segments.ts) + len(along) + 2 * len(start)
    while True:
        total, least = np.zeros(len(codes), np.int64), np.full(len(codes), np.iinfo(np.int64).max, np.int64)
        cuts = arrays.reserved(most, np.int32), arrays.reserved(most, np.int32), arrays.reserved(most, np.int64)
        made = native("critical.without")(
            *(graph.lane, graph.first_work, graph.ts, edge_from, graph.target, graph.weight, node_slack(trace)),
            *(segments.ts, segments.row, segments.bounds, kinds_of_host(trace), trace.events.name[:]),
            *(names.view(np.uint8), start, end, np.searchsorted(window, np.arange(len(start) + 1))),
            *(key.astype(np.int32), np.full(_size(trace), -1, np.int32), total, least, *cuts),
        )
        if made <= most:  # windows cut slices of many threads
            return [total, least, *(column[:made].copy() for column in cuts)]
        most = made


def _leaving(
    trace: Trace, over: arrays.Int32s, window_count: int, cut_edge: arrays.Int64s, cut_window: arrays.Int64s
) -> tuple[arrays.Int64s, arrays.Int64s]:
    """The edges that lead out of or past each window and may limit its gain, as pairs of edge and window.

    An edge that began before a window, and is not shortened there, keeps its slack. Of the edges that pass a window in
    this way, only the one with the least slack is returned.
    """
    graph = critical_graph(trace)
    edges = np.flatnonzero(over[graph.source] < over[graph.target])
    first, stop = (over[node[edges]].astype(np.int64) for node in (graph.source, graph.target))
    place_of = np.full(len(graph.kind), -1, np.int64)
    place_of[edges] = np.arange(len(edges))
    place = place_of[cut_edge]
    inside = np.flatnonzero(place >= 0)
    inside = inside[(first[place[inside]] < cut_window[inside]) & (cut_window[inside] < stop[place[inside]])]
    (whose, into), _ = arrays.combinations(
        np.concatenate((np.arange(len(edges)), place[inside])), np.concatenate((first, cut_window[inside]))
    )
    until = stop[whose]  # the edge passes the windows from the next one up to this one
    again = np.flatnonzero(whose[1:] == whose[:-1])
    until[again] = into[again + 1]
    room = latest_of_nodes(trace)[graph.target[edges]] - graph.ts[graph.source[edges]] - graph.weight[edges]
    order = np.argsort(room[whose], kind="stable")
    least = arrays.least_over(into[order] + 1, until[order], np.arange(len(order)), window_count)
    passed = np.flatnonzero(least < len(order))
    return np.concatenate((edges[whose], edges[whose[order[least[passed]]]])), np.concatenate((into, passed))


def _split(
    trace: Trace, place: arrays.Places, start: arrays.Int64s, end: arrays.Int64s
) -> tuple[arrays.Places, arrays.Int64s, arrays.Int64s]:
    """The parts of GPU work at ``place`` in ``[start, end)`` between the ends of windows: the index in ``place`` of
    each part, its code, and its length, ns."""
    cuts = arrays.distinct(np.concatenate(windows(trace)))
    whose, after = arrays.expand(arrays.where_in(cuts, start, side="right"), arrays.where_in(cuts, end) + 1)
    padded = np.concatenate((start[:1], cuts, end[:1]))  # the interval's own start and end overrule the cuts
    ts, until = start[whose], end[whose]
    np.maximum(ts, padded[after], out=ts, where=after > 0)
    np.minimum(until, padded[after + 1], out=until, where=after < len(cuts))
    del after, padded  # frees memory for what follows
    work = gpu.work(trace)
    first, last = windows(trace)
    window = arrays.where_in(first, ts, side="right") - 1
    window = np.where((window >= 0) & (ts < last[window]), window, -1)  # for none
    bound_by = work.type[place[whose]] + np.uint8(BoundBy.KERNEL_COMPUTATION)
    name = trace.events.name[work.row[place[whose]]]
    return whose, (window * len(trace.strings) + name) * len(BoundBy) + bound_by, until - ts
