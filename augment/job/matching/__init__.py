"""Which collectives of the ranks are one, and the clocks of the ranks, fitted to their ends."""

from __future__ import annotations

# fmt: off
from augment.job.matching.clocks import Clock, align
from augment.job.matching.inferred_groups import ABOUT
from augment.job.matching.matching import Floats, Matched, match
# fmt: on
