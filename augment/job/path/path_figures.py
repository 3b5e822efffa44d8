"""The composition of the job's critical path by step and rank, and its handovers between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import combinations, sums
from augment.arrays.types import Bools, Places
from augment.core.findings import Findings, column
from augment.core.trace import Diagnostic
from augment.job.collectives.waits import Waits
from augment.job.matching.clocks import Clock
from augment.job.matching.matching import Matched
from augment.job.path.path import Path
from augment.job.ranks.summary import RankSummary

MOST_HANDOVERS = 1000  #: rows, those with the longest waits
_TIMES = ("compute_ns", "communication_ns", "memory_ns", "idle_ns")


class Row(Struct, frozen=True):
    """The part of the path on one rank, in one step or in total."""

    step: Annotated[int | None, column("The number of the step; null for the whole path.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    path_ns: Annotated[
        int, column("Time that the path is on the rank, on the job's clock: the sum of the next five columns.", "ns")
    ]
    compute_ns: Annotated[int, column("The rank's device computes.", "ns")]
    communication_ns: Annotated[
        int, column("The device communicates without computing, other than in transfer_ns.", "ns")
    ]
    memory_ns: Annotated[int, column("The device copies, and nothing else runs.", "ns")]
    idle_ns: Annotated[int, column("Nothing runs on the device.", "ns")]
    transfer_ns: Annotated[
        int, column("Collectives that the rank had to wait for move data: all their ranks have arrived.", "ns")
    ]
    path_ratio: Annotated[float | None, column("The rank's share of path_ns of all ranks in the step.", "ratio")]
    visit_count: Annotated[int, column("How often the path reaches the rank.", "count")]
    uncertainty_ns: Annotated[
        int, column("The uncertainty of the rank's clock, and so of when the path comes and goes.", "ns")
    ]


class HandoverRow(Struct, frozen=True):
    """Collectives of one kind and process group in which the path moves from one rank to another."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    kind: Annotated[str, column("The kind of collective.")]
    late_rank: Annotated[
        int | None, column("The rank that the others waited for: the path is on it before the collective.")
    ]
    late_trace: Annotated[str, column("The name of its trace.")]
    waiting_rank: Annotated[int | None, column("The rank that the path is on after the collective.")]
    waiting_trace: Annotated[str, column("The name of its trace.")]
    count: Annotated[int, column("The number of such collectives.", "count")]
    wait_ns: Annotated[int, column("How long the waiting rank waited in these collectives.", "ns")]
    lead_ns: Annotated[int, column("By how much the late rank arrived after the last but one.", "ns")]
    transfer_ns: Annotated[int, column("Time of the path in these collectives.", "ns")]


def figures(path: Path, clocks: Sequence[Clock], summaries: Sequence[RankSummary]) -> Iterator[Row]:
    """The rows by step, ascending, then those of the whole path; within each the longest first."""
    if (path.step >= 0).any():
        steps, first = np.unique(path.step, return_index=True)  # path.step is ascending
        for step, pieces in zip(steps.tolist(), np.split(np.arange(len(path)), first[1:]), strict=True):
            yield from _rows(path, pieces, step, clocks, summaries)
    yield from _rows(path, np.arange(len(path)), None, clocks, summaries)


def handovers(path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings:
    """The rows with the longest waits first; at most :data:`MOST_HANDOVERS`."""
    over = np.flatnonzero(is_handover(path))
    part, late = path.part[over], path.late[over]
    instance = matched.instance[part]
    values, which = combinations(
        matched.group[instance], matched.kind[instance], matched.member[late], matched.member[part]
    )
    count = len(values[0])
    wait, lead, transfer = (
        sums(which, of, count) for of in (parted.wait_ns[part], parted.lead_ns[instance], path.dur[over])
    )
    often = np.bincount(which, minlength=count)
    order = np.argsort(-wait, kind="stable")
    rows = []
    for place in order[:MOST_HANDOVERS].tolist():
        group, kind, first, second = (int(column[place]) for column in values)
        rows.append(
            HandoverRow(
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
            )
        )
    beyond = count - len(rows)
    why = "handovers of the critical path beyond the limit, those with the shortest waits; left out"
    return Findings(rows, diagnostics=[Diagnostic("handovers_beyond_limit", beyond, why)] if beyond else [])


def is_handover(path: Path) -> Bools:
    """The transfers at whose start the path comes from another rank."""
    over: Bools = path.part != path.late
    return over


def _rows(
    path: Path, pieces: Places, step: int | None, clocks: Sequence[Clock], summaries: Sequence[RankSummary]
) -> Iterator[Row]:
    member, dur = path.member[pieces], path.dur[pieces]
    whole = int(dur.sum())
    came = np.ones(len(pieces), np.bool_)
    came[1:] = member[1:] != member[:-1]
    (members,), which = combinations(member)
    times = {name: sums(which, getattr(path, name)[pieces], len(members)) for name in _TIMES}
    times["transfer_ns"] = sums(which, np.where(path.is_transfer()[pieces], dur, 0), len(members))
    visits = np.bincount(which[came], minlength=len(members))
    for place in np.argsort(-sum(times.values()), kind="stable").tolist():
        index = int(members[place])
        parts = {name: int(values[place]) for name, values in times.items()}
        yield Row(
            step=step,
            rank=summaries[index].rank,
            trace=summaries[index].name,
            path_ns=sum(parts.values()),
            **parts,
            path_ratio=sum(parts.values()) / whole if whole else None,
            visit_count=int(visits[place]),
            uncertainty_ns=clocks[index].uncertainty_ns,
        )
