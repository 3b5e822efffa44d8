"""What telemetry says of the devices of a trace, on the trace's clock."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Int64s
from augment.core import Trace, derived
from augment.core.gpu_samples import ENERGY, POWER, Samples, Telemetry
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.source.recorded_times import apart

HOUR_NS = 3600 * 10**9
#: zones that exist, in hours
_ZONES = (*range(-12, 15), -9.5, -3.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75)
_LONGEST_GAP = 10  #: of the median distance of samples; over a longer one nothing is known


class WatchedGpus(Struct, frozen=True):
    """By the place of a device of ``gpu_work`` its samples by quantity. ``zone``: in which zone the times of the file
    were taken to be, empty where it says that."""

    devices: Mapping[int, Mapping[str, Samples]]  #: on the clock of the trace
    zone: str = ""  #: ``+01:00``


@derived(until="breakdowns")
def watched_gpus(trace: Trace) -> WatchedGpus | str | None:
    """The telemetry of each device; why it cannot be joined; None without any."""
    telemetry = trace.context.attached(Telemetry)
    if telemetry is None:
        return None
    work = gpu_work(trace)
    if not len(work):
        return "the trace has no GPU work"
    if not telemetry.has_times:
        return "the telemetry has no times: name it as FILE@start=2026-11-23T14:20:01Z,period=100ms"
    first, last = (choose(choose(each.ts) for each in telemetry.samples) for choose in (min, max))
    offset, zone = 0, ""
    if not telemetry.has_zone:
        begin, end = int(work.ts.min()), int(work.end.max())
        zones = [each for each in _ZONES if first - each * HOUR_NS <= begin and end <= last - each * HOUR_NS]
        if len(zones) > 1:
            said = ", ".join(_zone(each) for each in sorted(zones))
            return f"its times have no zone, and several would cover the trace ({said}): name it as FILE@zone=+01:00"
        if zones:
            offset, zone = round(zones[0] * HOUR_NS), _zone(zones[0])
    if why := apart(trace, int(first) - offset, int(last) - offset, "the telemetry"):
        return why
    devices: dict[int, dict[str, Samples]] = {}
    names = list(dict.fromkeys(each.gpu for each in telemetry.samples))
    for place, device in enumerate(work.devices):
        name = telemetry.chosen or (names[0] if len(names) == 1 else str(device.device))
        if name not in names:
            return f"the telemetry has no GPU {name}, only {', '.join(names[:8])}: name it as FILE@gpu={names[0]}"
        rank = trace.rank
        if not telemetry.chosen and len(names) > 1 and rank is not None and rank % len(names) != device.device:
            which = f"which is device {device.device} of rank {rank}: name it as FILE@gpu={rank % len(names)}"
            return f"the telemetry has {len(names)} GPUs, and nothing says {which}"
        devices[place] = {
            each.quantity: replace(each, ts=each.ts - offset) for each in telemetry.samples if each.gpu == name
        }
    return WatchedGpus(devices, zone)


def _zone(hours: float) -> str:
    minutes = round(abs(hours) * 60)
    return f"{'-' if hours < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


class EnergyMeter(Struct, frozen=True):
    """The energy that a device had used until each moment: joules at ``ts``, linear between; ``gap`` marks stretches
    between two samples that are too far apart to know."""

    ts: Int64s
    joules: npt.NDArray[np.float64]
    gap: npt.NDArray[np.bool_]
    period_ns: float

    def used(self, start: Int64s, end: Int64s) -> tuple[float, int]:
        """The joules used in these disjoint intervals, and how much of their time is known, ns."""
        ts = self.ts - self.ts[0]  # small numbers, which floats hold to the ns
        start, end = (np.clip(each - self.ts[0], 0, ts[-1]) for each in (start, end))
        unknown = np.concatenate(([0], np.cumsum(np.where(self.gap, np.diff(ts), 0))))
        joules = np.interp(end, ts, self.joules) - np.interp(start, ts, self.joules)
        lost = np.interp(end, ts, unknown) - np.interp(start, ts, unknown)
        return float(joules.sum()), round(float((end - start - lost).sum()))


def energy_meter(samples: Mapping[str, Samples]) -> EnergyMeter | None:
    """The meter of a device: from the counter of energy if there is one, else by trapezoids from power; None without
    either, or with a single sample."""
    counter, power = samples.get(ENERGY), samples.get(POWER)
    known = counter if counter is not None and len(counter.ts) > 1 else power
    if known is None or len(known.ts) < 2:
        return None
    distance = np.diff(known.ts)
    gap = distance > _LONGEST_GAP * np.median(distance)
    if known is counter:
        parts = np.diff(known.values)
        gap |= parts < 0  # it began again
    else:
        parts = (known.values[1:] + known.values[:-1]) / 2 * distance / 1e9
    joules = np.concatenate(([0.0], np.cumsum(np.where(gap, 0.0, parts))))
    return EnergyMeter(known.ts, joules, gap, float(np.median(distance)))
