"""How much do the step times vary?

The row describes the host's length of all steps of the trace: mean, spread and extremes, ``variation_ratio`` (standard
deviation over mean), and the number of outliers as defined by [`steps`](#steps). The first step of a recording often
contains one-time work; it counts like any other.

**What to do**: a part that varies much between equal steps is where to look: data loading, other ranks, the
allocator, another job on the host.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.statistics import OUTLIER, distribution, robust_z
from augment.core.findings import Findings, Skipped, column
from augment.core.trace import Category, Trace
from augment.facts.steps.steps import steps

NAME = "step_variation"
NEEDS = ((Category.USER_ANNOTATION, Category.CPU_OP),)


class Row(Struct, frozen=True):
    """All steps of a trace."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    count: Annotated[int, column("Number of steps.", "count")]
    sum_ns: Annotated[int, column("Sum of their lengths.", "ns")]
    mean_ns: Annotated[float, column("Mean length.", "ns")]
    std_ns: Annotated[float, column("Sample standard deviation of the lengths; 0 for one step.", "ns")]
    min_ns: Annotated[int, column("The shortest.", "ns")]
    p50_ns: Annotated[float, column("The median.", "ns")]
    max_ns: Annotated[int, column("The longest.", "ns")]
    variation_ratio: Annotated[float | None, column("Standard deviation over mean.", "ratio")]
    outlier_count: Annotated[
        int | None, column("Number of outliers; none if undefined, as with fewer than four steps.", "count")
    ]


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Describe the lengths of the steps."""
    windows = steps(trace)
    length = windows.end - windows.ts
    spread = distribution(length)
    if spread is None:
        return Skipped("no ProfilerStep annotation; call the profiler's step() after each")
    z = robust_z(length)
    return Findings(
        [
            Row(
                rank=trace.rank,
                count=len(windows),
                sum_ns=int(length.sum()),
                mean_ns=spread.mean,
                std_ns=spread.std,
                min_ns=spread.min,
                p50_ns=spread.p50,
                max_ns=spread.max,
                variation_ratio=spread.std / spread.mean if spread.mean else None,
                outlier_count=None if z is None else int((np.abs(z) > OUTLIER).sum()),
            )
        ]
    )
