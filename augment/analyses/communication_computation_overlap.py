"""How much of the communication is hidden behind computation?

For each device::

    overlap_ratio = overlap_ns / communication_ns

``communication_ns`` and ``computation_ns`` are the time in which at least one kernel of that type runs on any stream.
``overlap_ns`` is the time in which both types run. The rest of the communication is exposed: the device computes
nothing meanwhile. It is drawn on a track ``Exposed communication``. Each slice has the name of a communication kernel
that runs when the slice begins. A device without communication has no ratio.

**What to do**: a low ratio with much communication: start collectives earlier (DDP: smaller first bucket; FSDP:
prefetch), and give them a stream of their own.
"""

from __future__ import annotations

from typing import Annotated

from augment.core import GPU_WORK, Findings, OfDevice, SliceTrack, Texts, Trace, column
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, TypeCoverage, communication_at, type_coverage
from augment.facts.gpu.gpu_work import gpu_work

NAME = "communication_computation_overlap"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One device."""

    communication_ns: Annotated[int, column("Time in which communication runs.", "ns")]
    computation_ns: Annotated[int, column("Time in which computation runs.", "ns")]
    overlap_ns: Annotated[int, column("Time in which both run.", "ns")]
    overlap_ratio: Annotated[float | None, column("Share of the communication during which computation runs.", "ratio")]


def analyze(trace: Trace) -> Findings:
    """Measure the overlap on each device, and draw the exposed communication."""
    coverages = type_coverage(trace)
    tracks = (_exposed(trace, coverage) for coverage in coverages)
    rows = []
    for coverage in coverages:
        communication = coverage.time_of(any_of=COMMUNICATION)
        overlap = communication - coverage.time_of(any_of=COMMUNICATION, none_of=COMPUTATION)
        rows.append(
            Row(
                rank=coverage.device.rank,
                device=coverage.device.device,
                communication_ns=communication,
                computation_ns=coverage.time_of(any_of=COMPUTATION),
                overlap_ns=overlap,
                overlap_ratio=overlap / communication if communication else None,
            )
        )
    return Findings(rows, [track for track in tracks if track is not None])


def _exposed(trace: Trace, coverage: TypeCoverage) -> SliceTrack | None:
    """The device's exposed communication; None where there is none."""
    exposed = coverage.intervals_of(any_of=COMMUNICATION, none_of=COMPUTATION)
    if not len(exposed.start):
        return None
    work = gpu_work(trace)
    rows = work.row[communication_at(trace, coverage.device, exposed.start)]
    return SliceTrack(
        analysis=NAME,
        name="Exposed communication",
        under=coverage.device.track,
        ts=exposed.start,
        dur=exposed.end - exposed.start,
        names=Texts(trace.events.name[rows], trace.strings),
        args={"correlation": trace.events.correlation[rows]},
        description="communication runs and no computation does",
    )
