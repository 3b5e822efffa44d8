"""Operations and bytes of operators, the peaks of devices, and the share of the peak that a step achieved."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.operators.captured_graphs import graph_work as graphs
from augment.facts.operators.matrix_products import (
    MULTIPLE, UNKNOWN_DEVICE, TileFit, fit_of, in_narrow_groups, sizes_text, unfit_sizes,
)
from augment.facts.operators.operator_calls import Call, Shape
from augment.facts.operators.operator_work import (
    OperatorWork, equal_kernels, operator_work as work, work_families,
)
from augment.facts.operators.peaks import (
    Bound, Peak, capability_of, capacity_bytes, device_peaks as limits, name_of,
    roofs as bounds,
)
from augment.facts.operators.served_steps import ServedSteps, served_steps

__all__ = [
    "MULTIPLE", "UNKNOWN_DEVICE", "Bound", "Call", "OperatorWork", "Peak", "ServedSteps", "Shape", "TileFit", "bounds",
    "capability_of", "capacity_bytes", "equal_kernels", "fit_of", "graphs", "in_narrow_groups", "limits", "name_of",
    "served_steps", "sizes_text", "unfit_sizes", "work", "work_families",
]
# fmt: on
