"""First fits of the ranks' clocks, over the whole graph of what joins ranks: collectives, sends, and hosts.

From a first rank on, clocks are passed on wherever a rank that has one shares collectives with a rank that has none.
What joins best comes first: groups with many shared collectives, then with few, then sends with their receives, then a
common host, then the user's word that the hosts' clocks agree. What rests on few collectives gets a larger doubt.

A clock of a crystal drifts by less than :data:`MOST_DRIFT`. Collectives that need more are not the same collectives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from msgspec import Struct, field

from augment.arrays import Int64s, Places, combinations, each, median
from augment.job.matching.matching import Floats, Matched
from augment.job.ranks import RankSummary

FEWEST = 3  #: a fit to fewer collectives is not judged by its residuals
FEWEST_FOR_DRIFT = 8
MOST_DRIFT = 100e-6
TRUSTED_NS = 1_000_000  #: the uncertainty of clocks that the user declares synchronised, as by NTP
_CLEAR_DRIFT_NS = 2_000  #: a drift that moves the ends by less is not looked at
_CLEARLY = 5.0  #: a drift is real if it moves the ends by so many spreads of the residuals
_POINTS = 64  #: for the Theil-Sen slopes
_DEVIATION = 1.4826
_NONE = np.iinfo(np.int64).min // 2


class ClockFit(Struct, frozen=True):
    """A clock during the fit: ns ahead at its own time ``at``, and ns more per ns."""

    offset: int
    drift: float
    at: int

    def corrected(self, ts: Int64s) -> Int64s:
        """Times of this clock on the common one."""
        if not self.drift:
            return ts - self.offset
        common: Int64s = ts - self.offset - np.rint(self.drift * (ts - self.at)).astype(np.int64)
        return common

    def relative_to(self, reference: ClockFit) -> ClockFit:
        """The same clock relative to ``reference``."""
        common = self.at - self.offset
        ahead = reference.offset + round(reference.drift * (common - reference.at))
        return ClockFit(self.offset - ahead, self.drift - reference.drift, self.at)


class Bridge(Struct, frozen=True):
    """How a rank was joined by few collectives: their ``count``, the ``spread`` of the fit's residuals, and by how much
    the fit can be wrong at ``most``, ns. A ``certain`` bound does not depend on residuals."""

    count: int
    spread: float
    most: float
    certain: bool = False

    def doubt(self, usual_spread: float | None) -> float:
        """The uncertainty in ns; ``usual_spread`` is that of residuals in the job, None if it is unknown."""
        if self.certain or (self.count < FEWEST and usual_spread is None):
            return self.most
        spread = self.spread if self.count >= FEWEST else usual_spread or 0.0
        return min(spread * max(2.0, 12 / math.sqrt(self.count)), self.most)


class Placement(Struct):
    """The first fits by member, in the order of joining; the bridges that led to each; and, for members without a fit,
    the drift that their collectives would need."""

    fits: dict[int, ClockFit] = field(default_factory=dict)
    bridges: dict[int, tuple[Bridge, ...]] = field(default_factory=dict)
    drifts: dict[int, float] = field(default_factory=dict)

    def place(self, member: int, fit: ClockFit, parent: int | None, bridge: Bridge | None) -> None:
        """Give a member its fit."""
        self.fits[member] = fit
        before = () if parent is None else self.bridges[parent]
        self.bridges[member] = (*before, bridge) if bridge else before
        self.drifts.pop(member, None)


def placed(matched: Matched, summaries: Sequence[RankSummary], *, trusted: bool) -> Placement:
    """The first fits of all members that are joined with the first.

    Args:
        matched: all collectives; those that no rank ends before all have begun are used, and sends with receives.
        summaries: the ranks.
        trusted: whether the clocks of different hosts are synchronised.
    """
    ends, pairs = matched.take(matched.is_synchronous()), matched.take(matched.is_pair())
    # A number for each pair of ranks
    low, high = (pairs.member[pairs.first + place] for place in (0, 1))
    pair_numbers = combinations(low, high)[1] if len(pairs) else np.empty(0, np.int64)
    links = list(_links(ends, ends.group)) + list(_links(pairs, pair_numbers))
    result = Placement()
    if links:
        widest = max(links, key=lambda link: len(link.rows))
        start = int(widest.ends.member[widest.rows].min())
        result.place(start, ClockFit(0, 0.0, int(summaries[start].column("ts").min())), None, None)
    while result.fits:
        links = [link for link in links if not link.members <= result.fits.keys()]
        if sum(_joins(link, FEWEST, result) for link in links) or any(_joins(link, 1, result) for link in links):
            continue
        if not (_by_host(summaries, result) or (trusted and _by_trust(summaries, result))):
            break
    return result


class _Link(Struct, frozen=True, dict=True):
    """Collectives that join ranks: the ``rows`` of ``ends`` of one process group, or of one pair of ranks."""

    ends: Matched
    rows: Places
    is_pair: bool

    @cached_property
    def members(self) -> frozenset[int]:
        """The members with any of them."""
        return frozenset(np.unique(self.ends.member[self.rows]).tolist())

    def parts(self) -> Mapping[int, Places]:
        """The rows of each member."""
        rows = self.rows[np.argsort(self.ends.member[self.rows], kind="stable")]
        members, starts = np.unique(self.ends.member[rows], return_index=True)
        return dict(zip(members.tolist(), np.split(rows, starts[1:]), strict=True))


def _links(ends: Matched, of: Int64s) -> Iterator[_Link]:
    """The links of collectives with equal numbers in ``of``, those with most rows first."""
    numbers = of[ends.instance]
    parts = [rows for _, rows in each(numbers, int(of.max(initial=-1)) + 1)]
    is_pair = bool(ends.is_pair().any())
    yield from (_Link(ends, rows, is_pair) for rows in sorted(parts, key=lambda rows: -len(rows)))


def _joins(link: _Link, fewest: int, result: Placement) -> bool:
    """Whether the link gives clocks to members: from the member with a clock that has most collectives in it."""
    if link.members <= result.fits.keys() or link.members.isdisjoint(result.fits):
        return False
    parts = link.parts()
    anchor = min((member for member in parts if member in result.fits), key=lambda each: (-len(parts[each]), each))
    common = np.full(len(link.ends), _NONE)
    anchored = parts[anchor]
    common[link.ends.instance[anchored]] = result.fits[anchor].corrected(link.ends.end[anchored])
    anchor_dur = np.zeros(len(link.ends), np.int64)
    anchor_dur[link.ends.instance[anchored]] = link.ends.end[anchored] - link.ends.ts[anchored]
    before = len(result.fits)
    for member, part in parts.items():
        shared = part[common[link.ends.instance[part]] != _NONE]
        if member not in result.fits and len(shared) >= fewest:
            instance = link.ends.instance[shared]
            _join(link, member, shared, common[instance], anchor_dur[instance], anchor, result)
    return len(result.fits) > before


def _join(
    link: _Link, member: int, rows: Places, common: Int64s, anchor_dur: Int64s, anchor: int, result: Placement
) -> None:
    """Give a member its clock by the shared collectives at ``rows``, unless they need an impossible drift."""
    ends = link.ends
    end, dur = ends.end[rows], ends.end[rows] - ends.ts[rows]
    fit = fitted(end, common, int(ends.ts[rows].min()))
    if abs(fit.drift) > MOST_DRIFT:
        result.drifts[member] = fit.drift
        return
    # no rank ends before all have begun: the offset cannot be wrong by more than the shortest collective
    most = float(max(dur.min(), anchor_dur.min()))
    spread = spread_of((fit.corrected(end) - common).astype(np.float64))
    is_bridge = link.is_pair or 2 * len(rows) < len(ends.rows_of(member))
    bridge = Bridge(len(rows), spread, most, certain=link.is_pair) if is_bridge or len(rows) < FEWEST else None
    result.place(member, fit, anchor, bridge)


def _by_host(summaries: Sequence[RankSummary], result: Placement) -> bool:
    """Give ranks of a host with an aligned rank its clock; whether there are any."""
    before = len(result.fits)
    of_host = {summaries[member].host: member for member in reversed(result.fits)}
    for member, summary in enumerate(summaries):
        if member not in result.fits and summary.host and summary.host in of_host:
            anchor = of_host[summary.host]
            result.place(member, result.fits[anchor], anchor, None)
    return len(result.fits) > before


def _by_trust(summaries: Sequence[RankSummary], result: Placement) -> bool:
    """Give the ranks without a clock the first rank's; whether there are any."""
    before = len(result.fits)
    start = next(iter(result.fits))
    bridge = Bridge(0, 0.0, TRUSTED_NS, certain=True)
    for member in range(len(summaries)):
        if member not in result.fits:
            result.place(member, result.fits[start], start, bridge)
    return len(result.fits) > before


def fitted(end: Int64s, common: Int64s, at: int) -> ClockFit:
    """The clock that maps ``end`` to ``common``. A drift beyond :data:`MOST_DRIFT` is kept only if it is clear."""
    ahead = end - common
    level = int(ahead[0])
    offset = level + round(median(ahead - level))
    left = (ahead - offset).astype(np.float64)
    if len(end) < FEWEST_FOR_DRIFT:
        return ClockFit(offset, 0.0, at)
    since = (end - at).astype(np.float64)
    # The Theil-Sen slope: the median slope between points, at most :data:`_POINTS` of them
    chosen = np.linspace(0, len(since) - 1, min(len(since), _POINTS)).astype(np.int64)
    order = chosen[np.argsort(since[chosen], kind="stable")]
    near, far = _point_pairs(len(order))
    run = since[order[far]] - since[order[near]]
    rise = left[order[far]] - left[order[near]]
    apart = run > 0
    drift = median(rise[apart] / run[apart]) if apart.any() else 0.0
    straight = left - drift * since
    moved = abs(drift) * float(since.max() - since.min()) / 2
    if abs(drift) > MOST_DRIFT and moved <= max(_CLEARLY * spread_of(straight), _CLEAR_DRIFT_NS):
        return ClockFit(offset, 0.0, at)
    return ClockFit(offset + round(median(straight)), drift, at)


@lru_cache(maxsize=_POINTS)
def _point_pairs(count: int) -> tuple[Places, Places]:
    return np.triu_indices(count, 1)


def spread_of(values: Floats) -> float:
    """A robust standard deviation, from the median absolute deviation."""
    return _DEVIATION * median(np.abs(values - median(values))) if len(values) else 0.0
