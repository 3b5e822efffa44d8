"""Second readings of the source: args as columns and the text of events; also times on another clock."""

from __future__ import annotations

# fmt: off
from augment.facts.source.cut_mark import cut_text, is_period, lacks_causes, limits_of, mark, marked
from augment.facts.source.event_args import arg_columns as args
from augment.facts.source.recorded_times import SINCE_2001_NS, ComparedClocks, apart, compared, instant, period
from augment.facts.source.several_ranks import rank_of_track as ranks

__all__ = [
    "SINCE_2001_NS", "ComparedClocks", "apart", "args", "compared", "cut_text", "instant", "is_period",
    "lacks_causes", "limits_of", "mark", "marked", "period", "ranks",
]
# fmt: on
