"""Telemetry of GPUs: CSV of nvidia-smi, rocm-smi, programs on libdcgm and loops of one's own, ``dcgmi dmon``,
``nvidia-smi dmon``, and range queries of Prometheus (dcgm-exporter).

Columns are known by their names, whatever wrote them. What a file does not say is given after its name:
``dmon.txt@start=2026-11-23T14:20:01Z,period=100ms``, ``smi.csv@zone=+08:00,gpu=3``.
"""

from __future__ import annotations

import csv
import datetime
import math
import os
import re
from array import array

import msgspec
import numpy as np

from augment.core.records import Samples, Telemetry
from augment.errors import LimitExceeded, UnknownFormat, UsageError
from augment.readers.attachments import files_at
from augment.readers.containers import at_least, bounded_lines, open_text
from augment.readers.limits import UNLIMITED, Limits

LONGEST_LINE = 1 << 16
MOST_VALUES = 20_000_000
MOST_JSON = 1 << 28
MOST_SERIES = 100_000
_PERCENT, _MIB = 0.01, float(1 << 20)
#: quantity, its unit, the factor of values without a unit, and what columns of it are called: in small letters, with
#: ``_`` for blanks and points
_QUANTITIES = """
power W 1: power_draw power_draw_instant power_draw_average power power_w power_watts power_usage watts pwr powr
  average_graphics_package_power current_socket_graphics_package_power average_socket_power dcgm_fi_dev_power_usage
energy J 0.001: total_energy_consumption totec dcgm_fi_dev_total_energy_consumption
sm_clock MHz 1: clocks_sm clocks_gr clocks_current_sm clocks_current_graphics sm_clock sm_clock_mhz smclk pclk sclk
  sclk_clock_speed graphics_clock dcgm_fi_dev_sm_clock
memory_clock MHz 1: clocks_mem clocks_current_memory mem_clock memory_clock mem_clock_mhz mmclk mclk
  mclk_clock_speed dcgm_fi_dev_mem_clock
temperature °C 1: temperature_gpu temperature temperature_c temp temp_c gtemp tmptr dcgm_fi_dev_gpu_temp
  temperature_(sensor_edge) temperature_(sensor_junction)
utilization ratio 0.01: utilization_gpu utilization_gpu_percent gpu_util gpu_utilization gpu_util_percent gputl sm
  gpu_use dcgm_fi_dev_gpu_util
memory_utilization ratio 0.01: utilization_memory utilization_memory_percent mcutl mem dcgm_fi_dev_mem_copy_util
memory_used bytes 1048576: memory_used memory_used_mb memory_used_mib fb_used fbusd dcgm_fi_dev_fb_used
graphics_active ratio 1: gract dcgm_fi_prof_gr_engine_active
sm_active ratio 1: smact dcgm_fi_prof_sm_active
sm_occupancy ratio 1: smocc dcgm_fi_prof_sm_occupancy
tensor_active ratio 1: tenso dcgm_fi_prof_pipe_tensor_active
dram_active ratio 1: drama dcgm_fi_prof_dram_active
fp64_active ratio 1: fp64a dcgm_fi_prof_pipe_fp64_active
fp32_active ratio 1: fp32a dcgm_fi_prof_pipe_fp32_active
fp16_active ratio 1: fp16a dcgm_fi_prof_pipe_fp16_active
pcie_sent GB/s 1e-9: pcitx dcgm_fi_prof_pcie_tx_bytes
pcie_received GB/s 1e-9: pcirx dcgm_fi_prof_pcie_rx_bytes
nvlink_sent GB/s 1e-9: nvltx dcgm_fi_prof_nvlink_tx_bytes
nvlink_received GB/s 1e-9: nvlrx dcgm_fi_prof_nvlink_rx_bytes
"""
_KNOWN = {
    name: (quantity, unit, float(factor))
    for quantity, unit, factor, names in re.findall(
        r"(?m)^(\w+) (\S+) (\S+): ((?:.+\n(?:  )?)+?)(?=^\w|\Z)", _QUANTITIES
    )
    for name in names.split()
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
#: what is no slowdown: nothing to do, and settings of the user's own
_NO_SLOWDOWN = frozenset(("active", "supported", "gpu_idle", "applications_clocks_setting", "sync_boost"))
_TIME = re.compile(r"(?:unix_?|epoch_?)?(?:timestamp|time|datetime|ts)(?:_?(?:ns|us|ms|s|utc))?|date")
_GPU = ("index", "gpu_index", "gpu", "gpuid", "gpu_id", "device", "id", "uuid", "gpu_uuid", "pci.bus_id")
_UNIT = re.compile(r"\s*[\[(]\s*(%|w|mw|mib|mb|mhz|c|mj|j)\s*[\])]\s*$", re.IGNORECASE)
_VALUE = re.compile(r"\(?([-+]?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?)\s*(%|W|mW|MiB|MB|GiB|MHz|C|Mhz|mJ|J)?\)?")
_FACTORS = {"%": _PERCENT, "mw": 1e-3, "mib": _MIB, "mb": 1e6, "gib": float(1 << 30), "mj": 1e-3}
_MOMENT = re.compile(
    r"(\d{4})[-/]?(\d\d)[-/]?(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|UTC|[-+]\d\d:?\d\d)?"
)
_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|us|s)")


def read_telemetry(path: str, limits: Limits = UNLIMITED) -> Telemetry:
    """The telemetry at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: no column of it is known, or it has no times and none are given.
        UsageError: what is given after the name is not understood.
    """
    named, given = _split(path)
    file, *others = files_at(named) or [named]
    if others:
        raise UsageError(f"{path}: several files; name the one of this trace, or write {{rank}} in its name")
    with open_text(file, limits) as text:
        head = at_least(text, 1 << 12)
    table = _SampleRows(file, given)
    if head.lstrip()[:1] == b"{":
        # the answer of a range query: {"data": {"resultType": "matrix", "result": [{"metric": …, "values": …}]}}
        with open_text(file, limits) as text:
            content = at_least(text, MOST_JSON + 1)
        if len(content) > MOST_JSON:
            raise LimitExceeded(file, f"larger than {MOST_JSON >> 20} MiB of JSON")
        try:
            answer = msgspec.json.decode(content)
            results = answer["data"]["result"]
            hosts = {str(result["metric"].get("Hostname", "")) for result in results}
            for result in results:
                metric = result["metric"]
                gpu = str(metric.get("gpu", metric.get("UUID", "0")))
                if len(hosts) > 1:
                    gpu = f"{metric.get('Hostname', '')}/{gpu}"
                if known := quantity_of(str(metric.get("__name__", "")).lower()):
                    for at, value in result["values"]:
                        number = float(value)
                        if math.isfinite(number) and (moment := table.moment(f"{float(at):.9f}")) is not None:
                            table.add((gpu,), moment, [(*known[:2], number * known[2])])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UnknownFormat(file, f"no answer of Prometheus to a range query: {error}") from error
    else:
        # a table with a heading, whose columns are separated by commas or, in dmon's, by blanks
        wide = False
        for number, (line, _) in enumerate(bounded_lines(file, LONGEST_LINE, limits)):
            if not number and line.startswith(b"\xff\xfe"):  # a shell of Windows
                wide = True
            encoding = "utf-16-le" if wide else "utf-8"
            row = (line[number > 0 :] if wide else line).decode(encoding, "replace").strip("\ufeff\r\n\0 ")
            if not row:
                continue
            if row.startswith("#"):
                names = row.lstrip("# ").split()
                if names and names[0].lower() in ("entity", "gpu", "date", "time"):
                    table.heading(["gpu" if name.lower() == "entity" else name for name in names], blanks=True)
                continue
            if table.by_blanks:
                cells = row.replace("GPU ", "", 1).split() if row.startswith("GPU") else row.split()
            else:
                cells = next(csv.reader([" ".join(row.splitlines())]), [])
            if not table.columns:
                table.heading(cells)
            elif len(cells) == len(table.names):
                table.row(cells)
    return table.finish()


def _split(path: str) -> tuple[str, dict[str, str]]:
    """The file, and what is given after its name."""
    if os.path.exists(path) or "@" not in path:
        return path, {}
    file, _, text = path.rpartition("@")
    given = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := sorted(given.keys() - {"start", "period", "zone", "gpu"}):
        raise UsageError(f"{path}: {unknown[0]!r} is not known; after @ come start=, period=, zone= and gpu=")
    return file, given


class _SampleRows:
    """Rows of a file, as they are read."""

    def __init__(self, path: str, given: dict[str, str]) -> None:
        self.path, self.given, self.names, self.by_blanks = path, given, list[str](), False
        self.columns: dict[int, tuple[str, str, float]] = {}  #: by the place of a column: quantity, unit, factor
        self.reasons: dict[int, str] = {}
        self.time, self.gpus = list[int](), list[int]()
        #: by the cells that name a GPU, the quantity and its unit: times and values
        self.series: dict[tuple[tuple[str, ...], str, str], tuple[array[int], array[float]]] = {}
        self.samples: dict[tuple[str, ...], int] = {}  #: how many rows each GPU has
        self.has_zone, self.bad, self.values = True, 0, 0
        start = self.moment(given["start"]) if "start" in given else 0
        period = _PERIOD.fullmatch(given.get("period", "1us"))
        if start is None or period is None or ("start" in given) != ("period" in given):
            raise UsageError(f"{path}: after @ come start=2026-11-23T14:20:01Z and period=100ms")
        self.start, self.step = start, round(float(period[1]) * {"s": 10**9, "ms": 10**6, "us": 10**3}[period[2]])

    def heading(self, cells: list[str], *, blanks: bool = False) -> None:
        """Columns with these names; a line without any known one is no heading."""
        columns, reasons, time, gpus = {}, {}, [], []
        for place, cell in enumerate(cells):
            unit = _UNIT.search(cell)
            name = (cell[: unit.start()] if unit else cell).strip().lower()
            if reason := _REASON.fullmatch(name):
                reasons[place] = reason[1]
            elif _TIME.fullmatch(name):
                time.append(place)
            elif name in _GPU:
                gpus.append(place)
            elif known := quantity_of(name):
                factor = _FACTORS.get(unit[1].lower(), 1.0) if unit else known[2]
                columns[place] = (known[0], known[1], factor)
        if columns and (time or gpus):
            self.columns, self.reasons, self.time, self.by_blanks = columns, reasons, time[:2], blanks
            self.gpus = sorted(gpus, key=lambda place: _GPU.index(cells[place].strip().lower()))
            self.names = cells

    def row(self, cells: list[str]) -> None:
        """A row below the heading; values that are none (``[N/A]``) are left out."""
        cells = [cell.strip() for cell in cells]
        moment = " ".join(cells[place] for place in self.time)
        at = self.moment(moment) if self.time else None
        if self.time and at is None:
            self.bad += moment != self.names[self.time[0]].strip()  # the heading again
            return
        values = []
        for place, (quantity, unit_here, factor) in self.columns.items():
            match = _VALUE.fullmatch(cells[place])
            if match and math.isfinite(value := float(match[1])):
                unit = (match[2] or "").lower()
                values.append((quantity, unit_here, value * (_FACTORS.get(unit, 1.0) if unit else factor)))
        held = [name for place, name in self.reasons.items() if name not in _NO_SLOWDOWN and cells[place] == "Active"]
        if self.reasons and any(cells[place] in ("Active", "Not Active") for place in self.reasons):
            values.append(("throttled", "ratio", float(bool(held))))
        self.add(tuple(cells[place] for place in self.gpus), at, values)

    def add(self, gpu: tuple[str, ...], at: int | None, values: list[tuple[str, str, float]]) -> None:
        """What was sampled of a GPU at a moment."""
        self.values += len(values)
        if self.values > MOST_VALUES or len(self.series) > MOST_SERIES:
            raise LimitExceeded(self.path, f"more than {MOST_VALUES:,} values or {MOST_SERIES:,} series")
        number = self.samples[gpu] = self.samples.get(gpu, -1) + 1
        moment = self.start + number * self.step if at is None else at
        for quantity, unit, value in values:
            times, known = self.series.setdefault((gpu, quantity, unit), (array("q"), array("d")))
            times.append(moment)
            known.append(value)

    def moment(self, text: str) -> int | None:
        """Unix ns; None for what is no time. Numbers are seconds, milli-, micro- or nanoseconds by their size."""
        if match := _MOMENT.fullmatch(text):
            year, month, day, hour, minute, second = map(int, match.groups()[:6])
            try:
                whole = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.timezone.utc)
            except ValueError:
                return None
            zone = match[8] or self.given.get("zone", "")
            self.has_zone &= bool(zone)
            ns = round(whole.timestamp()) * 10**9 + int((match[7] or "0").ljust(9, "0")) - zone_seconds(zone) * 10**9
            return ns if 0 <= ns < 1 << 62 else None
        match_ = _VALUE.fullmatch(text)
        if match_ is None or match_[2]:
            return None
        integer, _, fraction = match_[1].partition(".")
        if not integer.isdecimal() or not 9 <= len(integer) <= 19:
            return None
        scale = 10 ** (9 - 3 * ((len(integer) - 8) // 3)) if len(integer) > 10 else 10**9
        ns = int(integer) * scale + (int(fraction.ljust(9, "0")[:9]) * scale // 10**9 if fraction.isdecimal() else 0)
        return ns if ns < 1 << 62 else None

    def finish(self) -> Telemetry:
        """The samples of each GPU and quantity."""
        if not self.series:
            raise UnknownFormat(self.path, "no telemetry: no column of power, clocks, temperature or use of a GPU")
        # of several columns that name the GPU, the one that tells most apart
        depth = min(len(gpu) for gpu, *_ in self.series)
        told_apart = [len({gpu[place] for gpu, *_ in self.series}) for place in range(depth)]
        column = max(range(depth), key=lambda place: (told_apart[place], -place), default=-1)
        joined: dict[tuple[str, str, str], list[tuple[array[int], array[float]]]] = {}
        for (gpu, quantity, unit), both in self.series.items():
            joined.setdefault((gpu[column] if column >= 0 else "0", quantity, unit), []).append(both)
        samples = []
        for (name, quantity, unit), several in joined.items():
            ts, first = np.unique(
                np.concatenate([np.array(times, np.int64) for times, _ in several]), return_index=True
            )
            values = np.concatenate([np.array(known, np.float64) for _, known in several])[first]
            samples.append(Samples(name, quantity, unit, ts, values))
        has_times = bool(self.time) or not self.names or "start" in self.given
        return Telemetry(self.path, tuple(samples), has_times, self.has_zone, self.given.get("gpu", ""), self.bad)


def zone_seconds(zone: str) -> int:
    """``+08:00`` in seconds; of UTC, and of what is none, 0."""
    match = re.fullmatch(r"([-+])(\d\d):?(\d\d)", zone)
    return (1 if match[1] == "+" else -1) * (int(match[2]) * 3600 + int(match[3]) * 60) if match else 0


def quantity_of(name: str) -> tuple[str, str, float] | None:
    """Quantity, unit and factor of a column of this name."""
    return _KNOWN.get(name.strip().lower().replace(" ", "_").replace(".", "_"))
