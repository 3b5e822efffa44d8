"""The rows by name and by call path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import NO_INDEX, Int64s
from augment.compare.alignment import Alignment
from augment.compare.calls import Names, Paths, Side
from augment.compare.diff_rows import Change, LineRow, NameRow, PathRow
from augment.compare.noise import chance_of, corrected
from augment.compare.totals import CONTROL, TEST, Ledger, verdict_of
from augment.core import LAUNCHES, Category, Findings, Skipped

KERNELS_SHOWN = 4
_CPU, _GPU = 0, 1
_COUNT, _CPU_NS, _CPU_SELF, _GPU_NS, _GPU_SELF, _MATCHED = range(6)
_SIDES: tuple[Literal["cpu"], Literal["gpu"]] = ("cpu", "gpu")


class _Counts:
    """How often each key was seen in each step, and for how long."""

    def __init__(self, step_count: int) -> None:
        self._steps, self._ledger = step_count, Ledger(2 * step_count)  # counts, then sums of durations

    def count(self, which: int, key: npt.NDArray[np.integer], step: Int64s, ns: Int64s) -> None:
        """Count what lies in a step (not -1), on one side."""
        inside = step >= 0
        key, step = key[inside].astype(np.int64), step[inside]
        self._ledger.add(which, key, step, np.ones(len(key), np.int64))
        self._ledger.add(which, key, self._steps + step, ns[inside])

    def compared(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each key with the columns of both sides."""
        entries = list(self._ledger)
        chances = [chance_of(*sums[:, self._steps :].astype(np.float64)) for _, sums in entries]
        for (key, sums), p in zip(entries, corrected(chances), strict=True):
            counts, times = sums.reshape(2, 2, self._steps).sum(axis=2).T.tolist()
            delta = times[TEST] - times[CONTROL]
            columns: dict[str, Any] = {"control_count": counts[CONTROL], "test_count": counts[TEST]}
            columns |= {"control_ns": times[CONTROL], "test_ns": times[TEST], "verdict": verdict_of(p, delta)}
            yield key, columns | {"delta_ns": delta, "p": p}


class ByName(_Counts):
    """Counts and sums by name; on the host for operators, annotations (including steps) and calls of the runtime."""

    def __init__(self, step_count: int, names: Names) -> None:
        super().__init__(step_count)
        self._names = names

    def add(self, which: int, side: Side) -> None:
        """Add one side of one rank."""
        events = side.trace.events
        rows = np.concatenate([side.calls.row, facts.steps.recorded(side.trace).row, events.slices_of(*LAUNCHES)])
        name = self._names.of(events.name[rows], side.trace.strings).astype(np.int64)
        self.count(which, 2 * name + _CPU, side.steps.of_host(events.ts[rows]), np.maximum(events.dur[rows], 0))
        of_work = 2 * side.work.name.astype(np.int64) + _GPU
        self.count(which, of_work, side.work.step.astype(np.int64), side.work.ns)

    def rows(self) -> list[NameRow]:
        """A row for each name, largest time differences first."""
        rows = []
        for key, columns in self.compared():
            counts, times = ([columns[f"{side}_{what}"] for side in ("control", "test")] for what in ("count", "ns"))
            before, after = (ns / count if count else None for ns, count in zip(times, counts, strict=True))
            row = NameRow(
                side=_SIDES[key & 1],
                name=self._names.texts[key >> 1],
                change=change_of(*counts),
                delta_count=counts[TEST] - counts[CONTROL],
                control_mean_ns=before,
                test_mean_ns=after,
                delta_mean_ns=None if before is None or after is None else after - before,
                **columns,
            )
            rows.append(row)
        return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.side, row.name))


class ByLine(_Counts):
    """Counts and sums of GPU work by the line of the program that it comes from."""

    def __init__(self, step_count: int) -> None:
        super().__init__(step_count)
        self._lanes, self.known = 0, [True, True]  #: whether lines were recorded on each side
        self._labels: list[str | None] = []

    def add(self, which: int, side: Side) -> None:
        """Add one side of one rank."""
        source = facts.gpu.lines(side.trace)
        self.known[which] &= bool(source)
        self._lanes += which == TEST
        numbers = {label: number for number, label in enumerate(self._labels)}
        keys = [numbers.setdefault(label, len(numbers)) for label in (*source.labels, None)]
        self._labels = list(numbers)
        key = np.array(keys, np.int64)[source.site]  # -1 reads the last entry: no line
        self.count(which, key, side.work.step.astype(np.int64), side.work.ns)

    def outcome(self) -> Findings | Skipped:
        """A row for each line, the largest differences first; skipped where a side knows no lines."""
        if not all(self.known):
            which = "control" if self.known[TEST] else "test" if self.known[CONTROL] else "control and test"
            return Skipped(f"no work of the {which} has a line of Python; record with with_stack=True")
        per_step = self._steps * max(self._lanes, 1)
        rows = [
            LineRow(source=self._labels[key], delta_per_step_ns=columns["delta_ns"] / per_step, **columns)
            for key, columns in self.compared()
        ]
        return Findings(sorted(rows, key=lambda row: (-abs(row.delta_ns), row.source or "")))


class ByPath:
    """Counts and sums by call path."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._ledger = Ledger(6)
        self._launched = Ledger(1)  # by path and name of the work
        self.operators: tuple[set[int], set[int]] = (set(), set())  #: the paths of operators on each side

    def add(self, which: int, side: Side, alignment: Alignment) -> None:
        """Add one side of one rank."""
        calls = side.calls
        inside = np.flatnonzero(calls.step >= 0)
        path = calls.path[inside]
        partner = alignment.call_of_test if which == TEST else alignment.call_of_control
        columns = (
            np.ones(len(calls), np.int64),
            calls.cpu_ns,
            calls.cpu_self_ns,
            calls.gpu_ns,
            calls.gpu_self_ns,
            (partner != NO_INDEX).astype(np.int64),
        )
        for place, column in enumerate(columns):
            self._ledger.add(which, path, np.full(len(path), place), column[inside])
        is_operator = side.trace.events.category[calls.row[inside]] == Category.CPU_OP
        self.operators[which].update(np.unique(path[is_operator]).tolist())
        self.operators[which].update(np.unique(side.work.path[side.work.in_capture]).tolist())
        work = np.flatnonzero((side.work.step >= 0) & (side.work.call >= 0))
        key = calls.path[side.work.call[work]].astype(np.int64) << 28 | side.work.name[work]
        self._launched.add(which, key, np.zeros(len(work), np.intp), side.work.ns[work])

    def rows(self) -> list[PathRow]:
        """A row for each path, sorted by difference of GPU time, then of host time."""
        # the longest few kernels that each path launched itself, on each side
        texts = self._paths.names.texts
        kernels: tuple[dict[int, list[str]], dict[int, list[str]]] = ({}, {})
        for which in (CONTROL, TEST):
            for key, sums in sorted(self._launched, key=lambda entry: -int(entry[1][which, 0])):
                names = kernels[which].setdefault(key >> 28, [])
                if sums[which, 0] and len(names) < KERNELS_SHOWN:
                    names.append(texts[key & (1 << 28) - 1])
        rows = []
        for path, sums in self._ledger:
            control, test = sums.tolist()
            row = PathRow(
                path=self._paths.text(path),
                change=change_of(control[_COUNT], test[_COUNT]),
                control_count=control[_COUNT],
                test_count=test[_COUNT],
                matched_count=test[_MATCHED],
                control_cpu_ns=control[_CPU_NS],
                test_cpu_ns=test[_CPU_NS],
                delta_cpu_ns=test[_CPU_NS] - control[_CPU_NS],
                control_cpu_self_ns=control[_CPU_SELF],
                test_cpu_self_ns=test[_CPU_SELF],
                control_gpu_ns=control[_GPU_NS],
                test_gpu_ns=test[_GPU_NS],
                delta_gpu_ns=test[_GPU_NS] - control[_GPU_NS],
                control_gpu_self_ns=control[_GPU_SELF],
                test_gpu_self_ns=test[_GPU_SELF],
                control_kernels=kernels[CONTROL].get(path, []),
                test_kernels=kernels[TEST].get(path, []),
            )
            rows.append(row)
        return sorted(rows, key=lambda row: (-abs(row.delta_gpu_ns), -abs(row.delta_cpu_ns), row.path))


def change_of(control: int, test: int) -> Change:
    """HTA's classes of changes, by counts."""
    if not control or not test:
        return "added" if test else "deleted"
    return "unchanged" if control == test else "increased" if test > control else "decreased"
