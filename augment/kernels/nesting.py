"""The loops over slices that nest: those of ``facts/host``, of ``readers/pairing.py`` and of
``writers/perfetto/lanes.py``. -1 stands for no slice.
"""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def around(
    end: Column, thread: Column, needed: Column, asker: Column, where: Column, opened: Column, result: Column
) -> int:
    """Fill ``result``: of the first ``where`` slices, the last one on the thread ``asker`` that ends at ``needed`` or
    later.

    A slice that ends no later than one that began after it is never the answer. The remaining slices are kept in
    ``opened``, where ends descend, so a binary search finds the last slice that ends late enough.
    """
    depth, passed = 0, 0
    for i in range(len(result)):
        while passed < where[i]:
            while depth > 0 and (end[opened[depth - 1]] < end[passed] or thread[opened[depth - 1]] != thread[passed]):
                depth -= 1
            opened[depth] = passed
            depth += 1
            passed += 1
        low, high = 0, depth
        while low < high:
            middle = (low + high) // 2
            if end[opened[middle]] >= needed[i]:
                low = middle + 1
            else:
                high = middle
        result[i] = opened[low - 1] if low > 0 and thread[opened[low - 1]] == asker[i] else -1
    return 0


@compiled
def of_parents(parent: Column, index: Column, outermost: int, result: Column) -> int:
    """Fill ``result`` where no slices cross, so that those around a place are its ancestors: the ``index`` of the
    innermost ancestor that has one, which is not -1, or of the ``outermost``; -1: none.
    """
    for i in range(len(parent)):
        outer = parent[i]
        if outer < 0:
            result[i] = -1
        elif outermost:
            result[i] = result[outer] if result[outer] >= 0 else index[outer]
        else:
            result[i] = index[outer] if index[outer] >= 0 else result[outer]
    return 0


@compiled
def of_places(
    row: Column, ts: Column, dur: Column, track: Column, places: Column, outermost: int, opened: Column, ends: Column,
    result: Column,
) -> int:  # fmt: skip
    """Fill ``result`` for every place of the call stacks: which of ``places`` is the innermost other slice around it,
    or the ``outermost``; -1: none.

    A slice that ends no later than one that began after it is never the innermost, and one that ends no later than one
    that began before it is never the outermost. The remaining slices of the thread are kept in ``opened``, and when
    they end in ``ends``, which descend for the innermost and ascend for the outermost.
    """
    depth, passed, thread = 0, 0, -1
    for i in range(len(row)):
        r = row[i]
        if track[r] != thread:
            depth, thread = 0, track[r]
        end = ts[r] + dur[r]
        needed = max(end, ts[r] + 1)
        if outermost:
            low, high, step = depth, depth, 1
            while low > 0 and ends[low - 1] >= needed:  # repeats only where slices cross
                high = low - 1
                low = max(high - step, 0)
                step *= 2
            while low < high:
                middle = (low + high) // 2
                if ends[middle] >= needed:
                    high = middle
                else:
                    low = middle + 1
            result[i] = opened[low] if low < depth else -1
        else:
            while depth > 0 and ends[depth - 1] <= ts[r]:
                depth -= 1
            low, high = 0, depth
            if depth > 0 and ends[depth - 1] >= needed:
                low = depth  # as nearly always
            while low < high:
                middle = (low + high) // 2
                if ends[middle] >= needed:
                    low = middle + 1
                else:
                    high = middle
            result[i] = opened[low - 1] if low > 0 else -1
        if passed < len(places) and places[passed] == i:
            while not outermost and depth > 0 and ends[depth - 1] < end:
                depth -= 1
            if not outermost or depth == 0 or ends[depth - 1] < end:
                opened[depth], ends[depth] = passed, end
                depth += 1
            passed += 1
    return 0


@compiled
def nest(ts: Column, end: Column, thread: Column, parent: Column, depth: Column, stop: Column) -> int:
    """Fill ``parent``, ``depth`` and ``stop`` of slices sorted by thread, then ``ts``, then from outer to inner.
    Returns whether any two of a thread cross.

    The stack is the chain of parents of the previous slice. A slice on it that ends before the current slice cannot
    enclose any later slice, because it would have to enclose the current slice, too. So each slice leaves the stack
    once, and the time is linear.
    """
    crosses = 0
    for i in range(len(ts)):
        stop[i] = len(ts)
        outer = i - 1
        while outer >= 0 and (end[outer] < end[i] or end[outer] <= ts[i] or thread[outer] != thread[i]):
            if end[outer] > ts[i] and thread[outer] == thread[i]:
                crosses = 1
            stop[outer] = i
            outer = parent[outer]
        parent[i] = outer
        depth[i] = 0 if outer < 0 else depth[outer] + 1
    return crosses


@compiled
def divide(ts: Column, end: Column, thread: Column, when: Column, place: Column, stop: Column, opened: Column) -> int:
    """Write the moments at which the innermost slice changes, the place of the new one (-1: none), and the stop of each
    thread. Returns the number of segments.

    Of several changes at one moment the last is kept. ``opened`` is room for the stack.
    """
    made, depth, current = 0, 0, -1
    for i in range(len(ts) + 1):
        owner = thread[i] if i < len(ts) else -1
        start = ts[i] if i < len(ts) else 0
        while depth > 0:
            moment = end[opened[depth - 1]]
            if owner == current and moment > start:
                break
            depth -= 1
            if moment <= when[made - 1]:
                made -= 1
                moment = when[made]
            when[made] = moment
            place[made] = opened[depth - 1] if depth > 0 else -1
            made += 1
        if owner != current:
            if current >= 0:
                stop[current] = made
            current = owner
        elif made > 0 and when[made - 1] == start:
            made -= 1
        if i < len(ts):
            when[made] = start
            place[made] = i
            made += 1
            opened[depth] = i
            depth += 1
    return made


@compiled
def match(
    begin_order: Column, begin_ts: Column, begin_track: Column, end_order: Column, end_ts: Column, end_track: Column,
    before: Column, top: Column, below: Column, end_of: Column,
) -> int:  # fmt: skip
    """Fill ``end_of`` in one pass in order of time. ``top`` is the innermost open slice of each track, ``below`` the
    one around each slice.
    """
    b = 0
    for e in range(len(end_order)):
        end = end_order[e]
        while b < len(begin_order):
            begin = begin_order[b]
            if begin_ts[begin] > end_ts[end] or (begin_ts[begin] == end_ts[end] and begin >= before[end]):
                break
            below[begin] = top[begin_track[begin]]
            top[begin_track[begin]] = begin
            b += 1
        innermost = top[end_track[end]]
        if innermost >= 0:
            end_of[innermost] = end
            top[end_track[end]] = below[innermost]
    return 0


@compiled
def slice_at(
    at: int, meant: int, lane: int, ts: Column, end: Column, mark: Column, top: Column, next_lane: Column, below: Column
) -> int:
    """The innermost slice that covers ``at`` in ``lane`` and all lanes after it; -1 if there is none."""
    best = -1
    while lane >= 0:
        inner = top[lane]
        while inner >= 0 and end[inner] < at:
            inner = below[inner]
        if inner >= 0 and (best < 0 or ts[inner] > ts[best]):
            best = inner
        while inner >= 0 and ts[inner] == at:
            if mark[inner] == meant:
                return inner
            inner = below[inner]
        lane = next_lane[lane]
    return best


@compiled
def assign_lanes(
    rows: Column, place: Column, ts: Column, end: Column, mark: Column, point_place: Column, point_ts: Column,
    point_mark: Column, first_lane: Column, top: Column, next_lane: Column, below: Column, lane: Column, result: Column,
) -> int:  # fmt: skip
    """One pass in order of time: assigns a lane to each of ``rows`` and a slice to each point.

    The open slices of each lane form a list that starts at ``top`` and continues in ``below``. Each place of a track
    has a first lane, and each lane a next one.
    """
    lanes, point = 0, 0
    for i in range(len(rows) + 1):
        row = rows[i] if i < len(rows) else 0
        while point < len(point_ts) and (i == len(rows) or point_ts[point] < ts[row]):
            first = first_lane[point_place[point]]
            result[point] = slice_at(point_ts[point], point_mark[point], first, ts, end, mark, top, next_lane, below)
            point += 1
        if i == len(rows):
            break
        number, before, open_slice = 0, -1, -1
        current = first_lane[place[row]]
        while current >= 0:
            open_slice = top[current]
            while open_slice >= 0 and end[open_slice] <= ts[row]:
                open_slice = below[open_slice]
            if open_slice < 0 or end[row] <= end[open_slice]:
                break
            number += 1
            before = current
            current = next_lane[current]
        if current < 0:
            current = lanes
            lanes += 1
            next_lane[current] = -1
            open_slice = -1
            if before < 0:
                first_lane[place[row]] = current
            else:
                next_lane[before] = current
        below[row] = open_slice
        top[current] = row
        lane[row] = number
    return 0
