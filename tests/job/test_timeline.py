"""The tracks of a job as a whole, beside what the traces of all ranks show at single moments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from augment import AugmentedTrace, Trace, read
from augment.core import GPU_WORK, CounterTrack, SliceTrack
from augment.job.answer import Answer, answer
from augment.job.path import Path as JobPath
from augment.job.ranks import summarize
from augment.job.timeline import LATE, PATH, VERDICT, WAITING, _uppermost
from simulator import JobOptions, simulate

EVER = (-(1 << 61), 1 << 61)
SLOW = 1
Shown = tuple[Answer, list[Trace], dict[str, SliceTrack | CounterTrack]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A job of two tensor-parallel pairs, of which a rank is slow."""
    options = JobOptions(
        ranks=4, steps=3, layers=2, tp=2, straggler=SLOW, straggler_factor=1.5, clock_offset_ns=(0, 10**9, -(10**8), 77)
    )
    traces = [read(str(path)) for path, _ in simulate(options, tmp_path_factory.mktemp("job"))]
    rows = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [each.source.name for each in traces])
    return rows, traces, {track.name: track for track in rows.of_job(EVER)}


def waits_at(answer: Answer, trace: Trace, member: int, moment: int) -> bool:
    """Whether a rank waits at a moment of its own clock, by its kernels one by one."""
    matched, parted = answer.matched, answer.parted
    rows = matched.rows_of(member).tolist()
    waiting = any(matched.ts[row] <= moment < matched.ts[row] + parted.wait_ns[row] for row in rows)
    moving = any(matched.ts[row] + parted.wait_ns[row] <= moment < matched.end[row] for row in rows)
    events = trace.events
    work = events.slices_of(*GPU_WORK)
    other = np.array([not name.startswith("nccl") for name in trace.names_of(work)])
    busy = bool((other & (events.ts[work] <= moment) & (moment < events.end[work])).any())
    return waiting and not moving and not busy


def test_as_many_ranks_wait_as_their_kernels_show(shown: Shown) -> None:
    result, traces, tracks = shown
    counter = tracks[WAITING]
    for moment in np.random.default_rng(5).integers(counter.ts[0], counter.ts[-1], 60).tolist():
        value = counter.values[np.searchsorted(counter.ts, moment, side="right") - 1]
        part = [moment - int(clock.to_common(np.array([0]))[0]) for clock in result.clocks]
        assert value == sum(waits_at(result, trace, member, part[member]) for member, trace in enumerate(traces))
    assert counter.values.max() == 3
    assert counter.values[-1] == 0


def test_the_late_rank_is_drawn_while_others_wait_for_it(shown: Shown) -> None:
    _, _, tracks = shown
    late = tracks[LATE]
    assert (late.ts[1:] >= (late.ts + late.dur)[:-1]).all()
    names = [late.names.values[code] for code in late.names.codes]
    of_slow = np.array([name == f"rank {SLOW}" for name in names])
    assert late.dur[of_slow].sum() > 0.8 * late.dur.sum()  # the rest: ranks that it delayed before
    slow_rows = np.flatnonzero(of_slow & (late.dur > 50_000))
    assert {late.inner.values[late.inner.codes[row]] for row in slow_rows} == {"its device works"}


def test_the_path_is_drawn_with_the_rank_of_each_piece(shown: Shown) -> None:
    result, _, tracks = shown
    drawn, path = tracks[PATH], result.path
    assert isinstance(path, JobPath)
    names = np.array([drawn.names.values[code] for code in drawn.names.codes])
    stays = np.array([name.startswith("rank ") for name in names])
    assert drawn.dur[stays].sum() == drawn.dur[~stays].sum() == path.dur.sum()
    assert (drawn.ts[stays][1:] == (drawn.ts + drawn.dur)[stays][:-1]).all()
    for stay in np.flatnonzero(stays).tolist():
        start, end = drawn.ts[stay], drawn.ts[stay] + drawn.dur[stay]
        inside = (path.start >= start) & (path.end <= end) & (path.end > path.start)
        assert {f"rank {result.summaries[member].rank}" for member in path.member[inside].tolist()} == {names[stay]}


def test_a_part_of_the_time(shown: Shown) -> None:
    result, _, tracks = shown
    middle = int(np.median(tracks[PATH].ts))
    for track in result.of_job((middle, middle + 5_000_000)):
        assert middle <= track.ts[0] <= track.ts[-1] <= middle + 5_000_000


def test_of_ranks_that_nothing_joins_the_verdict_alone_is_drawn(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(JobOptions(ranks=2, steps=1, layers=1, collectives="none"), tmp_path)]
    contents = [summarize(AugmentedTrace(read(str(path)), {})) for path in paths]
    (drawn,) = (result := answer(contents, [path.name for path in paths])).of_job(EVER)
    spans = np.array([(each.first_ns, each.last_ns) for each in result.summaries], np.int64)
    assert (drawn.name, drawn.ts[0], drawn.ts[0] + drawn.dur[0]) == (VERDICT, spans.min(), spans.max())


@pytest.mark.parametrize("seed", range(20))
def test_of_overlapping_intervals_the_first_in_order_is_drawn(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 40, 12)
    end, order = start + random.integers(1, 12, 12), random.integers(0, 4, 12)
    begins, ends, which = _uppermost(start, end, order)
    assert (begins[1:] >= ends[:-1]).all()
    for moment in range(60):
        inside = np.flatnonzero((start <= moment) & (moment < end))
        best = min(inside.tolist(), key=lambda each: (order[each], start[each], each), default=None)
        assert which[(begins <= moment) & (moment < ends)].tolist() == ([] if best is None else [best])
