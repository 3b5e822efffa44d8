"""The loops of the critical path (``facts/critical``): over the graph, along the path, along all threads; and of a
job's replay (``job/path/replay.py``). In columns of nodes, edges or rows, -1 stands for none.

The loops along the path and along threads only move forward in time, so a cursor per thread and per window is enough.
"""

from __future__ import annotations

from typing import NamedTuple

from augment.kernels.memory import Column, as_int, compiled, record

KIND_COUNT = 12  #: kinds of time: see ``critical_path.BoundBy``
CPU_OPERATOR, DATA_LOADING, OUTSIDE, IDLE = 0, 2, 3, 11
THREAD, STREAM = 0, 3  #: kinds of edges: see ``dependencies.Kind``


@record
class PathProgress:
    """How far :func:`follow` is."""

    made: int  #: slices
    last_kind: int  #: of the last slice
    last_source: int
    last_window: int
    window: int  #: the current window, or the next
    rows: int  #: the stretch outside operators: its rows, and the row with most time
    most_ns: int
    most_row: int
    names: int  #: of the names that have time in the window ``named_window``
    named_window: int
    named: int  #: of the names of all earlier windows


class Windows(NamedTuple):
    """When windows begin and end."""

    ts: Column
    end: Column


class PathSlices(NamedTuple):
    """The slices of the path. ``spent`` and ``rows`` are room for a stretch outside operators."""

    ts: Column
    kind: Column
    row: Column
    place_of: Column
    outer: Column
    spent: Column
    rows: Column


class NameSums(NamedTuple):
    """Time and number of events by name and kind: room for those of a window, and the result for all."""

    name: Column
    is_named: Column
    counted_in: Column
    codes: Column
    code_ns: Column
    code_count: Column
    window: Column
    code: Column
    ns: Column
    events: Column


class Times(NamedTuple):
    """Time by window and kind, and the part of it that is early."""

    time: Column
    early_time: Column
    is_early: Column


class Output(NamedTuple):
    """What :func:`follow` fills, and the windows at whose bounds pieces are cut."""

    windows: Windows
    slices: PathSlices
    times: Times
    names: NameSums


class Segments(NamedTuple):
    """The innermost slices of threads, one after the other, and the kind of time of each row."""

    ts: Column
    row: Column
    host_kind: Column


@compiled
def close(state: PathProgress, slices: PathSlices) -> None:
    """Close a stretch outside operators: give it the row with most of its time."""
    if state.made > 0 and state.last_kind == OUTSIDE:
        slices.row[state.made - 1] = state.most_row
    for i in range(state.rows):
        slices.spent[slices.rows[i]] = 0
    state.rows = 0
    state.most_ns = 0


@compiled
def stay_outside(state: PathProgress, row: int, ns: int, slices: PathSlices) -> None:
    """Add time to a row of the stretch outside operators. If several rows have most time, the lowest counts."""
    slot = slices.place_of[row] + 1 if row >= 0 else 0
    if slices.spent[slot] == 0:
        slices.rows[state.rows] = slot
        state.rows += 1
    slices.spent[slot] += ns
    spent = slices.spent[slot]
    if spent > state.most_ns or (spent == state.most_ns and row < state.most_row):
        state.most_ns = spent
        state.most_row = row


@compiled
def flush(state: PathProgress, names: NameSums) -> None:
    """Write the sums of the window's names and clear them."""
    for i in range(state.names):
        code, place = names.codes[i], state.named + i
        names.window[place] = state.named_window
        names.code[place] = code
        names.ns[place] = names.code_ns[code]
        names.events[place] = names.code_count[code]
        names.code_ns[code] = 0
        names.code_count[code] = 0
    state.named += state.names
    state.names = 0


@compiled
def add_slice(at: int, kind: int, source: int, window: int, state: PathProgress, slices: PathSlices) -> None:
    """Begin a slice at ``at``, if kind, source or window is another than before."""
    if state.made > 0 and source == state.last_source and kind == state.last_kind and window == state.last_window:
        return
    close(state, slices)
    slices.ts[state.made] = at
    slices.kind[state.made] = kind
    slices.row[state.made] = source
    state.made += 1
    state.last_source = source
    state.last_kind = kind
    state.last_window = window


@compiled
def add_name(ns: int, kind: int, event: int, window: int, state: PathProgress, names: NameSums) -> None:
    """Add time to the sum of an event's name."""
    if state.named_window != window:
        flush(state, names)
        state.named_window = window
    code = names.name[event] * KIND_COUNT + kind
    if names.code_ns[code] == 0:
        names.codes[state.names] = code
        state.names += 1
    names.code_ns[code] += ns
    mark = window % 255 + 1  # a slice may go on in the next window
    if names.counted_in[event] != mark:
        names.counted_in[event] = mark
        names.code_count[code] += 1


@compiled
def next_window(at: int, end: int, window: int, windows: Windows) -> tuple[int, bool, int]:
    """The first window from ``window`` on that ends after ``at``, whether it has begun, and until when that holds, at
    most ``end``.
    """
    while window < len(windows.ts) and windows.end[window] <= at:
        window += 1
    if window == len(windows.ts):
        return window, False, end
    begun = windows.ts[window] <= at
    return window, begun, min(end, windows.end[window] if begun else windows.ts[window])


@compiled
def add(at: int, end: int, kind: int, event: int, state: PathProgress, output: Output) -> None:
    """Add a piece of the path, with its ``kind`` and row, to slices and sums. The piece is cut at the bounds of
    windows.
    """
    slices, times = output.slices, output.times
    source = -1 if kind == OUTSIDE else event
    if (kind == CPU_OPERATOR or kind == DATA_LOADING) and slices.outer[slices.place_of[event]] >= 0:
        source = as_int(slices.outer[slices.place_of[event]])
    while at < end:
        state.window, begun, until = next_window(at, end, state.window, output.windows)
        window = state.window if begun else -1
        add_slice(at, kind, source, window, state, slices)
        ns = until - at
        if kind == OUTSIDE:
            stay_outside(state, event, ns, slices)
        if window >= 0:
            times.time[window * KIND_COUNT + kind] += ns
            if event >= 0 and times.is_early[event]:
                times.early_time[window * KIND_COUNT + kind] += ns
            if event >= 0 and output.names.is_named[kind]:
                add_name(ns, kind, event, window, state, output.names)
        at = until


@compiled
def add_along(at: int, end: int, j: int, last: int, segments: Segments, state: PathProgress, output: Output) -> int:
    """Add the innermost slices of a thread, from ``j`` to ``last``. Returns the slice at ``end``."""
    while j < last and segments.ts[j + 1] <= at:
        j += 1
    while at < end:
        event, until = as_int(segments.row[j]), end
        if j < last and segments.ts[j + 1] <= end:
            j += 1
            until = segments.ts[j]
        add(at, until, as_int(segments.host_kind[event]) if event >= 0 else OUTSIDE, event, state, output)
        at = until
    return j


@compiled
def follow(
    edges: Column, kind: Column, source: Column, target: Column, self_ns: Column, to_row: Column, ts: Column,
    lane: Column, first_work: int, segment_ts: Column, segment_row: Column, bounds: Column, cursor: Column,
    host_kind: Column, work_kind: Column, work_row: Column, delay: Column, longest_gap: int, state: PathProgress,
    place_of: Column, outer: Column, window_ts: Column, window_end: Column, is_early: Column, is_named: Column,
    name: Column, counted_in: Column, time: Column, early_time: Column, slice_ts: Column, slice_kind: Column,
    slice_row: Column, spent: Column, rows: Column, codes: Column, code_ns: Column, code_count: Column,
    named_window: Column, named_code: Column, named_ns: Column, named_count: Column,
) -> int:  # fmt: skip
    """Add all pieces of the path's ``edges``, in order of time, to slices and sums: see :func:`add`.

    An edge along a thread is divided into the thread's innermost slices. Any other edge is divided into the time in
    which its source's work runs, and a delay.
    """
    segments, windows = Segments(segment_ts, segment_row, host_kind), Windows(window_ts, window_end)
    slices = PathSlices(slice_ts, slice_kind, slice_row, place_of, outer, spent, rows)
    names = NameSums(name, is_named, counted_in, codes, code_ns, code_count, named_window, named_code, named_ns,
                  named_count)  # fmt: skip
    output = Output(windows, slices, Times(time, early_time, is_early), names)
    for i in range(len(edges)):
        edge = edges[i]
        node = source[edge]
        at, end = ts[node], ts[target[edge]]
        if kind[edge] == THREAD:
            track = lane[node]
            cursor[track] = add_along(at, end, cursor[track], bounds[track + 1] - 1, segments, state, output)
            continue
        if self_ns[edge] > 0 and at < end:
            work, until = node - first_work, at + self_ns[edge]
            add(at, until, as_int(work_kind[work]), as_int(work_row[work]), state, output)
            at = until
        if at < end:
            idle = kind[edge] == STREAM and end - at > longest_gap
            add(at, end, IDLE if idle else as_int(delay[kind[edge]]), as_int(to_row[edge]), state, output)
    close(state, slices)
    flush(state, names)
    return state.made


class Keys(NamedTuple):
    """The requested names × kinds of each window: those of window i are ``keys[bounds[i]:bounds[i + 1]]``. ``slot`` is
    room for the place of each in one window.
    """

    bounds: Column
    keys: Column
    slot: Column


class GraphColumns(NamedTuple):
    """Times of nodes, the edge from each along its thread (-1: none); targets and weights of edges; slack of nodes."""

    ts: Column
    edge_from: Column
    target: Column
    weight: Column
    slack: Column


class Sums(NamedTuple):
    """By key the total time and the least value of slack above 0; the reductions of edges."""

    total: Column
    least: Column
    cut_key: Column
    cut_edge: Column
    cut_ns: Column


@compiled
def enter(window: int, entered: int, keys: Keys) -> int:
    """Make ``slot`` hold the keys of ``window`` instead of those of the window ``entered`` before; -1 stands for no
    window.
    """
    if window == entered:
        return window
    if entered >= 0:
        for i in range(keys.bounds[entered], keys.bounds[entered + 1]):
            keys.slot[keys.keys[i]] = -1
    if window >= 0:
        for i in range(keys.bounds[window], keys.bounds[window + 1]):
            keys.slot[keys.keys[i]] = i
    return window


@compiled
def add_reduction(key: int, node: int, ns: int, made: int, graph: GraphColumns, sums: Sums) -> int:
    """Add a piece after ``node``. Returns the number of reductions."""
    edge = graph.edge_from[node]
    if key < 0 or edge < 0:
        return made
    to = graph.target[edge]
    room = graph.slack[to] + graph.ts[to] - graph.ts[node] - graph.weight[edge]
    if room >= 0:
        sums.total[key] += ns
    if room > 0:
        sums.least[key] = min(sums.least[key], room)
    if graph.weight[edge] <= 0:
        return made
    last, places = made - 1, len(sums.cut_key)
    if 0 <= last < places and sums.cut_key[last] == key and sums.cut_edge[last] == edge:
        sums.cut_ns[last] += ns
        return made
    if made < places:
        sums.cut_key[made] = key
        sums.cut_edge[made] = edge
        sums.cut_ns[made] = ns
    return made + 1


@compiled
def without(
    lane: Column, first_work: int, ts: Column, edge_from: Column, target: Column, weight: Column, slack: Column,
    segment_ts: Column, segment_row: Column, bounds: Column, host_kind: Column, name: Column, is_asked: Column,
    window_ts: Column, window_end: Column, key_bounds: Column, keys: Column, slot: Column, total: Column,
    least: Column, cut_key: Column, cut_edge: Column, cut_ns: Column,
) -> int:  # fmt: skip
    """Sum the pieces of threads whose name and kind are requested: see :class:`Keys` and :class:`Sums`.

    Pieces are cut at the graph's nodes and at the bounds of windows.

    Returns:
        The number of reductions, including those for which there was no room.
    """
    windows, keyed = Windows(window_ts, window_end), Keys(key_bounds, keys, slot)
    graph, sums = GraphColumns(ts, edge_from, target, weight, slack), Sums(total, least, cut_key, cut_edge, cut_ns)
    made, node, entered = 0, 1, -1
    while node < first_work:
        track, last, window = lane[node], node, 0
        while last + 1 < first_work and lane[last + 1] == track:
            last += 1
        for j in range(bounds[track], bounds[track + 1] - 1):
            row, at, end = segment_row[j], segment_ts[j], segment_ts[j + 1]
            while row >= 0 and is_asked[name[row]] and at < end:
                while node < last and ts[node + 1] <= at:
                    node += 1
                until, key = min(end, ts[node + 1]) if node < last else end, -1
                window, begun, until = next_window(at, until, window, windows)
                if begun:
                    entered = enter(window, entered, keyed)
                    key = as_int(slot[name[row] * KIND_COUNT + as_int(host_kind[row])])
                made = add_reduction(key, node, until - at, made, graph, sums)
                at = until
        node = last + 1
    enter(-1, entered, keyed)
    return made


NEVER = 1 << 62  #: later than the end of any recording


@compiled
def bind(target: Column, arrival: Column, head: Column, following: Column, binding: Column) -> int:
    """Fill ``head``, ``following`` and ``binding``: see :func:`augment.facts.critical.critical_graph.bind`."""
    for edge in range(len(target)):
        to = target[edge]
        following[edge] = head[to]
        head[to] = edge
        if binding[to] < 0 or arrival[edge] > arrival[binding[to]]:
            binding[to] = edge
    return 0


@compiled
def walk(binding: Column, source: Column, path: Column, node: int) -> int:
    """Write the binding edges on the way from ``node`` back to the start into ``path``. Returns their number."""
    count = 0
    edge = binding[node]
    while edge >= 0:
        path[count] = edge
        count += 1
        edge = binding[source[edge]]
    return count


@compiled
def latest(order: Column, head: Column, following: Column, source: Column, weight: Column, late: Column) -> int:
    """Fill ``late``. On entry it holds the time of the last node, and :data:`NEVER` for all others."""
    for place in range(len(order)):
        node = order[len(order) - 1 - place]
        edge = head[node] if late[node] < NEVER else -1
        while edge >= 0:
            late[source[edge]] = min(late[source[edge]], late[node] - weight[edge])
            edge = following[edge]
    return 0


@compiled
def saved(
    order: Column, head: Column, following: Column, source: Column, weight: Column, ts: Column, due: Column,
    leaving: Column, cut_edge: Column, cut_ns: Column, jobs: Column, early: Column, cut: Column, result: Column,
) -> int:  # fmt: skip
    """Fill ``result`` for jobs of six numbers each: see :func:`augment.facts.critical.critical_graph.saved`.

    Before and after the call, ``early`` equals ``ts`` and ``cut`` is 0.
    """
    for job in range(len(result)):
        first, stop, leave, left, low, high = 6 * job, 6 * job + 1, 6 * job + 2, 6 * job + 3, 6 * job + 4, 6 * job + 5
        for place in range(jobs[low], jobs[high]):
            cut[cut_edge[place]] += cut_ns[place]
        for place in range(jobs[first], jobs[stop]):
            node = order[place]
            edge = head[node]
            if edge >= 0:
                early[node] = early[source[edge]] + weight[edge] - cut[edge]
            while edge >= 0:
                early[node] = max(early[node], early[source[edge]] + weight[edge] - cut[edge])
                edge = following[edge]
        gain, has_gain = 0, False
        for place in range(jobs[leave], jobs[left]):
            edge = leaving[place]
            gained = due[place] - early[source[edge]] - weight[edge] + cut[edge]
            gain = min(gain, gained) if has_gain else gained
            has_gain = True
        result[job] = gain
        for place in range(jobs[first], jobs[stop]):
            early[order[place]] = ts[order[place]]
        for place in range(jobs[low], jobs[high]):
            cut[cut_edge[place]] = 0
    return 0


BEFORE = -(1 << 62)


@compiled
def play(
    order: Column, first: Column, anchor: Column, holder: Column, before: Column, base: Column, local: Column,
    overlap: Column, moving: Column, lag: Column, waited: Column, resume: Column, done: Column,
) -> int:  # fmt: skip
    """Fill ``done``, the end of each part of a collective, and ``resume``, the time at which its rank continues its own
    work.

    Other columns: see :class:`augment.job.path.progress.Progress` and :class:`augment.job.path.replay.Replay`.
    """
    for place in range(len(order)):
        instance = order[place]
        arrival = BEFORE
        for row in range(first[instance], first[instance + 1]):
            begin = base[row]
            if anchor[row] >= 0:
                begin = resume[anchor[row]] if anchor[row] == holder[row] else done[anchor[row]]
            begin += local[row]
            if before[row] >= 0:
                begin = max(begin, done[before[row]])
            arrival = max(arrival, begin)
        for row in range(first[instance], first[instance + 1]):
            begin = base[row] if holder[row] < 0 else resume[holder[row]]
            done[row] = arrival + moving[instance] + lag[row]
            resume[row] = begin + overlap[row]
            if waited[instance]:
                resume[row] = max(resume[row], done[row])
    return 0
