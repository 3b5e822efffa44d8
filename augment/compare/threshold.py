"""Which differences are worth a slice on the timeline.

Thousands of differences of microseconds hide the few that explain a step. So a call or piece of work is drawn only if
its difference is 1 % of a step, or if the differences of all of its name, which cancel out where they are noise, add up
to 1 % of the compared steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Int32s, Int64s, Places
from augment.compare.core import Pair

MIN_DELTA_NS = 1_000  #: smaller differences are never drawn, unless a size is given
SHARE = 0.01  #: of a step


class Threshold(Struct, frozen=True):
    """What is drawn: at least ``least_ns``, and of at least ``single_ns`` or of a name that matters.

    ``of_calls`` and ``of_work`` are by the numbers of names, which both sides share.
    """

    least_ns: int
    single_ns: float
    of_calls: Bools
    of_work: Bools

    def calls(self, names: Int32s, delta: Int64s) -> Bools:
        """Which calls are drawn: their names, and differences in ns."""
        return self._drawn(self.of_calls[names], delta)

    def work(self, names: Int32s, delta: Int64s) -> Bools:
        """The same of GPU work."""
        return self._drawn(self.of_work[names], delta)

    def _drawn(self, matters: Bools, delta: Int64s) -> Bools:
        size = abs(delta)
        drawn: Bools = (size >= self.least_ns) & (matters | (size >= self.single_ns))
        return drawn


def threshold(pair: Pair, min_delta_ns: int | None) -> Threshold:
    """What is drawn of a pair: all of at least ``min_delta_ns``; by shares of the step where that is None."""
    control, test, alignment = pair.control, pair.test, pair.alignment
    count = 1 + max(int(call.name.max(initial=-1)) for side in (control, test) for call in (side.calls, side.work))
    if min_delta_ns is not None:
        every = np.ones(count, np.bool_)
        return Threshold(min_delta_ns, 0.0, every, every)
    lengths = control.steps.end - control.steps.start
    least = SHARE * max(int(lengths.sum()), 1)
    calls, before = test.calls, control.calls
    with_calls = alignment.call_of_test, alignment.call_of_control
    host, gpu = (
        _sums(count, (calls.name, before.name), (calls.step, before.step), times, with_calls)
        for times in ((calls.cpu_ns, before.cpu_ns), (calls.gpu_ns, before.gpu_ns))
    )
    work, gone = test.work, control.work
    with_work = alignment.work_of_test, alignment.work_of_control
    device = _sums(count, (work.name, gone.name), (work.step, gone.step), (work.ns, gone.ns), with_work)
    return Threshold(
        MIN_DELTA_NS, least / len(lengths), (abs(host) >= least) | (abs(gpu) >= least), abs(device) >= least
    )


def _sums(
    count: int,
    names: tuple[Int32s, Int32s],
    steps: tuple[Int32s, Int32s],
    times: tuple[Int64s, Int64s],
    partners: tuple[Places, Places],
) -> Int64s:
    """The sum of the differences of each name in the steps, ns; each pair is of test and control."""
    new, gone = partners[0] == NO_INDEX, partners[1] == NO_INDEX
    delta = times[0] - np.where(new, 0, np.append(times[1], 0)[partners[0]])
    inside, lost = steps[0] >= 0, gone & (steps[1] >= 0)
    total = np.zeros(count, np.int64)
    np.add.at(total, names[0][inside], delta[inside])
    np.subtract.at(total, names[1][lost], times[1][lost])
    return total
