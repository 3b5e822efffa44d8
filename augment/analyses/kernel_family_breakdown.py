"""What kind of work does the GPU do?

There is a row for every family of kernels on each device: ``gemm``, ``grouped_gemm``, ``attention``, ``convolution``,
``norm``, ``softmax``, ``elementwise``, ``reduction``, ``embedding``, ``moe_routing``, ``optimizer``, ``quantization``,
``rope_kv``, ``sampling``, ``sort``, ``copy_transpose``, ``graph``, the kinds of collectives (``all_reduce``, …),
``memory`` for copies and memsets, and ``unknown``. Collectives are of the kind that [collectives](#collectives) gives,
whatever their kernels are called. The name of the operator that launched a kernel decides the family of all else;
where that operator is unknown or its name says nothing, the name of the kernel decides. Names of kernels decide first
where they tell it for certain: a change of layouts within a convolution is ``copy_transpose``. Kernels over lists of
tensors (``_foreach_…``, ``triton_for_…``) are ``optimizer`` only in ``Optimizer.step``. ``triton_poi_…`` is
``elementwise``, ``triton_`` alone ``unknown``, as is ``triton_for_…`` elsewhere. Your own rules can add names: see
[tables](tables.md).

``sum_ns`` adds up to the durations of all work of the device. ``busy_ns`` counts a moment once, even if several kernels
of the family run. Families that run at the same time both count it.

``matrix_used_ns`` is the time of matrix products whose kernel names say that matrix units (tensor cores, matrix cores)
did the work. ``matrix_not_used_ns`` is the time of those whose names say that they did not; ``matrix_eligible_ns`` is
that part of it in which they could have: ``eligible`` as in [kernel_breakdown](#kernel_breakdown), known where shapes
were recorded. Names that do not tell count in none.

**What to do**: much time in ``elementwise``, ``norm`` or ``copy_transpose``: ``torch.compile`` or fused operators.
``gemm`` without matrix units: TF32 or BF16. ``unknown``: teach the families your kernels (``--tables``).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import each, intervals, is_any
from augment.core import GPU_WORK, Findings, OfDevice, Trace, column

NAME = "kernel_family_breakdown"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One family on one device."""

    family: Annotated[str, column("The kind of work.")]
    count: Annotated[int, column("Number of kernels, copies and memsets that ran.", "count")]
    sum_ns: Annotated[int, column("Sum of their durations.", "ns")]
    busy_ns: Annotated[int, column("Time in which at least one of them ran.", "ns")]
    time_ratio: Annotated[float | None, column("Share of the durations of all work of the device.", "ratio")]
    matrix_used_ns: Annotated[
        int | None, column("Durations of kernels that used matrix units; none for other families.", "ns")
    ]
    matrix_not_used_ns: Annotated[
        int | None, column("Durations of kernels that did not; none for other families.", "ns")
    ]
    matrix_eligible_ns: Annotated[
        int | None, column("Durations of those of them that could; none for other families.", "ns")
    ]


def analyze(trace: Trace) -> Findings:
    """Add up the work of each device by family."""
    families = facts.operators.work_families(trace)
    shares = facts.gpu.gpu_time_by(trace, families.family.astype(np.int64))
    # for each (start of a device, family): its busy time, and the durations with matrix units, without, and of what
    # could have used them
    work, device = facts.gpu.work(trace), facts.gpu.device_of_work(trace)
    code = device * len(families.names) + families.family
    busy: _Sums = {}
    sums: tuple[_Sums, _Sums, _Sums] = ({}, {}, {})
    use = facts.operators.matrix_use(trace)
    order = work.by_time
    for value, places in each(code[order], len(work.devices) * len(families.names)):
        group = order[places]
        index, family = divmod(value, len(families.names))
        key = (work.devices[index].start, family)
        busy[key] = intervals.total(intervals.union(work.ts[group], work.end[group]))
        for sum_of, sort in zip(sums, _SORTS, strict=True):
            counted = group[is_any(use[group], sort)]
            sum_of[key] = int((work.end[counted] - work.ts[counted]).sum())
    used, not_used, eligible = sums
    rows = []
    for share in shares:
        key = (share.device.start, share.key)
        name = families.names[share.key]
        units = used, not_used, eligible
        matrix = [unit[key] for unit in units] if name in facts.gpu.MATRIX_FAMILIES else [None] * len(units)
        rows.append(
            Row(
                share.device.rank,
                share.device.device,
                name,
                share.kernel_count,
                share.gpu_ns,
                busy[key],
                share.gpu_ratio,
                *matrix,
            )
        )
    rows.sort(key=lambda row: (facts.gpu.sort_key(row.rank), facts.gpu.sort_key(row.device), -row.sum_ns, row.family))
    return Findings(rows)


_Sums = dict[tuple[int, int], int]


_SORTS = (
    (facts.operators.MatrixUse.USED,),
    (facts.operators.MatrixUse.NOT_USED, facts.operators.MatrixUse.ELIGIBLE, facts.operators.MatrixUse.NOT_ELIGIBLE),
    (facts.operators.MatrixUse.ELIGIBLE,),
)
