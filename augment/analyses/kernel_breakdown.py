"""Which kernels take the time?

There is a row for every name of GPU work on each device: how often it ran, and the sum, mean, minimum, maximum and
standard deviation of its durations (the deviation of a sample, over n - 1; 0 where it ran once). Durations are added
even where kernels run at the same time.

``family`` is the kind of work, as in [kernel_family_breakdown](#kernel_family_breakdown). If different operators launch
one name, it is the family with the most time; of a kernel that ran as collectives of several kinds it is
``communication``, and [collectives](#collectives) has the kinds. ``matrix_units`` says whether tensor cores or matrix
cores computed a matrix product, by the name of the kernel:

- ``used``;
- ``eligible``: not used, though the device has such units for the operator's type of number (known by its shapes). An
  FP32 product is eligible where the device multiplies in TF32, which is less exact and has to be allowed
  (``torch.backends.cuda.matmul.allow_tf32``). Products with vectors are not eligible, those of few rows gain little:
  [roofline](#roofline) tells what they are bound by;
- ``not_eligible``: not used, and the device has no such units for that type of number;
- ``not_used``: not used; the type of number or the device is not known;
- ``unknown``: the name does not tell.

``source`` is the line of the program that launched most of it, where [source_lines](#source_lines) knows lines.

**What to do**: start with the kernels with the greatest sum. Many calls of short kernels can be fused; one long
kernel is worth a better algorithm, type of number or shape.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import combinations, group_bounds, grouped, grouped_statistics, sums
from augment.core import GPU_WORK, Findings, OfDevice, Trace, column

NAME = "kernel_breakdown"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One name on one device."""

    kernel_type: Annotated[str, column("One of COMPUTATION, COMMUNICATION and MEMORY.")]
    family: Annotated[str, column("The kind of work: gemm, attention, elementwise and so on.")]
    matrix_units: Annotated[
        str | None,
        column("Matrix units of a product: used, eligible, not_eligible, not_used, unknown; none for other work."),
    ]
    name: Annotated[str, column("The name of the kernel, copy or memset.")]
    count: Annotated[int, column("Number of times it ran.", "count")]
    sum_ns: Annotated[int, column("Sum of its durations.", "ns")]
    mean_ns: Annotated[float, column("Mean duration.", "ns")]
    min_ns: Annotated[int, column("Least duration.", "ns")]
    max_ns: Annotated[int, column("Greatest duration.", "ns")]
    std_ns: Annotated[float, column("Sample standard deviation of the durations; 0 where it ran once.", "ns")]
    occupancy_ratio: Annotated[
        float | None, column("Mean share of the warps on an SM, as in kernel_occupancy.", "ratio")
    ]
    filled_sm_ratio: Annotated[
        float | None, column("Mean share of the SMs that get a block, weighted by durations.", "ratio")
    ]
    source: Annotated[str | None, column("The line that most of its time comes from, as in source_lines.")]


def analyze(trace: Trace) -> Findings:
    """Aggregate each device's work by type and name."""
    work = facts.gpu.work(trace)
    device = np.repeat(np.arange(len(work.devices)), [device.stop - device.start for device in work.devices])
    keys, code = combinations(device, work.type, trace.events.name[work.row])
    count = len(keys[0])
    statistics = grouped_statistics((work.end - work.ts)[grouped(code, count)], group_bounds(code, count))
    # for each code of work: the family with the most time, and whether its matrix units were used
    families = facts.operators.work_families(trace)
    parts, part = combinations(code, families.family, facts.operators.matrix_use(trace))
    ns = sums(part, work.end - work.ts, len(parts[0]))
    kinds: list[tuple[str, str | None]] = [("", None)] * count
    for longest in np.lexsort((ns, parts[0])).tolist():  # for each code, the longest comes last
        kernel, family, units = (int(key[longest]) for key in parts)
        several = kinds[kernel][0] and keys[1][kernel] == facts.names.KernelType.COMMUNICATION
        named = facts.gpu.COMMUNICATION_FAMILY if several else families.names[family]
        kinds[kernel] = named, _UNITS.get(facts.operators.MatrixUse(units))
    rows = []
    fills = [
        facts.gpu.weighed(values, work.end - work.ts, code, count)
        for values in (facts.gpu.occupancy(trace).achieved, facts.gpu.occupancy(trace).filled)
    ]
    more_columns = zip(*fills, facts.gpu.longest_lines(trace, code, count), strict=True)
    columns = (*(key.tolist() for key in keys), kinds, statistics, more_columns)
    for index, kernel_type, name, (family, units), figures, more in zip(*columns, strict=True):
        unit, type_name = work.devices[index], facts.names.KernelType(kernel_type).name
        rows.append(Row(unit.rank, unit.device, type_name, family, units, trace.strings[name], *figures, *more))
    rows.sort(
        key=lambda row: (
            facts.gpu.sort_key(row.rank),
            facts.gpu.sort_key(row.device),
            row.kernel_type,
            -row.sum_ns,
            row.name,
        )
    )
    return Findings(rows)


_UNITS = {
    facts.operators.MatrixUse.USED: "used",
    facts.operators.MatrixUse.ELIGIBLE: "eligible",
    facts.operators.MatrixUse.NOT_ELIGIBLE: "not_eligible",
    facts.operators.MatrixUse.NOT_USED: "not_used",
    facts.operators.MatrixUse.UNTOLD: "unknown",
}
