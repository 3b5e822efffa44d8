"""Collectives that the host does itself, as gloo does: those of a rank without GPU work.

PyTorch annotates each on the thread of the backend that does it (``gloo:all_reduce``): it begins when the rank takes it
up, and ends when all ranks are done. Its process group is not recorded; it is known where the rank is in one alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays import intervals
from augment.arrays.intervals import Intervals, Masks
from augment.arrays.types import Int64s
from augment.core.annotations import Texts
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.collectives.instances import UNKNOWN, Group
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names.collective_kinds import OTHER, element_bytes, kind_of
from augment.facts.names.matching import starting
from augment.facts.steps.steps import steps

_BACKENDS = ("gloo:", "mpi:")
#: operators in which the host does not compute: it hands collectives over, or waits
_NO_WORK = (*_BACKENDS, "c10d::", "enumerate(DataLoader)", "ProfilerStep")


class HostCollectives(Struct, frozen=True):
    """Equal-length columns, ascending ``ts``; empty for a rank with GPU work.

    ``row``: int64, of the annotation. ``ts``, ``end``: int64 ns. ``kind``: into its values. ``bytes`` (as nccl-tests
    counts them) and ``step`` (a number): int64, :data:`UNKNOWN` where not recorded. ``exposed_ns``: int64, the part of
    the duration in which the host runs no other operator. ``group`` is that of all.
    """

    row: Int64s
    ts: Int64s
    end: Int64s
    kind: Texts
    bytes: Int64s
    step: Int64s
    exposed_ns: Int64s
    group: Group

    def __len__(self) -> int:
        return len(self.row)


@derived
def host_collectives(trace: Trace) -> HostCollectives:
    """The collectives of a rank without GPU work."""
    events = trace.events
    row = np.empty(0, np.int64)
    if not len(gpu_work(trace)):
        row = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
        row = row[starting(trace, *_BACKENDS)[events.name[row]]]
    names = [trace.strings[code].partition(":")[2] for code in events.name[row].tolist()]
    kinds = dict.fromkeys(kind_of(name) for name in names) or {OTHER: None}
    codes = np.array([list(kinds).index(kind_of(name)) for name in names], np.int32)
    ts, end = events.ts[row], events.ts[row] + np.maximum(events.dur[row], 0)
    number = np.append(steps(trace).number, UNKNOWN)
    operators = host_operators(trace) if len(row) else Intervals(ts, end)
    exposed = end - ts
    which, _, computing = intervals.clip(Intervals(ts, end), operators)
    np.subtract.at(exposed, which, computing.end - computing.start)
    return HostCollectives(
        row=row,
        ts=ts,
        end=end,
        kind=Texts(codes, tuple(kinds)),
        bytes=np.array([_bytes(args) for args in trace.args_of(row)], np.int64),
        step=number[steps(trace).at(ts)],
        exposed_ns=exposed,
        group=_only_group(trace),
    )


def host_types(trace: Trace) -> tuple[Int64s, Masks]:
    """When the host runs operators, and when collectives, over time: as ``running_types`` of devices."""
    every = host_collectives(trace)
    if not len(every):
        return intervals.coverage([Intervals(every.ts, every.end)] * 3)
    none = Intervals(every.ts[:0], every.end[:0])
    return intervals.coverage([host_operators(trace), intervals.union(every.ts, every.end), none])


@derived
def host_operators(trace: Trace) -> Intervals:
    """When any thread of the host runs an operator that neither communicates nor waits: disjoint, ascending."""
    rows = trace.events.slices_of(Category.CPU_OP)
    rows = rows[~starting(trace, *_NO_WORK)[trace.events.name[rows]]]
    return intervals.union(trace.events.ts[rows], trace.events.end[rows])


def _bytes(args: dict[str, Any]) -> int:
    """The bytes of the tensors in the args of an annotation."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or len(dims) != len(types):
        return UNKNOWN
    total = 0
    for shape, name in zip(dims, types, strict=True):
        width = element_bytes(name) if isinstance(name, str) else None
        if width is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            return UNKNOWN
        total += width * math.prod(shape)
    return total if 0 <= total < 1 << 63 else UNKNOWN


def _only_group(trace: Trace) -> Group:
    """The process group of the rank where its trace lists no other; else one without a name."""
    info = trace.source.metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        return Group()
    name, about, ranks = (listed[0].get(key) for key in ("pg_name", "pg_desc", "ranks"))
    if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return Group()
    return Group(str(name or ""), str(about or ""), str(ranks), size=len(ranks))
