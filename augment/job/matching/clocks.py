"""Aligns the clocks of all ranks. The fit uses collectives, which end at the same moment on all their ranks.

The clock of rank r is ahead of the job's by ``offset + drift · (t - at)``. Offset and drift are chosen so that the ends
of matched collectives coincide; only kinds that no rank can finish before all ranks have begun are used. First, clocks
are passed on from rank to rank (``clock_fits.py``). Then every rank is aligned to the median of all ranks, twice. The
fits use medians (Theil-Sen for slopes), so that a few outliers do not matter. A drift that moves no collective by more
than half the uncertainty is taken as 0. Ranks on one known host share a clock.

The uncertainty is twice the robust spread of the residuals (1.4826 times the median absolute deviation of a rank's ends
from the median of the others'), and more for fewer than 36 collectives; it includes that of the reference rank, that of
joints of few collectives on the way to it, and the resolution of the recorded times. A correction within the
uncertainty is not made. Alignment is refused for a rank that nothing joins with the others, whose collectives need a
drift that no clock has, that would end collectives before others have begun, or whose uncertainty is more than a tenth
of a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Int64s, beyond_others, grouped_medians, median, run_starts
from augment.core import Diagnostic, column, text
from augment.job.matching.clock_fits import FEWEST, MOST_DRIFT, ClockFit, Placement, fitted, placed, spread_of
from augment.job.matching.matching import Matched
from augment.job.ranks import RankSummary, ranks_text

LEAST_DRIFT = 0.5  #: fraction of the uncertainty by which a drift must move the first or last collective
MOST_BROKEN = 0.1  #: share of a rank's collectives that may end before all have begun
MOST_UNCERTAIN = 0.1  #: share of a step by which a clock may be uncertain
_ROUNDS = 2
_CLEARLY = 5.0  #: a rank's clock differs from its host's if it is off by this many spreads ...
_ONE_CLOCK_NS = 100_000  #: ... and at least this
_NONE = np.iinfo(np.int64).min // 2


class Clock(Struct, frozen=True):
    """The clock of a rank relative to the job's. ``refused`` says why it is not corrected; times are then as recorded.

    ``comparable`` says whether times from :meth:`to_common` can be compared with those of other ranks, to within
    ``uncertainty_ns``. ``mismatched``: only an impossible drift would make its collectives those of the others.
    ``uncertain``: it is refused because its uncertainty is too large, and for nothing else.
    """

    rank: int | None
    host: str
    offset_ns: int = 0
    drift: float = 0.0
    at_ns: int = 0
    residual_ns: int = 0
    uncertainty_ns: int = 0
    matched_count: int = 0
    comparable: bool = False
    refused: str | None = None
    mismatched: bool = False
    uncertain: bool = False

    def to_common(self, ts: Int64s) -> Int64s:
        """Times of this rank, int64 ns, on the job's clock."""
        if not self.drift:
            return ts - self.offset_ns
        common: Int64s = ts - self.offset_ns - np.rint(self.drift * (ts - self.at_ns)).astype(np.int64)
        return common


class Row(Struct, frozen=True):
    """The clock of one rank."""

    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    host: Annotated[str, column("The host of the rank; empty if the trace does not name it.")]
    offset_ns: Annotated[int, column("By how much the clock was ahead of the job's at the first collective.", "ns")]
    drift_ppm: Annotated[
        float, column("By how much the clock ran faster, in parts per million; 0 where none was found.")
    ]
    residual_ns: Annotated[
        int, column("Median distance of the rank's ends of collectives from the others', corrected.", "ns")
    ]
    uncertainty_ns: Annotated[int, column("The uncertainty of the correction.", "ns")]
    matched_count: Annotated[int, column("Collectives used for the fit.", "count")]
    status: Annotated[str, column("corrected, kept (the correction is within its uncertainty) or refused.")]
    reason: Annotated[str, column("Why the clock was not corrected; empty if it was.")]


def align(
    matched: Matched, summaries: Sequence[RankSummary], *, trusted: bool = False
) -> tuple[list[Clock], list[Diagnostic]]:
    """The clock of each of ``summaries``, and diagnostics; ``trusted``: the hosts' clocks are synchronised."""
    ends = matched.take(matched.is_synchronous())
    placement = placed(matched, summaries, trusted=trusted)
    fits = placement.fits
    diagnostics: list[Diagnostic] = []
    if fits and len(ends):
        for _ in range(_ROUNDS):
            fits = _settled(ends, fits, [[member] for member in fits])
        # Units of members with a common clock: those of a host, except outliers; and the number of outliers
        hosts: dict[str, list[int]] = defaultdict(list)
        for member in fits:
            hosts[summaries[member].host].append(member)
        units = [[member] for member in hosts.pop("", [])]
        odd = 0
        middle = _middle(ends, fits)
        for members in hosts.values():
            ahead = {
                member: ends.end[rows] - middle[ends.instance[rows]]
                for member in members
                if len(rows := ends.rows_of(member))
            }
            if not ahead:
                units.append(members)
                continue
            level = int(np.median([median(lead) for lead in ahead.values()]))
            apart = []
            for member, lead in ahead.items():
                noise = spread_of((lead - level).astype(np.float64))
                if abs(median(lead - level)) > max(_CLEARLY * noise, _ONE_CLOCK_NS):
                    apart.append(member)
            odd += len(apart)
            units += [[member] for member in apart] + [[member for member in members if member not in apart]]
        units = [unit for unit in units if unit]
        fits = _settled(ends, fits, units)
        if odd:
            message = "ranks whose collectives show a clock other than their host's; aligned separately"
            diagnostics.append(Diagnostic("clock_unlike_host", odd, message))
    distance = _distance(ends, fits)
    clocks = [
        _clock(summary, member, fits, ends, distance, doubt)
        for (member, summary), doubt in zip(
            enumerate(summaries), _doubts(ends, distance, placement, len(summaries)), strict=True
        )
    ]
    why = {
        member: _why_apart(member, matched, placement, summaries) for member in range(len(clocks)) if member not in fits
    }
    clocks = [replace(clock, refused=why[member]) if member in why else clock for member, clock in enumerate(clocks)]
    clocks = _checked(ends, clocks)
    # refused where the uncertainty is too large a part of a step (of the recording, without steps)
    walls = [summary.step_column("end") - summary.step_column("start") for summary in summaries]
    step = float(np.median(np.concatenate(walls))) if sum(map(len, walls)) else math.inf
    for member, clock in enumerate(clocks):
        if clock.comparable and clock.uncertainty_ns > MOST_UNCERTAIN * step:
            limit = f"more than a tenth of a step ({step / 1e6:.3f} ms)"
            refused = f"uncertain by {clock.uncertainty_ns / 1e6:.3f} ms, {limit}"
            clocks[member] = replace(clock, offset_ns=0, drift=0.0, comparable=False, refused=refused, uncertain=True)
    return clocks, diagnostics


def row_of(clock: Clock, name: str) -> Row:
    """The row of a clock."""
    return Row(
        rank=clock.rank,
        trace=name,
        host=clock.host,
        offset_ns=clock.offset_ns,
        drift_ppm=clock.drift * 1e6,
        residual_ns=clock.residual_ns,
        uncertainty_ns=clock.uncertainty_ns,
        matched_count=clock.matched_count,
        status="refused" if not clock.comparable else "kept" if clock.refused else "corrected",
        reason=clock.refused or "",
    )


def _settled(ends: Matched, fits: dict[int, ClockFit], units: Sequence[Sequence[int]]) -> dict[int, ClockFit]:
    """Align each unit (members with a common clock) to the median of all. The first member keeps its clock."""
    middle = _middle(ends, fits)
    better: dict[int, ClockFit] = {}
    for members in units:
        rows = np.concatenate([ends.rows_of(member) for member in members])
        if not len(rows):  # joined by sends, or by the host alone
            better |= {member: fits[member] for member in members}
            continue
        fit = fitted(ends.end[rows], middle[ends.instance[rows]], min(fits[member].at for member in members))
        if abs(fit.drift) > MOST_DRIFT:
            fit = ClockFit(fit.offset, 0.0, fit.at)
        better.update(dict.fromkeys(members, fit))
    start = next(iter(fits))
    return {member: better[member].relative_to(better[start]) for member in fits}


def _middle(ends: Matched, fits: Mapping[int, ClockFit]) -> Int64s:
    """The median end of each collective on the common clock; :data:`_NONE` if none of its members has a fit."""
    rows = np.flatnonzero(np.isin(ends.member, list(fits)))
    common, instance = _corrected(ends, fits)[rows], ends.instance[rows]
    bounds = np.searchsorted(instance, np.arange(len(ends) + 1))
    present = np.flatnonzero(np.diff(bounds))
    low = int(common.min())
    code = np.searchsorted(present, instance)
    medians = grouped_medians(common - low, code, np.append(bounds[present], len(instance)))
    middle = np.full(len(ends), _NONE)
    middle[present] = low + np.rint(medians).astype(np.int64)
    return middle


def _corrected(ends: Matched, fits: Mapping[int, ClockFit]) -> Int64s:
    """The ends on the common clock; unchanged for members without a fit."""
    common: Int64s = ends.end.copy()
    for member, fit in fits.items():
        rows = ends.rows_of(member)
        common[rows] = fit.corrected(ends.end[rows])
    return common


def _distance(ends: Matched, fits: Mapping[int, ClockFit]) -> Int64s:
    """The distance of each corrected end from the median of the other members' ends of its collective.

    It is 0 for members without a fit, and where there are no others.
    """
    distance = np.zeros(len(ends.end), np.int64)
    rows = np.flatnonzero(np.isin(ends.member, list(fits)))
    if not len(rows):
        return distance
    common, instance = _corrected(ends, fits)[rows], ends.instance[rows]
    order = np.lexsort((common, instance))
    distance[rows[order]] = beyond_others(common[order], run_starts(instance[order]))[0]
    return distance


def _doubts(ends: Matched, distance: Int64s, placement: Placement, count: int) -> list[float]:
    """The uncertainty of each member's clock relative to the first one's, ns, by residuals and by how it was joined."""
    spreads = {
        member: spread_of(distance[rows].astype(np.float64))
        for member in placement.fits
        if len(rows := ends.rows_of(member)) >= FEWEST
    }
    usual = float(np.median(list(spreads.values()))) if spreads else None
    wrong = {member: spread * max(2.0, 12 / math.sqrt(len(ends.rows_of(member)))) for member, spread in spreads.items()}
    of_first = wrong.get(next(iter(placement.fits), -1), 0.0)  # the first rank's clock is the job's
    doubts = []
    for member in range(count):
        bridges = [bridge.doubt(usual) for bridge in placement.bridges.get(member, ())]
        doubts.append(math.hypot(wrong.get(member, 0.0), of_first, *bridges))
    return doubts


def _clock(
    summary: RankSummary, member: int, fits: Mapping[int, ClockFit], ends: Matched, distance: Int64s, doubt: float
) -> Clock:
    """The clock of a member, judged by the residuals of its fit."""
    rows, fit = ends.rows_of(member), fits.get(member)
    clock = Clock(summary.rank, summary.host, matched_count=len(rows))
    if fit is None:
        return clock
    ts, end = (ends.ts[rows], ends.end[rows]) if len(rows) else (summary.column("ts"), summary.column("end"))
    if not len(ts):
        ts, end = summary.step_column("start"), summary.step_column("end")
    # The resolution of the recorded times, ns, for a start and an end
    grain = next((2 * ns for ns in (1_000_000, 1000) if not (ts % ns).any() and not (end % ns).any()), 2)
    uncertainty = math.ceil(doubt) + grain
    if len(end):
        first, last = int(end.min()), int(end.max())
        if (
            abs(fit.drift) * (last - first) / 2 <= LEAST_DRIFT * uncertainty
        ):  # does not matter: the offset in the middle
            middle = np.array([(first + last) // 2])
            fit = ClockFit(int((middle - fit.corrected(middle))[0]), 0.0, fit.at)
    moved = int(np.abs(end - fit.corrected(end)).max(initial=0))
    clock = replace(
        clock,
        residual_ns=int(median(np.abs(distance[rows]))) if len(rows) else 0,
        uncertainty_ns=uncertainty,
        comparable=True,
        at_ns=fit.at,
    )
    if moved <= uncertainty:
        why = f"the correction, at most {moved} ns, is within its uncertainty" if moved else "it needs no correction"
        return replace(clock, refused=why)
    return replace(clock, offset_ns=fit.offset, drift=fit.drift)


def _why_apart(member: int, matched: Matched, placement: Placement, summaries: Sequence[RankSummary]) -> str:
    """Why a member has no clock."""
    if member in placement.drifts:
        ppm = placement.drifts[member] * 1e6
        return (
            f"its collectives can be the others' only if its clock drifts by {ppm:,.0f} ppm, and crystals drift by "
            f"less than {MOST_DRIFT * 1e6:.0f}: they are not the same collectives"
        )
    instances = matched.instance[matched.rows_of(member)]
    if not len(instances):
        return "none of its collectives is matched with another rank's"
    inside = np.isin(matched.instance, instances)
    mates = sorted(set(matched.member[inside].tolist()) - {member})
    ranks = [summaries[mate].rank for mate in mates]
    unnamed = sum(note.count for note in matched.diagnostics if note.code == "point_to_point_left_out")
    more = f"; {unnamed} sends and receives that may join them do not name their peer" if unnamed else ""
    if not (matched.is_synchronous()[instances] | matched.is_pair()[instances]).any():
        return "it shares only collectives that may end before all ranks have begun"
    return f"it shares collectives with {ranks_text(ranks)} only, which nothing joins with the other ranks{more}"


def common_times(matched: Matched, clocks: Sequence[Clock]) -> tuple[Int64s, Int64s, Int64s]:
    """Starts and ends on the common clock, and their uncertainty."""
    start, end = matched.ts.copy(), matched.end.copy()
    for member, clock in enumerate(clocks):
        rows = matched.rows_of(member)
        start[rows], end[rows] = clock.to_common(start[rows]), clock.to_common(end[rows])
    return start, end, np.array([clock.uncertainty_ns for clock in clocks], np.int64)[matched.member]


def _checked(ends: Matched, clocks: list[Clock]) -> list[Clock]:
    """The clocks; refused for ranks that would end too many collectives before others have begun."""
    if not len(ends):
        return clocks
    start, end, margin = common_times(ends, clocks)
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[ends.member]
    arrival = np.maximum.reduceat(np.where(comparable, start - margin, _NONE), ends.first)
    broken = comparable & (end + margin < arrival[ends.instance])
    checked = []
    for member, clock in enumerate(clocks):
        ends_early = broken[ends.rows_of(member)]
        share = float(np.count_nonzero(ends_early)) / max(len(ends_early), 1)
        if clock.comparable and share > MOST_BROKEN:
            why = f"{text.percent(share)} of its collectives would end before all ranks have begun"
            clock = replace(clock, offset_ns=0, drift=0.0, comparable=False, refused=why)
        checked.append(clock)
    return checked
