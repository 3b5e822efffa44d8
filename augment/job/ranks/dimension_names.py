"""Dimensions by name: in the descriptions of process groups, and in what a user states (``tp=4,pp=2,dp=2``).

Descriptions are those of Megatron-LM (``parallel_state.py``), of PyTorch's DeviceMesh (``mesh_NAME``), of torchtitan's
and vLLM's meshes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from augment.errors import UsageError

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
