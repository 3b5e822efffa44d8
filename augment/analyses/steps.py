"""Where did the time of each step go, and which steps are outliers?

There is a row for each step and device. Steps are ``ProfilerStep#n`` annotations, else the steps of an inference engine
([names](inference.md#steps)), which last until the next begins, or what ``--region`` names. A recording without GPU
work has one row for each step, of the time in operators, in collectives and outside of both. A step's window starts
with its annotation, or when the GPU work launched earlier is done, if that is later. It ends with the annotation, or
when the GPU work launched until then is done. So the host may run ahead, and yet no work is lost and no time counts
twice. ``backlog_ns`` is how much later than the annotation the window starts. Work launched before the recording is
part of no window; the diagnostics say how much that is. In a recording without steps there is one window, from the
first work of a device on: what the device did before is not known, and ``backlog_ns`` says for how long.

All tables and sentences about steps mean this window, and call its length ``wall_ns``. ``host_start_ns`` and
``host_wall_ns`` are of the annotation alone, which is shorter or longer where the host runs ahead, and differs between
the ranks of a job. Where the annotations of two threads overlap, only the first counts. A last annotation in which no
operator and no call begins, far shorter than the others, is no step: the recording ended as it began.

The window is divided as in the temporal breakdown, and its idle time by cause as in the idle time breakdown. After its
last work a device waits for the host; before its first it does so until the call returns that launches this work. Of
what then passes, if it is 30 µs or more, the cause is not recorded (``other``), nor where the launch is not.
``mean_launch_delay_ns`` is from the end of a launching call to the start of its work. The memory peak is the greatest
sum that PyTorch's allocator had given out, if recorded (``profile_memory=True``).

``robust_z`` is the distance of the window's length from the median of the steps of its kind (of an inference engine, of
its phase; else with an optimizer's step, or without), in units of the median absolute deviation over 0.6745. Beyond 3.5
either way the step is an outlier (Iglewicz and Hoaglin 1993). With fewer than four steps, or when most are equally
long, there are no outliers and no ``robust_z``; ``median_ratio`` there is always. ``is_steady`` is false of a first
step that warms up, or of which work from before the recording hides a part: the verdict and the summary of ``augment
run`` leave it out.

The track ``Steps`` shows the windows. ``augment check`` uses these rows as samples, so a sidecar with them is a
baseline. The analysis is skipped without any operator, launch or GPU work.

**What to do**: look at the steps whose part grew; keep the metrics of a good run as a baseline for `augment diff` and
`augment check`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import OUTLIER, Int64s, Intervals, clip, distinct, median, robust_z, sums, union
from augment.core import Findings, Identity, OfRank, Skipped, SliceTrack, Texts, Trace, column, text
from augment.diagnosis.host_alone import outside_operators
from augment.diagnosis.judging import measure
from augment.diagnosis.rules.step_outliers import DEVIATIONS, LEAST_FACTOR

NAME = "steps"
NEEDS = ()
Floats = npt.NDArray[np.float64]


class Row(OfRank, frozen=True):
    """One step of one device."""

    device: Annotated[Identity, column("The device; null if only the host was recorded.")]
    step: Annotated[int | None, column("The number of the step; null if the recording has no steps.")]
    start_ns: Annotated[int, column("When the step's window begins, after the first event of the trace.", "ns")]
    wall_ns: Annotated[int, column("Length of the step's window.", "ns")]
    backlog_ns: Annotated[
        int, column("Time from the step's start to the window: work launched earlier still ran.", "ns")
    ]
    busy_ns: Annotated[int | None, column("Time in which any GPU work runs.", "ns")]
    compute_ns: Annotated[int | None, column("Time in which computation runs.", "ns")]
    communication_ns: Annotated[int | None, column("Time in which communication runs.", "ns")]
    exposed_communication_ns: Annotated[
        int | None, column("Time in which communication and no computation runs.", "ns")
    ]
    exposed_memory_ns: Annotated[int | None, column("Time in which copies or memsets alone run.", "ns")]
    idle_ns: Annotated[int | None, column("Time in which no GPU work runs.", "ns")]
    host_wait_ns: Annotated[int | None, column("Idle time in which the device waits for the host.", "ns")]
    kernel_wait_ns: Annotated[
        int | None, column("Idle time in short gaps between work launched in time (kernel_wait).", "ns")
    ]
    other_wait_ns: Annotated[int | None, column("Idle time of other causes.", "ns")]
    operator_ns: Annotated[int | None, column("Without any GPU work: time in which the host runs an operator.", "ns")]
    host_collective_ns: Annotated[int | None, column("The same, of other time: in collectives of the host.", "ns")]
    outside_ns: Annotated[int | None, column("The same, of other time: the rest, in Python or not recorded.", "ns")]
    work_count: Annotated[int | None, column("Number of pieces of GPU work launched in the step.", "count")]
    mean_launch_delay_ns: Annotated[float | None, column("Mean time from a launch to the start of its work.", "ns")]
    memory_peak_bytes: Annotated[int | None, column("Greatest allocated sum, if recorded.", "bytes")]
    host_start_ns: Annotated[
        int | None, column("When the host's annotation of the step begins, after the first event of the trace.", "ns")
    ]
    host_wall_ns: Annotated[int | None, column("Length of the host's annotation of the step.", "ns")]
    median_ratio: Annotated[float | None, column("wall_ns by the median of the steps of its kind.", "ratio")]
    robust_z: Annotated[float | None, column("Distance of wall_ns from that median, in robust deviations.")]
    is_outlier: Annotated[bool | None, column("Whether robust_z is beyond 3.5 either way.")]
    is_steady: Annotated[bool, column("Whether it is one of the steps that verdicts and summaries are about.")]


#: these figures are null if only the host was recorded, but for those that then alone are known
FIGURES = (
    "busy_ns",
    "compute_ns",
    "communication_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "idle_ns",
    "host_wait_ns",
    "kernel_wait_ns",
    "other_wait_ns",
    "operator_ns",
    "host_collective_ns",
    "outside_ns",
    "work_count",
)


def analyze(trace: Trace) -> Findings | Skipped:
    """Measure each step."""
    windows = facts.steps.recorded_windows(trace)
    if not len(windows):
        return Skipped("no operator, launch or GPU work")
    peaks, first = facts.steps.memory_peaks(trace, windows), int(trace.events.ts[0])
    numbered = bool(windows.number[0] >= 0)
    length = windows.end - windows.start
    served = facts.steps.is_served(trace)
    kinds = facts.steps.phases(trace, windows) if served else facts.steps.updates(trace, windows).astype(np.int64)
    middle, distances = np.ones(len(windows)), np.full(len(windows), np.nan)
    for kind in distinct(kinds).tolist():
        alike = kinds == kind
        middle[alike] = median(length[alike])
        if numbered and (z_alike := robust_z(length[alike])) is not None:
            distances[alike] = z_alike
    steady = np.isin(windows.begin, measure(trace).windows.begin) if numbered else np.ones(len(windows), np.bool_)
    rows = []
    for figures in facts.steps.step_figures(trace, windows):
        of_device = dict(figures.of_device) or _of_host(trace, windows)
        launched, delay = of_device.pop("launched", None), of_device.pop("launch_delay_ns", None)
        for place in range(len(windows)):
            begin, finish = int(windows.begin[place]), int(windows.finish[place])
            values = {name: int(values[place]) for name, values in of_device.items()}
            mean_delay = None
            if launched is not None and delay is not None and launched[place]:
                mean_delay = int(delay[place]) / int(launched[place])
            distance = None if np.isnan(distances[place]) else float(distances[place])
            rows.append(
                Row(
                    rank=trace.rank,
                    device=figures.device,
                    step=int(windows.number[place]) if numbered else None,
                    start_ns=int(windows.start[place]) - first,
                    wall_ns=int(length[place]),
                    backlog_ns=int(windows.backlog[place]),
                    mean_launch_delay_ns=mean_delay,
                    memory_peak_bytes=None if peaks is None or peaks[place] < 0 else int(peaks[place]),
                    host_start_ns=begin - first if numbered else None,
                    host_wall_ns=finish - begin if numbered else None,
                    median_ratio=int(length[place]) / float(middle[place]) if numbered and middle[place] else None,
                    robust_z=distance,
                    is_outlier=None if distance is None else abs(distance) > OUTLIER,
                    is_steady=bool(steady[place]),
                    **(dict.fromkeys(FIGURES) | values),
                )
            )
    drawn = [_drawn(trace, windows, distances, middle)] if numbered else []
    return Findings(rows, drawn, facts.gpu.before_recording_diagnostics(trace))


def _of_host(trace: Trace, windows: facts.steps.StepWindows) -> dict[str, Int64s]:
    """What the host does in each step of a recording without GPU work."""
    collectives, outside = facts.collectives.host_collectives(trace), outside_operators(trace, windows)
    _, _, waits = clip(union(collectives.ts, collectives.end), outside)
    length = windows.end - windows.start
    clipped = (clip(Intervals(windows.start, windows.end), each) for each in (outside, waits))
    out, waited = (sums(which, parts.end - parts.start, len(windows)) for which, _, parts in clipped)
    return {"operator_ns": length - out, "host_collective_ns": waited, "outside_ns": out - waited}


def _drawn(trace: Trace, windows: facts.steps.StepWindows, z: Floats, middle: Floats) -> SliceTrack:
    """The windows of the steps. One whose length is unusual is called an outlier."""
    dur: Int64s = windows.end - windows.start
    outlier = (z > DEVIATIONS) & (dur > LEAST_FACTOR * middle)  # as the rule step_outliers has it
    where = "device" if len(facts.gpu.work(trace)) else "host"
    names = [
        f"step {number} ({where}): {text.four_digits(ns, text.TIMES)}{', outlier' * far}"
        for number, ns, far in zip(windows.number.tolist(), dur.tolist(), outlier.tolist(), strict=True)
    ]
    return SliceTrack(
        analysis=NAME,
        name="Steps",
        under=int(trace.events.track[facts.steps.recorded(trace).row[0]]),
        ts=windows.start,
        dur=dur,
        names=Texts(np.arange(len(names), dtype=np.int32), names),
        args={"number": windows.number, "host_wall_ns": windows.finish - windows.begin, "backlog_ns": windows.backlog},
        description="from the start of a step on the host, or the end of earlier work, to the end of its GPU work",
        of_process=True,
    )
