"""How active were the SMs, the tensor pipe and the memory, as the hardware measured it?

The input is CUPTI's PM samples in the trace (category ``hardware_counters``; Kineto since 2026-08, with
``CUPTI_PM_SAMPLING_DEVICE_ID`` and ``CUPTI_PM_SAMPLING_METRICS``). A device is busy while any kernel runs, however
small; ``sm_active`` says how much of it works meanwhile.

A row is a quantity over a part of the time: the ``recording``, a ``step``, the time in which the device is ``busy``, or
kernels of one ``family`` or of one name (``kernel``). ``value`` is the mean of a ratio, or the sum of bytes. A sample
lasts 1 ms, most kernels less: only kernels of at least two samples count for families and names; ``sampled_ratio`` says
which share of their time these are, and a note how many are shorter. A sample that is only partly within counts for its
share.

**What to do**: busy, but with inactive SMs: too little work in a kernel, or few blocks ([roofline](#roofline),
[kernel_occupancy](#kernel_occupancy)). Little tensor activity in products: see ``matrix_units``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import arrays, facts
from augment.core import GPU_WORK, Diagnostic, Findings, OfDevice, Skipped, Trace, column
from augment.facts.gpu.hardware_samples import hardware_samples

NAME = "hardware_activity"
NEEDS = (GPU_WORK,)
LEAST_SAMPLES = 2  #: of a kernel; a shorter one cannot be told from its neighbours


class Row(OfDevice, frozen=True):
    """One quantity over one part of one device's time."""

    part: Annotated[str, column("recording, step, busy, family or kernel.")]
    name: Annotated[str | None, column("The number of the step, the family or the name of the kernel.")]
    quantity: Annotated[str, column("sm_active, tensor_active, dram_active, dram_read, dram_written or dram_moved.")]
    unit: Annotated[str, column("ratio or bytes.")]
    value: Annotated[float, column("The mean of a ratio, or the sum of bytes.", key=False)]
    time_ns: Annotated[int, column("The time that was sampled.", "ns")]
    sampled_ratio: Annotated[float, column("The share of the part's time that this is.", "ratio")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Average the samples over the parts of each device's time."""
    sampled = hardware_samples(trace)
    if not sampled:
        return Skipped("no samples of hardware counters; record with CUPTI_PM_SAMPLING_METRICS (Kineto since 2026-08)")
    rows, short = [], 0
    for place, device in enumerate(facts.gpu.work(trace).devices):
        quantities = sampled.get(device.device if isinstance(device.device, int) else -1, {})
        if quantities:
            least = LEAST_SAMPLES * max(samples.period_ns for samples in quantities.values())
            durations = (facts.gpu.work(trace).end - facts.gpu.work(trace).ts)[device.places]
            short += int(np.count_nonzero(durations < least))
            for part, name, times, whole_ns in _parts(trace, place, least):
                for quantity, samples in quantities.items():
                    value, known_ns = samples.over(times.start, times.end)
                    row = Row(
                        rank=trace.rank,
                        device=device.device,
                        part=part,
                        name=name,
                        quantity=quantity,
                        unit=samples.unit,
                        value=value,
                        time_ns=known_ns,
                        sampled_ratio=min(known_ns / whole_ns, 1.0) if whole_ns else 0.0,
                    )
                    rows += [row] if known_ns else []
    if not rows:
        return Skipped("the sampled counters say nothing of activity: sample sm__cycles_active.avg.pct_of_peak_…")
    message = "pieces of GPU work are shorter than two samples of hardware counters (in no row of a family or kernel)"
    return Findings(rows, (), [Diagnostic("shorter_than_samples", short, message)] if short else [])


def _parts(trace: Trace, place: int, least_ns: int) -> Iterator[tuple[str, str | None, arrays.Intervals, int]]:
    """Parts of a device's time: what they are, the stretches that count, and all of their time, ns."""
    work, windows = facts.gpu.work(trace), facts.steps.windows(trace)
    device = work.devices[place]
    ts, end, name = work.ts[device.places], work.end[device.places], trace.events.name[work.row[device.places]]
    begin, last = int(trace.events.ts[0]), int(trace.events.end.max())
    yield "recording", None, arrays.Intervals(np.array([begin]), np.array([last])), last - begin
    busy = arrays.union(ts, end)
    yield "busy", None, busy, int((busy.end - busy.start).sum())
    for number, start, stop in zip(windows.number.tolist(), windows.start, windows.end, strict=True):
        if number >= 0:
            yield "step", str(number), arrays.Intervals(np.array([start]), np.array([stop])), int(stop - start)
    families = facts.operators.work_families(trace)
    long = np.flatnonzero(end - ts >= least_ns)
    for part, codes, names in (
        ("family", families.family[device.places], families.names), ("kernel", name, trace.strings),
    ):  # fmt: skip
        for code in np.unique(codes[long]).tolist():
            chosen: arrays.Places = long[codes[long] == code]
            whole = (end - ts)[codes == code].clip(min=0)
            yield part, names[code], arrays.union(ts[chosen], end[chosen]), int(whole.sum())
