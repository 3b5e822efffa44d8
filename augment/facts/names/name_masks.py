"""Which names of a trace satisfy a condition: masks over ``trace.strings``, which columns of names index."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from augment.arrays import Bools
from augment.core import Trace

LOOKED_AT = 4096  #: the most characters at the beginning of a name that patterns are held against
STEP = "ProfilerStep"  #: how the names of steps begin
#: calls that ask the driver for memory, or give it back
CALLS_FOR_MEMORY = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Host|Managed)?$|^(?:cuda|hip)HostAlloc$|^cuMem(?:Alloc|Free|Create|Map)"
)
#: calls that wait, copy, or ask: one of them that takes long does not hold up the host by itself
OTHER_CALLS = re.compile(r"GraphInstantiate|Synchronize|Memcpy|Memset|Query|StreamWait|ElapsedTime")
LONG_CALL_NS = 100_000  #: a shorter call is ordinary launching


def strings_where(trace: Trace, condition: Callable[[str], object]) -> Bools:
    """Whether ``condition`` is true for the beginning of each of ``trace.strings``, bool."""
    return np.array([bool(condition(name[:LOOKED_AT])) for name in trace.strings], np.bool_)


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Whether ``pattern`` is found in each of ``trace.strings``, bool."""
    return strings_where(trace, pattern.search)


def starting(trace: Trace, *beginnings: str) -> Bools:
    """Whether each of ``trace.strings`` starts with one of ``beginnings``, bool."""
    return np.array([name.startswith(beginnings) for name in trace.strings], np.bool_)
