"""Recordings without a device: where the host's time goes, also outside of operators."""

from __future__ import annotations

import re

import pytest

from augment.core.trace import Category, Track
from augment.diagnosis.verdict import verdict
from augment.readers import read
from metamorphic import load, real_trace
from tables import Event, annotation, op, trace_of

MS = 1_000_000
STEP = annotation("ProfilerStep#0", 0, 100 * MS)


def frame(name: str, start: int, end: int) -> Event:
    return Event(Category.PYTHON_FUNCTION, name, start, end, Track(0, 100, 1))


def test_time_outside_of_operators_counts() -> None:
    few = op("aten::mm", 0, 14 * MS)
    (named,) = verdict(trace_of(STEP, few, frame("<built-in function collect>", 15 * MS, 97 * MS)))[:1]
    assert "For 86 % of a step of 100 ms no thread runs an operator" in named
    assert "95 % in <built-in function collect>" in named
    assert named.index("collect") < named.index("aten::mm")
    (unknown,) = verdict(trace_of(STEP, few))[:1]
    assert "For 86 %" in unknown
    assert "waits for a lock or another thread, was not recorded" in unknown
    (elsewhere,) = verdict(trace_of(STEP, few, op("aten::mul", 10 * MS, 98 * MS, thread=2)))[:1]
    assert "no thread runs an operator" not in elsewhere
    (healthy,) = verdict(trace_of(STEP, op("aten::mm", 0, 95 * MS)))[:1]
    assert healthy.endswith("It spends 100 % in aten::mm of 95 ms in operators.")


@pytest.mark.parametrize(
    "name", ["hta_cpu_only/rank-34_of_300_cpu_only.pt.trace.json.gz", "hta_rank_missing/rank_non_gpu.json.gz"]
)
def test_recorded_time_outside_of_operators(name: str) -> None:
    """Plainly: the part of the steps in which no event of the category cpu_op lasts."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    steps = [each for each in rows if each["name"].startswith("ProfilerStep#")]
    operators = sorted((each["ts"], each["ts"] + each["dur"]) for each in rows if each.get("cat") == "cpu_op")
    inside = whole = 0.0
    for step in steps:
        reached, end = float(step["ts"]), float(step["ts"] + step["dur"])
        whole += end - reached
        for start, stop in operators:
            if min(stop, end) > max(start, reached):
                inside += min(float(stop), end) - max(float(start), reached)
                reached = min(float(stop), end)
    said = re.search(r"For (\d+) % of a step", verdict(read(str(path)))[0])
    assert said
    assert int(said[1]) == round(100 * (1 - inside / whole))
