"""A large job's summaries in portions of ranks, each read and reduced on its own, perhaps by another process.

What is left of a portion is smaller: the figures of ranks are folded into statistics, except those that questions about
the job need, and of devices' states only the longest are kept. Portions depend on the ranks alone, so that figures are
the same however many processes reduce them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from augment.job.aggregates import Aggregation
from augment.job.path import step_parts
from augment.job.ranks.summary import RankSummary, read_summary

T = TypeVar("T")
RANKS = 512  #: of a portion
_KEPT = ("kernel_breakdown", step_parts.FIGURES)  #: figures of ranks that questions about the job need
_STATES = 1 << 22  #: moments in the states of all ranks together: 32 to 64 bytes each


class Portion(Struct, frozen=True):
    """Some ranks of a job: the reduced ``summaries``, the statistics of all their figures, and the SHA-256 of each
    summary's file."""

    summaries: list[RankSummary]
    aggregation: Aggregation
    hashes: list[bytes]


def split(ranks: Sequence[T]) -> list[tuple[int, Sequence[T]]]:
    """The ranks of a job in portions, each with the index of its first."""
    return [(first, ranks[first : first + RANKS]) for first in range(0, len(ranks), RANKS)]


def _share_keys(summary: RankSummary, before: RankSummary) -> None:
    """Keep equal keys of figures once for all ranks."""
    for name, figures in summary.figures.items():
        if name in before.figures and figures.keys == before.figures[name].keys:
            figures.keys = before.figures[name].keys


def portion(contents: Iterable[bytes], names: Sequence[str], first: int, count: int) -> Portion:
    """Reduce the summaries of some ranks, one after the other.

    Args:
        contents: the files of the summaries.
        names: what errors call them.
        first: the index of the first of them in the job.
        count: the ranks of the whole job.

    Raises:
        InputError: a summary is damaged or has another version.
    """
    made = Portion([], Aggregation(), [])
    for member, (content, name) in enumerate(zip(contents, names, strict=True), first):
        summary = read_summary(content, name)
        made.hashes.append(hashlib.sha256(content).digest())
        made.aggregation.add(member, summary)
        # most of a summary's memory are figures that only the aggregates need
        summary.figures = {kept: figure for kept, figure in summary.figures.items() if kept in _KEPT}
        summary.states = summary.states.thinned(_STATES // count, summary.moments()).narrowed()
        if made.summaries:
            _share_keys(summary, made.summaries[-1])
        made.summaries.append(summary)
    return made
