"""What did power, clocks, temperature and links do meanwhile?

The input is telemetry recorded beside the trace, or alone (``--telemetry``); without it this is skipped. A row is a
quantity of a device, in the whole recording and in each step that has samples. ``mean`` is that of the samples in the
period. ``throttled`` is the share of samples in which the driver says that it slows the device down, for another reason
than that it is idle or that the user has set its clocks.

Each quantity is drawn under its device. Alone, a row is a quantity of a GPU of the file.

**What to do**: a clock that falls while power is at its limit, or while ``throttled`` is not 0, explains kernels that
get slower. See [telemetry](telemetry.md).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.core import CounterTrack, Diagnostic, Findings, Identity, OfRank, Skipped, Trace, column
from augment.core.records import Samples, Telemetry

NAME = "telemetry"
NEEDS = ()
_SHORT = ("sm", "dram", "pcie", "fp16", "fp32", "fp64")
_DRAWN_UNITS = {"ratio": ("%", 100.0), "bytes": ("GB", 1e-9)}


class Row(OfRank, frozen=True):
    """One quantity of one device in one period."""

    device: Annotated[Identity, column("The device; alone, the GPU of the file.")]
    step: Annotated[int | None, column("The step; null for the whole recording.")]
    quantity: Annotated[str, column("What was sampled: power, sm_clock, temperature or another.")]
    unit: Annotated[str, column("The unit of the values: W, MHz, °C, ratio, bytes, GB/s or J.")]
    mean: Annotated[float, column("Mean of the samples in the period.", key=False)]
    least: Annotated[float, column("The least of them.", key=False)]
    greatest: Annotated[float, column("The greatest of them.", key=False)]
    sample_count: Annotated[int, column("Number of samples in the period.", "count")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Sum up the samples of each device and step, and draw them."""
    telemetry = trace.context.attached(Telemetry)
    if telemetry is None:
        return Skipped("no telemetry is given beside the trace: see --telemetry")
    unread, notes = telemetry.unreadable_rows, list[Diagnostic]()
    if unread:
        notes.append(Diagnostic("telemetry_unreadable", unread, "rows of the telemetry have no time: left out"))
    if not len(trace.events):
        rows = [_row(trace, each.gpu, None, each, slice(None)) for each in telemetry.samples]
        return Findings(rows, diagnostics=notes)
    watched = facts.gpu.telemetry(trace)
    if watched is None or isinstance(watched, str):
        return Skipped(watched or "no telemetry is given")
    begin, end = int(trace.events.ts[0]), int(trace.events.end.max())
    rows, tracks = list[Row](), list[CounterTrack]()
    steps = facts.steps.windows(trace)
    for place, quantities in watched.devices.items():
        device = facts.gpu.work(trace).devices[place]
        for samples in quantities.values():
            inside = _within(samples, begin, end)
            if inside.stop > inside.start:
                rows.append(_row(trace, device.device, None, samples, inside))
                unit, factor = _DRAWN_UNITS.get(samples.unit, (samples.unit, 1.0))
                # sm_clock as SM clock
                first, *rest = samples.quantity.split("_")
                tracks.append(
                    CounterTrack(
                        analysis=NAME,
                        name=" ".join((first.upper() if first in _SHORT else first.capitalize(), *rest)),
                        under=device.track,
                        ts=samples.ts[inside],
                        values=samples.values[inside] * factor,
                        unit=unit,
                        description="as recorded beside the trace",
                    )
                )
            for number, start, stop in zip(steps.number.tolist(), steps.start, steps.end, strict=True):
                inside = _within(samples, start, stop)
                if number >= 0 and inside.stop > inside.start:
                    rows.append(_row(trace, device.device, number, samples, inside))
    if not rows:
        return Skipped("no sample of the telemetry lies within the trace: its samples are further apart")
    zone = f"times of the telemetry have no zone (taken as {watched.zone}, at which alone it covers the trace)"
    notes += [Diagnostic("telemetry_zone", 1, zone)] if watched.zone else []
    return Findings(rows, tracks, notes)


def _within(samples: Samples, start: int, end: int) -> slice:
    first, stop = np.searchsorted(samples.ts, (start, end)).tolist()
    return slice(first, stop)


def _row(trace: Trace, device: Identity, step: int | None, samples: Samples, inside: slice) -> Row:
    values = samples.values[inside]
    return Row(
        trace.rank, device, step, samples.quantity, samples.unit, float(values.mean()), float(values.min()),
        float(values.max()), len(values),
    )  # fmt: skip
