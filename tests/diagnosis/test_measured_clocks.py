"""The rule on dropping clocks where telemetry measured them: confirmed, denied, or not known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from simulated_jobs import changed, trace_of

import tables
from augment.core.records import Samples, Telemetry
from augment.core.text import Words
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import clock_drop
from tables import annotation, call, launched_kernel

SLOWER = changed(steps=9, run_ahead=None, collectives="none", step_drift=0.02)


@pytest.mark.parametrize(
    ("slow", "thirds", "is_found"),
    [("4567", 4, True), ("012", 4, True), ("6", 4, False), ("234", 4, False), ("67", 0, False), ("01", 0, False)],
)
def test_a_clock_that_changes_at_once(slow: str, thirds: int, is_found: bool) -> None:
    events, at = [], 0
    for number in range(40):
        begin, took = at + 600, (100_000 + number % 7 * 150) * (thirds if str(number // 5) in slow else 3) // 3
        at = begin + 5_000 + took
        ran = launched_kernel(f"gemm{number % 5}", (begin, begin + 4_000), (at - took, at), correlation=number + 1)
        events += [*ran, call("cudaDeviceSynchronize", begin + 4_500, at + 500)]
    begins = [each.ts for each in events if each.correlation > 0 and each.correlation % 5 == 1][::2]
    events += [annotation(f"ProfilerStep#{step}", *each) for step, each in enumerate(pairwise([*begins, at + 900]))]
    assert isinstance(clock_drop.check(tables.trace_of(*events)), Found) == is_found


@pytest.mark.parametrize(("last_mhz", "period_ns", "confidence", "says"), [
    (1410.0, 10**5, "high", "telemetry says so: the clock was"),
    (1980.0, 10**5, "low", "telemetry says otherwise: the clock was 1,980 MHz in the first steps and 1,980 MHz in"),
    (1410.0, 10**9, "medium", ""),  # too few samples
])  # fmt: skip
def test_the_measured_clock(last_mhz: float, period_ns: int, confidence: str, says: str) -> None:
    trace = trace_of(SLOWER)
    ts = np.arange(int(trace.events.ts[0]), int(trace.events.end.max()), period_ns, dtype=np.int64)
    clock = Samples("0", "sm_clock", "MHz", ts, np.linspace(1980.0, last_mhz, len(ts)))
    answer = clock_drop.check(trace.changed(Telemetry("smi.csv", (clock,))))
    assert isinstance(answer, Found)
    assert answer.confidence == confidence
    assert says in "".join(answer.seen.evidence(Words()))
    assert bool(says) == bool(answer.seen.evidence(Words()))
