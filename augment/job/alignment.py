"""One clock for all ranks, fitted to collectives, which end on all their ranks together.

The clock of rank r is ahead by ``offset + drift · (t - at)``: offset and drift are such that the ends of matched
collectives (of the kinds of which nobody is done before all have begun) fall together. First the ranks of each process
group are laid beside one of them, group after group as they hang together; then every rank is laid beside the median
of all, twice. Fits are medians (of slopes: Theil and Sen), so that a few odd collectives do not matter. A drift
that would move no collective by half the uncertainty is none. Ranks of a host, where that is known, share its clock.

The uncertainty is twice the spread of what the fit leaves (1.4826 times the median absolute deviation of a rank's ends
from the median of the others'), more of fewer than 36 collectives, together with that of the rank whose clock is the
job's, and the grain of the recorded times. A correction within it is not made. It is refused for a rank that
shares too few collectives with the others, or if after it ranks end collectives that others have not begun.
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

FEWEST = 3  #: collectives that a clock is fitted to
FEWEST_FOR_DRIFT = 8
LEAST_DRIFT = 0.5  #: of the uncertainty, that a drift must move the first or last collective by
MOST_BROKEN = 0.1  #: share of a rank's collectives that may end before all have begun
_POINTS = 64  #: of which Theil's and Sen's slopes are taken
_ROUNDS = 2
_DEVIATION = 1.4826
_CLEARLY = 5.0  #: spreads by which a rank's clock is another than its host's ...
_ONE_CLOCK_NS = 100_000  #: ... and at least this
_NONE = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock beside the job's. ``refused`` is why none was fitted; its times are then as recorded.

    ``comparable`` says whether :meth:`to_common` gives times that can be compared with other ranks', to
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
    host: str = column("The host that it ran on; empty if the trace does not tell.")
    offset_ns: int = column("How far its clock was ahead of the job's at the first collective.", "ns")
    drift_ppm: float = column("How much faster it went, in millionths; 0 where none could be told.")
    residual_ns: int = column("The median distance of its ends of collectives from the others', as corrected.", "ns")
    uncertainty_ns: int = column("What the correction may be wrong by.", "ns")
    matched_count: int = column("The collectives that it was fitted to.", "count")
    status: str = column("corrected, kept (the correction is within its uncertainty) or refused.")
    reason: str = column("Why it was not corrected; empty if it was.")


@dataclass(frozen=True, slots=True)
class _Fit:
    """A clock being fitted: ns ahead at its own time ``at``, and ns more per ns."""

    offset: int
    drift: float
    at: int

    def corrected(self, ts: Int64s) -> Int64s:
        if not self.drift:
            return ts - self.offset
        common: Int64s = ts - self.offset - np.rint(self.drift * (ts - self.at)).astype(np.int64)
        return common

    def beside(self, reference: _Fit) -> _Fit:
        """The same, if ``reference`` is to be right."""
        common = self.at - self.offset
        ahead = reference.offset + round(reference.drift * (common - reference.at))
        return _Fit(self.offset - ahead, self.drift - reference.drift, self.at)


def align(matched: Matched, summaries: Sequence[RankSummary]) -> tuple[list[Clock], list[Diagnostic]]:
    """The clock of each of ``summaries``, and what is doubtful."""
    ends = matched.take(matched.is_synchronous())
    fits = _laid_beside(ends, len(summaries))
    diagnostics: list[Diagnostic] = []
    if fits:
        for _ in range(_ROUNDS):
            fits = _settled(ends, fits, [[member] for member in fits])
        units, odd = _units(ends, fits, summaries)
        fits = _settled(ends, fits, units)
        if odd:
            message = "ranks whose collectives contradict that they share their host's clock; they have their own"
            diagnostics.append(Diagnostic("clock_unlike_host", odd, message))
    distance = _distance(ends, fits)
    wrong = {member: _wrong_by(distance[ends.rows_of(member)]) for member in fits}
    of_first = next(iter(wrong.values()), 0.0)  # whose clock is the job's
    clocks = [
        _clock(one, fits.get(member), ends, distance, member, float(np.hypot(wrong.get(member, 0.0), of_first)))
        for member, one in enumerate(summaries)
    ]
    return _checked(ends, clocks), diagnostics


def row_of(clock: Clock, name: str) -> Row:
    """What is told of a clock."""
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
    """A first fit of each member that hangs together with the first by process groups."""
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
        group = next((one for one in waiting if placed[ends.member[parts[one]]].any()), None)
        if group is None:
            break
        waiting.remove(group)
        _join(ends, parts[group], fits)
        placed[list(fits)] = True
    return fits


def _first(ends: Matched, member: int) -> int:
    return int(ends.ts[ends.rows_of(member)].min())


def _join(ends: Matched, rows: Int64s, fits: dict[int, _Fit]) -> None:
    """Lay the members of a group beside the one of them that is in place and has most of its collectives."""
    rows = rows[np.argsort(ends.member[rows], kind="stable")]
    members, starts = np.unique(ends.member[rows], return_index=True)
    parts = dict(zip(members.tolist(), np.split(rows, starts[1:]), strict=True))
    anchor = min((member for member in parts if member in fits), key=lambda one: (-len(parts[one]), one))
    own = parts[anchor]
    table = np.full(len(ends), _NONE)
    table[ends.instance[own]] = fits[anchor].corrected(ends.end[own])
    for member, part in parts.items():
        theirs = part[table[ends.instance[part]] != _NONE]
        if member not in fits and len(theirs) >= FEWEST:
            fits[member] = _fitted(ends.end[theirs], table[ends.instance[theirs]], _first(ends, member))


def _settled(ends: Matched, fits: dict[int, _Fit], units: Sequence[Sequence[int]]) -> dict[int, _Fit]:
    """Each unit, which is members with one clock, laid beside the median of all; the first member keeps its clock."""
    middle = _middle(ends, fits)
    better = {}
    for members in units:
        rows = np.concatenate([ends.rows_of(member) for member in members])
        fit = _fitted(ends.end[rows], middle[ends.instance[rows]], min(fits[one].at for one in members))
        better.update(dict.fromkeys(members, fit))
    start = next(iter(fits))
    return {member: better[member].beside(better[start]) for member in fits}


def _units(ends: Matched, fits: dict[int, _Fit], summaries: Sequence[RankSummary]) -> tuple[list[list[int]], int]:
    """Members with one clock: those of a host, but for ones that clearly have another; and how many these are."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for member in fits:
        hosts[summaries[member].host].append(member)
    units = [[member] for member in hosts.pop("", [])]
    odd = 0
    middle = _middle(ends, fits)
    for members in hosts.values():
        ahead = {member: ends.end[rows] - middle[ends.instance[rows]] for member in members
                 if len(rows := ends.rows_of(member))}  # fmt: skip
        level = int(np.median([np.median(one) for one in ahead.values()]))
        own = [member for member, one in ahead.items() if _is_apart(one - level)]
        odd += len(own)
        units += [[member] for member in own] + [[one for one in members if one not in own]]
    return [one for one in units if one], odd


def _is_apart(ahead: Int64s) -> bool:
    return bool(abs(np.median(ahead)) > max(_CLEARLY * _spread(ahead.astype(np.float64)), _ONE_CLOCK_NS))


def _middle(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
    """The median end of each collective on the common clock; :data:`_NONE` of those of members without a fit alone."""
    rows = np.flatnonzero(np.isin(ends.member, list(fits)))
    common, instance = _corrected(ends, fits)[rows], ends.instance[rows]
    bounds = np.searchsorted(instance, np.arange(len(ends) + 1))
    present = np.flatnonzero(np.diff(bounds))
    low = int(common.min())
    code = np.searchsorted(present, instance)
    medians = grouped_medians(common - low, code, np.append(bounds[present], len(instance)))
    found = np.full(len(ends), _NONE)
    found[present] = low + np.rint(medians).astype(np.int64)
    return found


def _corrected(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
    """The ends on the common clock; of members without a fit as they are."""
    common: Int64s = ends.end.copy()
    for member, fit in fits.items():
        own = ends.rows_of(member)
        common[own] = fit.corrected(ends.end[own])
    return common


def _fitted(end: Int64s, common: Int64s, at: int) -> _Fit:
    """The clock that gives ``end`` where the job's gives ``common``."""
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
    """The median slope between points, of at most :data:`_POINTS` of them: Theil and Sen."""
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
    """A robust deviation from the median."""
    return _DEVIATION * float(np.median(np.abs(values - np.median(values))))


def _distance(ends: Matched, fits: Mapping[int, _Fit]) -> Int64s:
    """How far each end is from the median of the others of its collective, as corrected.

    0 of members without a fit, and where there are no others.
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
    own = np.arange(len(rows)) - first
    others = np.maximum(count - 1, 1)
    low, high = ((others - 1) // 2, others // 2)
    low, high = (np.minimum(first + one + (one >= own), len(rows) - 1) for one in (low, high))
    middle = common[low] + (common[high] - common[low]) // 2
    distance[rows] = np.where(count > 1, common - middle, 0)
    return distance


def _wrong_by(distance: Int64s) -> float:
    """What a clock may be wrong by that leaves these distances, ns."""
    return _spread(distance.astype(np.float64)) * max(2.0, 12 / math.sqrt(max(len(distance), 1)))


def _clock(one: RankSummary, fit: _Fit | None, ends: Matched, distance: Int64s, member: int, wrong_by: float) -> Clock:
    """A fit judged by what it leaves."""
    own = ends.rows_of(member)
    count = len(own)
    clock = Clock(one.rank, one.host, matched_count=count)
    if fit is None or count < FEWEST:
        why = f"it shares {count} collectives with other ranks, and {FEWEST} are needed"
        return replace(clock, refused=why if count < FEWEST else "its process groups share no rank with the others'")
    uncertainty = int(np.ceil(wrong_by)) + _grain(ends.ts[own], ends.end[own])
    fit = _simple(fit, ends.end[own], uncertainty)
    moved = int(np.abs(ends.end[own] - fit.corrected(ends.end[own])).max())
    clock = replace(
        clock,
        residual_ns=int(np.median(np.abs(distance[own]))),
        uncertainty_ns=uncertainty,
        comparable=True,
        at_ns=fit.at,
    )
    if moved <= uncertainty:
        why = f"the correction, at most {moved} ns, is within its uncertainty" if moved else "it is right as it is"
        return replace(clock, refused=why)
    return replace(clock, offset_ns=fit.offset, drift=fit.drift)


def _simple(fit: _Fit, end: Int64s, uncertainty: int) -> _Fit:
    """The fit, without its drift if that does not matter: it is then right in the middle."""
    first, last = int(end.min()), int(end.max())
    if abs(fit.drift) * (last - first) / 2 > LEAST_DRIFT * uncertainty:
        return fit
    middle = np.array([(first + last) // 2])
    return _Fit(int((middle - fit.corrected(middle))[0]), 0.0, fit.at)


def _grain(*times: Int64s) -> int:
    """What recorded times are rounded to, ns, for a start and an end."""
    return next((2 * grain for grain in (1_000_000, 1000) if all((one % grain == 0).all() for one in times)), 2)


def _checked(ends: Matched, clocks: list[Clock]) -> list[Clock]:
    """The clocks, refused to ranks that would end too many collectives before others have begun."""
    if not len(ends):
        return clocks
    start, end = ends.ts.copy(), ends.end.copy()
    for member, clock in enumerate(clocks):
        own = ends.rows_of(member)
        start[own], end[own] = clock.to_common(ends.ts[own]), clock.to_common(ends.end[own])
    comparable = np.array([one.comparable for one in clocks], np.bool_)[ends.member]
    margin = np.array([one.uncertainty_ns for one in clocks], np.int64)[ends.member]
    arrival = np.maximum.reduceat(np.where(comparable, start - margin, _NONE), ends.first)
    broken = comparable & (end + margin < arrival[ends.instance])
    checked = []
    for member, clock in enumerate(clocks):
        own = broken[ends.rows_of(member)]
        share = float(np.count_nonzero(own)) / max(len(own), 1)
        if clock.comparable and share > MOST_BROKEN:
            why = f"{share:.0%} of its collectives would end before all ranks have begun"
            clock = replace(clock, offset_ns=0, drift=0.0, comparable=False, refused=why)
        checked.append(clock)
    return checked
