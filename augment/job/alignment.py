"""Aligns the clocks of all ranks. The fit uses collectives, which end at the same moment on all their ranks.

The clock of rank r is ahead of the job's by ``offset + drift · (t - at)``. Offset and drift are chosen so that the ends
of matched collectives coincide; only kinds that no rank can finish before all ranks have begun are used. First, the
ranks of each process group are aligned to one of them, from group to group through shared ranks. Then every rank is
aligned to the median of all ranks, twice. The fits use medians (Theil-Sen for slopes), so that a few outliers do not
matter. A drift that moves no collective by more than half the uncertainty is taken as 0. Ranks on one known host share
a clock.

The uncertainty is twice the robust spread of the residuals (1.4826 times the median absolute deviation of a rank's ends
from the median of the others'), and more for fewer than 36 collectives; it includes that of the reference rank and the
resolution of the recorded times. A correction within the uncertainty is not made. Alignment is refused for a rank that
shares too few collectives with the others, or that would end collectives before others have begun.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.statistics import grouped_medians
from augment.arrays.types import Int64s, Places
from augment.findings import column
from augment.job.matching import Floats, Matched
from augment.job.summary import RankSummary
from augment.trace import Diagnostic

FEWEST = 3  #: minimum of collectives for a fit
FEWEST_FOR_DRIFT = 8
LEAST_DRIFT = 0.5  #: fraction of the uncertainty by which a drift must move the first or last collective
MOST_BROKEN = 0.1  #: share of a rank's collectives that may end before all have begun
_POINTS = 64  #: for the Theil-Sen slopes
_ROUNDS = 2
_DEVIATION = 1.4826
_CLEARLY = 5.0  #: a rank's clock differs from its host's if it is off by this many spreads ...
_ONE_CLOCK_NS = 100_000  #: ... and at least this
_NONE = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a rank relative to the job's. ``refused`` says why it is not corrected; times are then as recorded.

    ``comparable`` says whether times from :meth:`to_common` can be compared with those of other ranks, to within
    ``uncertainty_ns``.
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

    def to_common(self, ts: Int64s) -> Int64s:
        """Times of this rank, int64 ns, on the job's clock."""
        if not self.drift:
            return ts - self.offset_ns
        common: Int64s = ts - self.offset_ns - np.rint(self.drift * (ts - self.at_ns)).astype(np.int64)
        return common


@dataclass(frozen=True, slots=True)
class Row:
    """The clock of one rank."""

    rank: int | None = column("The rank.")
    trace: str = column("The name of its trace.")
    host: str = column("The host of the rank; empty if the trace does not name it.")
    offset_ns: int = column("By how much the clock was ahead of the job's at the first collective.", "ns")
    drift_ppm: float = column("By how much the clock ran faster, in parts per million; 0 where none was found.")
    residual_ns: int = column("Median distance of the rank's ends of collectives from the others', corrected.", "ns")
    uncertainty_ns: int = column("The uncertainty of the correction.", "ns")
    matched_count: int = column("Collectives used for the fit.", "count")
    status: str = column("corrected, kept (the correction is within its uncertainty) or refused.")
    reason: str = column("Why the clock was not corrected; empty if it was.")


@dataclass(frozen=True, slots=True)
class _Fit:
    """A clock during the fit: ns ahead at its own time ``at``, and ns more per ns."""

    offset: int
    drift: float
    at: int

    def corrected(self, ts: Int64s) -> Int64s:
        if not self.drift:
            return ts - self.offset
        common: Int64s = ts - self.offset - np.rint(self.drift * (ts - self.at)).astype(np.int64)
        return common

    def beside(self, reference: _Fit) -> _Fit:
        """The same clock relative to ``reference``."""
        common = self.at - self.offset
        ahead = reference.offset + round(reference.drift * (common - reference.at))
        return _Fit(self.offset - ahead, self.drift - reference.drift, self.at)


def align(matched: Matched, summaries: Sequence[RankSummary]) -> tuple[list[Clock], list[Diagnostic]]:
    """The clock of each of ``summaries``, and diagnostics."""
    ends = matched.take(matched.is_synchronous())
    fits = _laid_beside(ends, len(summaries))
    diagnostics: list[Diagnostic] = []
    if fits:
        for _ in range(_ROUNDS):
            fits = _settled(ends, fits, [[member] for member in fits])
        units, odd = _units(ends, fits, summaries)
        fits = _settled(ends, fits, units)
        if odd:
            message = "ranks whose collectives show a clock other than their host's; aligned separately"
            diagnostics.append(Diagnostic("clock_unlike_host", odd, message))
    distance = _distance(ends, fits)
    wrong = {member: _wrong_by(distance[ends.rows_of(member)]) for member in fits}
    of_first = next(iter(wrong.values()), 0.0)  # the first rank's clock is the job's
    clocks = [
        _clock(summary, fits.get(member), ends, distance, member, float(np.hypot(wrong.get(member, 0.0), of_first)))
        for member, summary in enumerate(summaries)
    ]
    return _checked(ends, clocks), diagnostics


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


def _laid_beside(ends: Matched, count: int) -> dict[int, _Fit]:
    """A first fit of each member that is connected to the first member through process groups."""
    of = ends.group[ends.instance]
    parts = dict(each(of, len(ends.groups)))
    waiting = sorted(parts, key=lambda group: -len(parts[group]))
    if not waiting:
        return {}
    start = int(ends.member[parts[waiting[0]]].min())
    fits = {start: _Fit(0, 0.0, _first(ends, start))}
    placed = np.zeros(count, np.bool_)
    placed[start] = True
    while waiting and not placed.all():
        group = next((group_number for group_number in waiting if placed[ends.member[parts[group_number]]].any()), None)
        if group is None:
            break
        waiting.remove(group)
        _join(ends, parts[group], fits)
        placed[list(fits)] = True
    return fits


def _first(ends: Matched, member: int) -> int:
    return int(ends.ts[ends.rows_of(member)].min())


def _join(ends: Matched, rows: Int64s, fits: dict[int, _Fit]) -> None:
    """Align the members of a group to the aligned member with the most collectives in the group."""
    rows = rows[np.argsort(ends.member[rows], kind="stable")]
    members, starts = np.unique(ends.member[rows], return_index=True)
    parts = dict(zip(members.tolist(), np.split(rows, starts[1:]), strict=True))
    anchor = min((member for member in parts if member in fits), key=lambda each: (-len(parts[each]), each))
    own = parts[anchor]
    table = np.full(len(ends), _NONE)
    table[ends.instance[own]] = fits[anchor].corrected(ends.end[own])
    for member, part in parts.items():
        theirs = part[table[ends.instance[part]] != _NONE]
        if member not in fits and len(theirs) >= FEWEST:
            fits[member] = _fitted(ends.end[theirs], table[ends.instance[theirs]], _first(ends, member))


def _settled(ends: Matched, fits: dict[int, _Fit], units: Sequence[Sequence[int]]) -> dict[int, _Fit]:
    """Align each unit (members with a common clock) to the median of all. The first member keeps its clock."""
    middle = _middle(ends, fits)
    better = {}
    for members in units:
        rows = np.concatenate([ends.rows_of(member) for member in members])
        fit = _fitted(ends.end[rows], middle[ends.instance[rows]], min(fits[member].at for member in members))
        better.update(dict.fromkeys(members, fit))
    start = next(iter(fits))
    return {member: better[member].beside(better[start]) for member in fits}


def _units(ends: Matched, fits: dict[int, _Fit], summaries: Sequence[RankSummary]) -> tuple[list[list[int]], int]:
    """Units of members with a common clock: those of a host, except outliers; and the number of outliers."""
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
        level = int(np.median([np.median(lead) for lead in ahead.values()]))
        apart = [member for member, lead in ahead.items() if _is_apart(lead - level)]
        odd += len(apart)
        units += [[member] for member in apart] + [[member for member in members if member not in apart]]
    return [unit for unit in units if unit], odd


def _is_apart(ahead: Int64s) -> bool:
    return bool(abs(np.median(ahead)) > max(_CLEARLY * _spread(ahead.astype(np.float64)), _ONE_CLOCK_NS))


def _middle(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
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


def _corrected(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
    """The ends on the common clock; unchanged for members without a fit."""
    common: Int64s = ends.end.copy()
    for member, fit in fits.items():
        rows = ends.rows_of(member)
        common[rows] = fit.corrected(ends.end[rows])
    return common


def _fitted(end: Int64s, common: Int64s, at: int) -> _Fit:
    """The clock that maps ``end`` to ``common``."""
    ahead = end - common
    level = int(ahead[0])
    offset = level + int(np.rint(np.median(ahead - level)))
    left = (ahead - offset).astype(np.float64)
    if len(end) < FEWEST_FOR_DRIFT:
        return _Fit(offset, 0.0, at)
    since = (end - at).astype(np.float64)
    drift = _slope(since, left)
    return _Fit(offset + int(np.rint(np.median(left - drift * since))), drift, at)


def _slope(x: Floats, y: Floats) -> float:
    """The Theil-Sen slope: the median slope between points, at most :data:`_POINTS` of them."""
    chosen = np.linspace(0, len(x) - 1, min(len(x), _POINTS)).astype(np.int64)
    order = chosen[np.argsort(x[chosen], kind="stable")]
    near, far = _pairs(len(order))
    run = x[order[far]] - x[order[near]]
    rise = y[order[far]] - y[order[near]]
    apart = run > 0
    return float(np.median(rise[apart] / run[apart])) if apart.any() else 0.0


@lru_cache(maxsize=_POINTS)
def _pairs(count: int) -> tuple[Places, Places]:
    return np.triu_indices(count, 1)


def _spread(values: Floats) -> float:
    """A robust standard deviation, from the median absolute deviation."""
    return _DEVIATION * float(np.median(np.abs(values - np.median(values))))


def _distance(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
    """The distance of each corrected end from the median of the other members' ends of its collective.

    It is 0 for members without a fit, and where there are no others.
    """
    distance = np.zeros(len(ends.end), np.int64)
    rows = np.flatnonzero(np.isin(ends.member, list(fits)))
    if not len(rows):
        return distance
    common, instance = _corrected(ends, fits)[rows], ends.instance[rows]
    order = np.lexsort((common, instance))
    common, instance, rows = common[order], instance[order], rows[order]
    first = np.searchsorted(instance, instance, side="left")
    count = np.searchsorted(instance, instance, side="right") - first
    position = np.arange(len(rows)) - first
    others = np.maximum(count - 1, 1)
    low, high = ((others - 1) // 2, others // 2)
    low, high = (np.minimum(first + bound + (bound >= position), len(rows) - 1) for bound in (low, high))
    middle = common[low] + (common[high] - common[low]) // 2
    distance[rows] = np.where(count > 1, common - middle, 0)
    return distance


def _wrong_by(distance: Int64s) -> float:
    """The uncertainty, in ns, of a clock with these residuals."""
    return _spread(distance.astype(np.float64)) * max(2.0, 12 / math.sqrt(max(len(distance), 1)))


def _clock(
    summary: RankSummary, fit: _Fit | None, ends: Matched, distance: Int64s, member: int, wrong_by: float
) -> Clock:
    """The clock of a member, judged by the residuals of its fit."""
    rows = ends.rows_of(member)
    count = len(rows)
    clock = Clock(summary.rank, summary.host, matched_count=count)
    if fit is None or count < FEWEST:
        why = f"it shares {count} collectives with other ranks, and {FEWEST} are needed"
        return replace(clock, refused=why if count < FEWEST else "its process groups share no rank with the others'")
    uncertainty = int(np.ceil(wrong_by)) + _grain(ends.ts[rows], ends.end[rows])
    fit = _simple(fit, ends.end[rows], uncertainty)
    moved = int(np.abs(ends.end[rows] - fit.corrected(ends.end[rows])).max())
    clock = replace(
        clock,
        residual_ns=int(np.median(np.abs(distance[rows]))),
        uncertainty_ns=uncertainty,
        comparable=True,
        at_ns=fit.at,
    )
    if moved <= uncertainty:
        why = f"the correction, at most {moved} ns, is within its uncertainty" if moved else "it needs no correction"
        return replace(clock, refused=why)
    return replace(clock, offset_ns=fit.offset, drift=fit.drift)


def _simple(fit: _Fit, end: Int64s, uncertainty: int) -> _Fit:
    """The fit without its drift if that does not matter; the offset is then that in the middle."""
    first, last = int(end.min()), int(end.max())
    if abs(fit.drift) * (last - first) / 2 > LEAST_DRIFT * uncertainty:
        return fit
    middle = np.array([(first + last) // 2])
    return _Fit(int((middle - fit.corrected(middle))[0]), 0.0, fit.at)


def _grain(*times: Int64s) -> int:
    """The resolution of the recorded times, ns, for a start and an end."""
    return next((2 * grain for grain in (1_000_000, 1000) if all((ts % grain == 0).all() for ts in times)), 2)


def _checked(ends: Matched, clocks: list[Clock]) -> list[Clock]:
    """The clocks; refused for ranks that would end too many collectives before others have begun."""
    if not len(ends):
        return clocks
    start, end = ends.ts.copy(), ends.end.copy()
    for member, clock in enumerate(clocks):
        rows = ends.rows_of(member)
        start[rows], end[rows] = clock.to_common(ends.ts[rows]), clock.to_common(ends.end[rows])
    comparable = np.array([clock.comparable for clock in clocks], np.bool_)[ends.member]
    margin = np.array([clock.uncertainty_ns for clock in clocks], np.int64)[ends.member]
    arrival = np.maximum.reduceat(np.where(comparable, start - margin, _NONE), ends.first)
    broken = comparable & (end + margin < arrival[ends.instance])
    checked = []
    for member, clock in enumerate(clocks):
        ends_early = broken[ends.rows_of(member)]
        share = float(np.count_nonzero(ends_early)) / max(len(ends_early), 1)
        if clock.comparable and share > MOST_BROKEN:
            why = f"{share:.0%} of its collectives would end before all ranks have begun"
            clock = replace(clock, offset_ns=0, drift=0.0, comparable=False, refused=why)
        checked.append(clock)
    return checked
