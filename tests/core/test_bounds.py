"""What an analysis may draw at most, and what remains true of what is drawn."""

from __future__ import annotations

import numpy as np

from augment import AugmentedTrace, Findings, augment
from augment.analyses import ANALYSES
from augment.core import CounterTrack, Ends, Flows, SliceTrack, Texts, bounds, row_count
from augment.core.bounds import LEAST_ROWS, bounded, most_rows, shares
from tables import kernel, launched_kernel, op, slices_of, trace_of


def pieces(count: int, *, gap: int = 0, dur: int = 100) -> SliceTrack:
    ts = np.arange(count, dtype=np.int64) * (dur + gap)
    codes = (np.arange(count) % 3 == 0).astype(np.int32)
    every = np.full(count, dur, np.int64)
    every[count // 2] = dur + gap  # one is longer
    inner = Texts(np.zeros(count, np.int32), ["below"])
    return SliceTrack("x", "X", 0, ts, every, Texts(codes, ["a", "b b"]), {"which": np.arange(count)}, inner=inner)


def total(annotations: list[object]) -> int:
    return sum(row_count(annotation) for annotation in annotations)  # type: ignore[arg-type]


def test_few_rows_stay_as_they_are() -> None:
    findings = Findings([], [pieces(LEAST_ROWS // 2)])
    assert bounded(findings, 10) is findings


def test_pieces_that_touch_are_joined_and_their_time_is_told() -> None:
    track = pieces(LEAST_ROWS * 2)
    result = bounded(Findings([], [track]), 0)
    (fewer,) = result.annotations
    assert row_count(fewer) <= LEAST_ROWS
    assert fewer.dur.sum() == track.dur.sum()
    assert (fewer.ts[1:] == (fewer.ts + fewer.dur)[:-1]).all()
    output = slices_of(fewer)
    assert sum(each.get("a_ns", 0) for each in output) == int(track.dur[track.names.codes == 0].sum())
    assert sum(each.get("b_b_ns", 0) for each in output) == int(track.dur[track.names.codes == 1].sum())
    assert {each["name"] for each in output} == {"a"}  # which takes two thirds of each
    assert sum(each["joined_count"] for each in output) == len(track.ts)
    assert [diagnostic.code for diagnostic in result.diagnostics] == ["annotations_reduced"]
    assert result.diagnostics[0].count == row_count(track) - row_count(fewer)


def test_pieces_apart_are_never_joined_and_the_longest_stay_with_their_arrows() -> None:
    count = LEAST_ROWS * 3
    track = pieces(count, gap=50)
    flows = Flows("x", "to", Ends(np.zeros(count, np.int64)), Ends(np.arange(count), track))
    counter = CounterTrack("x", "C", 0, np.arange(count), np.arange(count) % 7, "ms")
    result = bounded(Findings([], [track, flows, counter]), 0)
    assert total(list(result.annotations)) <= LEAST_ROWS
    fewer, arrows, points = result.annotations
    which = fewer.args["which"]
    assert not isinstance(which, Texts)
    assert count // 2 in which
    assert (fewer.ts == track.ts[which]).all()
    assert arrows.into.track is fewer
    assert count // 2 in which[arrows.into.rows]
    assert points.values.max() == 6


def test_rows_follow_the_size_of_the_source() -> None:
    """A small source allows a row for three events, a large one a row for twenty."""
    sizes = [0, 20_000, 100_000, 10**6, 10**7]
    assert [most_rows(size) for size in sizes] == [3000, 6666, 10_000, 50_000, 500_000]


def test_who_wants_few_rows_gets_them() -> None:
    assert shares([1000, 5, 70, 0], 100) == [48, 5, 47, 0]
    assert shares([3, 4], 100) == [3, 4]
    assert shares([], 100) == []


def test_a_track_of_few_rows_keeps_them_and_a_rate_its_mean() -> None:
    busy, quiet = pieces(LEAST_ROWS * 3, gap=50), pieces(20)
    ts = np.arange(LEAST_ROWS * 3, dtype=np.int64) * 10
    rate = CounterTrack("x", "C", 0, ts, np.where(ts % 20, 8, 0), "GB/s")
    fewer, same, mean = bounded(Findings([], [busy, quiet, rate]), 0).annotations
    assert len(same.ts) == len(quiet.ts)
    assert total([fewer, mean]) <= LEAST_ROWS
    held = np.diff(mean.ts)
    assert np.isclose((mean.values[:-1] * held).sum() / held.sum(), 4, atol=0.01)


def test_diagnostics_of_rows_left_out_are_one() -> None:
    trace = trace_of(kernel("gemm", 0, 10))
    once = bounded(Findings([], [pieces(LEAST_ROWS * 2)]), 0)
    both = AugmentedTrace(trace, {"a": once, "b": once}).diagnostics
    assert [each.count for each in both if each.code == "annotations_reduced"] == [2 * once.diagnostics[0].count]


def test_no_analysis_draws_more_than_its_share() -> None:
    """Of a trace of kernels alone with launches: every gap, queue and piece of the path would be drawn."""
    events = []
    for number in range(4000):
        at = 10_000 * number
        events += [op("aten::mm", at, at + 4000)]
        events += [*launched_kernel("gemm", (at + 1000, at + 2000), (at + 3000, at + 9000), correlation=number + 1)]
    trace = trace_of(*events)
    assert most_rows(len(trace.events)) > bounds.LEAST_ROWS
    augmented = augment(trace)
    assert len(augmented.outcomes) == len(ANALYSES)
    for outcome in augmented.outcomes.values():
        if isinstance(outcome, Findings):
            assert total(list(outcome.annotations)) <= most_rows(len(trace.events))
