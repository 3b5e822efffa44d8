"""Limits the rows that an analysis adds to a timeline: rows that nobody could see are joined or left out.

Only the drawing is reduced. The metric rows, which hold the figures, are made from all pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import Bools, Int64s, Joined, joined, longest, means, numbered, peaks
from augment.core import Annotation, ArgColumn, CounterTrack, Diagnostic, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core import row_count as rows_of
from augment.core.findings import REDUCED, Findings

SHARE = 20  #: an analysis adds at most one row for this many events of a large source
SMALL_SHARE, SMALL_ROWS = 3, 10_000  #: of a smaller source one for so few events, while these are at most so many rows
LEAST_ROWS = 3000  #: this many rows are always allowed
_MOST_KINDS = 16  #: the greatest number of names on a track whose times are reported where slices are joined

_MESSAGE = "rows of added tracks are too short or too many to draw, so they are joined or left out; figures are exact"


def bounded(findings: Findings, event_count: int) -> Findings:
    """The findings with at most :func:`most_rows` rows of annotations. A diagnostic counts the others.

    Short adjacent slices are joined; otherwise the shortest are left out. A counter keeps its peaks, one of a rate its
    means. Tracks with few rows keep them.
    """
    most = most_rows(event_count)
    count = sum(map(rows_of, findings.annotations))
    if count <= most:
        return findings
    outer = [len(each) if isinstance(each, Flows) else len(each.ts) for each in findings.annotations]
    inner = [len(each.inner_rows()) if isinstance(each, SliceTrack) else 0 for each in findings.annotations]
    kept = min(sum(inner), most - sum(outer) if sum(outer) <= most else most // 4)
    fewer = _Fewer()
    quotas = zip(findings.annotations, shares(outer, most - kept), shares(inner, kept), strict=True)
    annotations = [track for quota in quotas for track in fewer.of(*quota)]
    gone = count - sum(map(rows_of, annotations))
    remark = Diagnostic(REDUCED, gone, _MESSAGE)
    return replace(findings, annotations=annotations, diagnostics=[*findings.diagnostics, remark])


def most_rows(event_count: int) -> int:
    """How many rows an analysis may add to a source of so many events.

    All analyses together add at most a third of the events to a large source: some six of them draw rows by the event.
    """
    return max(event_count // SHARE, min(event_count // SMALL_SHARE, SMALL_ROWS), LEAST_ROWS)


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """``most`` divided among those who want so many: who wants few gets all of it, the others get equally many."""
    given = [0] * len(wanted)
    for rank, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[place] = min(wanted[place], most // (len(wanted) - rank))
        most -= given[place]
    return given


class _Fewer(Struct):
    """Reduces annotations one after the other; arrows follow the slices that they lead to."""

    _moved: dict[int, tuple[SliceTrack, Int64s]] = field(default_factory=dict)  #: by ``id``: the new track and rows

    def of(self, annotation: Annotation, most: int, most_inner: int) -> Iterator[Annotation]:
        """The annotation with at most so many rows, and of second slices within slices; none if no arrow is left."""
        match annotation:
            case SliceTrack():
                track, row = _slices(annotation, most, most_inner)
                self._moved[id(annotation)] = track, row
                yield track
            case CounterTrack() if annotation.unit.endswith("/s"):
                ts, values = means(annotation.ts, annotation.values, most)
                yield replace(annotation, ts=ts, values=values)
            case CounterTrack():
                kept = peaks(annotation.ts, annotation.values, most)
                yield replace(annotation, ts=annotation.ts[kept], values=annotation.values[kept])
            case InstantTrack():
                yield annotation
            case Flows():
                # the arrows between slices that are left; of these, those at the longest added slices
                out, into = self._ends(annotation.out), self._ends(annotation.into)
                size = np.zeros(len(annotation), np.int64)
                for ends in (out, into):
                    if ends.track is not None:
                        size = np.maximum(size, ends.track.dur[np.maximum(ends.rows, 0)])
                left = np.flatnonzero((out.rows >= 0) & (into.rows >= 0))
                left = left[longest(size[left], most)]
                if len(left):
                    ids = None if annotation.ids is None else annotation.ids[left]
                    yield replace(
                        annotation, out=Ends(out.rows[left], out.track), into=Ends(into.rows[left], into.track), ids=ids
                    )

    def _ends(self, ends: Ends) -> Ends:
        if ends.track is None:
            return ends
        track, row = self._moved[id(ends.track)]
        return Ends(row[ends.rows], track)


def _slices(track: SliceTrack, most: int, most_inner: int) -> tuple[SliceTrack, Int64s]:
    """The track with fewer slices, and for each old row the new one, -1 if it is left out."""
    if (track.ts[1:] < track.ts[:-1] + track.dur[:-1]).any():  # nested: short ones may hold others
        return _without_short_inner(track, most_inner), np.arange(len(track.ts))
    runs = joined(track.ts, track.dur, track.names.codes, most)
    track = _joined(track, runs) if len(runs) < len(track.ts) else track
    kept = longest(track.dur, most)
    row = np.full(len(track.ts), -1, np.int64)
    row[kept] = np.arange(len(kept))
    track = track if len(kept) == len(track.ts) else track.take(kept)
    return _without_short_inner(track, most_inner), row[runs.group]


def _joined(track: SliceTrack, runs: Joined) -> SliceTrack:
    """Each slice as long as its pieces, with the name and args of the piece that represents them.

    If there are few names, the args ``NAME_ns`` of a joined slice give the total time of each name among its pieces.
    """
    several = runs.count > 1
    whole = track.take(runs.longest)
    args: dict[str, ArgColumn] = dict(whole.args)
    args["joined_count"] = np.where(several, runs.count, -1)
    names, kind = numbered(track.names.codes)
    if len(names) <= _MOST_KINDS:
        times = runs.times(track.dur, kind.astype(np.int32), len(names))
        for code, ns in zip(names.tolist(), times, strict=True):
            word = re.sub(r"\W+", "_", track.names.values[code]) if code >= 0 else "unnamed"
            args[f"{word}_ns"] = np.where(several & (ns > 0), ns, -1)
    last = runs.first + runs.count - 1
    dur = track.ts[last] + track.dur[last] - track.ts[runs.first]
    return replace(whole, ts=track.ts[runs.first], dur=dur, args=args)


def _without_short_inner(track: SliceTrack, most: int) -> SliceTrack:
    """The track with the ``most`` longest of its inner slices."""
    rows = track.inner_rows()
    if track.inner is None or len(rows) <= most:
        return track
    kept: Bools = np.zeros(len(track.ts), np.bool_)
    kept[rows[longest(track.dur[rows], max(most, 0))]] = True
    codes = np.where(kept, track.inner.codes, np.int32(-1))
    return replace(track, inner=Texts(codes, track.inner.values))


__all__ = ["LEAST_ROWS", "bounded", "most_rows"]
