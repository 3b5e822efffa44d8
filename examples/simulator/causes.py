"""What everything on a rank waited for: the truth that rules about causes are judged by.

Nothing is read from the written file: the clock (``timing.py``) noted for each operation which of its conditions was
the last to hold. Times are ns as the rank's file has them, less ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from simulator.options import JobOptions
from simulator.program import Bools, Int64s, Kept
from simulator.recording import Played, Window
from simulator.timing import EVENT, LAUNCH
from simulator.truth import Truth

Row = dict[str, Any]
Slice = tuple[int, int, int, str, str]  #: start, end, thread, category, name


class Ledger:
    """All operations of a rank, counted from the job's begin, those that are not recorded too."""

    def __init__(self, options: JobOptions, rank: int, steps: list[Played], kept: list[Kept], window: Window) -> None:
        self.options, self.rank, self.steps, self.kept, self.window = options, rank, steps, kept, window
        self.ops = [op for step in steps for op in step.program.ops]
        self.start = _joined([step.start for step in steps])
        self.end = _joined([step.end for step in steps])
        self.call = _joined([step.host[[op.launch for op in step.program.ops]] for step in steps])
        self.call_end = _joined([step.host[[op.launch_end for op in step.program.ops]] for step in steps])
        self.why = _joined([step.times.why for step in steps])
        self.by = _joined([step.times.by for step in steps])
        self.last_rank = _joined([step.times.last_rank for step in steps])
        self.last_op = _joined([step.times.last_op for step in steps])
        self.in_step = _joined([np.full(len(step.start), place, np.int64) for place, step in enumerate(steps)])
        self.recorded = np.concatenate([part.ops for part in kept])
        self.launched = np.concatenate([part.launched for part in kept])
        self.slices = sorted(self._slices(), key=lambda slice_: slice_[0])  # those of one moment as they began
        self._host = list(innermost(self.slices))

    def _slices(self) -> Iterator[Slice]:
        """Start, end, thread, category and name of each host slice, recorded or not."""
        for step in self.steps:
            first, last = step.program.slice_times(step.host)
            for begin, end, slice_ in zip(first.tolist(), last.tolist(), step.program.slices, strict=True):
                name = slice_.name % step.number if "%d" in slice_.name else slice_.name.replace("%%", "%")
                yield begin, end, slice_.tid, slice_.category, name

    def device_truth(self, device: str) -> Truth:
        """The figures of what was recorded."""
        rows = np.flatnonzero(self.recorded)
        launched = self.launched[rows] & (not self.options.graphs)  # one call of many operations is not counted here
        truth = Truth([self.ops[row] for row in rows.tolist()], device, launched)
        truth.add(self.start[rows], self.end[rows], self.call[rows], self.call_end[rows])
        return truth

    def shared(self, place: int) -> tuple[int, int]:
        """End and start of an operation on the clock that all ranks share."""
        step = self.steps[int(self.in_step[place])].times
        return int(step.end[place - step.first_op]), int(step.start[place - step.first_op])

    def shared_call(self, place: int) -> int:
        """The start of its launch call on that clock."""
        step = self.steps[int(self.in_step[place])].times
        return int(step.host[self.ops[place].launch])

    def newest_op(self, among: Bools | None = None) -> tuple[int, int]:
        """The operation that ends last, on the clock that all ranks share: its end and which it is."""
        rows = np.arange(len(self.ops)) if among is None else np.flatnonzero(among)
        return max(((self.shared(row)[0], row) for row in rows.tolist()), default=(0, -1))

    def shared_window(self) -> tuple[int, int]:
        """Begin of the recording and end of the last host slice that it holds, on that clock."""
        hosts = np.concatenate([step.times.host for step in self.steps])
        hosts_ = _joined([step.host for step in self.steps])
        held = hosts[self.window.holds(hosts_, hosts_)]
        return int(held[0]), int(held[-1])

    def figures(self) -> Row:
        """Everything that is true of this rank alone."""
        return {
            "recording": self.window_figures(),
            "steps": self._steps(),
            "gaps": list(self._gaps()),
            "before_recording": self._before(),
            "collectives": self._collectives(),
            "launched_in": self._launched_in(),
        }

    def window_figures(self) -> Row:
        """When the recording was, and when the work in it."""
        recorded = np.flatnonzero(self.recorded)
        return {
            "begin": max(self.window.begin, int(self.steps[0].host[0])),
            "finish": min(self.window.finish, max(int(self.steps[-1].host[-1]), int(self.end.max()))),
            "first_work": int(self.start[recorded].min()) if len(recorded) else None,
            "last_work": int(self.end[recorded].max()) if len(recorded) else None,
            "crossing_slices": sum(slice_.outlasts >= 0 for step in self.steps for slice_ in step.program.slices),
        }

    def _steps(self) -> list[Row]:
        """Each step of the job: when the host was in it, when its work ran, and how long it took.

        ``ns`` is the time from the end of the step before (of host and device) to its own; ``backlog_ns`` is how long
        the device was still at earlier steps when the host began.
        """
        out: list[Row] = []
        done = int(self.steps[0].host[0])
        for step, kept in zip(self.steps, self.kept, strict=True):
            begin, finish = int(step.host[0]), int(step.host[-1])
            over = max(finish, int(step.end.max()))
            out.append(
                {
                    "number": step.number,
                    "host_begin": begin,
                    "host_finish": finish,
                    "device_start": int(step.start.min()),
                    "device_end": int(step.end.max()),
                    "ns": over - done,
                    "backlog_ns": max(0, done - begin),
                    "annotated": bool(kept.slices[0]),
                    "whole": bool(kept.slices.all() and kept.ops.all()),
                }
            )
            done = over
        return out

    def _gaps(self) -> Iterator[Row]:
        """Each gap between two recorded operations of a stream, and what the second waited for.

        ``why``: ``host`` (its launch had not been called when the stream fell idle; ``host_in`` tells what the host
        did meanwhile), ``launch_latency`` (it had, but needs its time), ``stream`` (the pause after the operation
        before) or ``other_stream`` (the end of ``waited_for``). ``device_idle_ns`` is the part in which no stream of
        the device was at work.
        """
        busy = _Busy(self.start[self.recorded], self.end[self.recorded])
        last: dict[int, int] = {}
        for place in np.flatnonzero(self.recorded).tolist():
            stream = self.ops[place].stream
            before = last.get(stream)
            last[stream] = place
            if before is None or self.start[place] <= self.end[before]:
                continue
            begin, end = int(self.end[before]), int(self.start[place])
            row = {
                "stream": str(stream),
                "start": begin,
                "end": end,
                "name": self.ops[place].name,
                "launch_recorded": bool(self.launched[place]),
                "device_idle_ns": end - begin - busy.between(begin, end),
            }
            yield row | self._why(place, before)

    def _why(self, place: int, before: int) -> Row:
        """What an operation waited for after the end of the one ``before``."""
        call, since, why = int(self.call[place]), int(self.end[before]), int(self.why[place])
        if why == EVENT:
            by = int(self.by[place])
            waited_for = {"stream": str(self.ops[by].stream), "name": self.ops[by].name, "end": int(self.end[by])}
            return {"why": "other_stream", "waited_for": waited_for}
        if why != LAUNCH:
            return {"why": "stream"}
        if self.shared_call(place) <= self.shared(before)[0]:
            return {"why": "launch_latency"}
        return {"why": "host", "host_ns": call - since, "host_in": self._host_in(since, call)}

    def _host_in(self, since: int, until: int) -> dict[str, int]:
        """How long the host was in what: the innermost slice at each moment; "" for none."""
        spent: Counter[str] = Counter()
        for begin, end, name in self._host[max(0, bisect(self._host, (since,)) - 1) :]:
            if begin >= until:
                break
            spent[name] += max(0, min(end, until) - max(begin, since))
        spent[""] += until - since - sum(spent.values())
        return {name: ns for name, ns in spent.most_common() if ns}

    def _before(self) -> Row:
        """The recorded work that was launched before the recording."""
        early = self.recorded & ~self.launched
        ran = self.end - self.start
        total, ns = int(ran[self.recorded].sum()), int(ran[early].sum())
        until = int(self.end[early].max()) if early.any() else None
        return {"count": int(early.sum()), "ns": ns, "share": ns / total if total else None, "until": until}

    def _collectives(self) -> list[Row]:
        """Each collective of the job: how long its kernel waited here, and for which rank."""
        return [
            {
                "step": self.steps[int(self.in_step[place])].number,
                "name": self.ops[place].name,
                "start": int(self.start[place]),
                "end": int(self.end[place]),
                "last_rank": int(self.last_rank[place]),
                "recorded": bool(self.recorded[place]),
            }
            for place, op in enumerate(self.ops)
            if op.collective
        ]

    def _launched_in(self) -> list[Row]:
        """For each operation recorded with its launch the innermost operator and annotation at the launch."""
        rows = np.flatnonzero(self.recorded & self.launched)
        calls = self.call[rows]
        names: dict[str, list[str]] = {}
        for category in ("cpu_op", "user_annotation"):
            names[category] = self._open_at(category, calls)
        return [
            {"start": int(self.start[row]), "name": self.ops[row].name, "operator": operator, "annotation": annotation}
            for row, operator, annotation in zip(rows.tolist(), names["cpu_op"], names["user_annotation"], strict=True)
        ]

    def _open_at(self, category: str, moments: Int64s) -> list[str]:
        """The recorded slice of the launching thread that began last among those open at each moment."""
        threads: dict[int, list[Slice]] = defaultdict(list)
        calls: dict[int, int] = {}
        for slice_ in self.slices:
            if slice_[3] == category and slice_[0] >= self.window.begin and slice_[1] <= self.window.finish:
                threads[slice_[2]].append(slice_)
            if slice_[3] in ("cuda_runtime", "cuda_driver"):
                calls[slice_[0]] = slice_[2]
        pieces = {tid: list(innermost(slices)) for tid, slices in threads.items()}
        out = []
        for moment in moments.tolist():
            around = pieces.get(calls[moment], [])
            place = bisect(around, (moment + 1,)) - 1
            out.append(around[place][2] if place >= 0 and moment < around[place][1] else "")
        return out


def innermost(slices: list[Slice]) -> Iterator[tuple[int, int, str]]:
    """The pieces of the host's time with the slice that began last among those open; ``slices`` ascend."""
    moments = sorted({moment for slice_ in slices for moment in slice_[:2]})
    coming = iter(slices)
    following, number = next(coming, None), 0
    inside: list[tuple[int, int, str]] = []  # newest first
    for begin, end in pairwise(moments):
        while following is not None and following[0] <= begin:
            number += 1
            heapq.heappush(inside, (-number, following[1], following[4]))
            following = next(coming, None)
        while inside and inside[0][1] <= begin:
            heapq.heappop(inside)
        if inside:
            yield begin, end, inside[0][2]


class _Busy:
    """How long any stream was at work between two moments."""

    def __init__(self, start: Int64s, end: Int64s) -> None:
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        new = np.ones(len(start), np.bool_)
        new[1:] = start[1:] > reached[:-1]
        self.start = start[new]
        self.end = reached[np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)] if len(start) else reached
        self.before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.end - self.start)))

    def _until(self, moment: int) -> int:
        place = int(np.searchsorted(self.start, moment, side="right"))
        over = max(0, int(self.end[place - 1]) - moment) if place else 0
        return int(self.before[place]) - over

    def between(self, begin: int, end: int) -> int:
        """The busy time."""
        return self._until(end) - self._until(begin)


def _joined(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts)
