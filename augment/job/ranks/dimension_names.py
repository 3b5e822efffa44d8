"""Dimensions by name: in the descriptions of process groups, and in what a user states (``tp=4,pp=2,dp=2``).

Descriptions are those of Megatron-LM (``parallel_state.py``), of PyTorch's DeviceMesh (``mesh_NAME``), of torchtitan's
and vLLM's meshes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from augment.arrays import Int64s
from augment.core import Trace
from augment.errors import UsageError
from augment.facts.collectives.collective_kernels import Group

DP, DP_SHARD, DP_REPLICATE, DP_CP, TP, PP, CP, SP, EP = (
    "dp",
    "dp_shard",
    "dp_replicate",
    "dp_cp",
    "tp",
    "pp",
    "cp",
    "sp",
    "ep",
)
EXPERT_DP, EXPERT_TP, EMBEDDING, MIXED, WORLD, UNKNOWN = (
    "expert_dp",
    "expert_tp",
    "embedding",
    "mixed",
    "world",
    "unknown",
)
DATA_PARALLEL = (DP, DP_SHARD, DP_REPLICATE, DP_CP, EXPERT_DP)  #: dimensions that average gradients
STATED = (TP, CP, EP, DP, PP)  #: what a user can state, from the fastest varying, as Megatron orders ranks by default

#: the first pattern found in a description (lower case, words between single underscores) decides
_PATTERNS = tuple(
    (re.compile(pattern), dimension)
    for pattern, dimension in (
        ("_embedding_", EMBEDDING),
        ("_expert_data_|_expert_dp_|_edp_|_efsdp_|_dp_shard_mod_ep_", EXPERT_DP),
        ("_expert_tensor_(and|model_pipeline)_|_tensor_(and|data)_|_tp_(dp|cp|ep|pp)_|^_model_parallel_group_$", MIXED),
        ("_expert_tensor_|_etp_", EXPERT_TP),
        ("_expert_|_ep_", EP),
        ("_tensor_|_tp_", TP),
        ("_pipeline_|_pp_", PP),
        ("_data_parallel_group_with_cp_|_dp_cp_|_dp_shard_cp_", DP_CP),
        ("_replicate_|_dp_outer_", DP_REPLICATE),
        ("_dp_shard_|_fsdp_|_shard_", DP_SHARD),
        ("_context_|_cp_", CP),
        ("_sequence_|_sp_|_ulysses_", SP),
        ("_data_|_dp_", DP),
    )
)
_SEPARATORS = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=4096)
def dimension_told(description: str) -> str | None:
    """The dimension that a description names; None if it names none, as ``default_pg`` and ``undefined``."""
    plain = f"_{_SEPARATORS.sub('_', description.lower()).strip('_')}_"
    return next((dimension for pattern, dimension in _PATTERNS if pattern.search(plain)), None)


def stated(text: str) -> dict[str, int]:
    """The sizes in a text such as ``tp=4,pp=2,dp=2``.

    Raises:
        UsageError: the text has another form, or names another dimension.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (field.strip() for field in part.partition("="))
        sizes[name] = int(number) if number.isdecimal() and name not in sizes else 0
    check_sizes(sizes, f"--parallelism {text}")
    return sizes


def check_sizes(sizes: Mapping[str, int], given: str) -> None:
    """Refuse sizes that cannot be; ``given``: how the user gave them, for the message.

    Raises:
        UsageError: a dimension is unknown, a size is below 1, or the sizes contradict each other.
    """
    if any(name not in STATED or size < 1 for name, size in sizes.items()):
        raise UsageError(f"{given}: must give sizes, such as tp=4,pp=2,dp=2; known are {', '.join(STATED)}")
    if sizes.get(DP, sizes.get(EP, 1)) % sizes.get(EP, 1):
        raise UsageError(f"{given}: ep parts the data-parallel ranks, so dp must be a multiple of it")


def as_text(sizes: Mapping[str, int]) -> str:
    """The text that :func:`stated` reads."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


# The process group of kernels of expert parallelism, whose args do not name it: that which the trace lists.
#
# Kineto lists the process groups of a rank in ``distributedInfo``. DeepEP and similar libraries communicate within one
# of them. If the list has expert-parallel groups of this rank, by their descriptions, and all have the same ranks, it
# is that; ranks end such kernels together even where tensor-parallel siblings, in groups of their own, end at the same
# time.


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
    unnamed = np.array([not each.identity for each in groups], np.bool_)[group]
    if unnamed.any() and (only := _only_group(trace, groups)) is not None:
        return list(groups), np.where(unnamed, only, group)
    bare = unnamed & (expert != 0)
    listed = listed_group(trace) if bare.any() else None
    if listed is None:
        return list(groups), group
    return [*groups, listed], np.where(bare, len(groups), group)


def _only_group(trace: Trace, groups: Sequence[Group]) -> int | None:
    """The index of the process group of all communication of the rank: that of all its ranks, where the trace says that
    there is no other; None if it does not say so, or no collective names it."""
    alone = trace.source.distributed_info.get("pg_count") == 1
    named = [index for index, each in enumerate(groups) if each.identity]
    return named[0] if alone and len(named) == 1 else None


def listed_group(trace: Trace) -> Group | None:
    """The expert-parallel group of the rank; None if the trace lists none, or several of different ranks."""
    candidates = []
    listed = trace.source.distributed_info.get("pg_config")
    for each in listed if isinstance(listed, list) else ():
        ranks, about = (each.get(name) for name in ("ranks", "pg_desc")) if isinstance(each, dict) else (None, None)
        if not isinstance(ranks, list) or not isinstance(about, str) or len(ranks) < 2:
            continue
        is_expert = dimension_told(about) == EP or about.startswith(_EXPERT_TENSOR)
        if is_expert and all(isinstance(rank, int) for rank in ranks) and trace.rank in ranks:
            candidates.append(replace(Group(), description=about, ranks=str(ranks), size=len(ranks), origin="listed"))
    return candidates[0] if len({each.ranks for each in candidates}) == 1 else None
