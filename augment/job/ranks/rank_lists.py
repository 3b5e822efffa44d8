"""Lists of ranks as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from augment.arrays.types import Int64s
from augment.core.annotations import Texts
from augment.job.ranks.summary import RankSummary

MOST = 6  #: ranges written out


def ranks_text(ranks: Iterable[int | None]) -> str:
    """Ranks as ranges: ``rank 3``, ``ranks 0 to 3 and 8``; ranks that are unknown are counted."""
    given = list(ranks)
    known = sorted({rank for rank in given if rank is not None})
    unknown = given.count(None)
    spans: list[list[int]] = []
    for rank in known:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    spans = [part for low, high in spans for part in ([[low, high]] if high != low + 1 else [[low, low], [high, high]])]
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    if len(texts) > MOST:
        beyond = sum(high - low + 1 for low, high in spans[MOST:])
        texts = [*texts[:MOST], f"{beyond} more"]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
    parts = [f"rank{'s' if len(known) > 1 else ''} {listed}"] if known else []
    if unknown:
        parts.append(f"{unknown} rank{'s' if unknown > 1 else ''} of unknown number")
    return " and ".join(parts) or "no rank"


def rank_texts(members: Int64s, summaries: Sequence[RankSummary]) -> Texts:
    """The names of ``members`` (-1: none) as a column that holds only names which occur: of thousands of ranks, the
    track of each names few."""
    occurring, which = np.unique(members, return_inverse=True)
    absent = int(len(occurring) > 0 and occurring[0] < 0)
    names = rank_names([summaries[member] for member in occurring[absent:].tolist()])
    return Texts((which - absent).astype(np.int32), names)


def rank_names(summaries: Sequence[RankSummary]) -> tuple[str, ...]:
    """How each rank is called: ``rank 3``, or by its trace."""
    return tuple(f"rank {each.rank}" if each.rank is not None else each.name for each in summaries)
