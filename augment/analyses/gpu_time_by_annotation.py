"""Which user annotations does the GPU time belong to?

Each kernel, copy and memset belongs to one annotation, its leaf: the innermost ``gpu_user_annotation`` of its stream in
which it begins. If there is none, it is the innermost annotation of the host around its launch, on the launching
thread. The innermost annotation is the one that began last among those that are open when the work begins, or that
enclose the whole launch. Annotations that cross are counted in the diagnostics.

The durations of a device's rows add up to the sum of the durations of all its work. The row without an annotation has
the work that belongs to none. Steps (``ProfilerStep#n``) enclose everything, so they count only on request.

**What to do**: the annotation with most exposed or idle time is where to look first.

Options:
    include_steps: whether steps count as annotations.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment.arrays import NO_INDEX
from augment.core import GPU_WORK, Category, Findings, OfDevice, Skipped, Trace, column
from augment.facts.gpu.gpu_time import annotation_diagnostics, annotations_of_work, gpu_time_by

NAME = "gpu_time_by_annotation"
NEEDS = (GPU_WORK, (Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION))


class Row(OfDevice, frozen=True):
    """One annotation on one device."""

    annotation: Annotated[
        str | None, column("The name of the annotation; none for the work that belongs to no annotation.")
    ]
    kernel_count: Annotated[int, column("Number of kernels, copies and memsets that belong to it.", "count")]
    gpu_ns: Annotated[int, column("Sum of their durations.", "ns")]
    gpu_ratio: Annotated[float | None, column("Share of the durations of all work of the device.", "ratio")]


def analyze(trace: Trace, *, include_steps: bool = False) -> Findings | Skipped:
    """Divide the GPU time among the annotations."""
    row = annotations_of_work(trace, include_steps=include_steps)
    if not (row != NO_INDEX).any():
        return Skipped("no GPU work belongs to an annotation" + ("" if include_steps else " other than a step"))
    shares = gpu_time_by(trace, np.where(row != NO_INDEX, trace.events.name[row], NO_INDEX))
    rows = [
        Row(
            share.device.rank,
            share.device.device,
            None if share.key == NO_INDEX else trace.strings[share.key],
            share.kernel_count,
            share.gpu_ns,
            share.gpu_ratio,
        )
        for share in sorted(shares, key=lambda share: (share.device.start, -share.gpu_ns, share.key))
    ]
    return Findings(rows, (), annotation_diagnostics(trace))
