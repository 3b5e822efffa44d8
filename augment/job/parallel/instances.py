"""The collectives of a job by dimension."""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import combinations
from augment.arrays.types import Int64s
from augment.job.matching.matching import Matched
from augment.job.parallel.dimensions import Dimensions


def dimension_codes(dims: Dimensions, matched: Matched) -> tuple[list[str], Int64s]:
    """The names of dimensions, and for each matched collective the index of its dimension."""
    (groups, kinds), which = combinations(matched.group, matched.kind)
    names: dict[str, int] = {}
    pairs = zip(groups.tolist(), kinds.tolist(), strict=True)
    codes = [names.setdefault(dims.of(group, matched.kinds[kind]), len(names)) for group, kind in pairs]
    return list(names), np.array(codes, np.int64)[which]
