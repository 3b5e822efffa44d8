"""Hardware counters in a trace: samples over time, CUPTI's PM sampling as Kineto writes it since 2026-08; and for each
profiler range its launch, and the operators around that. And what telemetry says of the devices, on the trace's clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import EventRow, EventRows, Int64s, distinct
from augment.core import Category, Trace, derived, records
from augment.core.args import Arg
from augment.facts import source
from augment.facts.gpu.gpu_work import gpu_work, launches
from augment.facts.host.call_stacks import call_stacks, is_of, outermost
from augment.facts.source.event_args import args_of_rows

_COUNTER = "hardware_counters"  #: the category; a counter's process is named ``GPU 0 Counters``, its arg has no name
_DEVICE = re.compile(r"GPU (\d{1,9}) Counters")
_PERCENT = ".pct_of_peak_sustained_elapsed"
#: quantity, unit, and how CUPTI's metric of it begins
_METRICS = (
    ("sm_active", "ratio", r"sm__cycles_active\.avg"),
    ("tensor_active", "ratio", r"sm__(?:pipe|inst_executed_pipe)_tensor\w*\.(?:avg|sum)"),
    ("dram_active", "ratio", r"dram__throughput\.avg"),
    ("dram_read", "bytes", r"dram__bytes_read\.sum"),
    ("dram_written", "bytes", r"dram__bytes_write\.sum"),
    ("dram_moved", "bytes", r"dram__bytes\.sum"),
)
_ELAPSED = "sm__cycles_elapsed"


class HardwareSamples(Struct, frozen=True):
    """One quantity of a device. A value holds from its ``ts`` for ``period_ns``, or until the next one: of a ratio it
    is the mean over that time, of bytes the sum."""

    unit: str  #: ``ratio`` or ``bytes``
    ts: Int64s  #: ns, strictly ascending
    values: npt.NDArray[np.float64]
    period_ns: int

    def over(self, start: Int64s, end: Int64s) -> tuple[float, int]:
        """The mean ratio, or the sum of bytes, in these disjoint intervals, and how much of their time was sampled, ns.
        A sample that is only partly in them counts for its share."""
        stop = np.minimum(self.ts + self.period_ns, np.append(self.ts[1:], self.ts[-1] + self.period_ns))
        edges = np.stack((self.ts, stop), axis=1).ravel() - self.ts[0]
        length = stop - self.ts
        rate = self.values if self.unit == "ratio" else self.values / length
        time, amount = (
            np.stack((np.cumsum(each) - each, np.cumsum(each)), axis=1).ravel() for each in (length, rate * length)
        )
        bounds = [each - self.ts[0] for each in (start, end)]
        sampled, whole = (
            float((np.interp(bounds[1], edges, each) - np.interp(bounds[0], edges, each)).sum())
            for each in (time, amount)
        )
        return (whole / sampled if self.unit == "ratio" and sampled else whole), round(sampled)


@derived(until="breakdowns")
def hardware_samples(trace: Trace) -> Mapping[int, Mapping[str, HardwareSamples]]:
    """By the number of a device its sampled quantities. Of cycles, the share of those that elapsed is taken, where both
    were sampled: alone they say nothing of a share."""
    events, known = trace.events, dict[int, dict[str, HardwareSamples]]()
    if _COUNTER not in set(trace.strings):
        return {}
    rows = events.where((events.phase == ord("C")) & (events.category_name == trace.strings.index(_COUNTER)))
    values = args_of_rows(trace, rows, [Arg("", (Category.OTHER,), is_text=True)])[""]
    rows, number = values.column.rows[:].astype(EventRow, copy=False), np.array([*map(_number, values.texts)])
    value = number[values.column.values[:]] if len(rows) else np.empty(0)
    for track in np.unique(events.track[rows]).tolist():
        if not (device := _DEVICE.search(str(trace.tracks[track].pid))):
            continue
        series: dict[str, tuple[Int64s, npt.NDArray[np.float64]]] = {}
        for name in np.unique(events.name[rows[events.track[rows] == track]]).tolist():
            chosen = (events.track[rows] == track) & (events.name[rows] == name) & np.isfinite(value)
            ts, first = np.unique(events.ts[rows[chosen]], return_index=True)
            series[trace.strings[name]] = ts, value[chosen][first]
        known.setdefault(int(device[1]), {}).update(_quantities(series))
    return known


def _quantities(series: Mapping[str, tuple[Int64s, npt.NDArray[np.float64]]]) -> dict[str, HardwareSamples]:
    elapsed = next((series[name] for name in sorted(series) if name.startswith(_ELAPSED)), None)
    known: dict[str, HardwareSamples] = {}
    for quantity, unit, pattern in _METRICS:
        for name in sorted(series, key=len, reverse=True):  # a share first
            ts, values = series[name]
            if quantity in known or len(ts) < 2 or not re.match(pattern, name):
                continue
            if unit == "ratio" and "pct_of_peak" in name:
                if not name.endswith(_PERCENT) and quantity == "sm_active":
                    continue  # of active cycles
                values = values / 100
            elif unit == "ratio":
                if elapsed is None or not np.array_equal(elapsed[0], ts) or quantity != "sm_active":
                    continue
                values = np.divide(values, elapsed[1], out=np.zeros(len(values)), where=elapsed[1] > 0)
            known[quantity] = HardwareSamples(unit, ts, values, max(int(np.median(np.diff(ts))), 1))
    return known


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel")
_FLOP = re.compile(r"smsp__sass_thread_inst_executed_op_[fhd](add|mul|fma)_pred_on\.sum")


class CounterRanges(Struct, frozen=True):
    """The ``cuda_profiler_range`` slices, ascending."""

    row: EventRows  #: the range
    counters: list[dict[str, float]]  #: its numeric args, plus ``flop`` where it can be computed from them
    operators: list[tuple[str, ...]] | None  #: those around its launch, outermost first; None where that is unknown
    problem: str | None  #: why ranges cannot be assigned to launches


@derived(until="breakdowns")
def counter_ranges(trace: Trace) -> CounterRanges:
    """The trace's ranges. The n-th range belongs to the n-th call that launches a kernel, if the numbers are equal."""
    ranges = trace.events.slices_of(Category.CUDA_PROFILER_RANGE)
    counters = []
    for args in trace.args_of(ranges):
        # the counters among args, and the figures computed from them
        kept = {name: value for name, value in args.items() if isinstance(value, (int, float)) and value == value}
        weights = {name: match for name in kept if (match := _FLOP.fullmatch(name))}
        if weights:
            kept["flop"] = sum(kept[name] * (2 if match[1] == "fma" else 1) for name, match in weights.items())
        counters.append(kept)
    # calls that launch one kernel each, in order of time; a runtime call and the driver call within it are one
    rows = np.sort(launches(trace).row)
    is_launch = [code for code in distinct(trace.events.name[rows]).tolist() if _LAUNCH.search(trace.strings[code])]
    calls = rows[np.isin(trace.events.name[rows], is_launch)]
    if len(calls) != len(ranges):
        problem = f"{len(ranges)} ranges and {len(calls)} launches of kernels: nothing tells which belongs to which"
        return CounterRanges(ranges, counters, None, problem)
    stacks, events = call_stacks(trace), trace.events
    is_operator = is_of(trace, [Category.CPU_OP])
    operators = []
    for call, outer in zip(calls.tolist(), outermost(trace, calls, [Category.CPU_OP]).tolist(), strict=True):
        first, last = (int(stacks.place_of[row]) for row in (outer, call)) if outer >= 0 else (0, 0)
        row = stacks.row[first:last][is_operator[first:last]]  # the slices between the outermost and the call
        around = events.ts[row] + events.dur[row] >= events.ts[call] + events.dur[call]
        operators.append(tuple(trace.names_of(row[around])))
    return CounterRanges(ranges, counters, operators, None)


HOUR_NS = 3600 * 10**9
#: zones that exist, in hours
_ZONES = (*range(-12, 15), -9.5, -3.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75)
_LONGEST_GAP = 10  #: of the median distance of samples; over a longer one nothing is known


class WatchedGpus(Struct, frozen=True):
    """By the place of a device of ``gpu_work`` its samples by quantity. ``zone``: in which zone the times of the file
    were taken to be, empty where it says that."""

    devices: Mapping[int, Mapping[str, records.Samples]]  #: on the clock of the trace
    zone: str = ""  #: ``+01:00``


@derived(until="breakdowns")
def watched_gpus(trace: Trace) -> WatchedGpus | str | None:
    """What was recorded of each device beside the trace: power, clocks and others; why it cannot be joined; or None."""
    telemetry = trace.context.attached(records.Telemetry)
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
    if why := source.apart(trace, int(first) - offset, int(last) - offset, "the telemetry"):
        return why
    devices: dict[int, dict[str, records.Samples]] = {}
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


def energy_meter(samples: Mapping[str, records.Samples]) -> EnergyMeter | None:
    """The meter of a device: from the counter of energy if there is one, else by trapezoids from power; None without
    either, or with a single sample."""
    counter, power = samples.get(records.ENERGY), samples.get(records.POWER)
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
