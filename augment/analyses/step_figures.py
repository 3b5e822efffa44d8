"""Where did the time of each step go?

There is a row for each step and device. A recording without GPU work has one row for each step. A step's window starts
with its ``ProfilerStep#n`` annotation, or when the GPU work launched earlier is done, if that is later. It ends with
the annotation, or when the GPU work launched until then is done. So the host may run ahead, and yet no work is lost and
no time counts twice. ``backlog_ns`` is how much later than the annotation the window starts. Work launched before the
recording is part of no window; the diagnostics say how much that is. In a recording without steps there is one window,
from the first work of a device on: what the device did before is not known, and ``backlog_ns`` says for how long. The
analysis ``steps`` measures how long the host was in each step. If the host runs ahead that is a
different length, and it differs between the ranks of a job.

The window is divided as in the temporal breakdown, and its idle time by cause as in the idle time breakdown. After its
last work a device waits for the host; before its first it does so until the call returns that launches this work. Of
what then passes, if it is 30 µs or more, the cause is not recorded (``other``), nor where the launch is not.
``mean_launch_delay_ns`` is from the end of a launching call to the start of its work. The memory peak is the greatest
sum that PyTorch's allocator had given out, if recorded (``profile_memory=True``).

``augment check`` uses these rows as samples, so a sidecar with them is a baseline. The analysis is skipped without any
operator, launch or GPU work.

**What to do**: they are what `augment diff` and `augment check` compare; keep the metrics of a good run as a
baseline.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from augment.core.findings import Findings, Skipped, column
from augment.core.trace import Identity, Trace
from augment.facts.gpu.launched_work import before_recording_diagnostics
from augment.facts.steps.step_figures import StepFigures, memory_peaks, step_figures
from augment.facts.steps.step_windows import recorded_windows

NAME = "step_figures"
NEEDS = ()


class Row(Struct, frozen=True):
    """One step of one device."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    device: Annotated[Identity, column("The device; null if only the host was recorded.")]
    step: Annotated[int | None, column("The number of the step; null if the recording has no steps.")]
    step_ns: Annotated[int, column("Length of the step's window.", "ns")]
    backlog_ns: Annotated[
        int, column("Time from the step's begin to the window: work launched earlier still ran.", "ns")
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
    work_count: Annotated[int | None, column("Number of pieces of GPU work launched in the step.", "count")]
    mean_launch_delay_ns: Annotated[float | None, column("Mean time from a launch to the start of its work.", "ns")]
    memory_peak_bytes: Annotated[int | None, column("Greatest allocated sum, if recorded.", "bytes")]


ROW = Row
#: these figures are null if only the host was recorded
OF_DEVICE = (
    "busy_ns",
    "compute_ns",
    "communication_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "idle_ns",
    "host_wait_ns",
    "kernel_wait_ns",
    "other_wait_ns",
    "work_count",
)


def analyze(trace: Trace) -> Findings | Skipped:
    """Measure each step."""
    windows = recorded_windows(trace)
    if not len(windows):
        return Skipped("no operator, launch or GPU work")
    peaks = memory_peaks(trace, windows)
    memory = [None] * len(windows) if peaks is None else [None if place < 0 else place for place in peaks.tolist()]
    numbers = [None if number < 0 else number for number in windows.number.tolist()]
    backlog = windows.backlog.tolist()
    rows = [
        _row(trace, figures, place, number, backlog[place], memory[place])
        for figures in step_figures(trace, windows)
        for place, number in enumerate(numbers)
    ]
    return Findings(rows, (), before_recording_diagnostics(trace))


def _row(trace: Trace, figures: StepFigures, place: int, number: int | None, backlog: int, memory: int | None) -> Row:
    values = {name: int(values[place]) for name, values in figures.of_device.items()}
    launched, delay = values.pop("launched", 0), values.pop("launch_delay_ns", 0)
    lacking = dict.fromkeys(OF_DEVICE)
    return Row(
        rank=trace.rank,
        device=figures.device,
        step=number,
        step_ns=int(figures.step_ns[place]),
        backlog_ns=backlog,
        mean_launch_delay_ns=delay / launched if launched else None,
        memory_peak_bytes=memory,
        **(values or lacking),
    )
