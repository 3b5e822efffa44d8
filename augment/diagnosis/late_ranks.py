"""What to do about a late rank: the same words in a rank's own diagnosis and in what its job reports to it."""

from __future__ import annotations

from augment.core.attachments import LateRank, Reason

MOST_OF_IT = 0.5  #: share of the waits for one rank, to name it
_TURNS = (
    "No single rank delays the job: the ranks take turns at being late. Even out their work (lengths of sequences, "
    "data loading), or let them synchronize less often (no_sync() while accumulating, larger batches)"
)
_OF_CAUSE = {
    "host": "see its own findings for what its host does before collectives",
    "compute": "give it less work, or compare its device's clock and kernels with those of its peers",
}
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


def compared(reason: Reason) -> str:
    """What to compare with peers where a rank's own findings may not say why it is late; empty for other reasons."""
    if reason.more_work:
        return f"{_BALANCE[:1].upper()}{_BALANCE[1:]}"
    if reason.cause == "compute":
        return "Compare its device's clock and kernels with those of its peers"
    if reason.where == "many_operators":
        return (
            "Compare its CPU with its peers': other processes on its cores, its NUMA node, its clock (top, numactl); "
            "then what it runs besides (py-spy)"
        )
    return ""


def way_to_fix(late: LateRank) -> str:
    """What to do about a late rank, to end an advice with."""
    if late.reason.more_work:
        return _BALANCE
    return _OF_CAUSE.get(late.reason.cause, _OF_OTHER)
