"""Lanes and the slices of points: what the rules are, and that compiled code keeps them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.writers.perfetto.flows import Points, TrackSlices, by_start, lanes_and_slices
from oracles import plain_kernels
from writer_traces import ns

pytestmark = pytest.mark.slow

Span = tuple[int, int, int]  #: place, ts, dur
spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=30)
moments = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 3)), max_size=20)


def slices_of(spans: list[Span]) -> TrackSlices:
    ordered = sorted(spans, key=lambda span: span[1])
    place, ts, dur = (np.array([span[k] for span in ordered], np.int64) for k in range(3))
    rows = by_start(np.arange(len(ordered)), ts, ts + dur)
    return TrackSlices(rows, place.astype(np.int32), ts, ts + dur, np.arange(len(ordered)) % 4)


def points_of(moments: list[Span]) -> Points:
    ordered = sorted(moments, key=lambda moment: moment[1])
    place, ts, mark = (np.array([moment[k] for moment in ordered], np.int64) for k in range(3))
    return Points(place.astype(np.int32), ts, mark)


def walked(slices: TrackSlices, points: Points, compiled: bool) -> tuple[Int32s, Int64s]:
    with nullcontext() if compiled else plain_kernels():
        return lanes_and_slices(slices, points, 3)


@given(spans)
def test_no_slices_of_a_lane_overlap_in_part(spans: list[Span]) -> None:
    slices = slices_of(spans)
    lane, _ = walked(slices, points_of([]), compiled=False)
    for a in slices.rows.tolist():
        for b in slices.rows.tolist():
            if (slices.place[a], lane[a]) == (slices.place[b], lane[b]):
                starts, ends = sorted((slices.ts[a], slices.ts[b])), sorted((slices.end[a], slices.end[b]))
                within = (slices.ts[a] - slices.ts[b]) * (slices.end[a] - slices.end[b]) <= 0
                assert within or ends[0] <= starts[1]


@given(spans, moments)
def test_a_point_finds_the_slice_that_began_last_of_those_that_cover_it(spans: list[Span], moments: list[Span]) -> None:
    slices, points = slices_of(spans), points_of([(place, ts, 9) for place, ts, _ in moments])
    _, result = walked(slices, points, compiled=False)
    for index, row in enumerate(result.tolist()):
        at = points.ts[index]
        on_track = slices.place == points.place[index]
        covering = np.flatnonzero(on_track & (slices.ts <= at) & (slices.end >= at))
        if not len(covering):
            assert row == NO_INDEX
        elif slices.end[covering].min() > at:  # one that ends just then may give way to one that begins just then
            assert slices.ts[row] == slices.ts[covering].max()
        else:
            assert row in covering


@pytest.mark.parametrize("ends", [(9, 8), (9, 9)])
@pytest.mark.parametrize("compiled", [False, True])
def test_of_slices_that_begin_at_once_the_mark_tells(ends: tuple[int, int], compiled: bool) -> None:
    """Also of a kernel and an annotation around it that are equally long."""
    slices = TrackSlices(ns(0, 1), np.zeros(2, np.int32), ns(5, 5), ns(*ends), ns(11, 12))
    for mark, row in ((11, 0), (12, 1), (13, 1)):
        assert walked(slices, Points(np.zeros(1, np.int32), ns(5), ns(mark)), compiled)[1].tolist() == [row]


@given(spans, moments)
def test_compiled_and_plain_agree(spans: list[Span], moments: list[Span]) -> None:
    slices, points = slices_of(spans), points_of(moments)
    for plain, compiled in zip(walked(slices, points, False), walked(slices, points, True), strict=True):
        assert plain.tolist() == compiled.tolist()
