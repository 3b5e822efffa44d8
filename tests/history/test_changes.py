"""Change points and prediction intervals: on runs made by hand, and on simulated ones whose truth is known."""

from __future__ import annotations

import statistics

import numpy as np
import numpy.typing as npt
import pytest

from augment.history.changes import FEWEST, changes, prediction, qn

pytestmark = pytest.mark.slow

LEVEL = 80e6
SPREAD = 0.02
TRIALS = 150
Floats = npt.NDArray[np.float64]


def runs(seed: int, count: int, *, shift: float = 0.0, since: int = 0, until: int | None = None) -> Floats:
    """Runs around :data:`LEVEL`; some of them are ``shift`` spreads slower."""
    noise = np.random.default_rng(seed).normal(0, SPREAD, count)
    noise[since:until] += shift * SPREAD
    return np.asarray(LEVEL * np.exp(noise))


def rate(result: list[bool]) -> float:
    return sum(result) / len(result)


@pytest.mark.parametrize("count", [8, 20, 60])
def test_runs_that_never_changed_rarely_have_a_change(count: int) -> None:
    assert rate([bool(changes(runs(seed, count))) for seed in range(TRIALS)]) <= 0.02


@pytest.mark.parametrize("kind", ["outliers", "skewed", "heavy tails"])
def test_other_noise_has_few_changes(kind: str) -> None:
    def noise(seed: int) -> Floats:
        random = np.random.default_rng(seed)
        if kind == "skewed":
            return np.asarray(random.exponential(SPREAD, 30))
        if kind == "heavy tails":
            return np.asarray(random.standard_t(3, 30) * SPREAD / 1.7)
        values = random.normal(0, SPREAD, 30)
        values[random.random(30) < 0.1] += 5 * SPREAD
        return np.asarray(values)

    assert rate([bool(changes(LEVEL * np.exp(noise(seed)))) for seed in range(TRIALS)]) <= 0.06


def year(kind: str, seed: int, count: int = 200) -> Floats:
    """A year of runs whose level never changes."""
    random = np.random.default_rng(seed)
    values = random.normal(0, SPREAD, count)
    if kind == "outliers":
        values[random.random(count) < 0.1] += 5 * SPREAD
    elif kind == "heavy tails":
        values = random.standard_t(3, count) * SPREAD / 1.7
    elif kind.startswith("depending"):  # each on the one before it
        share = float(kind.rpartition(" ")[2])
        values = values * np.sqrt(1 - share**2)
        for index in range(1, count):
            values[index] += share * values[index - 1]
    elif kind == "two kinds of machines":
        values += (random.random(count) < 0.5) * 5 * SPREAD
    elif kind == "two kinds in turns":
        values += np.cumsum(random.random(count) < 0.3) % 2 * 5 * SPREAD
    return np.asarray(LEVEL * np.exp(values))


KINDS = ("alike", "outliers", "heavy tails", "depending by 0.8", "two kinds of machines", "two kinds in turns")


@pytest.mark.parametrize("kind", KINDS)
def test_years_that_never_changed_rarely_have_a_change(kind: str) -> None:
    assert rate([bool(changes(year(kind, seed))) for seed in range(60)]) <= 0.05


@pytest.mark.parametrize(
    ("kind", "shift"), [("alike", 1.25), ("depending by 0.6", 3.0), ("two kinds of machines", 4.0)]
)
def test_changes_within_a_year_are_found(kind: str, shift: float) -> None:
    rows = []
    for seed in range(40):
        values = year(kind, seed)
        values[120:] *= np.exp(shift * SPREAD)
        rows.append(any(abs(change.first - 120) <= 12 for change in changes(values)))
    assert rate(rows) >= 0.9


@pytest.mark.parametrize(
    ("shift", "after", "least_rate"), [(5.0, FEWEST, 0.95), (3.0, 5, 0.75), (3.0, 10, 0.95), (2.0, 15, 0.5)]
)
def test_changes_are_found_at_their_run(shift: float, after: int, least_rate: float) -> None:
    begun = 30 - after
    rows = [changes(runs(seed, 30, shift=shift, since=begun)) for seed in range(TRIALS)]
    assert rate([len(each) == 1 and abs(each[0].first - begun) <= 1 for each in rows]) >= least_rate


def test_a_change_that_was_undone_is_two() -> None:
    rows = [changes(runs(seed, 40, shift=6, since=15, until=25)) for seed in range(TRIALS)]
    right = [len(each) == 2 and abs(each[0].first - 15) <= 1 and abs(each[1].first - 25) <= 1 for each in rows]
    assert rate(right) >= 0.9


def test_levels_are_the_medians_before_and_after() -> None:
    (change,) = changes(np.array([80, 81, 80, 79, 80, 81, 90, 91, 90, 89], np.float64))
    assert (change.first, change.before, change.after) == (6, 80, 90)
    assert change.ratio == pytest.approx(0.125)


def test_single_outliers_are_no_change() -> None:
    values = runs(1, 20)
    values[[7, 19]] *= 1.5
    assert changes(values) == []


def test_exact_figures_change_at_once_and_small_changes_are_not_told() -> None:
    assert [change.first for change in changes(np.array([512.0] * 6 + [640.0] * 4))] == [6]
    assert changes(np.array([1000.0] * 6 + [1001.0] * 6)) == []
    assert changes(np.full(20, 512.0)) == []
    assert changes(np.zeros(20)) == []


def test_few_runs_have_no_change() -> None:
    for count in range(2 * FEWEST):
        assert changes(np.array([1.0, 100.0] * FEWEST)[:count]) == []


def test_in_reverse_the_changes_are_the_same() -> None:
    values = runs(3, 30, shift=6, since=12)
    (change,), (reverse,) = changes(values), changes(values[::-1])
    assert (reverse.first, reverse.before, reverse.after) == (30 - change.first, change.after, change.before)


def test_in_another_unit_the_changes_are_the_same() -> None:
    values = runs(3, 30, shift=6, since=12)
    (change,), (scaled,) = changes(values), changes(values * 1e-6)
    assert scaled.first == change.first
    assert scaled.after == pytest.approx(change.after * 1e-6)


def test_qn_is_the_standard_deviation_of_normal_values_and_ignores_outliers() -> None:
    random = np.random.default_rng(1)
    for count in (5, 8, 9, 30):
        assert statistics.fmean(qn(random.normal(0, 3, count)) for _ in range(600)) == pytest.approx(3, rel=0.08)
    assert qn(np.concatenate((random.normal(0, 1, 41)[:30], np.full(11, 1e6)))) < 3


@pytest.mark.parametrize("count", [5, 8, 20])
def test_a_new_run_like_those_before_lies_in_the_interval_at_the_nominal_rate(count: int) -> None:
    outside = []
    for seed in range(400):
        *before, new = runs(seed, count + 1)
        usual = prediction(np.array(before), 0.95)
        outside.append(not usual.low <= new <= usual.high)
    assert 0.015 <= rate(outside) <= 0.08


@pytest.mark.parametrize(("count", "least_rate"), [(5, 0.65), (10, 0.9), (20, 0.95)])
def test_a_run_that_is_five_spreads_slower_is_above_the_interval(count: int, least_rate: float) -> None:
    above = []
    for seed in range(150):
        *before, new = runs(seed, count + 1, shift=5, since=count)
        above.append(new > prediction(np.array(before), 0.95).high)
    assert rate(above) >= least_rate


def test_an_outlier_among_the_runs_does_not_widen_the_interval_much() -> None:
    values = runs(5, 12)
    plain = prediction(values, 0.95)
    values[3] *= 3
    spoilt = prediction(values, 0.95)
    assert spoilt.high - spoilt.low < 1.5 * (plain.high - plain.low)
