"""The kind of a collective, its bytes, and the factor of what a link carries, as tables.

Sizes and factors follow nccl-tests' doc/PERFORMANCE.md, so a bandwidth here equals the one that nccl-tests would print.
1 GB/s is 1e9 bytes per second.
"""

from __future__ import annotations

import re
from functools import lru_cache

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "AllReduce", "AllGather", "ReduceScatter", "AllToAll"
SEND, RECV, SEND_RECV, OTHER = "Send", "Recv", "SendRecv", "Other"

#: kinds that end on no rank before all ranks have begun
SYNCHRONOUS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, "Barrier")
POINT_TO_POINT = (SEND, RECV, SEND_RECV)

#: the first pattern found in a name (lower case, without underscores) decides
KINDS = (
    ("allreduce|crossdevicereduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    # expert parallelism (DeepEP, HybridEP, MORI, Perplexity's, TensorRT-LLM's): no rank has all its tokens before
    # all ranks have sent theirs
    (
        r"alltoall|all2all|moea2a|((deep|hybrid)ep|\bep::(inter|intra)node|(mori|pplx)::).*(dispatch|combine)",
        ALL_TO_ALL,
    ),
    ("broadcast|bcast", "Broadcast"),
    ("barrier|nvshmem.*syncall", "Barrier"),
    ("sendrecv", SEND_RECV),
    ("send", SEND),
    ("recv", RECV),
    ("reduce", "Reduce"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
)

#: bytes of an element by the type's name, in lower case, as PyTorch, NCCL and others write it
ELEMENT_BYTES = {
    **dict.fromkeys(("double", "float64", "long", "int64", "uint64", "complexfloat", "complex64"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32", "uint32", "qint32", "complexhalf"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16", "uint16", "complex32"), 2),
    **dict.fromkeys(("byte", "char", "int8", "uint8", "bool", "qint8", "quint8", "bits8"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"), 1),
    "float4_e2m1fn_x2": 1,  # two values per element
    "complexdouble": 16,
    "complex128": 16,
    "complexfloat32": 8,
}


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """The kind in the name of a kernel, operator or annotation; :data:`OTHER` if there is none."""
    plain = name.replace("(anonymous namespace)", "").partition("(")[0].replace("_", "").lower()
    return next((kind for pattern, kind in KINDS if re.search(pattern, plain)), OTHER)


def element_bytes(dtype: str) -> int | None:
    """The size of an element of that type, bytes; None for unknown types."""
    return ELEMENT_BYTES.get(dtype.replace("::", ".").rpartition(".")[2].lower())


def size_elements(kind: str, sent: int, received: int, ranks: int) -> int:
    """The elements of a collective as nccl-tests counts them, from what one rank sends and receives; -1 where
    unknown."""
    if kind in (ALL_GATHER, RECV):
        return received
    if kind == "Gather":
        return sent * ranks if sent > 0 and ranks > 0 else -1
    if kind == "Scatter":
        return received * ranks if received > 0 and ranks > 0 else -1
    return sent


def bus_factor(kind: str, ranks: int) -> float | None:
    """The share of the size that passes each rank's link (nccl-tests); None for unknown kinds or numbers of ranks."""
    if kind in ("Broadcast", "Reduce", *POINT_TO_POINT):
        return 1.0
    if ranks < 2 or kind in (OTHER, "Barrier"):
        return None
    return (2 if kind == ALL_REDUCE else 1) * (ranks - 1) / ranks
