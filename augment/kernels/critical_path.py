"""The loops of ``derived/critical/critical_path.py`` and ``what_if.py``: along the path, and along all threads.

Both loops only move forward in time, so a cursor per thread and per window is enough.
"""

from __future__ import annotations

from augment.kernels.memory import Column, as_int, compiled

KIND_COUNT = 12  #: kinds of time: see ``critical_path.BoundBy``
CPU_OPERATOR, DATA_LOADING, OUTSIDE, IDLE = 0, 2, 3, 11
THREAD, STREAM = 0, 3  #: kinds of edges: see ``dependencies.Kind``
#: places in the state of :func:`follow`: the number of slices and the last of them; the window; of the stretch
#: outside operators its rows and the row with most time; the number of names in this window and in all earlier ones
(MADE, LAST_KIND, LAST_SOURCE, LAST_WINDOW, WINDOW, ROWS, MOST_NS, MOST_ROW, NAMES, NAMED_WINDOW, NAMED) = range(11)
STATES = 11


@compiled
def outermost(row: Column, track: Column, ts: Column, dur: Column, is_wanted: Column, opened: Column,
              result: Column) -> int:  # fmt: skip
    """Fill ``result`` for each place of the call stacks: the row of the outermost wanted slice around it; the row of
    the place itself if only that is wanted; -1 if neither is.

    ``opened`` holds the wanted slices of a thread that end later than all slices before them. The first of these that
    ends late enough is the outermost. ``is_wanted`` is indexed by row.
    """
    depth, thread = 0, -1
    for place in range(len(row)):
        slice_ = row[place]
        if track[slice_] != thread:
            thread, depth = track[slice_], 0
        end = ts[slice_] + dur[slice_]
        needed = max(end, ts[slice_] + 1)
        low, high, step = depth, depth, 1
        while low > 0 and ts[opened[low - 1]] + dur[opened[low - 1]] >= needed:  # repeats only where slices cross
            high = low - 1
            low = max(high - step, 0)
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if ts[opened[middle]] + dur[opened[middle]] >= needed:
                high = middle
            else:
                low = middle + 1
        result[place] = opened[low] if low < depth else (slice_ if is_wanted[slice_] else -1)
        if is_wanted[slice_] and (depth == 0 or end > ts[opened[depth - 1]] + dur[opened[depth - 1]]):
            opened[depth] = slice_
            depth += 1
    return 0


@compiled
def close(state: Column, row: Column, spent: Column, rows: Column) -> int:
    """Close a stretch outside operators: give it the row with most of its time."""
    if state[MADE] > 0 and state[LAST_KIND] == OUTSIDE:
        row[state[MADE] - 1] = state[MOST_ROW]
    for i in range(state[ROWS]):
        spent[rows[i]] = 0
    state[ROWS] = 0
    state[MOST_NS] = 0
    return 0


@compiled
def stay_outside(state: Column, row: int, slot: int, ns: int, spent: Column, rows: Column) -> int:
    """Add time to a row of the stretch outside operators. If several rows have most time, the lowest counts."""
    if spent[slot] == 0:
        rows[state[ROWS]] = slot
        state[ROWS] += 1
    spent[slot] += ns
    if spent[slot] > state[MOST_NS] or (spent[slot] == state[MOST_NS] and row < state[MOST_ROW]):
        state[MOST_NS] = spent[slot]
        state[MOST_ROW] = row
    return 0


@compiled
def flush(state: Column, codes: Column, code_ns: Column, code_count: Column, named_window: Column, named_code: Column,
          named_ns: Column, named_count: Column) -> int:  # fmt: skip
    """Write the sums of the window's names and clear them."""
    for i in range(state[NAMES]):
        code, place = codes[i], state[NAMED] + i
        named_window[place] = state[NAMED_WINDOW]
        named_code[place] = code
        named_ns[place] = code_ns[code]
        named_count[place] = code_count[code]
        code_ns[code] = 0
        code_count[code] = 0
    state[NAMED] += state[NAMES]
    state[NAMES] = 0
    return 0


@compiled
def add(
    at: int, end: int, kind: int, event: int, state: Column, place_of: Column, outer: Column, window_ts: Column,
    window_end: Column, is_early: Column, is_named: Column, name: Column, is_counted: Column, time: Column,
    early_time: Column, slice_ts: Column, slice_kind: Column, slice_row: Column, spent: Column, rows: Column,
    codes: Column, code_ns: Column, code_count: Column, named_window: Column, named_code: Column, named_ns: Column,
    named_count: Column,
) -> int:  # fmt: skip
    """Add a piece of the path, with its ``kind`` and row, to slices and sums. The piece is cut at the bounds of
    windows.
    """
    source = event
    if kind == OUTSIDE:
        source = -1
    elif (kind == CPU_OPERATOR or kind == DATA_LOADING) and outer[place_of[event]] >= 0:
        source = outer[place_of[event]]
    while at < end:
        while state[WINDOW] < len(window_ts) and window_end[state[WINDOW]] <= at:
            state[WINDOW] += 1
        window, until = -1, end
        if state[WINDOW] < len(window_ts):
            if window_ts[state[WINDOW]] <= at:
                window, until = state[WINDOW], min(end, window_end[state[WINDOW]])
            else:
                until = min(end, window_ts[state[WINDOW]])
        if (
            state[MADE] == 0 or source != state[LAST_SOURCE] or kind != state[LAST_KIND]
            or window != state[LAST_WINDOW]
        ):  # fmt: skip
            close(state, slice_row, spent, rows)
            slice_ts[state[MADE]] = at
            slice_kind[state[MADE]] = kind
            slice_row[state[MADE]] = source
            state[MADE] += 1
            state[LAST_SOURCE] = source
            state[LAST_KIND] = kind
            state[LAST_WINDOW] = window
        ns = until - at
        if kind == OUTSIDE:
            stay_outside(state, event, place_of[event] + 1 if event >= 0 else 0, ns, spent, rows)
        if window >= 0:
            time[window * KIND_COUNT + kind] += ns
            if event >= 0 and is_early[event]:
                early_time[window * KIND_COUNT + kind] += ns
            if event >= 0 and is_named[kind]:
                if state[NAMED_WINDOW] != window:
                    flush(state, codes, code_ns, code_count, named_window, named_code, named_ns, named_count)
                    state[NAMED_WINDOW] = window
                code = name[event] * KIND_COUNT + kind
                if code_ns[code] == 0:
                    codes[state[NAMES]] = code
                    state[NAMES] += 1
                code_ns[code] += ns
                if not is_counted[event]:
                    is_counted[event] = 1
                    code_count[code] += 1
        at = until
    return 0


@compiled
def follow(
    edges: Column, kind: Column, source: Column, target: Column, self_ns: Column, to_row: Column, ts: Column,
    lane: Column, first_work: int, segment_ts: Column, segment_row: Column, bounds: Column, cursor: Column,
    host_kind: Column, work_kind: Column, work_row: Column, delay: Column, longest_gap: int, state: Column,
    place_of: Column, outer: Column, window_ts: Column, window_end: Column, is_early: Column, is_named: Column,
    name: Column, is_counted: Column, time: Column, early_time: Column, slice_ts: Column, slice_kind: Column,
    slice_row: Column, spent: Column, rows: Column, codes: Column, code_ns: Column, code_count: Column,
    named_window: Column, named_code: Column, named_ns: Column, named_count: Column,
) -> int:  # fmt: skip
    """Add all pieces of the path's ``edges``, in order of time, to slices and sums: see :func:`add`.

    An edge along a thread is divided into the thread's innermost slices. Any other edge is divided into the time in
    which its source's work runs, and a delay.
    """
    for i in range(len(edges)):
        edge = edges[i]
        node = source[edge]
        at, end = ts[node], ts[target[edge]]
        along = kind[edge] == THREAD
        track = lane[node] if along else 0
        j, last = (cursor[track], bounds[track + 1] - 1) if along else (0, 0)
        while j < last and segment_ts[j + 1] <= at:
            j += 1
        runs = not along and self_ns[edge] > 0
        while at < end:
            if along:
                event = as_int(segment_row[j])
                until = min(segment_ts[j + 1], end) if j < last else end
                what = as_int(host_kind[event]) if event >= 0 else OUTSIDE
                if j < last and segment_ts[j + 1] == until:
                    j += 1
            elif runs:
                event, what = as_int(work_row[node - first_work]), as_int(work_kind[node - first_work])
                until = at + self_ns[edge]
                runs = False
            else:
                event, what, until = as_int(to_row[edge]), as_int(delay[kind[edge]]), end
                if kind[edge] == STREAM and end - at > longest_gap:
                    what = IDLE
            add(at, until, what, event, state, place_of, outer, window_ts, window_end, is_early, is_named, name,
                is_counted, time, early_time, slice_ts, slice_kind, slice_row, spent, rows, codes, code_ns,
                code_count, named_window, named_code, named_ns, named_count)  # fmt: skip
            at = until
        if along:
            cursor[track] = j
    close(state, slice_row, spent, rows)
    flush(state, codes, code_ns, code_count, named_window, named_code, named_ns, named_count)
    return as_int(state[MADE])


@compiled
def enter(window: int, entered: int, bounds: Column, keys: Column, slot: Column) -> int:
    """Make ``slot`` hold the keys of ``window`` instead of those of the window ``entered`` before; -1 stands for no
    window.
    """
    if entered >= 0:
        for i in range(bounds[entered], bounds[entered + 1]):
            slot[keys[i]] = -1
    if window >= 0:
        for i in range(bounds[window], bounds[window + 1]):
            slot[keys[i]] = i
    return window


@compiled
def without(
    lane: Column, first_work: int, ts: Column, edge_from: Column, target: Column, weight: Column, slack: Column,
    segment_ts: Column, segment_row: Column, bounds: Column, host_kind: Column, name: Column, is_asked: Column,
    window_ts: Column, window_end: Column, key_bounds: Column, keys: Column, slot: Column, total: Column,
    least: Column, cut_key: Column, cut_edge: Column, cut_ns: Column,
) -> int:  # fmt: skip
    """Sum the pieces of threads whose name and kind are requested. ``keys`` holds names × kinds for each window.

    Pieces are cut at the graph's nodes and at the bounds of windows. ``total`` and ``least`` (the least value above 0)
    are indexed by key. The reduction of each edge is written to ``cut_key``, ``cut_edge`` and ``cut_ns``.

    Returns:
        The number of reductions, including those for which there was no room.
    """
    made, node, entered = 0, 1, -1
    while node < first_work:
        track = lane[node]
        last = node
        while last + 1 < first_work and lane[last + 1] == track:
            last += 1
        window = 0
        for j in range(bounds[track], bounds[track + 1] - 1):
            row, at = segment_row[j], segment_ts[j]
            while row >= 0 and is_asked[name[row]] and at < segment_ts[j + 1]:
                while node < last and ts[node + 1] <= at:
                    node += 1
                while window < len(window_ts) and window_end[window] <= at:
                    window += 1
                until = min(segment_ts[j + 1], ts[node + 1]) if node < last else segment_ts[j + 1]
                key, edge = -1, edge_from[node]
                if window < len(window_ts):
                    if window_ts[window] <= at:
                        until = min(until, window_end[window])
                        if entered != window:
                            entered = enter(window, entered, key_bounds, keys, slot)
                        key = slot[name[row] * KIND_COUNT + as_int(host_kind[row])]
                    else:
                        until = min(until, window_ts[window])
                if key >= 0 and edge >= 0:
                    ns, to = until - at, target[edge]
                    room = slack[to] + ts[to] - ts[node] - weight[edge]
                    if room >= 0:
                        total[key] += ns
                    if room > 0:
                        least[key] = min(least[key], room)
                    if weight[edge] > 0:
                        if 0 < made <= len(cut_key) and cut_key[made - 1] == key and cut_edge[made - 1] == edge:
                            cut_ns[made - 1] += ns
                        else:
                            if made < len(cut_key):
                                cut_key[made] = key
                                cut_edge[made] = edge
                                cut_ns[made] = ns
                            made += 1
                at = until
        node = last + 1
    enter(-1, entered, key_bounds, keys, slot)
    return made
