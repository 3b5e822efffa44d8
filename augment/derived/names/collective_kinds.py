"""What a collective is, how many bytes it moves, and what of that a link carries: tables, as nccl-tests has them.

Sizes and factors are those of nccl-tests' doc/PERFORMANCE.md, so that a bandwidth here is the one it would print:
1 GB/s is 1e9 bytes per second.
"""

from __future__ import annotations

import re
from functools import lru_cache

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "AllReduce", "AllGather", "ReduceScatter", "AllToAll"
SEND, RECV, SEND_RECV, OTHER = "Send", "Recv", "SendRecv", "Other"

#: nobody's is over before everybody has begun
SYNCHRONOUS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, "Barrier")
POINT_TO_POINT = (SEND, RECV, SEND_RECV)

#: the first that is found in a name, in small letters and without underscores, decides
KINDS = [
    (re.compile(pattern), kind)
    for pattern, kind in (
        ("allreduce|crossdevicereduce", ALL_REDUCE),
        ("reducescatter", REDUCE_SCATTER),
        ("allgather", ALL_GATHER),
        ("alltoall|all2all", ALL_TO_ALL),
        ("broadcast|bcast", "Broadcast"),
        ("barrier", "Barrier"),
        ("sendrecv", SEND_RECV),
        ("send", SEND),
        ("recv", RECV),
        ("reduce", "Reduce"),
        ("gather", "Gather"),
        ("scatter", "Scatter"),
    )
]

#: bytes of an element, by the type's name as PyTorch, NCCL and others write it, in small letters
ELEMENT_BYTES = {
    **dict.fromkeys(("double", "float64", "long", "int64", "uint64", "complexfloat", "complex64"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32", "uint32", "qint32", "complexhalf"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16", "uint16", "complex32"), 2),
    **dict.fromkeys(("byte", "char", "int8", "uint8", "bool", "qint8", "quint8", "bits8"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"), 1),
    "float4_e2m1fn_x2": 1,  # an element holds two
    "complexdouble": 16,
    "complex128": 16,
    "complexfloat32": 8,
}


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """The kind that a kernel's, operator's or annotation's name tells, :data:`OTHER` if none."""
    plain = name.replace("(anonymous namespace)", "").partition("(")[0].replace("_", "").lower()
    return next((kind for pattern, kind in KINDS if pattern.search(plain)), OTHER)


def element_bytes(dtype: str) -> int | None:
    """The size of an element of that type; None of types that are not known."""
    return ELEMENT_BYTES.get(dtype.replace("::", ".").rpartition(".")[2].lower())


def size_elements(kind: str, sent: int, received: int, ranks: int) -> int:
    """nccl-tests' count of elements of a collective, of what one rank sends and receives; -1 where unknown."""
    if kind in (ALL_GATHER, RECV):
        return received
    if kind == "Gather":
        return sent * ranks if sent > 0 and ranks > 0 else -1
    if kind == "Scatter":
        return received * ranks if received > 0 and ranks > 0 else -1
    return sent


def bus_factor(kind: str, ranks: int) -> float | None:
    """What part of the size passes each rank's link; None where the kind or the number of ranks does not tell."""
    if kind in ("Broadcast", "Reduce", *POINT_TO_POINT):
        return 1.0
    if ranks < 2 or kind in (OTHER, "Barrier"):
        return None
    return (2 if kind == ALL_REDUCE else 1) * (ranks - 1) / ranks
