"""What a job knows of each of its ranks: a summary, made while the rank is converted, and the names in it."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.job.ranks.dimension_names import (
    DATA_PARALLEL, DP, DP_SHARD, EP, LISTED, PP, STATED, TP, UNKNOWN, WORLD, as_text, dimension_told,
)
from augment.job.ranks.rank_tables import ActionKind, ActionSource, Phase
from augment.job.ranks.states import IDLE, Parts, Table
from augment.job.ranks.summary import (
    EARLIER, SPENT, Figures, OwnDiagnosis, RankSummary, drawn_under, rank_names, rank_texts, ranks_text, read_summary,
    summarize, summary_of,
)
# fmt: on
