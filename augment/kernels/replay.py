"""The loop of a job's replay: columns that hold rows have -1 for none."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled

BEFORE = -(1 << 62)


@compiled
def play(
    order: Column, first: Column, anchor: Column, base: Column, local: Column, overlap: Column, moving: Column,
    lag: Column, resume: Column,
) -> int:  # fmt: skip
    """Fill ``resume``: see :func:`augment.job.replay.replayed`."""
    for place in range(len(order)):
        instance = order[place]
        arrival = BEFORE
        for row in range(first[instance], first[instance + 1]):
            begin = base[row] if anchor[row] < 0 else resume[anchor[row]]
            arrival = max(arrival, begin + local[row])
        for row in range(first[instance], first[instance + 1]):
            begin = base[row] if anchor[row] < 0 else resume[anchor[row]]
            resume[row] = max(arrival + moving[instance] + lag[row], begin + overlap[row])
    return 0
