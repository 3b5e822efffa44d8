"""What kind of work a kernel is: computation, communication or memory.

:data:`PATTERNS` is a table. The first pattern found in a name decides; a name without any is computation. The user's
own rules for collectives (``own_collectives.py``) come before it.

Copies and memsets (by their category) are memory, whatever their name.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np

from augment.arrays.ordering import compressed
from augment.arrays.types import Bytes, Int32s
from augment.core.trace import Category, Trace
from augment.facts.names.own_collectives import stated_kind


class KernelType(IntEnum):
    """HTA's kernel types; ``1 << type`` is its bit in a mask of types."""

    COMPUTATION = 0
    COMMUNICATION = 1
    MEMORY = 2


PATTERNS: list[tuple[KernelType, re.Pattern[str]]] = [
    (KernelType.MEMORY, re.compile(r"^(Memcpy|Memset)")),
    (KernelType.MEMORY, re.compile(r"^dma_request$")),  # MTIA's copies
    (KernelType.MEMORY, re.compile(r"^(MEMCPY_ASYNC|SDMA_SQE|PCIE_DMA_SQE)")),  # Ascend's
    # Inductor names kernels after the operators they fuse, also collectives, but these kernels only compute
    (KernelType.COMPUTATION, re.compile(r"^triton_\w+_fused")),
    (
        KernelType.COMMUNICATION,
        re.compile(r"nccl|rccl|hccl|oneccl|xccl|msccl|\b(?:mccl|cncl|bkcl)|hcom_|nvshmem|rocshmem", re.IGNORECASE),
    ),
    # expert parallelism: DeepEP (also under another name: its namespaces stay), HybridEP, MORI, Perplexity's
    (
        KernelType.COMMUNICATION,
        re.compile(r"deep_?ep|\bep::(?:inter|intra)node|hybrid_?ep|\b(?:mori|pplx)::|moeA2A", re.IGNORECASE),
    ),
    # kernels of vLLM, SGLang, Transformer Engine, and of PyTorch's symmetric memory
    (
        KernelType.COMMUNICATION,
        re.compile(r"cross_device_reduce|userbuffers|multimem|symmetric_memory::", re.IGNORECASE),
    ),
    (
        KernelType.COMMUNICATION,
        re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all", re.IGNORECASE),
    ),
    (KernelType.COMMUNICATION, re.compile(r"\b(?:Broadcast|Send|Receive|Barrier)-op\d+")),  # MindSpore's
]
_COPY = re.compile(r"Memcpy \w+")


def type_of(name: str) -> KernelType:
    """The type of a kernel of that name."""
    return next((kind for kind, pattern in PATTERNS if pattern.search(name)), KernelType.COMPUTATION)


@lru_cache(maxsize=4096)
def copy_kind(name: str) -> str:
    """The kind of copy in a name: ``Memcpy HtoD`` and the like, ``Memset``, else ``Memcpy Unknown``."""
    if match := _COPY.match(name):
        return match.group()
    return "Memset" if name.startswith("Memset") else "Memcpy Unknown"


def types_of(trace: Trace, name: Int32s, category: Bytes) -> Bytes:
    """The :class:`KernelType` (uint8) of each row of GPU work, by ``name`` and ``category``."""
    distinct, _ = compressed(name, len(trace.strings))
    by_name = np.zeros(len(trace.strings), np.uint8)
    by_name[distinct] = [_type_in(trace, trace.strings[code]) for code in distinct.tolist()]
    types: Bytes = by_name[name]
    types[category != Category.KERNEL] = KernelType.MEMORY
    return types


def _type_in(trace: Trace, name: str) -> KernelType:
    """The type by the user's rules for collectives, else by the package's."""
    return type_of(name) if stated_kind(trace, name) is None else KernelType.COMMUNICATION
