"""Collections of Python's garbage, as slices over the pauses of a simulated host."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_jobs import POINTS, changed, trace_of

from augment.diagnosis.judging import measure
from augment.diagnosis.rule import Found, NotApplicable
from augment.diagnosis.rules import garbage_collection, host_gaps
from augment.facts.critical.handovers import main_track
from augment.readers import read
from metamorphic import load, save
from said import problem_of, title_of
from simulator import simulate

JOB = {"work": 0.4, "collectives": "none"}
FAULTY = changed(faults=("pauses",), **JOB)


@pytest.mark.parametrize("name", ["Python GC", "GC", "<built-in function collect>", "train.py(3): gc.collect"])
def test_collections_are_named_and_predicted(name: str, tmp_path: Path) -> None:
    """The saving is that of the job without pauses; a slice within a slice does not count twice."""
    bare = trace_of(FAULTY)
    assert isinstance(garbage_collection.check(bare), NotApplicable)
    pauses = problem_of(host_gaps.check(bare))
    thread = bare.tracks[main_track(bare)]
    place = {"ph": "X", "cat": "python_function", "name": name, "pid": thread.pid, "tid": thread.tid}
    base = bare.source.base_ns
    spans = [*zip(pauses.spans.start.tolist(), pauses.spans.end.tolist(), strict=True)]
    ((path, _),) = simulate(FAULTY, tmp_path)
    document = load(path)
    document["traceEvents"] += [
        place | {"ts": (start - base + shift) / 1000, "dur": (end - start - 2 * shift) / 1000}
        for start, end in spans
        for shift in (0, 1000)
    ]
    trace = read(str(save(document, tmp_path / "gc.json")))
    answer = problem_of(garbage_collection.check(trace))
    assert title_of(answer).startswith("Python collects garbage 1 time per step, for up to 6.")
    assert answer.saved_ns is not None
    assert not isinstance(host_gaps.check(trace), Found), "a collection is told once"
    true = 1 - measure(trace_of(changed(**JOB))).length_ns / measure(bare).length_ns
    assert abs(measure(trace).ratio(answer.saved_ns) - true) < POINTS
