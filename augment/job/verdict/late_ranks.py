"""Who is late: the ranks that the others wait for, and how unevenly the steps' computing is spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Bools, Int64s, Places, combinations, each, robust_z, sums
from augment.core import Cause, column
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.ranks import Parts, RankSummary
from augment.job.verdict import excess as causes
from augment.job.verdict.excess import Excess


class Row(Struct, frozen=True):
    """One rank in one process group."""

    group: Annotated[str, column("The name of the process group; empty if the traces do not tell.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    count: Annotated[int, column("Its collectives that were matched.", "count")]
    last_count: Annotated[int, column("Those in which it arrived last.", "count")]
    last_ratio: Annotated[float, column("Their share.", "ratio")]
    after_the_others_ns: Annotated[
        int, column("How much later than the last but one it arrived in those: what it cost the others.", "ns")
    ]
    step_count: Annotated[int, column("Steps in which that was more than of any other rank of the group.", "count")]
    wait_ns: Annotated[int, column("What it waited for others itself.", "ns")]
    robust_z: Annotated[
        float | None, column("How much less it waits than the ranks of the group do, in robust deviations.")
    ]
    cause: Annotated[
        str,
        column(
            "Why it was late, as the verdict says: what it does more than its peers, before and in all, else what it "
            "did in after_the_others_ns. gpu (the device worked), host (it was idle, nothing was launched), queued (it "
            "was idle, with launched work), before_recording, or unknown, also if none is clearly the largest; empty "
            "if it was never late."
        ),
    ]
    meanwhile: Annotated[
        str,
        column(
            "What it did in most of after_the_others_ns, in the same words. After a stall of its host a late device "
            "often does its usual work while the others wait: then this is gpu, and the cause host."
        ),
    ]
    meanwhile_ratio: Annotated[
        float | None, column("The share of after_the_others_ns that the largest part has.", "ratio")
    ]
    compute_ns: Annotated[int, column("The part of after_the_others_ns in which its device computed.", "ns")]
    communication_ns: Annotated[int, column("The part in which its device communicated without computing.", "ns")]
    memory_ns: Annotated[int, column("The part in which its device copied, and did nothing else.", "ns")]
    host_ns: Annotated[
        int, column("The part in which its device was idle, and the next work was not launched yet.", "ns")
    ]
    queued_ns: Annotated[int, column("The part in which its device was idle, though the next work was launched.", "ns")]
    before_ns: Annotated[int, column("The part before its recording began.", "ns")]
    unknown_ns: Annotated[
        int, column("The part in which its device was idle, and the next launch was not recorded.", "ns")
    ]


class ImbalanceRow(Struct, frozen=True):
    """One step, of all ranks that recorded it; without the work launched before the recording."""

    step: Annotated[int, column("The number of the step.")]
    rank_count: Annotated[int, column("Ranks that recorded it.", "count")]
    mean_compute_ns: Annotated[float, column("Time in which their devices computed, the mean.", "ns")]
    max_compute_ns: Annotated[int, column("The most.", "ns")]
    max_rank: Annotated[int | None, column("The rank that computed most.")]
    imbalance_ratio: Annotated[float | None, column("By how much the most is above the mean.", "ratio")]
    mean_wall_ns: Annotated[float, column("The length of the step, the mean.", "ns")]
    max_wall_ns: Annotated[int, column("The longest.", "ns")]


class LateTally(Struct, frozen=True):
    """What the members of a job did in some of its collectives: an int64 column each, a row a member.

    Of ``count`` collectives a member arrived last in ``last_count``, ``lead_ns`` later than the last but one, and
    waited for ``wait_ns``.
    """

    count: Int64s
    last_count: Int64s
    lead_ns: Int64s
    wait_ns: Int64s


def tally(matched: Matched, parted: Waits, chosen: Places, parts: Places, count: int) -> LateTally:
    """The tally of ``count`` members in the ``chosen`` collectives, whose rows are ``parts``."""
    member, late = matched.member[parts], matched.member[parted.late[chosen]]
    return LateTally(
        count=np.bincount(member, minlength=count),
        last_count=np.bincount(late, minlength=count),
        lead_ns=sums(late, parted.lead_ns[chosen], count),
        wait_ns=sums(member, parted.wait_ns[parts], count),
    )


def stragglers(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], excess: Excess | None, named: Mapping[int, Cause]
) -> Iterator[Row]:
    """The rows of each group, ranks in order; of collectives alone: the stages of a pipeline wait by design.

    ``named`` are the causes of the members that the verdict names.
    Nobody is charged for collectives of which at most half of the ranks have traces.
    """
    parted = replace(parted, lead_ns=np.where(is_sparse(matched), 0, parted.lead_ns))
    late = matched.member[parted.late]
    parts = lead_parts(matched, parted, summaries)
    due = causes.of_leads(matched, parted, parts, excess, summaries, named)
    count = len(summaries)
    names = tuple(causes.DELAY_CAUSES)
    together = ~matched.is_pair()
    chosen, parts_chosen = np.flatnonzero(together), np.flatnonzero(together[matched.instance])
    groups = len(matched.groups)
    rows_of = dict(each(matched.group[matched.instance[parts_chosen]], groups))
    for group, places in each(matched.group[chosen], groups):
        instances, rows = chosen[places], parts_chosen[rows_of.get(group, places[:0])]
        totals = tally(matched, parted, instances, rows, count)
        spent = Parts(*(sums(late[instances], column[instances], count) for column in parts))
        cause, meanwhile = (
            np.vstack([sums(late[instances], times[instances], count) for times in table])
            for table in (due, causes.of_parts(parts))
        )
        names_of = [[names[main] for main in causes.main_causes(table).tolist()] for table in (cause, meanwhile)]
        # in how many steps each member was charged most; a recording without steps is one
        (steps, members), which = combinations(matched.step[instances], late[instances])
        charges = sums(which, parted.lead_ns[instances], len(steps))
        order = np.lexsort((-charges, steps))
        steps, members, charges = steps[order], members[order], charges[order]
        most = np.append(True, steps[1:] != steps[:-1])[: len(steps)] & (charges > 0)
        if (steps != NO_VALUE).any():
            most &= steps != NO_VALUE
        worst = np.bincount(members[most], minlength=count)
        present = np.flatnonzero(totals.count)
        z = robust_z(-(totals.wait_ns[present] // totals.count[present]))
        for place, member in enumerate(present.tolist()):
            charged = int(totals.lead_ns[member])
            yield Row(
                group=matched.groups[group].name,
                rank=summaries[member].rank,
                trace=summaries[member].name,
                count=int(totals.count[member]),
                last_count=int(totals.last_count[member]),
                last_ratio=float(totals.last_count[member] / totals.count[member]),
                after_the_others_ns=charged,
                step_count=int(worst[member]),
                wait_ns=int(totals.wait_ns[member]),
                robust_z=None if z is None else float(z[place]),
                cause=names_of[0][member] if charged else "",
                meanwhile=names_of[1][member] if charged else "",
                meanwhile_ratio=int(meanwhile[:, member].max()) / charged if charged else None,
                **{f"{name}_ns": int(column[member]) for name, column in spent._asdict().items()},
            )


def is_sparse(matched: Matched) -> Bools:
    """Collectives of which at most half of the ranks have traces: who was late is not known."""
    sparse: Bools = 2 * matched.members <= matched.size()
    return sparse & ~matched.is_pair()


def lead_parts(matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Parts:
    """What each collective's late rank did in its lead, since the arrival of the last but one; a row a collective."""
    columns = np.zeros((len(Parts._fields), len(matched)), np.int64)
    late = matched.member[parted.late]
    for member, instances in each(late, len(summaries)):
        arrival = matched.ts[parted.late[instances]]
        columns[:, instances] = summaries[member].states.parts(arrival - parted.lead_ns[instances], arrival)
    return Parts(*columns)


def imbalance(summaries: Sequence[RankSummary]) -> Iterator[ImbalanceRow]:
    """The rows of each step, ascending."""
    member = np.repeat(np.arange(len(summaries)), [len(summary.step_column("number")) for summary in summaries])
    number, start, end = (
        np.concatenate([summary.step_column(name) for summary in summaries]) if summaries else np.empty(0, np.int64)
        for name in ("number", "start", "end")
    )
    compute = np.concatenate([summary.computing_ns for summary in summaries]) if summaries else np.empty(0, np.int64)
    wall, known = end - start, number != NO_VALUE
    member, number, wall, compute = member[known], number[known], wall[known], compute[known]
    order = np.argsort(number, kind="stable")
    distinct, first = np.unique(number[order], return_index=True)
    for step, rows in zip(distinct.tolist(), np.split(order, first[1:]), strict=len(distinct) > 0):
        mean = float(compute[rows].mean())
        slowest = rows[np.argmax(compute[rows])]
        yield ImbalanceRow(
            step=step,
            rank_count=len(rows),
            mean_compute_ns=mean,
            max_compute_ns=int(compute[slowest]),
            max_rank=summaries[member[slowest]].rank if mean else None,
            imbalance_ratio=float(compute[slowest] / mean - 1) if mean else None,
            mean_wall_ns=float(wall[rows].mean()),
            max_wall_ns=int(wall[rows].max()),
        )
