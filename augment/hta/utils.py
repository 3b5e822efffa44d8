"""What notebooks take from HTA's utilities: names, and the counters of floating-point instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augment.comparison.names import short_name

if TYPE_CHECKING:
    import pandas as pd

shorten_name = short_name  #: HTA's word

#: operations by CUPTI's counters of a thread's instructions, as ``cupti_counters`` weighs them for ``flop``
CUDA_SASS_INSTRUCTION_COUNTER_FLOPS: dict[str, float] = {
    f"smsp__sass_thread_inst_executed_op_{precision}{operation}_pred_on.sum": count
    for precision in "fhd"
    for operation, count in (("fma", 2), ("mul", 1), ("add", 1))
}


def flatten_column_names(df: pd.DataFrame) -> None:
    """Join the levels of the columns of ``df`` by ``_``, in place; columns of one level stay."""
    if df.columns.nlevels > 1:
        df.columns = ["_".join(map(str, levels)).rstrip("_") for levels in df.columns]
