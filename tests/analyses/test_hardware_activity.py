"""Samples of hardware counters, by step, family and kernel."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from augment import Findings, Skipped, read
from augment.analyses import hardware_activity
from augment.facts.gpu.hardware_samples import hardware_samples
from tables import rows_of
from traces import Event, kernel, launch, op, step, write_trace

ACTIVE = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"


def sample(name: str, ts: float, value: object, device: int = 0) -> Event:
    """A sample as Kineto writes it."""
    who = {"pid": f"GPU {device} Counters", "tid": 3, "cat": "hardware_counters"}
    return {"ph": "C", "name": name, "ts": ts, "args": {"": value}, **who}


def rows(path: Path, *events: Event) -> dict[tuple[str, str | None, str], tuple[Any, ...]]:
    outcome = hardware_activity.analyze(read(str(write_trace(path, *events))))
    columns = rows_of(outcome, "part", "name", "quantity", "value", "time_ns", "sampled_ratio")
    return {row[:3]: row[3:] for row in columns}


def test_a_kernel_of_two_samples(tmp_path: Path) -> None:
    events = [
        step(0, 0, 10_000), op("aten::mm", 0, 100), launch(ts=1, correlation=1), launch(ts=5, correlation=2),
        kernel("gemm", 1000, 2500, correlation=1), kernel("tiny", 5000, 100, correlation=2),
        *(sample(ACTIVE, 1000 * number, value) for number, value in enumerate((0, 80, 40, 60, 0, 50, 0))),
        *(sample("dram__bytes_read.sum", 1000 * number, 1000 * number) for number in range(7)),
        sample(ACTIVE, 8500, "none"),
    ]  # fmt: skip
    known = rows(tmp_path / "a.json", *events)
    assert known["kernel", "gemm", "sm_active"] == (pytest.approx((0.8 + 0.4 + 0.3) / 2.5), 2_500_000, 1.0)
    assert known["kernel", "gemm", "dram_read"] == (pytest.approx(1000 + 2000 + 1500), 2_500_000, 1.0)
    assert known["family", "gemm", "sm_active"] == (
        pytest.approx(0.6),
        2_500_000,
        pytest.approx(2.5 / 2.6),
    )  # tiny is one, too
    assert known["busy", None, "sm_active"] == (pytest.approx((1.5 + 0.05) / 2.6), 2_600_000, 1.0)
    assert known["step", "0", "sm_active"][1:] == (7_000_000, 0.7)
    assert not any(name == "tiny" for _, name, _ in known)
    outcome = hardware_activity.analyze(read(str(tmp_path / "a.json")))
    assert isinstance(outcome, Findings)
    assert [(each.code, each.count) for each in outcome.diagnostics] == [("shorter_than_samples", 1)]


def test_cycles_need_those_that_elapsed(tmp_path: Path) -> None:
    work = [launch(correlation=1), kernel("gemm", 0, 9000, correlation=1)]
    cycles = [sample("sm__cycles_active.avg", ts, 500) for ts in (0, 1000, 2000)]
    path = write_trace(tmp_path / "a.json", *work, *cycles)
    assert isinstance(hardware_activity.analyze(read(str(path))), Skipped)
    elapsed = [sample("sm__cycles_elapsed.max", ts, 2000) for ts in (0, 1000, 2000)]
    assert rows(tmp_path / "b.json", *work, *cycles, *elapsed)["kernel", "gemm", "sm_active"][0] == 0.25


def test_no_samples(tmp_path: Path) -> None:
    work = [launch(correlation=1), kernel("gemm", 0, 9000, correlation=1)]
    assert isinstance(hardware_activity.analyze(read(str(write_trace(tmp_path / "a.json", *work)))), Skipped)
    other = [sample(ACTIVE, ts, 50, device=3) for ts in (0, 1000)]
    assert isinstance(hardware_activity.analyze(read(str(write_trace(tmp_path / "b.json", *work, *other)))), Skipped)
    for value in (None, "x", [1], {"a": 2}, 1e400):
        trace = read(str(write_trace(tmp_path / "c.json", *work, *(sample(ACTIVE, ts, value) for ts in (0, 1000)))))
        assert not hardware_samples(trace).get(0)


def test_plain_python_agrees(tmp_path: Path) -> None:
    chance = random.Random(7)
    samples = [(1000 * number + chance.randrange(3), chance.randrange(101)) for number in range(60)]
    spans, at = [], 0
    for _ in range(12):
        at += chance.randrange(200, 3000)
        spans.append((at, chance.randrange(2500, 6000)))
        at += spans[-1][1]
    work = [
        each
        for number, (ts, dur) in enumerate(spans)
        for each in (launch(ts=number, dur=0.5, correlation=number), kernel("k", ts, dur, correlation=number))
    ]
    known = rows(tmp_path / "a.json", *work, *(sample(ACTIVE, ts, value) for ts, value in samples))
    whole = time = 0.0
    for place, (ts, value) in enumerate(samples):
        stop = min(ts + 1000, samples[place + 1][0] if place + 1 < len(samples) else ts + 1000)
        for begin, dur in spans:
            shared = max(0, min(stop, begin + dur) - max(ts, begin))
            time, whole = time + shared, whole + shared * value / 100
    assert known["kernel", "k", "sm_active"][0] == pytest.approx(whole / time, rel=1e-3)
