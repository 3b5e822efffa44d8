"""Second readings of the source: args as columns and the text of events; also times on another clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.arrays.types import Int64s
    from augment.core.trace import Trace
    from augment.facts.source.event_args import ArgColumns


def args(trace: Trace) -> ArgColumns:
    """The args of operators, as columns."""
    from augment.facts.source.event_args import arg_columns

    return arg_columns(trace)


def ranks(trace: Trace) -> Int64s:
    """The rank of each track; -1 where unknown."""
    from augment.facts.source.several_ranks import rank_of_track

    return rank_of_track(trace)
