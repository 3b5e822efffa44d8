"""Groups of one dimension against each other, by link; and ranks at one coordinate against those at others.

A collective is compared with those of its class: the same dimension, kind and size. It is an outlier if it moved data
for more than twice the median time of its class, and more than five robust deviations longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays
from augment.core import Diagnostic, Findings, Skipped, column, text
from augment.facts.names import bus_factor
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.parallel.dimensions import Dimensions, dimension_codes
from augment.job.ranks import SPENT, RankSummary

MOST_ROWS = 1000
WITHIN, ACROSS = "within a node", "across nodes"
_OUTLIER_RATIO, _OUTLIER_DEVIATIONS, _DEVIATION = 2.0, 5.0, 1.4826


class GroupRow(Struct, frozen=True):
    """One group of a dimension; for pipeline stages, one pair of ranks."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    group: Annotated[str, column("The name of the process group; empty if the traces do not name it.")]
    ranks: Annotated[str, column("Its ranks that were seen in matched collectives, such as 0-3, 8.")]
    link: Annotated[str, column("within a node or across nodes; empty if the nodes are unknown.")]
    count: Annotated[int, column("Collectives matched across ranks.", "count")]
    time_ns: Annotated[int, column("Their durations, summed over ranks: wait_ns + transfer_ns.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]
    slow_ratio: Annotated[
        float | None,
        column(
            "Its time of moving data by the median of the dimension, for equal kind and size; null for a single group.",
            "ratio",
        ),
    ]
    outlier_count: Annotated[
        int, column("Collectives that moved data far longer than others of equal kind and size.", "count")
    ]


class LinkRow(Struct, frozen=True):
    """Collectives of one kind of one dimension over one class of links."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    kind: Annotated[str, column("The kind of collective.")]
    link: Annotated[str, column("within a node or across nodes; empty if the nodes are unknown.")]
    count: Annotated[int, column("Collectives matched across ranks.", "count")]
    moving_ns: Annotated[int, column("Time from the last arrival to the end, summed over collectives.", "ns")]
    median_bus_gbps: Annotated[float | None, column("The median bus bandwidth of those of known size.", "GB/s")]
    least_bus_gbps: Annotated[float | None, column("The bus bandwidth that 95 % of them reach.", "GB/s")]
    outlier_count: Annotated[
        int, column("Collectives that moved data far longer than others of equal kind and size.", "count")
    ]


class PlaceRow(Struct, frozen=True):
    """The ranks at one coordinate of a dimension, or on one node."""

    dimension: Annotated[str, column("The dimension; node for nodes.")]
    place: Annotated[str, column("The coordinate, or the name of the node.")]
    rank_count: Annotated[int, column("Ranks there.", "count")]
    wall_ns: Annotated[
        float, column("The length of a step, the mean of its ranks and steps: the sum of the next four columns.", "ns")
    ]
    compute_ns: Annotated[float, column("The device computes.", "ns")]
    exposed_communication_ns: Annotated[float, column("The device communicates without computing.", "ns")]
    exposed_memory_ns: Annotated[float, column("The device copies, and nothing else runs.", "ns")]
    idle_ns: Annotated[float, column("Nothing runs on the device.", "ns")]
    wait_ns: Annotated[float, column("Waiting within collectives, exposed or not.", "ns")]
    compute_ratio: Annotated[float | None, column("compute_ns by its mean over the places of the dimension.", "ratio")]


class _Compared:
    """Figures of each matched collective."""

    def __init__(self, dims: Dimensions, matched: Matched, parted: Waits) -> None:
        self.dims, self.matched, self.parted = dims, matched, parted
        self.names, self.code = dimension_codes(dims, matched)
        # The class of links of each matched collective, by the nodes of its members that were seen
        if not dims.node_known_by:
            self.link = [""] * len(matched)
        else:
            names = {name: number for number, name in enumerate(dict.fromkeys(dims.node))}
            node = np.array([names[name] for name in dims.node], np.int64)[matched.member]
            least, most = (function.reduceat(node, matched.first) for function in (np.minimum, np.maximum))
            self.link = [WITHIN if same else ACROSS for same in (least == most).tolist()]
        second = np.minimum(matched.first + 1, len(matched.member) - 1)
        pair = matched.is_pair()
        self.low, self.high = (np.where(pair, matched.member[row], -1) for row in (matched.first, second))
        _, self.team = arrays.combinations(matched.group, self.low, self.high)
        moving = self.parted.moving_ns
        values, code = arrays.combinations(self.code, self.matched.kind, self.matched.bytes)
        bounds = arrays.group_bounds(code, len(values[0]))
        median = arrays.grouped_medians(moving, code, bounds)[code]
        spread = arrays.grouped_medians(np.abs(moving - median).astype(np.int64), code, bounds)[code] * _DEVIATION
        outlier: arrays.Bools = (moving > _OUTLIER_RATIO * median) & (moving > median + _OUTLIER_DEVIATIONS * spread)
        self.class_median, self.outlier = median, outlier


def compared(
    dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]
) -> tuple[Findings, list[LinkRow]]:
    """The rows of groups, the longest time first, at most :data:`MOST_ROWS`; and those of links."""
    figures = _Compared(dims, matched, parted)
    groups = sorted(_groups(figures, summaries), key=lambda row: -row.time_ns)
    beyond = len(groups) - MOST_ROWS
    why = "groups of dimensions beyond the limit, those with the shortest times; left out"
    lost = [Diagnostic("groups_beyond_limit", beyond, why)] if beyond > 0 else []
    links: list[LinkRow] = []
    moving = parted.moving_ns
    classes = list(dict.fromkeys(figures.link))
    link = np.array([classes.index(of) for of in figures.link], np.int64)
    values, which = arrays.combinations(figures.code, matched.kind, link)
    size = matched.size()
    for place, rows in arrays.each(which, len(values[0])):
        kind = matched.kinds[int(values[1][place])]
        sized = rows[(matched.bytes[rows] > 0) & (moving[rows] > 0)]
        factor = np.array([bus_factor(kind, ranks) or np.nan for ranks in size[sized].tolist()])
        bus = matched.bytes[sized] / moving[sized] * factor
        bus = bus[np.isfinite(bus)]
        links.append(
            LinkRow(
                dimension=figures.names[int(values[0][place])],
                kind=kind,
                link=classes[int(values[2][place])],
                count=len(rows),
                moving_ns=int(moving[rows].sum()),
                median_bus_gbps=float(np.median(bus)) if len(bus) else None,
                least_bus_gbps=float(np.percentile(bus, 5)) if len(bus) else None,
                outlier_count=int(np.count_nonzero(figures.outlier[rows])),
            )
        )
    links.sort(key=lambda row: -row.moving_ns)
    return Findings(groups[:MOST_ROWS], diagnostics=lost), links


def _groups(figures: _Compared, summaries: Sequence[RankSummary]) -> Iterator[GroupRow]:
    matched, parted = figures.matched, figures.parted
    values, which = arrays.combinations(figures.code, figures.team)
    count = len(values[0])
    part_of = which[matched.instance]
    wait, transfer, exposed = (
        arrays.sums(part_of, of, count) for of in (parted.wait_ns, parted.transfer_ns, matched.exposed_ns)
    )
    outliers = np.bincount(which, figures.outlier, count)
    ratio = parted.moving_ns / np.maximum(figures.class_median, 1)
    teams = np.bincount(values[0], minlength=len(figures.names))
    members = dict(arrays.each(part_of, count))
    for place, rows in arrays.each(which, count):
        name = figures.names[int(values[0][place])]
        present = np.unique(matched.member[members[place]])
        ranks = sorted({rank for member in present.tolist() if (rank := summaries[member].rank) is not None})
        yield GroupRow(
            dimension=name,
            group=matched.groups[matched.group[rows[0]]].name,
            ranks=text.ranges_text(ranks) if len(ranks) == len(present) else "?",
            link=figures.link[rows[0]],
            count=len(rows),
            time_ns=int(wait[place] + transfer[place]),
            wait_ns=int(wait[place]),
            transfer_ns=int(transfer[place]),
            exposed_ns=int(exposed[place]),
            slow_ratio=float(np.median(ratio[rows])) if teams[values[0][place]] > 1 else None,
            outlier_count=int(outliers[place]),
        )


def places(
    dims: Dimensions, matched: Matched, parted: Waits, steps: RankSteps, summaries: Sequence[RankSummary]
) -> list[PlaceRow]:
    """The rows by dimension; within one, those that compute longest first."""
    count = len(summaries)
    wait = arrays.sums(matched.member, parted.wait_ns, count)
    often = np.bincount(steps.member, minlength=count)
    totals = {
        name: arrays.sums(steps.member, values, count)
        for name, values in (("wall_ns", steps.end - steps.start), *((name, getattr(steps, name)) for name in TIMES))
    } | {"wait_ns": wait}
    out: list[PlaceRow] = []
    for dimension, of in _placed(dims, summaries):
        rows = [
            PlaceRow(
                dimension=dimension,
                place=place,
                rank_count=len(members),
                **{
                    name: float(values[members].sum() / max(often[members].sum(), 1)) for name, values in totals.items()
                },
                compute_ratio=None,
            )
            for place, members in of.items()
        ]
        mean = float(np.mean([row.compute_ns for row in rows]))
        rows = [replace(row, compute_ratio=row.compute_ns / mean if mean else None) for row in rows]
        out += sorted(rows, key=lambda row: -row.compute_ns)[:MOST_ROWS]
    return out


def _placed(dims: Dimensions, summaries: Sequence[RankSummary]) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """The members at each coordinate of each dimension that has several, and on each node."""
    for dimension, coordinates in dims.coordinates.items():
        of: dict[str, list[int]] = {}
        for member, summary in sorted(enumerate(summaries), key=lambda pair: coordinates.get(pair[1].rank or 0, 0)):
            if summary.rank is not None and summary.rank in coordinates:
                of.setdefault(str(coordinates[summary.rank]), []).append(member)
        if len(of) > 1:
            yield dimension, of
    nodes: dict[str, list[int]] = {}
    for member, node in enumerate(dims.node):
        nodes.setdefault(node, []).append(member)
    if len(nodes) > 1:
        yield "node", nodes


# The steps of all ranks: how long they are, and what the devices do in them.


TIMES = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")


class RankSteps(Struct, frozen=True):
    """Equal-length int64 columns, a row for each step of each rank; a recording without steps is one step, -1.

    ``start`` and ``end`` are on the rank's own clock. The :data:`TIMES` add up to
    ``end - start``.
    """

    member: arrays.MemberIndexes
    number: arrays.Int64s
    start: arrays.Int64s
    end: arrays.Int64s
    compute_ns: arrays.Int64s
    exposed_communication_ns: arrays.Int64s
    exposed_memory_ns: arrays.Int64s
    idle_ns: arrays.Int64s

    @property
    def count(self) -> int:
        """Steps of all ranks."""
        return len(self.member)

    @property
    def numbered(self) -> bool:
        """Whether steps were recorded."""
        return bool((self.number != arrays.NO_VALUE).any())

    @property
    def wall_ns(self) -> int:
        """The time of all."""
        return int((self.end - self.start).sum())


def rank_steps(summaries: Sequence[RankSummary]) -> RankSteps:
    """The steps of ``summaries``."""
    member = np.repeat(np.arange(len(summaries)), [len(summary.step_column("number")) for summary in summaries])
    names = ["number", "start", "end", *SPENT["start"], *SPENT["end"]]
    none = np.empty(0, np.int64)
    columns = {name: np.concatenate([none, *(each.step_column(name) for each in summaries)]) for name in names}
    parts = [columns[after] - columns[before] for before, after in zip(SPENT["start"], SPENT["end"], strict=True)]
    start, end = columns["start"], columns["end"]
    idle = end - start - sum(parts, np.zeros(len(start), np.int64))
    return RankSteps(member.astype(np.int64), columns["number"], start, end, parts[0], parts[1], parts[2], idle)


# What each rank did in each step: the cells of a heat map.


MOST_CELLS = 20_000


class Row(Struct, frozen=True):
    """One step of one rank."""

    step: Annotated[int, column("The number of the step.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    wall_ns: Annotated[int, column("The length of the step: the sum of the next four columns.", "ns")]
    compute_ns: Annotated[int, column("The device computes.", "ns")]
    exposed_communication_ns: Annotated[int, column("The device communicates without computing.", "ns")]
    exposed_memory_ns: Annotated[int, column("The device copies, and nothing else runs.", "ns")]
    idle_ns: Annotated[int, column("Nothing runs on the device.", "ns")]
    wait_ns: Annotated[int, column("Waiting for other ranks within collectives of the step, exposed or not.", "ns")]


def heat(steps: RankSteps, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows by step, then rank. Of more than :data:`MOST_CELLS` steps are left out, evenly spread."""
    if not steps.numbered:
        return Skipped("no rank recorded a step")
    numbers = np.unique(steps.number[steps.number >= 0])
    most = max(MOST_CELLS // max(len(summaries), 1), 1)
    kept = numbers[np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.intp))]
    order = np.lexsort((steps.member, steps.number))
    order = order[np.isin(steps.number[order], kept)][:MOST_CELLS]
    width = int(numbers[-1]) + 1
    part = matched.step[matched.instance]
    inside = part >= 0
    keys = steps.member[order] * width + steps.number[order]
    distinct, place = np.unique(keys, return_inverse=True)
    cells = matched.member[inside] * width + part[inside]
    at = np.minimum(np.searchsorted(distinct, cells), len(distinct) - 1)
    known = distinct[at] == cells
    wait = arrays.sums(at[known], parted.wait_ns[inside][known], len(distinct))[place]
    rows = [
        Row(
            step=int(steps.number[cell]),
            rank=summaries[steps.member[cell]].rank,
            trace=summaries[steps.member[cell]].name,
            wall_ns=int(steps.end[cell] - steps.start[cell]),
            **{name: int(getattr(steps, name)[cell]) for name in TIMES},
            wait_ns=int(waited),
        )
        for cell, waited in zip(order.tolist(), wait.tolist(), strict=True)
    ]
    lost = int((steps.number >= 0).sum()) - len(rows)
    why = "steps of ranks beyond the limit of step_heat; left out, evenly spread over the steps"
    return Findings(rows, diagnostics=[Diagnostic("cells_beyond_limit", lost, why)] if lost else [])
