"""Second readings of the source: args as columns and the text of events; also times on another clock."""

from __future__ import annotations

# fmt: off
from augment.arrays import Int64s
from augment.core import Trace
from augment.facts.source.cut_mark import cut_text, lacks_causes, limits_of
from augment.facts.source.event_args import ArgColumns, arg_columns
from augment.facts.source.several_ranks import rank_of_track

__all__ = [
    "args", "cut_text", "lacks_causes", "limits_of", "ranks",
]
# fmt: on


def args(trace: Trace) -> ArgColumns:
    """The args of operators, as columns."""
    return arg_columns(trace)


def ranks(trace: Trace) -> Int64s:
    """The rank of each track; -1 where unknown."""
    return rank_of_track(trace)
