"""What the communication of each dimension costs, and the volume beside what theory asks.

The volume is what passes the link of a rank: bytes times nccl-tests' factor, 2(n-1)/n for an all-reduce and (n-1)/n for
gathers, reduce-scatters and all-to-alls of n ranks. Averaging gradients of G bytes takes 2G(n-1)/n. With fully sharded
parameters it takes 1.5 times that: two gathers and a reduce-scatter. With a sharded optimizer or sharded gradients it
takes no more than without: a reduce-scatter and a gather (ZeRO, arXiv 1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Int64s, Places, combinations, each, sums
from augment.core import Findings, Skipped, column
from augment.facts.names import ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, bus_factor
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.parallel import comparison, group_roles
from augment.job.parallel.dimensions import Dimensions, dimension_codes
from augment.job.ranks import DATA_PARALLEL, RankSummary

_THEORY = {
    "all-reduce": 1.0,
    group_roles.FULLY_SHARDED: 1.5,
    group_roles.SHARDED_GRADIENTS: 1.0,
    group_roles.SHARDED_OPTIMIZER: 1.0,
}


class Row(Struct, frozen=True):
    """The communication of one dimension in the steps of all ranks."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    style: Annotated[str, column("How its collectives work together; empty if unknown.")]
    group_size: Annotated[int | None, column("Ranks of its largest group; null if unknown.", "count")]
    count: Annotated[int, column("Its collectives, summed over ranks.", "count")]
    count_per_step: Annotated[float, column("The same for one rank of the job and one step, the mean.")]
    time_ns: Annotated[int, column("Their durations, summed over ranks: the sum of the next three columns.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    unmatched_ns: Annotated[int, column("The duration of those that were not matched across ranks.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]
    step_ratio: Annotated[float | None, column("exposed_ns by the time of the steps of all ranks.", "ratio")]
    bytes: Annotated[
        int | None,
        column("Their sizes, as nccl-tests counts them, summed over ranks; null if one is unknown.", "bytes"),
    ]
    volume_bytes: Annotated[
        float | None, column("What passes a rank's link in a step, the mean; null if unknown.", "bytes")
    ]
    gradient_bytes: Annotated[
        float | None, column("Gradients reduced by a rank in a step, of dimensions of data parallelism.", "bytes")
    ]
    volume_ratio: Annotated[float | None, column("volume_bytes by 2(n-1)/n times gradient_bytes.", "ratio")]
    memory_ratio: Annotated[
        float | None,
        column(
            "The share of parameters, gradients and Adam's state (16 bytes a parameter) that a rank keeps in theory.",
            "ratio",
        ),
    ]
    theory_ratio: Annotated[
        float | None, column("What volume_ratio is in theory: 1, or 1.5 if fully sharded.", "ratio")
    ]


def rows(dims: Dimensions, matched: Matched, parted: Waits, steps: comparison.RankSteps) -> list[Row]:
    """A row for each dimension, that of the longest exposed time first."""
    names, code = dimension_codes(dims, matched)
    inside = matched.step[matched.instance] >= 0 if steps.numbered else np.ones(len(matched.instance), np.bool_)
    of_part = code[matched.instance][inside]
    wait, transfer = (sums(of_part, values[inside], len(names)) for values in (parted.wait_ns, parted.transfer_ns))
    parts = {name: (int(wait[place]), int(transfer[place])) for place, name in enumerate(names)}
    result = [
        _row(name, dims, parts.get(name, (0, 0)), steps)
        for name in list(dict.fromkeys(use.dimension for use in dims.uses.values()))
    ]
    return sorted(result, key=lambda row: -row.exposed_ns)


def _row(name: str, dims: Dimensions, parts: tuple[int, int], steps: comparison.RankSteps) -> Row:
    tallies = [
        (group, kind, tally)
        for group, of in dims.tallies.items()
        for kind, tally in of.items()
        if dims.of(group, kind) == name
    ]
    time = sum(tally.time_ns for *_, tally in tallies)
    exposed = sum(tally.exposed_ns for *_, tally in tallies)
    sized = all(not tally.unsized for *_, tally in tallies)
    groups = dict.fromkeys(group for group, *_ in tallies)
    style = dims.style_of(name)
    count = sum(tally.count for *_, tally in tallies)
    return Row(
        dimension=name,
        style=style,
        group_size=max((dims.sizes[group] for group in groups), default=0) or None,
        count=count,
        count_per_step=count / steps.count if steps.count else 0.0,
        time_ns=time,
        wait_ns=parts[0],
        transfer_ns=parts[1],
        unmatched_ns=time - sum(parts),
        exposed_ns=exposed,
        step_ratio=exposed / steps.wall_ns if steps.wall_ns else None,
        bytes=sum(tally.bytes for *_, tally in tallies) if sized else None,
        **_volume(name, style, [(dims.sizes[group], kind, of.bytes) for group, kind, of in tallies], steps, sized),
    )


def _volume(
    name: str, style: str, tallies: Sequence[tuple[int, str, int]], steps: comparison.RankSteps, sized: bool
) -> Mapping[str, float | None]:
    """The columns of volumes, for collectives of (ranks of the group, kind, bytes)."""
    factors = [bus_factor(kind, size) for size, kind, _ in tallies]
    passed = [size * (factor or 0) for factor, (*_, size) in zip(factors, tallies, strict=True)]
    known = sized and bool(steps.count) and all(factor is not None for factor in factors)
    reduced = [(ranks, size) for ranks, kind, size in tallies if kind in (ALL_REDUCE, REDUCE_SCATTER)]
    asked = sum(2 * size * (ranks - 1) / ranks for ranks, size in reduced if ranks)
    is_data = known and name in DATA_PARALLEL and asked > 0
    return {
        "volume_bytes": sum(passed) / steps.count if known else None,
        "gradient_bytes": sum(size for _, size in reduced) / steps.count if is_data else None,
        "volume_ratio": sum(passed) / asked if is_data else None,
        "memory_ratio": _memory(style, max((ranks for ranks, *_ in tallies), default=0)) if is_data else None,
        "theory_ratio": _THEORY.get(style) if is_data else None,
    }


def _memory(style: str, ranks: int) -> float | None:
    """ZeRO, arXiv 1910.02054: of 16 bytes a parameter, stage 1 keeps 4 + 12/n, stage 2 2 + 14/n, stage 3 16/n."""
    kept = {
        "all-reduce": 16.0,
        group_roles.SHARDED_OPTIMIZER: 4 + 12 / max(ranks, 1),
        group_roles.SHARDED_GRADIENTS: None,  # parameters are kept between forward and backward
        group_roles.FULLY_SHARDED: 16 / max(ranks, 1),
    }.get(style)
    return None if kept is None else kept / 16


# All-to-alls: how unevenly ranks receive, and which receive most.
#
# All-to-alls carry tokens to experts, contexts or embeddings. The bytes are those of the args ``In msg nelems`` and
# ``Out msg nelems``; kernels of DeepEP and others tell none.


MOST_ROWS = 10_000


class ReceivedRow(Struct, frozen=True):
    """The all-to-alls of one rank in one process group."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    count: Annotated[int, column("All-to-alls matched across ranks.", "count")]
    sent_bytes: Annotated[int | None, column("What the rank sends in them; null if one is unknown.", "bytes")]
    received_bytes: Annotated[int | None, column("What it receives; null if one is unknown.", "bytes")]
    received_ratio: Annotated[float | None, column("received_bytes by the mean of the group's ranks.", "ratio")]
    hot_count: Annotated[int, column("All-to-alls in which it receives more than any other rank.", "count")]
    imbalance_ratio: Annotated[
        float | None,
        column(
            "By how much the most that a rank receives exceeds the mean, the mean over the group's all-to-alls.",
            "ratio",
        ),
    ]
    time_ns: Annotated[int, column("Their durations: wait_ns + transfer_ns.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]


def experts(dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows, those that receive most in relation to their group first."""
    out: list[ReceivedRow] = []
    wanted = np.isin(matched.kind, [code for code, kind in enumerate(matched.kinds) if kind == ALL_TO_ALL])
    parts = np.flatnonzero(wanted[matched.instance])
    received = _of_parts(matched, summaries, "received")
    sent = _of_parts(matched, summaries, None)
    hot, excess = _hot(matched, received)
    groups = matched.group[matched.instance[parts]]
    for group, rows_of_group in each(groups, len(matched.groups)):
        rows = parts[rows_of_group]
        instances = np.unique(matched.instance[rows])
        known = excess[instances][np.isfinite(excess[instances])]
        (members,), which = combinations(matched.member[rows])
        count = len(members)
        totals = [sums(which, values[rows], count) for values in (received, sent)]
        unknown = [np.bincount(which, values[rows] < 0, count) > 0 for values in (received, sent)]
        mean = float(totals[0].mean()) if not unknown[0].any() else 0.0
        times = [
            sums(which, values[rows], count) for values in (parted.wait_ns, parted.transfer_ns, matched.exposed_ns)
        ]
        hottest = np.bincount(which, hot[rows], count)
        often = np.bincount(which, minlength=count)
        for place, member in enumerate(members.tolist()):
            out.append(
                ReceivedRow(
                    dimension=dims.of(group, ALL_TO_ALL),
                    group=matched.groups[group].name,
                    rank=summaries[member].rank,
                    trace=summaries[member].name,
                    count=int(often[place]),
                    sent_bytes=None if unknown[1][place] else int(totals[1][place]),
                    received_bytes=None if unknown[0][place] else int(totals[0][place]),
                    received_ratio=float(totals[0][place]) / mean if mean else None,
                    hot_count=int(hottest[place]),
                    imbalance_ratio=float(known.mean()) if len(known) else None,
                    time_ns=int(times[0][place] + times[1][place]),
                    wait_ns=int(times[0][place]),
                    transfer_ns=int(times[1][place]),
                    exposed_ns=int(times[2][place]),
                )
            )
    if not out:
        return Skipped("no all-to-all was found on two ranks")
    out.sort(key=lambda row: (-(row.received_ratio or 0.0), -row.time_ns))
    return Findings(out[:MOST_ROWS])


def _of_parts(matched: Matched, summaries: Sequence[RankSummary], name: str | None) -> Int64s:
    """A column of the ranks' tables, or the bytes that they send, for each part; -1 where unknown."""
    values = np.full(len(matched.member), NO_VALUE, np.int64)
    for member, summary in enumerate(summaries):
        rows: Places = matched.rows_of(member)
        of = summary.column("bytes") if name is None else summary.table_column("collectives", name)
        if of is not None:
            values[rows] = of[matched.place[rows]]
    return values


def _hot(matched: Matched, received: Int64s) -> tuple[Int64s, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """For each part, 1 if its rank alone receives most; for each collective, the most by the mean, less 1 (NaN where a
    size is unknown)."""
    if not len(matched):
        return received[:0], np.empty(0)
    least, most = (function.reduceat(received, matched.first) for function in (np.minimum, np.maximum))
    mean = np.add.reduceat(received, matched.first) / matched.members
    known = (least >= 0) & (mean > 0)
    excess = np.where(known, most / np.where(known, mean, 1) - 1, np.nan)
    top = (received == most[matched.instance]) & known[matched.instance]
    alone = np.add.reduceat(top.astype(np.int64), matched.first) == 1
    return (top & alone[matched.instance]).astype(np.int64), excess
