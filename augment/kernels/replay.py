"""The loop of a job's replay. In columns of rows, -1 stands for none."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled

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
