"""Operations and bytes of operators, the peaks of devices, and the share of the peak that a step achieved."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.operators.captured_graphs import graph_work as graphs
from augment.facts.operators.matrix_products import (
    MULTIPLE, TileFit, MatrixUse, fit_of, in_narrow_groups, plain_products, sizes_text, unfit_sizes,
    matrix_use,
)
from augment.facts.operators.operator_calls import Call, Shape
from augment.facts.operators.operator_work import OperatorWork, equal_kernels, operator_work as work, work_families
from augment.facts.operators.peaks import (
    NUMBERS, UNTOLD_UNITS, Bound, Peak, capability_of, capacity_bytes, device_peaks as limits, name_of,
    options as peak_options, roofs as bounds, why_unknown,
)
from augment.facts.operators.served_steps import ServedSteps, served_steps
from augment.facts.operators.step_time_parts import (
    PARTS, RECOMPUTED, SAID, Efficiency, efficiencies, largest_loss, recomputed, why_beyond, why_hardly_sized,
    why_no_mfu,
)
from augment.facts.operators.counted_operators import counted

__all__ = [
    "MULTIPLE", "NUMBERS", "PARTS", "RECOMPUTED", "SAID", "UNTOLD_UNITS", "Bound", "Call", "Efficiency", "MatrixUse",
    "OperatorWork", "Peak", "ServedSteps", "Shape", "TileFit", "bounds", "capability_of", "capacity_bytes",
    "counted", "efficiencies", "equal_kernels", "fit_of", "graphs", "in_narrow_groups", "largest_loss", "limits",
    "matrix_use", "name_of", "peak_options", "plain_products", "recomputed", "served_steps", "sizes_text",
    "unfit_sizes", "why_beyond", "why_hardly_sized", "why_no_mfu", "why_unknown", "work", "work_families",
]
# fmt: on
