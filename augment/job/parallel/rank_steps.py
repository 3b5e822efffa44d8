"""The steps of all ranks: how long they are, and what the devices do in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays.types import Int64s
from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.job.ranks.summary import SPENT, RankSummary

TIMES = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")


class RankSteps(Struct, frozen=True):
    """Equal-length int64 columns, a row for each step of each rank; a recording without steps is one step, -1.

    ``start`` and ``end`` are on the rank's own clock. The :data:`TIMES` add up to
    ``end - start``.
    """

    member: Int64s
    number: Int64s
    start: Int64s
    end: Int64s
    compute_ns: Int64s
    exposed_communication_ns: Int64s
    exposed_memory_ns: Int64s
    idle_ns: Int64s

    @property
    def count(self) -> int:
        """Steps of all ranks."""
        return len(self.member)

    @property
    def numbered(self) -> bool:
        """Whether steps were recorded."""
        return bool((self.number != UNKNOWN).any())

    @property
    def wall_ns(self) -> int:
        """The time of all."""
        return int((self.end - self.start).sum())


def rank_steps(summaries: Sequence[RankSummary]) -> RankSteps:
    """The steps of ``summaries``."""
    member = np.repeat(np.arange(len(summaries)), [len(summary.step_column("number")) for summary in summaries])
    names = ["number", "start", "end", *SPENT["start"], *SPENT["end"]]
    columns = {name: _joined([summary.step_column(name) for summary in summaries]) for name in names}
    parts = [columns[after] - columns[before] for before, after in zip(SPENT["start"], SPENT["end"], strict=True)]
    start, end = columns["start"], columns["end"]
    idle = end - start - sum(parts, np.zeros(len(start), np.int64))
    return RankSteps(member.astype(np.int64), columns["number"], start, end, parts[0], parts[1], parts[2], idle)


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts) if len(parts) else np.empty(0, np.int64)
