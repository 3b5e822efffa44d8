"""Our Student's distribution is SciPy's, and noise is called noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from augment.comparison.noise import Noise, corrected, noise_of, quantile_of_student, tail_of_student


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3.7, 10, 200, 10_000])
def test_student_as_scipy_has_it(freedom: float) -> None:
    for t in (0, 1e-3, 0.1, 1, 2.5, 7, 40, 1e4):
        assert tail_of_student(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-10, abs=1e-300)
    for probability in (0.6, 0.9, 0.975, 0.999):
        expected = stats.t.ppf(probability, freedom)
        assert quantile_of_student(probability, freedom) == pytest.approx(expected, rel=1e-10)


def test_welch_as_scipy_has_it() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        control = rng.normal(100, 5, rng.integers(2, 12))
        test = rng.normal(103, 9, rng.integers(2, 12))
        noise = noise_of(control, test)
        expected = stats.ttest_ind(test, control, equal_var=False)
        interval = expected.confidence_interval(0.95)
        assert noise is not None
        assert noise.p == pytest.approx(expected.pvalue, rel=1e-9)
        assert (noise.low, noise.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        delta = test.mean() - control.mean()
        assert noise.bootstrap_low <= delta <= noise.bootstrap_high
        assert noise == noise_of(control, test), "the same samples, the same interval"


def test_one_step_a_side_has_no_noise() -> None:
    assert noise_of(np.array([1.0]), np.array([2.0, 3.0])) is None


def test_counts_that_never_vary() -> None:
    same, other = np.full(4, 17.0), np.full(4, 18.0)
    assert noise_of(same, same) == Noise(1.0, 0.0, 0.0, 0.0, 0.0)
    certain = noise_of(same, other)
    assert certain is not None
    assert certain.p == 0.0


def test_holm() -> None:
    assert corrected([0.01, 0.04, None, 0.03, 0.005]) == [0.03, 0.06, None, 0.06, 0.02]
