"""Our Student's distribution is SciPy's, and noise is called noise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy  # which loads scipy.stats where it is used

from augment import diff, read
from augment.compare.gate import check
from augment.compare.noise import (
    Noise,
    chance_of,
    corrected,
    hidden_by_outliers,
    interval_of,
    noise_of,
    quantile_of_student,
    steps_lacking,
    tail_of_fisher,
    tail_of_student,
)
from augment.compare.outputs import document
from augment.results.report.of_diff import figures
from augment.writers.metrics import encode
from diffs import rows
from simulator import JobOptions, simulate


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3.7, 10, 200, 10_000])
def test_student_as_scipy_has_it(freedom: float) -> None:
    for t in (0, 1e-3, 0.1, 1, 2.5, 7, 40, 1e4):
        assert tail_of_student(t, freedom) == pytest.approx(scipy.stats.t.sf(t, freedom), rel=1e-10, abs=1e-300)
    for probability in (0.6, 0.9, 0.975, 0.999):
        expected = scipy.stats.t.ppf(probability, freedom)
        assert quantile_of_student(probability, freedom) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 200])
def test_fisher_as_scipy_has_it(freedom: int) -> None:
    for f in (0.1, 1, 2.5, 19, 161.4, 1e4):
        assert tail_of_fisher(f, freedom) == pytest.approx(scipy.stats.f.sf(f, freedom, freedom), rel=1e-9, abs=1e-300)


def in_unit(control: np.ndarray, ends: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(control.mean() * np.expm1(end)) for end in ends)
    return low, high


def test_independent_samples_as_scipy_has_them() -> None:
    """Welch's test of the logarithms; in the unit, of the control's mean."""
    rng = np.random.default_rng(3)
    independent = 0
    for _ in range(50):
        control = rng.normal(100, 5, rng.integers(2, 12))
        test = rng.normal(103, 9, rng.integers(2, 12))
        noise = noise_of(control, test)
        assert noise == noise_of(control, test), "the same samples, the same interval"
        assert noise.bootstrap_low <= noise.delta <= noise.bootstrap_high
        if noise.paired:
            continue
        independent += 1
        expected = scipy.stats.ttest_ind(np.log(test), np.log(control), equal_var=False)
        interval = expected.confidence_interval(0.95)
        assert noise.p == pytest.approx(expected.pvalue, rel=1e-9)
        assert (noise.low, noise.high) == pytest.approx(in_unit(control, interval), rel=1e-9)
    assert independent > 40


def test_pairs_as_scipy_has_them() -> None:
    rng = np.random.default_rng(4)
    for count in (3, 4, 6, 10):
        common = rng.lognormal(10, 0.5, count)
        control, test = (common * rng.lognormal(0, 0.01, count) for _ in range(2))
        noise = noise_of(control, test)
        expected = scipy.stats.ttest_rel(np.log(test), np.log(control))
        assert noise.paired
        assert noise.p == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert (noise.low, noise.high) == pytest.approx(in_unit(control, interval), rel=1e-9)
        assert noise.bootstrap_low <= noise.delta <= noise.bootstrap_high


def test_trimmed_means_as_scipy_has_them() -> None:
    """Yuen's test of independent samples; of pairs its counterpart for one sample."""
    rng = np.random.default_rng(6)
    kinds = set()
    for count in (3, 5, 9, 10, 20):
        for common in (0.0, 0.5):
            shared = rng.normal(0, common, count)
            control, test = (100 * np.exp(shared + rng.normal(0, 0.02, count)) for _ in range(2))
            test[0] *= 2
            noise = noise_of(control, test, trim=0.2)
            kinds.add(noise.paired)
            if noise.paired:
                apart = np.log(test) - np.log(control)
                kept = count - 2 * int(0.2 * count)
                pulled_in = scipy.stats.mstats.winsorize(apart, (0.2, 0.2)).std(ddof=1)
                error = pulled_in * ((count - 1) / (kept * (kept - 1))) ** 0.5
                low, high = scipy.stats.t.interval(0.95, kept - 1, scipy.stats.trim_mean(apart, 0.2), error)
            else:
                expected = scipy.stats.ttest_ind(np.log(test), np.log(control), equal_var=False, trim=0.2)
                assert noise.p == pytest.approx(expected.pvalue, rel=1e-9)
                low, high = expected.confidence_interval(0.95)
            unit = scipy.stats.trim_mean(control, 0.2)
            assert (noise.low, noise.high) == pytest.approx((unit * np.expm1(low), unit * np.expm1(high)), rel=1e-9)
    assert kinds == {True, False}


def test_what_is_not_positive_is_compared_as_it_is() -> None:
    control, test = np.array([0.0, 10, 30, 5]), np.array([1.0, 12, 31, 7])
    noise = noise_of(control, test)
    expected = scipy.stats.ttest_rel(test, control)
    assert noise.paired
    assert noise.delta == pytest.approx(1.5)
    assert (noise.low, noise.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-9)


def test_torchrec_by_its_pairs() -> None:
    """Three steps of a real job on four V100, the first of which loads; and with the cause of the difference."""
    noise = noise_of(np.array([390.1, 145.1, 144.2]), np.array([418.9, 155.7, 157.0]))
    assert noise.paired
    assert noise.low > 0


def test_how_many_steps_are_lacking() -> None:
    rng = np.random.default_rng(5)
    control, test = rng.lognormal(5, 0.06, 4), rng.lognormal(5, 0.06, 4)
    lacking = steps_lacking(control, test, 0.05 * float(control.mean()), 0.95)
    spread = [np.log(side).std(ddof=1) for side in (control, test)]
    expected = next(
        n
        for n in range(5, 500)
        if 2 * scipy.stats.t.ppf(0.975, 1.5 * (n - 1)) * np.hypot(*spread) / n**0.5 < np.log(1.05)
    )
    assert 4 + lacking == pytest.approx(expected, rel=0.2)
    assert steps_lacking(control[:1], test, 1.0, 0.95) is None
    assert steps_lacking(control, test, 0.0, 0.95) is None
    wild = np.array([1.0, 1e6]), np.array([1e6, 1.0])
    assert steps_lacking(*wild, 1e-3, 0.95) is None, "more than anybody records"


def test_one_step_a_side_has_no_noise() -> None:
    assert noise_of(np.array([1.0]), np.array([2.0, 3.0])) is None


def test_counts_that_never_vary() -> None:
    same, other = np.full(4, 17.0), np.full(4, 18.0)
    assert noise_of(same, same) == Noise(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, paired=False)
    assert chance_of(same, same) == 1.0
    assert noise_of(same, other).p == 0.0


def test_holm() -> None:
    assert corrected([0.01, 0.04, None, 0.03, 0.005]) == [0.03, 0.06, None, 0.06, 0.02]


def test_a_single_long_step_hides_no_difference() -> None:
    """Of recorded steps: one of the test is as long as its first, which warms up."""
    control, test = np.array([149.6, 149.8, 149.5, 154.3, 154.5]), np.array([126.2, 127.2, 123.1, 163.5, 124.2])
    robust = hidden_by_outliers(control, test)
    assert robust.low < robust.delta < robust.high < 0
    assert hidden_by_outliers(control, np.where(test > 160, 126.0, test)) is None  # the means say so
    assert hidden_by_outliers(control, control[::-1]) is None


def test_two_steps_a_side_have_no_interval() -> None:
    """Of a real job on V100: Student's t of one degree of freedom reaches from -0.2 to +88 s."""
    control, test = np.array([156.0, 156.7]), np.array([408.0, 128.2])
    assert noise_of(control, test).high > 100 * test.max()
    assert interval_of(control, test) is None
    assert chance_of(control, test) is None
    waits = np.array([0.2, 16.4, 0.1]), np.array([30.0, 0.1, 280.0])
    assert noise_of(*waits).high > 10 * waits[1].mean()
    assert interval_of(*waits) is None, "three that vary thousandfold are too few, too"


def test_an_interval_is_of_the_difference_that_is_printed() -> None:
    """Of recorded steps: logarithms would put the first about another number, the second beside it."""
    exposed = np.array([2161.5, 4383.6, 2733.1, 3685.6]), np.array([2688.5, 3340.8, 2122.1, 3916.1])
    noise, delta = interval_of(*exposed), float(exposed[1].mean() - exposed[0].mean())
    assert (noise.delta, (noise.low + noise.high) / 2) == pytest.approx((delta, delta))
    irregular = np.array([2.5, 210.4, 2.4, 210.0]), np.array([1.3, 1.2, 1.2, 1.2])
    assert interval_of(*irregular) is None


def test_too_few_steps_are_said(tmp_path: Path) -> None:
    job = JobOptions(ranks=1, steps=2, collectives="none", jitter=0.05)
    sides = simulate(job, tmp_path / "control"), simulate(replace(job, seed=1, work=1.5), tmp_path / "test")
    result = diff(*(read(str(path)) for ((path, _),) in sides))
    (first, *_) = result.verdict.text
    assert first.endswith(
        "slower; whether beyond noise cannot be told from 2 steps on each side: too few for an interval."
    )
    assert {(row.low, row.p, row.verdict) for row in rows(result, "diff_figures")} == {(None, None, "unknown")}
    assert "ns, too few steps" in str(figures(json.loads(encode(document(result)))).charts[0])


def test_the_gate_has_no_interval_of_two_steps() -> None:
    (wall, *_) = check({"wall_ns": np.array([156.0, 156.7])}, {"wall_ns": np.array([408.0, 128.2])})
    assert (wall.status, wall.low) == ("uncertain", None)
    assert wall.reason == "beyond the limit; two steps per side are too few for an interval, so the noise is unknown"
    (wall, *_) = check({"wall_ns": np.array([156.0, 156.7])}, {"wall_ns": np.array([188.0, 188.2])})
    assert (wall.status, wall.low) == ("uncertain", None), "as augment diff has it"
    (wall, *_) = check({"wall_ns": np.array([156.0, 156.7])}, {"wall_ns": np.array([158.0, 158.2])})
    assert (wall.status, wall.low) == ("pass", None)
