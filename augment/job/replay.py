"""Replays a job from its ranks' collectives: how long it would take if something were otherwise.

Each rank does its own work from the end of a collective that it had to wait for (its anchor) until it comes to the
next. A collective moves data from the arrival of its last rank on, for as long as it did. It holds a rank up until it
ends, unless the rank has own work until later. Unchanged, the replay gives the recorded times.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.derived.collectives.rank_progress import NONE
from augment.job.progress import Progress, Stretches
from augment.kernels.native import native
from augment.records import dataclass


@dataclass(frozen=True)
class Replay:
    """What a replay needs; ``moving`` and ``order`` are by collective, ``lag`` by part: see :func:`replay_of`."""

    progress: Progress
    order: Int64s
    moving: Int64s
    lag: Int64s
    members: Int64s

    def time_ns(self, *, shift: Shift | None = None, moving: Int64s | None = None) -> int:
        """The time from the first rank's begin to the last one's finish.

        Args:
            shift: changes of own work.
            moving: for how long each collective moves data, if not as recorded.
        """
        progress, matched = self.progress, self.progress.matched
        local, overlap, tail = progress.local, progress.overlap, progress.tail
        if shift is not None:
            local, overlap, tail = shift.applied(progress)
        resume = progress.end.copy()
        base = progress.common_begin[matched.member]
        first = np.append(matched.first, len(matched.instance)).astype(np.int64)
        times = self.moving if moving is None else moving
        native("replay.play")(self.order, first, progress.anchor, base, local, overlap, times, self.lag, resume)
        anchor = progress.tail_anchor[self.members]
        since = np.where(anchor == NONE, progress.common_begin[self.members], resume[anchor])
        return int((since + tail[self.members]).max() - progress.common_begin[self.members].min())

    @property
    def recorded_ns(self) -> int:
        """The recorded time."""
        progress = self.progress
        anchor = progress.tail_anchor[self.members]
        since = np.where(anchor == NONE, progress.common_begin[self.members], progress.end[anchor])
        finish = since + progress.tail[self.members]
        return int(finish.max() - progress.common_begin[self.members].min())


@dataclass(frozen=True)
class Shift:
    """Stretches of own work that take so much longer (``by``, ns, negative: less), parallel to ``stretches``."""

    stretches: Stretches
    by: Int64s

    def applied(self, progress: Progress) -> tuple[Int64s, Int64s, Int64s]:
        """The columns ``local``, ``overlap`` and ``tail`` of ``progress`` with the shift."""
        local, overlap, tail = progress.local.copy(), progress.overlap.copy(), progress.tail.copy()
        matched = progress.matched
        changed = np.unique(self.stretches.member[self.by != 0])
        bounds = np.searchsorted(self.stretches.member, np.append(changed, np.iinfo(np.int64).max))
        for member, start, stop in zip(
            changed.tolist(), bounds[:-1], np.searchsorted(self.stretches.member, changed, side="right"), strict=True
        ):
            ts = self.stretches.ts[start:stop]
            total = np.append(0, np.cumsum(self.by[start:stop]))
            rows = matched.rows_of(member)
            anchor = progress.anchor[rows]
            since = np.where(anchor == NONE, 0, total[np.searchsorted(ts, progress.stopped[anchor], side="right")])
            local[rows] += total[np.searchsorted(ts, matched.ts[rows], side="right")] - since
            overlap[rows] += total[np.searchsorted(ts, progress.stopped[rows], side="right")] - since
            last = int(progress.tail_anchor[member])
            tail[member] += total[-1] - (
                0 if last == NONE else total[np.searchsorted(ts, progress.stopped[last], side="right")]
            )
        before = progress.local, progress.overlap, progress.tail
        local, overlap, tail = (
            np.maximum(shifted, np.minimum(column, 0))
            for shifted, column in zip((local, overlap, tail), before, strict=True)
        )
        return local, overlap, tail


def replay_of(progress: Progress) -> Replay | None:
    """The replay of a job; None if no collectives join ranks.

    A collective ends when the last of its ranks does. It moves data from the last arrival; ``lag`` is by how much a
    part ended earlier.
    """
    matched = progress.matched
    if not len(matched):
        return None
    done = np.maximum.reduceat(progress.end, matched.first)
    arrival = np.maximum.reduceat(progress.start, matched.first)
    moving = np.maximum(done - arrival, 0)
    lag = progress.end - (arrival + moving)[matched.instance]
    order = np.argsort(done, kind="stable").astype(np.int64)
    return Replay(progress, order, moving, lag, np.unique(matched.member))
