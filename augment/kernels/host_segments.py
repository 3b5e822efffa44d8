"""The loop of ``derived/host/host_segments.py``."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


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
