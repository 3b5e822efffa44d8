"""Tables of name patterns: the type of a kernel, the kind of a collective, the role of a process.

What kind of work a kernel is (computation, communication or memory), and of which kind a collective, :data:`PATTERNS`
says. The first pattern found in a name decides; a name without any is computation. The user's own rules for collectives
(:func:`collective_rules`) come before it. Copies and memsets (by their category) are memory, whatever their name.

Names of folders and files tell the roles of the processes of a pipeline: those of reinforcement learning, and of
servers that prefill and decode apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from augment.arrays import Bools, Bytes, EventRows, Int32s, occurring
from augment.core import Category, Trace, tables_of
from augment.errors import UsageError, expect_known

# fmt: off
__all__ = [
    "ALL_GATHER", "ALL_REDUCE", "ALL_TO_ALL", "CALLS_FOR_MEMORY", "COMPILED", "FETCH", "LONG_CALL_NS", "POINT_TO_POINT",
    "RECV", "REDUCE_SCATTER", "SEND", "SEND_RECV", "STEP", "UPDATE", "KernelType", "bus_factor", "fetches", "matching",
    "starting", "strings_where",
]
# fmt: on

# Which names of a trace satisfy a condition: masks over ``trace.strings``, which columns of names index.

LOOKED_AT = 4096  #: the most characters at the beginning of a name that patterns are held against
REMEMBERED = 2048  #: the most characters of a name of which it is kept whether patterns are found in it
MOST_REMEMBERED = 1 << 11  #: names, for each pattern
STEP = "ProfilerStep"  #: how the names of steps begin
UPDATE = "Optimizer.step#"  #: and those of updates of the parameters
FETCH = "enumerate(DataLoader)"  #: so PyTorch's annotations of fetches of batches begin
COMPILED = "## Call CompiledFxGraph"  #: of annotations around what Inductor compiled; its loops on a CPU are no events
#: calls that ask the driver for memory, or give it back
CALLS_FOR_MEMORY = re.compile(
    r"^(?:cuda|hip)(?:(?:Malloc|Free)(?:Host|Managed)?|Host(?:Alloc|Malloc|Free))$"
    r"|^(?:cu|hip)Mem(?:Alloc|Free|Create|Map)|^urUSM\w*(?:Alloc|Free)$"
)
GRAPH_LAUNCH = re.compile("GraphLaunch")  #: calls that run a captured graph
#: calls that wait, copy, or ask: one of them that takes long does not hold up the host by itself
OTHER_CALLS = re.compile(r"GraphInstantiate|Synchronize|Memcpy|Memset|Query|StreamWait|ElapsedTime")
LONG_CALL_NS = 100_000  #: a shorter call is ordinary launching


def strings_where(trace: Trace, condition: Callable[[str], object]) -> Bools:
    """Whether ``condition`` is true for the beginning of each of ``trace.strings``, bool."""
    return np.array([bool(condition(name[:LOOKED_AT])) for name in trace.strings], np.bool_)


def fetches(trace: Trace) -> EventRows:
    """The slices, rows of the event table, in which the host fetches a batch."""
    rows = trace.events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
    return rows[starting(trace, FETCH)[trace.events.name[rows]]]


def matching(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Whether ``pattern`` is found in the beginning of each of ``trace.strings``, bool."""
    answers = _answers(pattern)
    return np.array([answers[name] for name in trace.strings], np.bool_)


class _Found(dict[str, bool]):
    """Whether a pattern is found in the beginning of each name that was asked for; traces of a job have the same."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        super().__init__()
        self._pattern = pattern

    def __missing__(self, name: str) -> bool:
        is_found = self._pattern.search(name, 0, LOOKED_AT) is not None
        if len(name) <= REMEMBERED:
            if len(self) >= MOST_REMEMBERED:
                self.clear()
            self[name] = is_found
        return is_found


_answers = lru_cache(maxsize=256)(_Found)  #: by pattern, which Python hashes as slowly as it finds many


def starting(trace: Trace, *beginnings: str) -> Bools:
    """Whether each of ``trace.strings`` starts with one of ``beginnings``, bool."""
    return np.array([name.startswith(beginnings) for name in trace.strings], np.bool_)


# The type of a kernel, and the kind of a collective and its bytes.


class KernelType(IntEnum):
    """HTA's kernel types; ``1 << type`` is its bit in a mask of types."""

    COMPUTATION = 0
    COMMUNICATION = 1
    MEMORY = 2


PATTERNS: list[tuple[KernelType, re.Pattern[str]]] = [
    (KernelType.MEMORY, re.compile(r"^(Memcpy|Memset)")),
    (KernelType.MEMORY, re.compile(r"^dma_request$")),  # MTIA's copies
    (KernelType.MEMORY, re.compile(r"^(MEMCPY_ASYNC|MemcopyAsync|SDMA|PCIE_DMA_SQE)")),  # Ascend's
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
_COPY_OF_ROCM = re.compile(r"Copy([HD])(?:ost|evice)To([HD])")  #: as it was called before ROCm 6


@lru_cache(maxsize=4096)
def type_of(name: str) -> KernelType:
    """The type of a kernel of that name."""
    return next((kind for kind, pattern in PATTERNS if pattern.search(name, 0, LOOKED_AT)), KernelType.COMPUTATION)


@lru_cache(maxsize=4096)
def copy_kind(name: str) -> str:
    """The kind of copy in a name: ``Memcpy HtoD`` and the like, ``Memset``, else ``Memcpy Unknown``."""
    if match := _COPY.match(name):
        return match.group()
    if match := _COPY_OF_ROCM.match(name):
        return f"Memcpy {match[1]}to{match[2]}"
    return "Memset" if name.startswith(("Memset", "FillBuffer")) else "Memcpy Unknown"


def types_of(trace: Trace, name: Int32s, category: Bytes) -> Bytes:
    """The :class:`KernelType` (uint8) of each row of GPU work, by ``name`` and ``category``."""
    distinct = occurring(name, len(trace.strings))
    by_name = np.zeros(len(trace.strings), np.uint8)
    names = [trace.strings[code] for code in distinct.tolist()]
    by_name[distinct] = [
        type_of(name[:LOOKED_AT]) if stated_kind(trace, name) is None else KernelType.COMMUNICATION for name in names
    ]
    types: Bytes = by_name[name]
    types[category != Category.KERNEL] = KernelType.MEMORY
    return types


# The kind of a collective, its bytes, and the factor of what a link carries, as tables.
#
# Sizes and factors follow nccl-tests' doc/PERFORMANCE.md, so a bandwidth here equals the one that nccl-tests would
# print. 1 GB/s is 1e9 bytes per second.


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
    ("recv|receive", RECV),
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


# The user's own rules for kernels of communication: ``[[collectives]]`` of a file of tables.
#
# A kernel whose name a rule's ``pattern`` matches communicates, and is a collective of the rule's ``kind``. The user's
# rules come before the package's, and the first that matches decides.


COLLECTIVES_TABLE = "collectives"  #: the key of the rules
NAMES = (*dict.fromkeys(kind for _, kind in KINDS), OTHER)  #: the kinds that a rule may give


def collective_rules(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The rules as (pattern, kind).

    Raises:
        UsageError: a rule lacks a part, gives an unknown kind, or its pattern is no regular expression.
    """
    rules = []
    for row in rows:
        pattern, kind = row.get("pattern"), row.get("kind")
        if not isinstance(pattern, str) or not isinstance(kind, str):
            raise UsageError(f"a rule for collectives must have the texts pattern and kind, not {dict(row)}")
        expect_known(kind, NAMES, "kind of collective")
        try:
            compiled_pattern(pattern)
        except re.error as error:
            raise UsageError(f"a rule for collectives: {pattern!r} is no regular expression: {error}") from error
        rules.append((pattern, kind))
    return tuple(rules)


def stated_kind(trace: Trace, kernel: str) -> str | None:
    """The kind that the user's rules give a kernel of that name; None if none matches."""
    rules = tables_of(trace).get(COLLECTIVES_TABLE)
    return _stated(collective_rules(rules), kernel) if rules else None


@lru_cache(maxsize=4096)
def _stated(rules: tuple[tuple[str, str], ...], kernel: str) -> str | None:
    return next((kind for pattern, kind in rules if compiled_pattern(pattern).search(kernel)), None)


@lru_cache(maxsize=4096)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """A rule's pattern, compiled when a name is held against it: of the rules that ship, half never are."""
    return re.compile(pattern, re.IGNORECASE)


# Roles of processes.

ROLES_TABLE = "role"  #: key of the user's own rows
ROLLOUT, ACTOR, CRITIC = "rollout", "actor", "critic"
#: roles, and patterns of the words that tell them (case does not matter): a name of several roles tells none
ROLES: tuple[tuple[str, str], ...] = (
    (ROLLOUT, r"rollouts?|generators?|generation|samplers?"),
    (ACTOR, r"actors?|(?<!ref_)(?<!reference_)(?:policy|learner|trainer)"),
    (CRITIC, r"critics?"),
    ("reference", r"refs?|reference"),
    ("reward", r"rewards?|verifiers?"),
    ("prefill", r"prefill"),
    ("decode", r"decode"),
)
_SEPARATORS = re.compile(r"[-. ]+")

Rules = tuple[tuple[str, str], ...]


def role_rules(rows: Sequence[Mapping[str, Any]]) -> Rules:
    """The user's own rules: a pattern, which matches anywhere in a name, and its role.

    Raises:
        UsageError: a row has another form.
    """
    rules = []
    for row in rows:
        role, pattern = row.get("role"), row.get("pattern")
        if not isinstance(role, str) or not isinstance(pattern, str) or not role or row.keys() - {"role", "pattern"}:
            raise UsageError(f"[[{ROLES_TABLE}]] needs role = '…' and pattern = '…'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"[[{ROLES_TABLE}]] {pattern}: {error}") from error
        rules.append((role, pattern))
    return tuple(rules)


def place_of_role(role: str) -> int:
    """Where a role stands among :data:`ROLES`; those of the user's own come last."""
    return next((place for place, (name, _) in enumerate(ROLES) if name == role), len(ROLES))


@lru_cache(maxsize=4096)
def role_of(name: str, rules: Rules = ()) -> str:
    """The role that the name of a folder or file tells; empty if it tells none, or several.

    The user's ``rules`` come first: the first that matches decides.
    """
    for role, pattern in rules:
        if re.search(pattern, name, re.IGNORECASE):
            return role
    words = _SEPARATORS.sub("_", name)
    told_by = {
        role for role, words_of in ROLES if re.search(rf"(?<![a-z0-9])(?:{words_of})(?![a-z])", words, re.IGNORECASE)
    }
    return told_by.pop() if len(told_by) == 1 else ""
