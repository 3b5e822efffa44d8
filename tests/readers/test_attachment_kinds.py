"""The registry of what is recorded beside a trace: recognised by its bytes, found beside it, refused by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import augment
from augment.core.attachment_kinds import KINDS, kind_of
from augment.errors import UnknownFormat
from augment.facts.source.recorded_times import apart, period
from augment.readers import read
from augment.readers.attachments import with_execution_trace, with_graph_capture, with_memory_timeline
from execution_traces import write_execution_trace
from memory_timelines import write_memory_timeline
from tables import annotation, trace_of
from traces import op, write_trace


def test_each_kind_has_an_option_and_a_function() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        attaching = getattr(augment, f"with_{kind.name}")
        assert (attaching.__name__, kind.what in attaching.__doc__) == (f"with_{kind.name}", True)


def test_a_file_of_a_kind_is_known_by_its_bytes(tmp_path: Path) -> None:
    nodes = write_execution_trace(tmp_path / "a.json.gz", {"schema": "1.0.1", "pid": 7, "nodes": []})
    memory = write_memory_timeline(tmp_path / "any.name", [[-1, 1, 100, 0]])
    trace = read(str(write_trace(tmp_path / "b.json", op("aten::mm"))))
    for path, option in ((nodes, "--execution-trace"), (memory, "--memory-timeline")):
        with pytest.raises(UnknownFormat, match=rf"name it beside its trace: augment run TRACE {option} FILE$"):
            read(str(path))
    with pytest.raises(UnknownFormat, match=r"any.name: a memory timeline, not an execution trace"):
        with_execution_trace(trace, memory)
    with pytest.raises(UnknownFormat, match=r"an execution trace, not a memory timeline; name it with --execution-"):
        with_memory_timeline(trace, nodes)
    with pytest.raises(UnknownFormat, match=r"a memory timeline; name it beside its trace"):
        with_graph_capture(trace, memory)
    assert kind_of(json.dumps({"schemaVersion": 1, "nodes": [], "traceEvents": []}).encode()) is None


def test_what_does_not_overlap_is_told_with_both_periods() -> None:
    day = 1_700_000_000 * 10**9
    trace = trace_of(annotation("step", day, day + 2 * 10**9))
    assert apart(trace, day - 10**9, day, "the snapshot") == ""
    assert apart(trace_of(), 0, 1, "the snapshot") == ""
    sentence = apart(trace, day + 90_000 * 10**9, day + 90_001 * 10**9, "the snapshot")
    assert sentence == (
        "the snapshot covers 2023-11-15 23:13:20.000 to 23:13:21.000 UTC, "
        "the trace 2023-11-14 22:13:20.000 to 22:13:22.000 UTC: they do not overlap"
    )
    assert "do not count from 1970" in apart(trace, -5, 7, "the snapshot")
    assert re.fullmatch(r"-\d+ ns to \S+ ns UTC", period(-(10**30), 10**30))
