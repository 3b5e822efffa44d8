from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from augment.arrays.types import Int64s
from augment.writers.chrome_events import _EXACT, _seen, fitting_durations, seen_ns
from perfetto_engine import PerfettoEngine

pytestmark = pytest.mark.slow

EPOCH_NS = 1_712_195_495_406_752_797
RANGES = [(0, 10**6), (10**12, 10**15), (10**15, 10**16), (10**17, 10**18), (EPOCH_NS, EPOCH_NS + 10**9)]


def times(low: int, high: int, count: int = 5000) -> Int64s:
    return np.sort(np.random.default_rng(low).integers(low, high, count))


@pytest.mark.parametrize(("low", "high"), [*RANGES, (4 * 10**18, 9 * 10**18)])
def test_seen_is_what_perfetto_sees(perfetto: PerfettoEngine, tmp_path: Path, low: int, high: int) -> None:
    ts = times(low, high)
    form = '{"ph":"i","s":"t","pid":1,"tid":1,"name":"a","ts":%d.%03d}'
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join(form % divmod(t, 1000) for t in ts.tolist())}]")
    perfetto.load(path)
    assert [row[0] for row in perfetto.rows("select ts from slice order by ts")] == seen_ns(ts).tolist()


def test_short_times_are_seen_as_they_are() -> None:
    ns = np.concatenate((times(0, 2 * _EXACT) - _EXACT + 1, [-_EXACT + 1, -1, 0, 1, _EXACT - 1]))
    assert (_seen(ns) == ns).all()
    assert (seen_ns(ns) == ns).all()


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_no_slice_reaches_into_the_next(low: int, high: int) -> None:
    ts = times(low, high)
    dur = np.diff(ts, append=ts[-1] + 1)
    fitting = fitting_durations(ts, dur, 0)
    seen = seen_ns(ts)
    assert (seen[:-1] + seen_ns(fitting)[:-1] <= seen[1:]).all()
    assert (fitting >= 0).all()
    assert (fitting <= dur).all()
    assert (dur - fitting < 512).all()


def test_years_between_slices() -> None:
    """Where clocks disagree, a gap may last from 1970 until today: its length is rounded, too."""
    for start in range(1000):
        ts = np.array([start, EPOCH_NS])
        dur = np.array([EPOCH_NS - start, 1])
        fitting = fitting_durations(ts, dur, 0)
        assert seen_ns(ts)[0] + seen_ns(fitting)[0] <= seen_ns(ts)[1]
        assert 0 <= dur[0] - fitting[0] < 1024


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_slices_within_others_stay_there(perfetto: PerfettoEngine, tmp_path: Path, low: int, high: int) -> None:
    """Each slice of the first level holds two that fill it, each of which holds one that fills it."""
    edges = np.unique(times(low, high, 4500))
    edges = edges[: len(edges) // 3 * 3]
    bounds = [(outer, (outer[0], outer[1]), (outer[1], outer[2])) for outer in edges.reshape(-1, 3).tolist()]
    spans = [span for (a, _, c), each, other in bounds for span in ((a, c), each, each, other, other)]
    ts, end = np.array(spans).T
    fitting = fitting_durations(ts, end - ts, 0)
    assert (fitting >= 0).all()
    assert (fitting <= end - ts).all()
    assert (end - ts - fitting < 512).all()
    form = '{"ph":"X","pid":1,"tid":1,"name":"a","ts":%d.%03d,"dur":%d.%03d}'
    events = [
        form % (*divmod(row, 1000), *divmod(dur, 1000)) for row, dur in zip(ts.tolist(), fitting.tolist(), strict=True)
    ]
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join(events)}]")
    perfetto.load_clean(path)
    assert perfetto.rows("select count(*) from slice") == [(len(ts),)]


def test_small_times_are_left_alone() -> None:
    ts = times(0, 10**9) + EPOCH_NS
    dur = np.diff(ts, append=ts[-1] + 1)
    assert (fitting_durations(ts, dur, EPOCH_NS) == dur).all()
    assert (fitting_durations(ts, dur, 0) != dur).any()
