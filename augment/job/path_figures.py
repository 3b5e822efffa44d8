"""What the critical path through the ranks consists of: of each step and rank, and where it goes over to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from augment.arrays.ordering import combinations, sums
from augment.arrays.types import Bools, Places
from augment.findings import Findings, column
from augment.job.alignment import Clock
from augment.job.matching import Matched
from augment.job.path import Path
from augment.job.summary import RankSummary
from augment.job.waits import Waits
from augment.trace import Diagnostic

MOST_HANDOVERS = 1000  #: rows, those that most was waited in
_TIMES = ("compute_ns", "communication_ns", "memory_ns", "idle_ns")


@dataclass(frozen=True, slots=True)
class Row:
    """What of the path lies on one rank, in one step and in all."""

    step: int | None = column("The number of the step; null of the whole path.")
    rank: int | None = column("The rank.")
    trace: str = column("The name of its trace.")
    path_ns: int = column(
        "The time in which the path is on it, on the job's clock: the sum of the five that follow.", "ns"
    )
    compute_ns: int = column("Its device computes.", "ns")
    communication_ns: int = column("It communicates, but not as in transfer_ns, and computes nothing.", "ns")
    memory_ns: int = column("It copies, and nothing else runs.", "ns")
    idle_ns: int = column("Nothing runs on its device.", "ns")
    transfer_ns: int = column("Collectives that it had to wait for move data, all their ranks having arrived.", "ns")
    path_ratio: float | None = column("path_ns by that of all ranks in the step: the rank's share.", "ratio")
    visit_count: int = column("How often the path comes to it.", "count")
    uncertainty_ns: int = column("What its clock, and so when the path comes and goes, may be wrong by.", "ns")


@dataclass(frozen=True, slots=True)
class HandoverRow:
    """Collectives of one kind and process group in which the path goes over from one rank to another."""

    group: str = column("The name of the process group; empty if the traces do not tell.")
    kind: str = column("The kind of collective.")
    late_rank: int | None = column("The rank that the others waited for: the path is on it before.")
    late_trace: str = column("The name of its trace.")
    waiting_rank: int | None = column("The rank that the path is on afterwards.")
    waiting_trace: str = column("The name of its trace.")
    count: int = column("How often.", "count")
    wait_ns: int = column("What the second waited for the first in those.", "ns")
    lead_ns: int = column("How much later than the last but one the first came.", "ns")
    transfer_ns: int = column("What these collectives have of the path.", "ns")


def figures(path: Path, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> Iterator[Row]:
    """The rows of each step, ascending, then those of the whole path."""
    if (path.step >= 0).any():
        steps, first = np.unique(path.step, return_index=True)  # they ascend
        for step, own in zip(steps.tolist(), np.split(np.arange(len(path)), first[1:]), strict=True):
            yield from _rows(path, own, step, clocks, summaries)
    yield from _rows(path, np.arange(len(path)), None, clocks, summaries)


def handovers(path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings:
    """The rows, those first that most was waited in; at most :data:`MOST_HANDOVERS`."""
    over = np.flatnonzero(is_handover(path))
    part, late = path.part[over], path.late[over]
    one = matched.instance[part]
    values, which = combinations(matched.group[one], matched.kind[one], matched.member[late], matched.member[part])
    count = len(values[0])
    wait, lead, transfer = (
        sums(which, of, count) for of in (parted.wait_ns[part], parted.lead_ns[one], path.dur[over])
    )
    often = np.bincount(which, minlength=count)
    order = np.argsort(-wait, kind="stable")
    rows = []
    for place in order[:MOST_HANDOVERS].tolist():
        group, kind, first, second = (int(column[place]) for column in values)
        rows.append(HandoverRow(
            group=matched.groups[group].name,
            kind=matched.kinds[kind],
            late_rank=summaries[first].rank,
            late_trace=summaries[first].name,
            waiting_rank=summaries[second].rank,
            waiting_trace=summaries[second].name,
            count=int(often[place]),
            wait_ns=int(wait[place]),
            lead_ns=int(lead[place]),
            transfer_ns=int(transfer[place]),
        ))  # fmt: skip
    beyond = count - len(rows)
    why = "rows of handovers of the critical path, those that least was waited in, that were left out"
    return Findings(rows, diagnostics=[Diagnostic("handovers_beyond_limit", beyond, why)] if beyond else [])


def is_handover(path: Path) -> Bools:
    """The transfers at whose begin the path comes over from another rank."""
    over: Bools = path.part != path.late
    return over


def _rows(
    path: Path, own: Places, step: int | None, clocks: Sequence[Clock], summaries: Sequence[RankSummary]
) -> Iterator[Row]:
    member, dur = path.member[own], path.dur[own]
    whole = int(dur.sum())
    came = np.ones(len(own), np.bool_)
    came[1:] = member[1:] != member[:-1]
    (members,), which = combinations(member)
    times = {name: sums(which, getattr(path, name)[own], len(members)) for name in _TIMES}
    times["transfer_ns"] = sums(which, np.where(path.is_transfer()[own], dur, 0), len(members))
    visits = np.bincount(which[came], minlength=len(members))
    for place, one in enumerate(members.tolist()):
        parts = {name: int(values[place]) for name, values in times.items()}
        yield Row(
            step=step,
            rank=summaries[one].rank,
            trace=summaries[one].name,
            path_ns=sum(parts.values()),
            **parts,
            path_ratio=sum(parts.values()) / whole if whole else None,
            visit_count=int(visits[place]),
            uncertainty_ns=clocks[one].uncertainty_ns,
        )
