"""The gate's decisions, its limits, and what it writes for other programs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from augment.compare.compared_steps import outlying_first_step, without_outlying_first_step
from augment.compare.gate import GateLimits, Limit, Line, check, junit, limit_of, limits_of, markdown, text_of
from augment.errors import UsageError
from augment.results.recordings import Recording, judged
from benchmarks import gate_power


def samples(**columns: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(values, np.float64) for name, values in columns.items()}


def line(name: str, lines: list[Line]) -> Line:
    (rows,) = [line for line in lines if line.figure.name == name]
    return rows


STEADY = samples(wall_ns=[1000, 1010, 990, 1005], host_wait_ns=[10, 11, 9, 10], overlap_ratio=[0.8, 0.81, 0.79, 0.8])
PARTS = GateLimits(parts=True)


def test_beyond_the_noise_and_the_limit() -> None:
    worse = samples(wall_ns=[1100, 1110, 1090, 1105])
    result = line("wall_ns", check(STEADY, worse))
    assert result.status == "fail"
    assert 0 < result.low < 100 < result.high
    assert line("wall_ns", check(worse, STEADY)).status == "pass"
    assert line("wall_ns", check(worse, STEADY)).reason == "better beyond the noise"


def test_where_the_interval_is_too_wide_nothing_is_told() -> None:
    wild = samples(wall_ns=[1000, 2000, 500, 1400])
    result = line("wall_ns", check(STEADY, wild))
    assert result.status == "uncertain"
    said = re.fullmatch(r"cannot tell 5 %: noise ± (\d+) %; record (\d+) more steps on each side", result.reason)
    assert int(said[1]) == pytest.approx((result.high - result.low) / 2 / 10.0125, rel=0.05)
    assert 100 < int(said[2]) < 5000
    assert line("wall_ns", check(STEADY, wild, GateLimits(Limit(share=9.0)))).status == "pass", "within such a limit"
    least = check(STEADY, samples(wall_ns=[1000, 1040, 980, 1060]), GateLimits(Limit(share=0.04)))
    assert line("wall_ns", least).reason.startswith("cannot tell 4 %: noise ± ")


def test_steps_that_are_alike_are_compared_in_pairs() -> None:
    """Each step about 10 % longer, the longest more; steps differ by a factor of three."""
    control, test = samples(wall_ns=[3000, 1000, 1100]), samples(wall_ns=[3360, 1100, 1199])
    result = line("wall_ns", check(control, test))
    assert (result.status, result.paired, result.confidence) == ("fail", True, 0.95)
    assert text_of(result).startswith("wall_ns: mean 1.700 µs → 1.886 µs, +11.0 % (with noise +")
    shuffled = line("wall_ns", check(control, samples(wall_ns=[1100, 1199, 3360])))
    assert (shuffled.status, shuffled.paired) == ("uncertain", False)


def test_equal_steps_pass() -> None:
    for steps in ([1000.0, 1000.0], [3000.0, 1000.0, 1100.0], [1000.0]):
        same = samples(wall_ns=steps)
        assert line("wall_ns", check(same, same)).status == "pass"


def test_an_outlying_first_step_is_told() -> None:
    slow, steady = samples(wall_ns=[3000, 1000, 1010, 990, 1005]), samples(wall_ns=[1001, 1000, 1010, 990, 1005])
    assert outlying_first_step(steady, steady) == ""
    said = outlying_first_step(slow, steady)
    assert said == (
        "the first step is an outlier and left out on both sides: in the control it takes 3.000 µs, the median 1.005 µs"
    )
    assert "in the test it takes" in outlying_first_step(steady, slow)
    assert outlying_first_step(slow, samples(wall_ns=[1000, 1001])) == "", "too few would be left"
    assert outlying_first_step(samples(wall_ns=[3000, 1000, 1001]), STEADY) == "", "of three none is an outlier"
    three = samples(wall_ns=[3000, 1000, 1001])
    assert "in the test it takes" in outlying_first_step(STEADY, three, (True, False)), "it warms up"
    assert outlying_first_step(STEADY, samples(wall_ns=[1100, 1000, 1001]), (True, False)) == "", "but is as long"
    left = without_outlying_first_step(slow, steady)
    assert [side["wall_ns"].tolist() for side in left[:2]] == [[1000, 1010, 990, 1005]] * 2


@pytest.mark.parametrize("kind", list(gate_power.KINDS))
def test_error_rates(kind: str) -> None:
    """Of fixed seeds; benchmarks/gate_power.py counts more, for docs/diff.md."""
    equal = gate_power.rates(kind, steps=4, draws=60, jitter=0.01)
    slow = gate_power.rates(kind, steps=4, draws=60, jitter=0.01, slower=0.1, which=2)
    assert equal["fail"] <= 2
    assert slow["pass"] <= 4
    assert sum(slow.values()) == 60
    if kind not in ("heavy-tailed", "outliers"):
        assert slow["fail"] > 45


@pytest.mark.parametrize("kind", list(gate_power.KINDS))
def test_the_limit_holds(kind: str) -> None:
    """Ten steps that jitter by 2 %: what is slower by 3 % passes a limit of 5 %, what is slower by 8 % does not."""
    below = gate_power.rates(kind, steps=10, draws=60, jitter=0.02, slower=0.03)
    above = gate_power.rates(kind, steps=10, draws=60, jitter=0.02, slower=0.08, which=2)
    assert below["fail"] <= 5
    assert above["pass"] <= 2
    assert above["fail"] >= 50


def test_an_outlier_in_twenty_steps_leaves_runs_equal() -> None:
    """But for runs with two or more in one of the sides, of which some cannot be told."""
    rates = gate_power.rates("outliers", steps=10, draws=100, jitter=0.02)
    assert rates["fail"] == 0
    assert rates["pass"] >= 85
    for place in range(10):
        steps = samples(wall_ns=[1000, 1010, 990, 1005, 995, 1002, 1008, 992, 998, 1000])
        disturbed = {"wall_ns": np.where(np.arange(10) == place, 3000.0, steps["wall_ns"])}
        result = line("wall_ns", check(steps, disturbed))
        assert (result.status, result.trimmed) == ("pass", True)
        assert result.change == pytest.approx(0, abs=5)
        assert line("wall_ns", check(disturbed, steps)).status == "pass"


@pytest.mark.parametrize(("every", "steps", "status"), [(5, 10, "uncertain"), (5, 40, "fail"), (10, 100, "fail")])
def test_stalls_that_come_again_are_no_outliers(every: int, steps: int, status: str) -> None:
    """A step that takes twice as long in every fifth or tenth, of the test alone."""
    random = np.random.default_rng(1)
    control, test = (1000 * np.exp(random.normal(0, 0.02, steps)) for _ in range(2))
    test[::every] *= 2
    result = line("wall_ns", check({"wall_ns": control}, {"wall_ns": test}))
    assert (result.status, "long steps" in result.reason, result.trimmed) == (status, True, False)
    assert result.test == test.mean(), "the figures are those that decide"
    assert line("wall_ns", check({"wall_ns": test}, {"wall_ns": control})).status == "pass"


def test_certain_but_small() -> None:
    slightly = samples(wall_ns=[1020, 1021, 1019, 1020])
    exact = samples(wall_ns=[1000, 1001, 999, 1000])
    result = line("wall_ns", check(exact, slightly))
    assert (result.status, result.reason) == ("pass", "worse, but by less than the limit")
    assert line("wall_ns", check(exact, slightly, GateLimits(Limit(share=0.02)))).status == "fail"


def test_parts_of_the_step_explain_and_fail_on_request_alone() -> None:
    worse = {"wall_ns": STEADY["wall_ns"] - 40, "host_wait_ns": STEADY["host_wait_ns"] * 10}
    lines = check(STEADY, worse)
    assert [line.status for line in lines] == ["pass", "skipped", "info"]
    expected = "host_wait_ns: 10 ns → 100 ns, +90 ns; a part of the step, which changed by -40 ns"
    assert text_of(line("host_wait_ns", lines)) == expected
    for asked in (GateLimits(parts=True), limits_of({}, metrics={"host_wait_ns": ""}), limits_of({"parts": True})):
        assert line("host_wait_ns", check(STEADY, worse, asked)).status == "fail"


def test_a_part_that_is_small_beside_the_step_fails_nothing() -> None:
    doubled = {**STEADY, "host_wait_ns": np.array([16.0, 17, 15, 16])}
    result = line("host_wait_ns", check(STEADY, doubled, PARTS))
    assert (result.status, result.reason) == ("pass", "grew by less than 1 % of the step")
    assert all(each.figure.name != "host_wait_ns" for each in check(STEADY, doubled)), "it explains nothing"
    tenfold = {**STEADY, "host_wait_ns": np.array([100.0, 110, 90, 100])}
    assert line("host_wait_ns", check(STEADY, tenfold, PARTS)).status == "fail"


def test_a_figure_of_which_more_is_better() -> None:
    less = {**STEADY, "overlap_ratio": np.array([0.6, 0.61, 0.59, 0.6])}
    assert line("overlap_ratio", check(STEADY, less, PARTS)).status == "fail"
    assert line("overlap_ratio", check(less, STEADY, PARTS)).status == "pass"


def test_one_step_a_side() -> None:
    first, other = samples(wall_ns=[1000]), samples(wall_ns=[1051])
    result = line("wall_ns", check(first, other))
    assert result.status == "fail"
    assert result.low is None
    assert result.reason == "beyond the limit; one step each: judged by the limit alone, no interval"
    two = line("wall_ns", check(first, samples(wall_ns=[1051, 1052])))
    assert two.reason == "beyond the limit; one step on a side: judged by the limit alone, no interval"
    assert line("wall_ns", check(first, samples(wall_ns=[1050]))).status == "pass"


def test_bounds() -> None:
    limits = GateLimits(figures={"wall_ns": limit_of("1us"), "overlap_ratio": limit_of("0.9"), "host_wait_ns": None})
    lines = check(STEADY, STEADY, limits)
    assert line("wall_ns", lines).status == "fail", "1001.25 ns"
    assert line("overlap_ratio", lines).status == "fail", "at least"
    assert "host_wait_ns" not in [line.figure.name for line in lines]
    alone = check({}, STEADY, limits)
    assert line("wall_ns", alone).status == "fail", "a bound needs no baseline"
    assert line("memory_peak_bytes", alone).reason == "not recorded in the baseline and the test"


@pytest.mark.parametrize(
    ("text", "limit"),
    [("5%", Limit(share=0.05)), ("0.5 %", Limit(share=0.005)), ("80ms", Limit(bound=80e6)), ("40GB", Limit(bound=40e9)),
     ("2GiB", Limit(bound=2**31)), ("0.8", Limit(bound=0.8)), ("1e6", Limit(bound=1e6))],
)  # fmt: skip
def test_limits(text: str, limit: Limit) -> None:
    result = limit_of(text)
    assert result.share == (None if limit.share is None else pytest.approx(limit.share))
    assert result.bound == limit.bound


@pytest.mark.parametrize("text", ["", "5 percent", "ms", "-3%", "1.2.3%", "5%%"])
def test_no_limits(text: str) -> None:
    with pytest.raises(UsageError, match="is not a limit"):
        limit_of(text)


def test_where_a_comparison_takes_other_steps_the_gate_says_so() -> None:
    def notes(control: list[float], test: list[float]) -> list[str]:
        sides = [Recording(samples(wall_ns=steps), {}, (), in_steps=True) for steps in (control, test)]
        return judged(sides[0], sides[1], ("a", "b"), GateLimits())[1]

    (said,) = notes([1000, 1010, 990, 1005, 1600], [1200, 1210, 1190, 1205, 1195])
    assert "differ by +79 ns, within the noise" in said
    assert notes([3000, 1000, 1100], [1010, 1000, 1020])[0].startswith("a: a step takes 3.00 µs, the median 1.10 µs")


def test_configuration() -> None:
    config = {"max_regress": "3%", "alpha": 0.01, "metrics": {"wall_ns": "2%", "work_count": "10%", "idle_ns": False}}
    limits = limits_of(config, metrics={"wall_ns": "1%"})
    assert limits.max_regress.share == pytest.approx(0.03)
    assert limits.alpha == 0.01
    assert limits.figures["wall_ns"] == Limit(share=0.01)
    assert limits.figures["idle_ns"] is None
    assert limits_of(config, max_regress="7%").max_regress.share == pytest.approx(0.07)
    for wrong in ({"max_regres": "3%"}, {"metrics": {"steps": "3%"}}, {"alpha": 2.0}, {"max_regress": "3ms"}):
        with pytest.raises(UsageError):
            limits_of(wrong)


def test_what_is_written() -> None:
    lines = check(STEADY, samples(wall_ns=[1100, 1110, 1090, 1105], overlap_ratio=[0.5, 0.51, 0.49, 0.5]))
    table = markdown(lines, "main", "branch <1>")
    assert table.splitlines()[0] == "### branch <1> against main: 1 of 2 figures regressed"
    assert sum(row.startswith("| ❌") for row in table.splitlines()) == 1
    assert all(row.count("|") == 9 for row in table.splitlines()[2:])
    suite = ET.fromstring(junit(lines, "main", "branch <1>"))
    assert suite.attrib == {"name": "branch <1> against main", "tests": "2", "failures": "1", "skipped": "1"}
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["wall_ns"]
    said = text_of(line("wall_ns", lines))
    assert said.startswith("wall_ns: mean 1.001 µs → 1.101 µs, +10.0 % (with noise +")
    assert "%: 95 % confidence interval, pairs of steps); limit 5 %; worse by more than the limit" in said
    assert text_of(line("overlap_ratio", lines)) == "overlap_ratio: 80.0 % → 50.0 %, -30.0 points; not gated"
    unsure = check(STEADY, samples(wall_ns=[1000, 2000, 500, 1400]))
    assert markdown(unsure, "main", "branch", ["few"]).splitlines()[0].endswith("cannot tell for 1 of 2 figures")
    assert markdown(unsure, "main", "branch", ["few"]).endswith("\n⚠️ few\n")
    assert 'skipped="2"' in junit(unsure, "main", "branch")
