"""Operators that launch nothing, as those that only make views, stall the host: simulated, changed, recorded."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from simulated_jobs import changed

from augment.core.trace import Category
from augment.diagnosis.judging import measure
from augment.diagnosis.rule import NOWHERE, Found
from augment.diagnosis.rules import host_gaps, launch_bound
from augment.readers import read
from metamorphic import CALLS, Document, load, real_trace, save
from said import title_of
from simulator import JobOptions, simulate

FETCH, SPLIT, VIEW = (
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "aten::split_with_sizes",
    "aten::narrow",
)
JOB = changed(ranks=1, steps=4, layers=2, collectives="none", work=0.3, run_ahead=None)


def quiet(options: JobOptions, folder: Path, view_us: int, *, polls: bool) -> Document:
    """The job, but that it splits a tensor in place of fetching a batch: into views of so many µs (0: of none). Or it
    asks as often whether an event has come, in no operator."""
    document = load(simulate(options, folder)[0][0])
    rows, part = [], {"name": "cudaEventQuery", "cat": "cuda_runtime"} if polls else {"name": VIEW, "cat": "cpu_op"}
    for each in document["traceEvents"]:
        if each["name"] != FETCH or not polls:
            rows.append(each | {"name": SPLIT, "cat": "cpu_op"} if each["name"] == FETCH else each)
        if each["name"] == FETCH and view_us:
            at, end = each["ts"] + 3, each["ts"] + each["dur"] - 3
            while at + view_us < end:
                rows.append(each | part | {"ts": at, "dur": Decimal(view_us - 4)})
                at += view_us
    return document | {"traceEvents": rows}


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("stall_us", [6_000.0, 25_000.0])
def test_a_simulated_split_saves_what_it_takes(stall_us: float, polls: bool, tmp_path: Path) -> None:
    """Metamorphic: as much if its views were not recorded, or are longer; and no launching. So do calls that poll."""
    cured = measure(read(str(simulate(JOB, tmp_path / "cured")[0][0]))).length_ns
    for view_us in (0, 40, 400):
        document = quiet(replace(JOB, host_stall_us=stall_us), tmp_path / "job", view_us, polls=polls)
        trace = read(str(save(document, tmp_path / f"{view_us}.json")))
        answer, bound = host_gaps.check(trace), launch_bound.check(trace)
        assert isinstance(answer, Found)
        assert (SPLIT in title_of(answer)) is not polls
        true = 1 - cured / measure(trace).length_ns
        assert measure(trace).ratio(answer.saved_ns or 0) == pytest.approx(true, abs=0.05)
        assert not isinstance(bound, Found) or measure(trace).ratio(bound.saved_ns or 0) < 0.1


@pytest.mark.parametrize("name", [
    "v100_4rank_pair_torchrec/sst_sleep_pl_dense_after_backward_2/pid19490.pt.trace.json.gz",
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "mi300_tracelens/ddp_resnet18_no_pool.json.gz",
])  # fmt: skip
def test_recorded_operators_that_stall_launch_nothing(name: str) -> None:
    """Plainly: no call begins on the thread in a stretch of an operator that is called a stall, for 1 ms and more."""
    path = real_trace(name)
    trace = read(str(path))
    answer = host_gaps.check(trace)
    spans = answer.spans if isinstance(answer, Found) else NOWHERE
    calls = [each for each in load(path)["traceEvents"] if each.get("cat") in CALLS and each.get("ph") == "X"]
    base = int(trace.events.ts[0]) - min(int(each["ts"] * 1000) for each in load(path)["traceEvents"] if "ts" in each)
    begun = [(int(each["ts"] * 1000) + base, str(each["tid"])) for each in calls]
    for start, end, row in zip(spans.start.tolist(), spans.end.tolist(), spans.row.tolist(), strict=True):
        if row >= 0 and trace.events.category[row] == Category.CPU_OP:
            thread = str(trace.tracks[trace.events.track[row]].tid)
            assert not [ts for ts, of in begun if of == thread and start < ts < end]
