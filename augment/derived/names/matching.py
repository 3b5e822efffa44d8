"""Which names of a trace a pattern matches."""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.types import Bools
from augment.trace import Trace


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Whether ``pattern`` is found in each of ``trace.strings``, bool; columns of names are indexes into it."""
    return np.array([pattern.search(name) is not None for name in trace.strings], np.bool_)
