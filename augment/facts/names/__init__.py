"""Tables of name patterns: the type of a kernel, the kind of a collective."""

# fmt: off
from augment.facts.names.kernel_types import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, KernelType
from augment.facts.names.name_masks import LONG_CALL_NS, STEP, matching, starting, strings_where

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "LONG_CALL_NS",
    "REDUCE_SCATTER",
    "STEP",
    "KernelType",
    "matching",
    "starting",
    "strings_where",
]
# fmt: on
