"""Sharded parameters, gradients and optimizer states: gathers and reduce-scatters of each unit, and which were late.

A unit is the module of the FSDP2 range that launched the collective (``FSDP::pre_forward (layers.3)``). Without such
ranges, the k-th gather of a phase is unit k, if all steps have equally many.

A gather or reduce-scatter is late if the device had to wait for it: it computed nothing while the collective ran, and
continued when it ended. ``ahead_ns`` is how long before the work on the main stream was done that was launched before
it: the time that prefetching gives a gather to hide in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Int64s, combinations, each, sums
from augment.core import Diagnostic, Findings, Skipped, column
from augment.facts.names import ALL_GATHER, REDUCE_SCATTER
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.parallel.dimensions import Dimensions, dimension_codes
from augment.job.ranks import DATA_PARALLEL, Phase, RankSummary

MOST_ROWS = 2000
LEAST_STAND_NS = 2000  #: shorter times without computation lie between any two kernels


class Row(Struct, frozen=True):
    """The gathers or reduce-scatters of one unit in one phase; in total, those of FSDP's limiter."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions; empty for the limiter.")]
    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    unit: Annotated[str, column("The module, or which one of the phase, such as #3.")]
    phase: Annotated[str, column("forward, backward or optimizer; empty if unknown.")]
    kind: Annotated[
        str, column("AllGather, ReduceScatter, or limiter: the host waits until gathered parameters are freed.")
    ]
    count: Annotated[int, column("Collectives matched across ranks; waits of the limiter on all ranks.", "count")]
    bytes: Annotated[
        int | None, column("The size of one, as nccl-tests counts it; null if unknown or if it varies.", "bytes")
    ]
    time_ns: Annotated[int, column("Their durations, summed over ranks.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    late_count: Annotated[int, column("How often a rank's device stood still for one.", "count")]
    late_ns: Annotated[int, column("For how long, summed over ranks.", "ns")]
    ahead_ns: Annotated[
        float | None,
        column("How long before its launch point on the main stream one began, the mean; null if unknown.", "ns"),
    ]


def sharding(dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows, those that devices stood still for longest first."""
    names, code = dimension_codes(dims, matched)
    data = np.array([name in DATA_PARALLEL for name in names], np.bool_)[code] if names else np.empty(0, np.bool_)
    kinds = [number for number, kind in enumerate(matched.kinds) if kind in (ALL_GATHER, REDUCE_SCATTER)]
    chosen = np.flatnonzero(data & np.isin(matched.kind, kinds))
    if not len(chosen):
        return Skipped("no gather or reduce-scatter of data parallelism was found on two ranks")
    columns = _Columns(matched, summaries)
    rows = list(_rows(dims, matched, parted, chosen, columns))
    waits = [dur for summary in summaries if (dur := summary.table_column("limiter", "dur")) is not None]
    if count := sum(map(len, waits)):
        time = int(sum(dur.sum() for dur in waits))
        rows.append(Row("", "", "", "", "limiter", count, None, time, time, 0, 0, 0, None))
    rows.sort(key=lambda row: (-row.late_ns, -row.time_ns))
    beyond = len(rows) - MOST_ROWS
    why = "units of sharding beyond the limit, those that devices stood still for least; left out"
    lost = [Diagnostic("units_beyond_limit", beyond, why)] if beyond > 0 else []
    return Findings(rows[:MOST_ROWS], diagnostics=lost)


class _Columns:
    """Columns of each part, from the ranks' tables: ``phase``, ``unit`` (into ``units``), ``ahead_ns``, ``late_ns``."""

    def __init__(self, matched: Matched, summaries: Sequence[RankSummary]) -> None:
        count = len(matched.member)
        self.phase, self.unit, self.ready = (np.full(count, NO_VALUE, np.int64) for _ in range(3))
        self.late_ns = np.zeros(count, np.int64)
        units: dict[str, int] = {}
        for member, summary in enumerate(summaries):
            rows, names = matched.rows_of(member), summary.texts.get("unit", [])
            codes = np.array([*(units.setdefault(name, len(units)) for name in names), NO_VALUE], np.int64)
            place = matched.place[rows]
            tables = {name: summary.table_column("collectives", name) for name in ("phase", "unit", "ready")}
            for name, column_of in tables.items():
                if column_of is not None:
                    values = column_of[place]
                    getattr(self, name)[rows] = codes[values] if name == "unit" else values
            exposed = matched.exposed_ns[rows]
            held = (summary.column("held")[place] == 1) & (exposed > LEAST_STAND_NS)
            self.late_ns[rows] = np.where(held, exposed, 0)
        self.units = list(units)
        self.ahead_ns = np.where(self.ready == NO_VALUE, 0, self.ready - matched.ts)


def _rows(dims: Dimensions, matched: Matched, parted: Waits, chosen: Int64s, columns: _Columns) -> Iterator[Row]:
    first = matched.first[chosen]
    phase, unit = columns.phase[first], columns.unit[first]
    ordinal = np.where(unit == NO_VALUE, _ordinals(matched, chosen, phase), NO_VALUE)
    values, which = combinations(matched.group[chosen], matched.kind[chosen], phase, unit, ordinal)
    part_of = np.full(len(matched), NO_VALUE, np.int64)
    part_of[chosen] = which
    of_part = part_of[matched.instance]
    parts = np.flatnonzero(of_part >= 0)
    total = {
        name: sums(of_part[parts], column_of[parts], len(values[0]))
        for name, column_of in (
            ("wait", parted.wait_ns),
            ("transfer", parted.transfer_ns),
            ("late", columns.late_ns),
            ("late_count", (columns.late_ns > 0).astype(np.int64)),
            ("ahead", columns.ahead_ns),
            ("ready", (columns.ready != NO_VALUE).astype(np.int64)),
        )
    }
    for place, rows in each(which, len(values[0])):
        group, kind, of_phase, of_unit, number = (int(column_of[place]) for column_of in values)
        sizes = np.unique(matched.bytes[chosen[rows]])
        label = columns.units[of_unit] or "root" if of_unit != NO_VALUE else "" if number == NO_VALUE else f"#{number}"
        yield Row(
            dimension=dims.of(group, matched.kinds[kind]),
            group=matched.groups[group].name,
            unit=label,
            phase=Phase(of_phase).name.lower() if of_phase != NO_VALUE else "",
            kind=matched.kinds[kind],
            count=len(rows),
            bytes=int(sizes[0]) if len(sizes) == 1 and sizes[0] >= 0 else None,
            time_ns=int(total["wait"][place] + total["transfer"][place]),
            wait_ns=int(total["wait"][place]),
            transfer_ns=int(total["transfer"][place]),
            late_count=int(total["late_count"][place]),
            late_ns=int(total["late"][place]),
            ahead_ns=float(total["ahead"][place] / total["ready"][place]) if total["ready"][place] else None,
        )


def _ordinals(matched: Matched, chosen: Int64s, phase: Int64s) -> Int64s:
    """Which one each collective is among those of its group, kind, phase and step; -1 for all of a group, kind and
    phase whose steps have different numbers of them, and outside steps."""
    group, kind, step = matched.group[chosen], matched.kind[chosen], matched.step[chosen]
    order = np.lexsort((matched.ts[matched.first[chosen]], step, phase, kind, group))
    _, run = combinations(group, kind, phase, step)
    _, family = combinations(group, kind, phase)
    sizes = np.bincount(run)
    first = np.searchsorted(run[order], np.arange(len(sizes)))
    ordinal = np.empty(len(chosen), np.int64)
    ordinal[order] = np.arange(len(chosen)) - first[run[order]]
    of_step = step >= 0
    most, least = np.zeros(int(family.max()) + 1, np.int64), np.full(int(family.max()) + 1, len(chosen))
    np.maximum.at(most, family[of_step], sizes[run[of_step]])
    np.minimum.at(least, family[of_step], sizes[run[of_step]])
    return np.where(of_step & (most == least)[family], ordinal, NO_VALUE)
