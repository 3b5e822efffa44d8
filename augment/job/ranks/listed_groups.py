"""The process group of kernels of expert parallelism, whose args do not name it: that which the trace lists.

Kineto lists the process groups of a rank in ``distributedInfo``. DeepEP and similar libraries communicate within one of
them. If the list has expert-parallel groups of this rank, by their descriptions, and all have the same ranks, it is
that; ranks end such kernels together even where tensor-parallel siblings, in groups of their own, end at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from augment.arrays.types import Int64s
from augment.core.trace import Trace
from augment.facts.collectives.collective_kernels import Group
from augment.job.ranks.dimension_names import EP, dimension_told

LISTED = "the only expert-parallel group that its traces list"  #: the evidence for its use
_EXPERT_TENSOR = "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"  #: in which Megatron lets DeepEP communicate


def with_listed_groups(
    trace: Trace, groups: Sequence[Group], group: Int64s, expert: Int64s
) -> tuple[list[Group], Int64s]:
    """The groups, and the index of each collective's, with the listed one for kernels of expert parallelism.

    Args:
        trace: of the rank.
        groups: its groups.
        group: the index of each collective's group.
        expert: 1 for kernels of libraries of expert parallelism.
    """
    bare = np.array([not each.identity for each in groups], np.bool_)[group] & (expert != 0)
    listed = listed_group(trace) if bare.any() else None
    if listed is None:
        return list(groups), group
    return [*groups, listed], np.where(bare, len(groups), group)


def listed_group(trace: Trace) -> Group | None:
    """The expert-parallel group of the rank; None if the trace lists none, or several of different ranks."""
    candidates = list(_candidates(trace))
    return candidates[0] if len({each.ranks for each in candidates}) == 1 else None


def _candidates(trace: Trace) -> Iterator[Group]:
    info = trace.source.metadata.get("distributedInfo")
    listed: Any = info.get("pg_config") if isinstance(info, dict) else None
    for each in listed if isinstance(listed, list) else ():
        ranks, about = (each.get(name) for name in ("ranks", "pg_desc")) if isinstance(each, dict) else (None, None)
        if not isinstance(ranks, list) or not isinstance(about, str) or len(ranks) < 2:
            continue
        is_expert = dimension_told(about) == EP or about.startswith(_EXPERT_TENSOR)
        if is_expert and all(isinstance(rank, int) for rank in ranks) and trace.rank in ranks:
            yield replace(Group(), description=about, ranks=str(ranks), size=len(ranks), origin="listed")
