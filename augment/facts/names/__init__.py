"""Tables of name patterns: the type of a kernel, the kind of a collective."""

# fmt: off
# ruff: noqa: I001
from augment.facts.names.kernel_types import (
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, POINT_TO_POINT, RECV, REDUCE_SCATTER, SEND, SEND_RECV, KernelType, bus_factor,
)
from augment.facts.names.name_masks import LONG_CALL_NS, STEP, matching, starting, strings_where

__all__ = [
    "ALL_GATHER", "ALL_REDUCE", "ALL_TO_ALL", "LONG_CALL_NS", "POINT_TO_POINT", "RECV", "REDUCE_SCATTER", "SEND",
    "SEND_RECV", "STEP", "KernelType", "bus_factor", "matching", "starting", "strings_where",
]
# fmt: on
