"""How much energy did each step, phase and kind of work use?

The input is the power of each device, or its counter of energy, recorded beside the trace (``--telemetry``); without it
this is skipped. ``energy_joules`` is the integral of power, which between two samples is their mean, over the time of
the row: the whole ``recording``, a ``step``, the time in which the device is ``busy`` or ``idle``, and that in which a
``family`` of kernels or a ``phase`` of training runs. Families and phases that run at once both count.

Power is sampled every 15 ms at best, often every 100 ms. ``resolution`` says what that means for a row: ``measured`` if
its stretches of time have two samples or more in the mean; ``by_time`` if they are shorter: then samples do not tell
them apart, and the row has the power around it, times its time.

``joules_per_token`` divides by the tokens that a step computes: what an inference engine's steps tell of their batch,
or what is given. The row ``steps`` has all steps and tokens together.

**What to do**: compare joules a step and a token between runs and limits of power; idle time uses energy, too.

Options:
    tokens_per_step_count: tokens of one step, of this rank, for joules a token where steps do not tell them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import arrays, facts
from augment.core import GPU_WORK, Findings, OfDevice, Skipped, Trace, column
from augment.facts.gpu.hardware_samples import EnergyMeter, energy_meter, watched_gpus

NAME = "energy"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """The energy of one part of one device's time."""

    part: Annotated[str, column("recording, steps, step, busy, idle, family or phase.")]
    name: Annotated[str | None, column("The number of the step, the family or the phase.")]
    resolution: Annotated[str, column("measured, or by_time where samples are too far apart to tell it.")]
    time_ns: Annotated[int, column("How long it took, as far as power is known.", "ns")]
    energy_joules: Annotated[float, column("The energy used meanwhile, joules.", key=False)]
    power_watts: Annotated[float, column("The mean power, watts.", key=False)]
    joules_per_token: Annotated[
        float | None, column("The energy for each token that was computed; none without their number.", key=False)
    ]


def analyze(trace: Trace, *, tokens_per_step_count: int = 0) -> Findings | Skipped:
    """Integrate power over the time of each part."""
    watched = watched_gpus(trace)
    if watched is None or isinstance(watched, str):
        return Skipped(watched or "no telemetry is given beside the trace: see --telemetry")
    rows = []
    for place, samples in watched.devices.items():
        if (meter := energy_meter(samples)) is not None:
            rows += [row for row in _rows(trace, place, meter, tokens_per_step_count) if row.time_ns]
    return Findings(rows) if rows else Skipped("the telemetry has no power during the trace")


def _rows(trace: Trace, place: int, meter: EnergyMeter, tokens_a_step: int) -> Iterator[Row]:
    work, windows = facts.gpu.work(trace), facts.steps.windows(trace)
    device = work.devices[place]
    begin, end = trace.events.ts[:1], np.array([int(trace.events.end.max())], np.int64)
    ts, until = work.ts[device.places], work.end[device.places]
    busy = arrays.union(ts, until)
    idle = arrays.Intervals(np.append(begin, busy.end), np.append(busy.start, end))
    parts: list[tuple[str, str | None, arrays.Intervals]] = [
        ("recording", None, arrays.Intervals(begin, end)), ("busy", None, busy),
        ("idle", None, arrays.Intervals(*(side[idle.end > idle.start] for side in idle))),
    ]  # fmt: skip
    counted = np.flatnonzero(windows.number >= 0)
    # the tokens that each step computes, 0 where that is not known
    number = windows.number[counted]
    recorded = facts.steps.recorded(trace).number.tolist()
    batch_of = dict(zip(recorded, facts.steps.batches(trace), strict=False))  # of an engine's steps alone
    tokens = [max(batch_of[each].new_tokens, 0) if each in batch_of else tokens_a_step for each in number.tolist()]
    if len(counted):
        parts.append(("steps", None, arrays.Intervals(windows.start[counted], windows.end[counted])))
    for step in counted.tolist():
        limits = arrays.Intervals(windows.start[step : step + 1], windows.end[step : step + 1])
        parts.append(("step", str(windows.number[step]), limits))
    families = facts.operators.work_families(trace)
    kinds = families.family[device.places]
    named = [(families.names[kind], kinds == kind) for kind in np.unique(kinds).tolist()]
    parts += [("family", name, arrays.union(ts[chosen], until[chosen])) for name, chosen in named]
    phases = facts.host.phases(trace)
    if phases is not None:  # of training
        launch = work.launch[device.places]
        index = facts.host.stacks(trace).place_of[launch]
        phase = np.where((launch >= 0) & (index >= 0), phases[index], len(facts.host.TrainingPhase))
        for each in facts.host.TrainingPhase:
            if (chosen := phase == each).any():
                parts.append(("phase", each.name.lower(), arrays.union(ts[chosen], until[chosen])))
    of_steps = iter([sum(tokens) if all(tokens) else 0, *tokens])
    for part, name, times in parts:
        done = next(of_steps) if part in ("steps", "step") else 0
        joules, known_ns = meter.used(times.start, times.end)
        stretch = float((times.end - times.start).mean()) if len(times.start) else 0.0
        resolution = "measured" if stretch >= 2 * meter.period_ns else "by_time"
        watts = joules / known_ns * 1e9 if known_ns else 0.0
        is_whole = known_ns == int((times.end - times.start).sum())
        of_token = joules / done if done and is_whole else None
        yield Row(trace.rank, device.device, part, name, resolution, known_ns, joules, watts, of_token)
