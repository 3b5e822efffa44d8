"""Pure functions of arrays, which do not depend on traces: intervals, orders, statistics, equal sequences."""

# fmt: off
# ruff: noqa: I001
from augment.arrays.columns import Values, keyed, looked_up, narrowed, positions
from augment.arrays.intervals import (
    Intervals, Masks, clip, expand, held_between, least_over, subtract, total, touched, union,
)
from augment.arrays.joining import Joined, joined, longest, means, peaks
from augment.arrays.ordering import (
    changing, combinations, compressed, distinct, each, group_bounds, grouped, is_among, is_any, numbered, occurring,
    order_of, ordered, reserved, run_starts, sequence_hashes, settled, sums, where_in,
)
from augment.arrays.statistics import (
    OUTLIER, beyond_others, distribution, grouped_medians, grouped_statistics, median, percentiles, robust_z,
    time_weighted,
)
from augment.arrays.types import (
    NO_INDEX, NO_VALUE, Bools, Bytes, CollectiveIndex, CollectiveIndexes, EventRow, EventRows, Int32s, Int64s,
    MemberIndex, MemberIndexes, Places, StackIndex, StackIndexes, WorkIndex, WorkIndexes,
)
