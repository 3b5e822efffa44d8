"""Giving memory back waits for the device: by hand, and on real traces."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from augment.diagnosis.waiting import waiting_calls
from augment.facts.critical.critical_path import BoundBy, critical_path
from augment.facts.critical.what_if import saved_ns, without_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Document, load, real_trace, save
from metamorphic import Event as Row
from tables import Event, call, kernel, trace_of

US = 1_000
TRACES = ("mi300_tracelens/ddp_resnet18_no_pool.json.gz", "v100_4rank_pair_torchrec/test/pid45920.pt.trace.json.gz")
FREE = re.compile(r"(cuda|hip)Free")


def freed(begin: int, end: int, name: str = "cudaFree") -> list[Event]:
    """A kernel until 500 µs, the call, and a launch after it."""
    return [
        call("cudaLaunchKernel", 0, 5 * US, correlation=1),
        kernel("gemm", 10 * US, 500 * US, correlation=1),
        call(name, begin * US, end * US),
        call("cudaLaunchKernel", (end + 5) * US, (end + 10) * US, correlation=2),
        kernel("gemm", (end + 12) * US, (end + 20) * US, correlation=2),
    ]


@pytest.mark.parametrize(
    ("begin", "end", "name", "waits"),
    [
        (20, 510, "cudaFree", True),
        (20, 700, "hipFree", True),
        (20, 700, "cudaFreeAsync", False),
        (20, 2000, "cudaFree", False),  # it ended long after the work: it took its own time
        (600, 900, "cudaFree", False),  # nothing was left to wait for
    ],
)
def test_a_call_that_frees_waits_for_the_work_before(begin: int, end: int, name: str, waits: bool) -> None:
    trace = trace_of(*freed(begin, end, name))
    path = critical_path(trace)
    spent = np.bincount(path.bound_by, path.dur, len(BoundBy)) // US
    assert (spent[BoundBy.KERNEL_COMPUTATION] >= 490) == waits
    first = saved_ns(trace, without_work(trace, np.array([0]), np.array([400 * US]))) // US
    assert (first >= 400) == waits
    assert not len(waiting_calls(trace))  # another rule speaks of calls that free


def pending(document: Document) -> list[tuple[Row, Row]]:
    """The calls that free while work runs that had been launched before, each with the last of that work to end."""
    rows = [row for row in document["traceEvents"] if row.get("ph") == "X"]
    calls = {row["args"].get("correlation"): row for row in rows if row.get("cat") in CALLS}
    work = [
        (row["ts"] + row["dur"], calls[row["args"]["correlation"]]["ts"], row)
        for row in rows
        if row.get("cat") in GPU_WORK and row["args"].get("correlation") in calls
    ]
    pairs = []
    for free in (row for row in calls.values() if FREE.fullmatch(row["name"])):
        late = [(end, row) for end, launched, row in work if launched < free["ts"] < end]
        if late:
            pairs.append((free, max(late, key=lambda each: each[0])[1]))
    return pairs


@pytest.mark.parametrize("name", TRACES)
def test_no_call_that_frees_returns_before_the_work_is_done(name: str) -> None:
    """What the rule rests on."""
    pairs = pending(load(real_trace(name)))
    assert pairs
    assert all(work["ts"] + work["dur"] <= free["ts"] + free["dur"] + 2 for free, work in pairs)


@pytest.mark.parametrize("name", TRACES)
def test_work_that_is_made_longer_is_worth_as_much_more(tmp_path: Path, name: str) -> None:
    """Metamorphic: where a call waits to free, all that follows comes later by what the work takes longer."""
    document = load(real_trace(name))
    free, awaited = max(
        (pair for pair in pending(document)),
        key=lambda pair: (pair[1]["ts"] + pair[1]["dur"] - pair[0]["ts"]) / pair[0]["dur"],
    )
    moment, more = awaited["ts"] + awaited["dur"], Decimal(40_000)

    def changed(row: Row) -> Row:
        if "ts" not in row or row.get("ph") == "M":
            return row
        if row["ts"] >= moment:
            return row | {"ts": row["ts"] + more}
        ends_later = row.get("ph") == "X" and (row is awaited or row["ts"] + row["dur"] > moment)
        return row | {"dur": row["dur"] + more} if ends_later else row

    longer = document | {"traceEvents": [changed(row) for row in document["traceEvents"]]}
    saved = []
    for place, each in enumerate((document, longer)):
        trace = read(str(save(each, tmp_path / f"{place}.json")))
        work = gpu_work(trace)
        chosen = np.flatnonzero(trace.events.correlation[work.row] == awaited["args"]["correlation"])
        saved.append(saved_ns(trace, without_work(trace, chosen, work.end[chosen] - work.ts[chosen])))
    assert free["dur"] > 0
    assert saved[1] - saved[0] == pytest.approx(int(more * 1000), rel=0.02)
