"""The true figures, summed step by step from the simulator's own times.

Where every step ends with the host waiting for the device, nothing of one step overlaps the next: sums over steps are
the figures of the whole file, and the memory needed is that of one step. Else all steps are counted as one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from simulator.program import Bools, GpuOp, Int64s

T = TypeVar("T")
TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")
CATEGORIES = ("host_wait", "kernel_wait", "other")
SHORT_GAP_NS, RUNTIME_OUTLIER_NS, DELAY_OUTLIER_NS, FULL_QUEUE = 30_000, 50_000, 100_000, 1024


def _type_of(op: GpuOp) -> str:
    return "MEMORY" if op.category != "kernel" else "COMMUNICATION" if op.collective else "COMPUTATION"


def _places(values: Iterable[T]) -> dict[T, Int64s]:
    """Where each value is."""
    places = defaultdict[T, list[int]](list)
    for place, value in enumerate(values):
        places[value].append(place)
    return {value: np.array(places[value], np.int64) for value in sorted(places)}


def sweep(times: Int64s, changes: Int64s) -> tuple[Int64s, Int64s]:
    """How long each value holds, and the values: between the sorted ``times``, the sums of ``changes`` so far."""
    order = np.argsort(times, kind="stable")
    moments = times[order]
    return np.diff(moments), np.cumsum(changes[order], axis=0)[:-1]


class _Stream:
    """Idle time, queue and launches of one stream."""

    def __init__(self, ops: Int64s) -> None:
        self.ops = ops
        self.last_end: int | None = None
        self.idle = dict.fromkeys(CATEGORIES, 0)
        self.gaps = dict.fromkeys(CATEGORIES, 0)
        self.queue_max = self.queue_area = self.queue_full = self.launches = 0
        self.queue_first: int | None = None
        self.queue_last = 0
        self.short = self.slow_calls = self.late = self.latest = 0

    def add(self, start: Int64s, end: Int64s, call: Int64s, call_end: Int64s) -> None:
        """One step's operations, in stream order."""
        before = [self.last_end, *end.tolist()[:-1]]
        for began, launched, ended in zip(start.tolist(), call.tolist(), before, strict=True):
            if ended is not None and began > ended:
                short = began - ended < SHORT_GAP_NS
                category = "host_wait" if launched > ended else "kernel_wait" if short else "other"
                self.idle[category] += began - ended
                self.gaps[category] += 1
        self.last_end = int(end[-1])
        self._queue(start, call)
        delay = np.maximum(start - call_end, 0)
        self.launches += len(start)
        self.short += int(np.sum(end - start < call_end - call))
        self.slow_calls += int(np.sum(call_end - call > RUNTIME_OUTLIER_NS))
        self.late += int(np.sum(delay > DELAY_OUTLIER_NS))
        self.latest = max(self.latest, int(delay.max()))

    def _queue(self, start: Int64s, call: Int64s) -> None:
        waits, lengths = sweep(np.concatenate((call, start)), np.repeat((1, -1), len(start)))
        held = waits > 0  # changes at one moment are one change
        self.queue_max = max(self.queue_max, int(lengths[held].max()))
        self.queue_area += int(np.sum(waits * lengths))
        self.queue_full += int(np.sum(waits[lengths >= FULL_QUEUE]))
        self.queue_first = int(call[0]) if self.queue_first is None else self.queue_first
        self.queue_last = int(start[-1])


class Truth:
    """The figures of one device, with the keys of a slow reading of its file."""

    def __init__(self, ops: Sequence[GpuOp], device: str, launched: Bools | None = None) -> None:
        self.device = device
        self._all_launched = launched is None or bool(launched.all())
        types = [_type_of(op) for op in ops]
        self._types = np.array([TYPES.index(each) for each in types], np.int64)
        self._streams = {stream: _Stream(rows) for stream, rows in _places(op.stream for op in ops).items()}
        self._sizes = np.array([op.bytes for op in ops], np.int64)
        self._names = _places(zip(types, (op.name for op in ops), strict=True))
        self._kinds = _places(self._kind(op) if op.category != "kernel" else "" for op in ops)
        self._kinds.pop("", None)
        self._by_name: dict[tuple[str, str], list[int]] = {}
        self._copies = {kind: [0, 0, 0] for kind in self._kinds}
        self._sums = dict.fromkeys(
            ("busy", "compute", "communication", "exposed_communication", "exposed_memory", "overlap"), 0
        )
        self._first: int | None = None
        self._last = 0

    @staticmethod
    def _kind(op: GpuOp) -> str:
        return "Memset" if op.category == "gpu_memset" else " ".join(re.split(r"\s", op.name)[:2])

    def add(self, start: Int64s, end: Int64s, call: Int64s, call_end: Int64s) -> None:
        """Count one step: its operations, and the calls that launched them."""
        self._first = int(start.min()) if self._first is None else self._first
        self._last = int(end.max())
        self._device_time(start, end)
        for stream in self._streams.values():
            stream.add(start[stream.ops], end[stream.ops], call[stream.ops], call_end[stream.ops])
        for key, rows in self._names.items():
            durs = end[rows] - start[rows]
            new = [len(rows), int(durs.sum()), int(durs.min()), int(durs.max())]
            old = self._by_name.get(key, [0, 0, new[2], new[3]])
            self._by_name[key] = [old[0] + new[0], old[1] + new[1], min(old[2], new[2]), max(old[3], new[3])]
        for kind, rows in self._kinds.items():
            held, running = sweep(np.concatenate((start[rows], end[rows])), np.repeat((1, -1), len(rows)))
            for place, value in enumerate((len(rows), int(self._sizes[rows].sum()), int(held[running > 0].sum()))):
                self._copies[kind][place] += value

    def _device_time(self, start: Int64s, end: Int64s) -> None:
        """Walk over all starts and ends; at each moment the running types say what the time counts as."""
        ones = np.zeros((len(start), len(TYPES)), np.int64)
        ones[np.arange(len(start)), self._types] = 1
        held, running = sweep(np.concatenate((start, end)), np.concatenate((ones, -ones)))
        compute, communication, memory = (running > 0).T
        for key, when in (
            ("busy", compute | communication | memory),
            ("compute", compute),
            ("communication", communication),
            ("exposed_communication", communication & ~compute),
            ("exposed_memory", memory & ~compute & ~communication),
            ("overlap", compute & communication),
        ):
            self._sums[key] += int(held[when].sum())

    def figures(self) -> dict[str, Any]:
        """Everything so far; without what takes launches, if some are not recorded."""
        return self._device_figures() | (self._launch_figures() if self._all_launched else {})

    def _device_figures(self) -> dict[str, Any]:
        sums, device = self._sums, {"device": self.device}
        span = self._last - (self._first or 0)
        communication = sums["communication"]
        return {
            "temporal_breakdown": [
                {
                    **device,
                    "span_ns": span,
                    "busy_ns": sums["busy"],
                    "idle_ns": span - sums["busy"],
                    "compute_ns": sums["compute"],
                    "exposed_communication_ns": sums["exposed_communication"],
                    "exposed_memory_ns": sums["exposed_memory"],
                    "non_compute_ns": sums["busy"] - sums["compute"],
                }
            ],
            "communication_computation_overlap": [
                {
                    **device,
                    "communication_ns": communication,
                    "computation_ns": sums["compute"],
                    "overlap_ns": sums["overlap"],
                    "overlap_ratio": sums["overlap"] / communication if communication else None,
                }
            ],
            "kernel_breakdown": [
                {
                    **device,
                    "kernel_type": kind,
                    "name": name,
                    "count": count,
                    "sum_ns": total,
                    "min_ns": least,
                    "max_ns": most,
                }
                for (kind, name), (count, total, least, most) in sorted(self._by_name.items())
            ],
            "memory_bandwidth": [
                {**device, "kind": kind, "count": count, "bytes": size, "busy_ns": busy}
                for kind, (count, size, busy) in sorted(self._copies.items())
            ],
        }

    def _launch_figures(self) -> dict[str, Any]:
        device = {"device": self.device}
        return {
            "idle_time_breakdown": [
                {
                    **device,
                    "stream": str(number),
                    "category": category,
                    "idle_ns": stream.idle[category],
                    "gap_count": stream.gaps[category],
                }
                for number, stream in self._in_order()
                for category in CATEGORIES
            ],
            "queue_length": [self._queue_row(number, stream) for number, stream in self._in_order()],
            "launch_statistics": [
                {
                    **device,
                    "stream": str(number),
                    "launch_count": stream.launches,
                    "short_kernel_count": stream.short,
                    "runtime_outlier_count": stream.slow_calls,
                    "launch_delay_outlier_count": stream.late,
                    "max_launch_delay_ns": stream.latest,
                }
                for number, stream in self._in_order()
            ],
        }

    def _in_order(self) -> list[tuple[int, _Stream]]:
        return sorted(self._streams.items(), key=lambda item: str(item[0]))

    def _queue_row(self, number: int, stream: _Stream) -> dict[str, Any]:
        span = stream.queue_last - (stream.queue_first or 0)
        return {
            "device": self.device,
            "stream": str(number),
            "max": stream.queue_max,
            "mean": stream.queue_area / span if span else None,
            "full_queue_ns": stream.queue_full,
        }
