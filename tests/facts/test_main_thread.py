"""Which thread drives a recording: by hand, and on real traces by what the file says of steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from augment.core.trace import Trace
from augment.facts.critical.critical_path import critical_path
from augment.facts.critical.handovers import main_track
from augment.readers import read
from metamorphic import load, real_trace, save
from tables import annotation, call, kernel, op, trace_of

MAIN, BACKWARD, WATCHDOG = 1, 2, 3
STEPPED = (
    "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
    "v100_4rank_pair_torchrec/test/pid45921.pt.trace.json.gz",
    "hta_trace_diff_pair/control.json.gz",
    "h100_8rank_modded_nanogpt/rank0.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
)
BACKWARDS = "autograd::engine::evaluate_function: "


def thread_of(trace: Trace) -> object:
    return trace.tracks[main_track(trace)].tid


def test_a_thread_with_steps_drives_although_it_executes_some_of_backward() -> None:
    """Autograd executes what is on the CPU on the thread that called it. Another thread asks every so often whether
    collectives are done."""
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 900, thread=MAIN),
        op("aten::mm", 10, 60, thread=MAIN),
        call("cudaLaunchKernel", 20, 30, thread=MAIN, correlation=1),
        kernel("gemm", 40, 90, correlation=1),
        op(f"{BACKWARDS}torch::autograd::AccumulateGrad", 500, 510, thread=MAIN),
        op(f"{BACKWARDS}MmBackward0", 200, 400, thread=BACKWARD),
        call("cudaLaunchKernel", 220, 230, thread=BACKWARD, correlation=2),
        kernel("gemm", 240, 290, correlation=2),
        *(call("cudaEventQuery", at, at + 2, thread=WATCHDOG) for at in range(300, 800, 100)),
    )
    assert thread_of(trace) == MAIN


@pytest.mark.parametrize("name", STEPPED)
def test_the_thread_with_the_steps_drives(shared_traces: Path, name: str) -> None:
    rows = json.loads(gzip.decompress((shared_traces / name).read_bytes()))["traceEvents"]
    steps = {
        row["tid"]
        for row in rows
        if str(row.get("name")).startswith("ProfilerStep") and row.get("cat") in ("user_annotation", "cpu_op")
    }
    assert {thread_of(read(str(shared_traces / name)))} == steps


def test_a_thread_that_only_asks_changes_no_path(tmp_path: Path) -> None:
    """Metamorphic: without the watchdog's calls the critical path is the same."""
    document = load(real_trace(STEPPED[0]))
    rows = document["traceEvents"]
    names: dict[object, set[str]] = {}
    for row in rows:
        if row.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation"):
            names.setdefault(row["tid"], set()).add(row["name"])
    (watchdog,) = (thread for thread, called in names.items() if called == {"cudaEventQuery"})
    without = document | {"traceEvents": [row for row in rows if row.get("tid") != watchdog]}
    paths = [critical_path(read(str(save(each, tmp_path / "t.json")))) for each in (document, without)]
    assert paths[0].time.tolist() == paths[1].time.tolist()
