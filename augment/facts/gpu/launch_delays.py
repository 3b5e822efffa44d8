"""The times of each launch: of the call, of its work, and between them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, EventRows, Int64s, Places, WorkIndexes
from augment.core.context import derived
from augment.core.trace import NO_CORRELATION, Diagnostic, Trace
from augment.facts.gpu.arrow_correlations import correlations_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launches import launches


class LaunchDelays(Struct, frozen=True):
    """Equal-length columns, with a row for each piece of GPU work of known launch, in ``gpu_work``'s order."""

    place: WorkIndexes  #: the work
    row: EventRows  #: the launching call
    cpu_ns: Int64s  #: the call's duration, which pieces of work of one call (a CUDA graph) share
    gpu_ns: Int64s  #: the work's duration
    delay_ns: Int64s  #: from the end of the call to the start of the work, 0 if the work starts first

    def __len__(self) -> int:
        return len(self.place)

    def take(self, chosen: Places | Bools | slice) -> LaunchDelays:
        """The rows at ``places``."""
        columns = (self.place, self.row, self.cpu_ns, self.gpu_ns, self.delay_ns)
        return LaunchDelays(*(column[chosen] for column in columns))

    def is_short(self) -> Bools:
        """Whether the call took longer than the work."""
        return self.gpu_ns < self.cpu_ns


@derived(until="breakdowns")
def launch_delays(trace: Trace) -> LaunchDelays:
    """The delays of all work whose launch is known."""
    work, events = gpu_work(trace), trace.events
    place = np.flatnonzero(work.launch != NO_INDEX)
    row = work.launch[place]
    start = work.ts[place]
    cpu_ns = events.dur[row]
    delay = np.maximum(start - (events.ts[row] + cpu_ns), 0)
    return LaunchDelays(place, row, cpu_ns, work.end[place] - start, delay)


@derived
def launch_diagnostics(trace: Trace) -> list[Diagnostic]:
    """Diagnostics of the launches, counted in pieces of GPU work."""
    work, delays = gpu_work(trace), launch_delays(trace)
    early = int(np.count_nonzero(trace.events.ts[delays.row] > work.ts[delays.place]))
    disputed = int(np.isin(correlations_of(trace, delays.row), launches(trace).disputed).sum())
    message = "pieces of GPU work have the correlation of calls of several processes (the first call counts)"
    by_arrow = int((trace.events.correlation[work.row[delays.place]] == NO_CORRELATION).sum())
    diagnostics = (
        Diagnostic("launch_by_arrow", by_arrow, "pieces of GPU work have no correlation (linked by arrows)"),
        Diagnostic("gpu_work_without_launch", len(work) - len(delays), "pieces of GPU work have no known launch"),
        Diagnostic(
            "launch_after_kernel",
            early,
            "launches begin after the work that they launch (moved to the start of the work)",
        ),
        Diagnostic("launch_disputed", disputed, message),
    )
    return [diagnostic for diagnostic in diagnostics if diagnostic.count]
