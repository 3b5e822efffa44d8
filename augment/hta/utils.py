"""HTA's utilities that notebooks use: names, and the counters of floating-point instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augment.compare.names import short_name

if TYPE_CHECKING:
    import pandas as pd

shorten_name = short_name  #: HTA's term

#: operations per instruction that a CUPTI counter counts, as the analysis ``cupti_counters`` weighs them for ``flop``
CUDA_SASS_INSTRUCTION_COUNTER_FLOPS: dict[str, float] = {
    f"smsp__sass_thread_inst_executed_op_{precision}{operation}_pred_on.sum": count
    for precision in "fhd"
    for operation, count in (("fma", 2), ("mul", 1), ("add", 1))
}


def flatten_column_names(df: pd.DataFrame) -> None:
    """Join the levels of the columns of ``df`` with ``_``, in place; single-level columns stay unchanged."""
    if df.columns.nlevels > 1:
        df.columns = ["_".join(map(str, levels)).rstrip("_") for levels in df.columns]
