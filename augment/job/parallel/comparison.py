"""Groups of one dimension against each other, by link; and ranks at one coordinate against those at others.

A collective is compared with those of its class: the same dimension, kind and size. It is an outlier if it moved data
for more than twice the median time of its class, and more than five robust deviations longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays.ordering import combinations, each, group_bounds, sums
from augment.arrays.statistics import grouped_medians
from augment.arrays.types import Bools
from augment.core.findings import Findings, column
from augment.core.trace import Diagnostic
from augment.facts.names.kernel_types import bus_factor
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.parallel.dimensions import Dimensions
from augment.job.parallel.instances import dimension_codes
from augment.job.parallel.rank_steps import TIMES, RankSteps
from augment.job.ranks.summary import RankSummary

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
        self.link = _links(dims, matched)
        second = np.minimum(matched.first + 1, len(matched.member) - 1)
        pair = matched.is_pair()
        self.low, self.high = (np.where(pair, matched.member[row], -1) for row in (matched.first, second))
        _, self.team = combinations(matched.group, self.low, self.high)
        self.class_median, self.outlier = self._classes()

    def _classes(self) -> tuple[npt.NDArray[np.float64], Bools]:
        moving = self.parted.moving_ns
        values, code = combinations(self.code, self.matched.kind, self.matched.bytes)
        bounds = group_bounds(code, len(values[0]))
        median = grouped_medians(moving, code, bounds)[code]
        spread = grouped_medians(np.abs(moving - median).astype(np.int64), code, bounds)[code] * _DEVIATION
        outlier: Bools = (moving > _OUTLIER_RATIO * median) & (moving > median + _OUTLIER_DEVIATIONS * spread)
        return median, outlier


def compared(
    dims: Dimensions, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]
) -> tuple[Findings, list[LinkRow]]:
    """The rows of groups, the longest time first, at most :data:`MOST_ROWS`; and those of links."""
    figures = _Compared(dims, matched, parted)
    groups = sorted(_groups(figures, summaries), key=lambda row: -row.time_ns)
    beyond = len(groups) - MOST_ROWS
    why = "groups of dimensions beyond the limit, those with the shortest times; left out"
    lost = [Diagnostic("groups_beyond_limit", beyond, why)] if beyond > 0 else []
    links = sorted(_of_links(figures), key=lambda row: -row.moving_ns)
    return Findings(groups[:MOST_ROWS], diagnostics=lost), links


def _groups(figures: _Compared, summaries: Sequence[RankSummary]) -> Iterator[GroupRow]:
    matched, parted = figures.matched, figures.parted
    values, which = combinations(figures.code, figures.team)
    count = len(values[0])
    part_of = which[matched.instance]
    wait, transfer, exposed = (
        sums(part_of, of, count) for of in (parted.wait_ns, parted.transfer_ns, matched.exposed_ns)
    )
    outliers = np.bincount(which, figures.outlier, count)
    ratio = parted.moving_ns / np.maximum(figures.class_median, 1)
    teams = np.bincount(values[0], minlength=len(figures.names))
    members = dict(each(part_of, count))
    for place, rows in each(which, count):
        name = figures.names[int(values[0][place])]
        present = np.unique(matched.member[members[place]])
        yield GroupRow(
            dimension=name,
            group=matched.groups[matched.group[rows[0]]].name,
            ranks=_as_ranges([summaries[member].rank for member in present.tolist()]),
            link=figures.link[rows[0]],
            count=len(rows),
            time_ns=int(wait[place] + transfer[place]),
            wait_ns=int(wait[place]),
            transfer_ns=int(transfer[place]),
            exposed_ns=int(exposed[place]),
            slow_ratio=float(np.median(ratio[rows])) if teams[values[0][place]] > 1 else None,
            outlier_count=int(outliers[place]),
        )


def _of_links(figures: _Compared) -> Iterator[LinkRow]:
    matched, moving = figures.matched, figures.parted.moving_ns
    classes = list(dict.fromkeys(figures.link))
    link = np.array([classes.index(of) for of in figures.link], np.int64)
    values, which = combinations(figures.code, matched.kind, link)
    size = matched.size()
    for place, rows in each(which, len(values[0])):
        kind = matched.kinds[int(values[1][place])]
        sized = rows[(matched.bytes[rows] > 0) & (moving[rows] > 0)]
        factor = np.array([bus_factor(kind, ranks) or np.nan for ranks in size[sized].tolist()])
        bus = matched.bytes[sized] / moving[sized] * factor
        bus = bus[np.isfinite(bus)]
        yield LinkRow(
            dimension=figures.names[int(values[0][place])],
            kind=kind,
            link=classes[int(values[2][place])],
            count=len(rows),
            moving_ns=int(moving[rows].sum()),
            median_bus_gbps=float(np.median(bus)) if len(bus) else None,
            least_bus_gbps=float(np.percentile(bus, 5)) if len(bus) else None,
            outlier_count=int(np.count_nonzero(figures.outlier[rows])),
        )


def _links(dims: Dimensions, matched: Matched) -> list[str]:
    """The class of links of each matched collective, by the nodes of its members that were seen."""
    if not dims.node_known_by:
        return [""] * len(matched)
    names = {name: number for number, name in enumerate(dict.fromkeys(dims.node))}
    node = np.array([names[name] for name in dims.node], np.int64)[matched.member]
    least, most = (function.reduceat(node, matched.first) for function in (np.minimum, np.maximum))
    return [WITHIN if same else ACROSS for same in (least == most).tolist()]


def places(
    dims: Dimensions, matched: Matched, parted: Waits, steps: RankSteps, summaries: Sequence[RankSummary]
) -> list[PlaceRow]:
    """The rows by dimension; within one, those that compute longest first."""
    count = len(summaries)
    wait = sums(matched.member, parted.wait_ns, count)
    often = np.bincount(steps.member, minlength=count)
    totals = {
        name: sums(steps.member, values, count)
        for name, values in (
            ("wall_ns", steps.end - steps.start),
            *((name, getattr(steps, name)) for name in TIMES),
        )
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
        rows = [_related(row, mean) for row in rows]
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


def _related(row: PlaceRow, mean: float) -> PlaceRow:
    return replace(row, compute_ratio=row.compute_ns / mean if mean else None)


def _as_ranges(ranks: Sequence[int | None]) -> str:
    """``0-3, 8``; ``?`` for unknown ranks."""
    known = np.unique(np.array([rank for rank in ranks if rank is not None], np.int64))
    if len(known) < len(ranks):
        return "?"
    runs = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs if len(run))
