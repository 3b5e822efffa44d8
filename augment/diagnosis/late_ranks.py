"""What to do about a late rank: the same words in a rank's own diagnosis and in what its job reports to it."""

from __future__ import annotations

from augment.core import LateRank, Reason
from augment.core.text import capitalized

MOST_OF_IT = 0.5  #: share of the waits for one rank, to name it
_TURNS = (
    "No single rank delays the job: several are late together, or in turn. Even out their work (lengths of sequences, "
    "data loading), or let them synchronize less often (no_sync() while accumulating, larger batches)"
)
_OF_CAUSE = {
    "host": "see its own findings for what its host does before collectives",
    "communication": "measure the slow links alone (nccl-tests), and see what joins them (nvidia-smi topo -m, "
    "NCCL_DEBUG=INFO)",
    "copies": "see what it copies that its peers do not (a checkpoint, logs, batches in pageable memory)",
    "compute": "give it less work, or compare its device's clock and kernels with those of its peers",
}
#: rules whose cures make the host faster: they explain why a host is late, and not why a device computes longer
_OF_HOST = frozenset(
    [
        "allocator_calls",
        "data_loading",
        "garbage_collection",
        "graph_breaks",
        "graph_capture",
        "host_gaps",
        "launch_bound",
        "long_calls",
        "profiler_overhead",
        "recompilation",
        "starved_host",
        "step_gaps",
        "synchronizing_calls",
        "unfused_optimizer",
    ]
)
_OF_COPIES = frozenset({"exposed_copies", "pageable_copies", "step_outliers"})
_OF_CALLS = frozenset({"allocator_calls", "long_calls", "synchronizing_calls"})
_BALANCE = "balance the work of the ranks (loads of experts, lengths of sequences, layers of stages)"
_OF_OTHER = "see its own findings"


def nobody_late(named: str) -> str:
    """What to do where no rank delays the job; ``named``: the rank that this one mostly waits for, if it is one."""
    return f"Fixing {named} alone would gain the job little" if named else _TURNS


def fix_rank(late: LateRank, waited_ns: float) -> str:
    """What to do about a late rank, of a rank that waits ``waited_ns`` per step: in vain, most of it, if others would
    be late in its place."""
    remains = late.gain_ns is not None and late.gain_ns < waited_ns / 2
    rather = " (most of the wait would remain)" if remains else " rather than communication on this rank"
    return f"Fix {late.name}{rather}: {way_to_fix(late)}"


def can_explain(rule: str, reason: Reason) -> bool:
    """Whether what a rule finds on a late rank can be why it is late: what is of its host, or of its device, and where
    its host was known to be, of that place."""
    if reason.cause == "copies":
        return rule in _OF_COPIES
    if reason.cause != "host":
        return reason.cause != "compute" or rule not in _OF_HOST
    if reason.where in ("annotation", "no_operator"):
        return rule in _OF_HOST - _OF_CALLS
    of_place = {"memory": frozenset({"allocator_calls"}), "call": _OF_CALLS}
    return rule in of_place.get(reason.where, _OF_HOST)


def compared(reason: Reason) -> str:
    """What to compare with peers where a rank's own findings may not say why it is late; empty for other reasons."""
    if reason.more_work:
        return capitalized(_BALANCE)
    if reason.cause in ("compute", "copies", "communication"):
        return capitalized(_OF_CAUSE[reason.cause])
    if reason.where == "many_operators":
        return (
            "Compare its CPU with its peers': other processes on its cores, its NUMA node, its clock (top, numactl); "
            "then what else its process does (py-spy)"
        )
    if reason.where == "memory":
        return (
            "Compare the sizes of what it allocates with those of its peers: sizes that change are asked of the driver "
            "again (pad to a few sizes, or use expandable segments)"
        )
    return ""


def way_to_fix(late: LateRank) -> str:
    """What to do about a late rank, to end an advice with."""
    if late.reason.more_work:
        return _BALANCE
    return _OF_CAUSE.get(late.reason.cause, _OF_OTHER)
