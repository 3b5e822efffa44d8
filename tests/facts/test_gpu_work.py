"""GPU work and its launches where arrows tell them, and where slices cross."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from augment import Trace, augment, read
from augment.analyses import gpu_time_by_annotation, operator_breakdown
from augment.core import NO_CORRELATION
from augment.facts.gpu.gpu_work import correlations_of, gpu_work
from augment.facts.gpu.launched_work import launch_diagnostics
from traces import Event, copy, kernel, launch, op, step, write_trace


def arrow(phase: str, slice_: Event, number: int) -> Event:
    """An end of an arrow, as Kineto writes it right behind its slice."""
    place = {name: slice_[name] for name in ("pid", "tid", "ts")}
    return {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e", **place}


def recorded(path: Path, *, tells: bool) -> Trace:
    """Four launches; two pieces of work begin in the same microsecond on one stream."""
    calls = [launch("hipLaunchKernel", 1 + 4 * each, 3, correlation=each) for each in (1, 2, 3)]
    calls.append(launch("hipMemcpyWithStream", 45, 4, correlation=4))
    work = [kernel("a", 20, 0, correlation=1), kernel("b", 20, 5, correlation=2), kernel("c", 60, 9, correlation=3)]
    work.append(copy("CopyHostToDevice", 80, 5, correlation=4))
    events = [step(), op("aten::mm", 4, 40)]
    for slices, phase in ((calls, "s"), (work, "f")):
        for slice_ in slices:
            number = slice_["args"]["correlation"]
            if not tells:
                slice_["args"] = {"External id": number} if phase == "f" else {"cid": 3, "correlation": number}
            events += [slice_, arrow(phase, slice_, number)]
    return read(str(write_trace(path, *events)))


def test_arrows_lead_from_the_launches(tmp_path: Path) -> None:
    output, untold = (recorded(tmp_path / f"{tells}.json", tells=tells) for tells in (True, False))
    assert (untold.events.correlation[gpu_work(untold).row] == NO_CORRELATION).all()
    assert gpu_work(untold).launch.tolist() == gpu_work(output).launch.tolist()
    assert (gpu_work(output).launch >= 0).all()
    chosen = ["idle_time_breakdown", "launch_statistics", "operator_launch_delay", "queue_length"]
    rows = [[outcome.rows for outcome in augment(trace, only=chosen).outcomes.values()] for trace in (output, untold)]
    assert rows[0] == rows[1]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in launch_diagnostics(output)] == []
    assert [(each.code, each.count) for each in launch_diagnostics(untold)] == [("launch_by_arrow", 4)]


def test_arrows_are_asked_only_where_no_work_has_a_correlation(tmp_path: Path) -> None:
    first, second = kernel("a", 20, 5, correlation=1), kernel("b", 30, 5)
    del second["args"]["correlation"]
    events = [launch(), first, arrow("f", first, 1), second, arrow("f", second, 1)]
    trace = read(str(write_trace(tmp_path / "a.json", *events)))
    assert correlations_of(trace, gpu_work(trace).row).tolist() == [1, NO_CORRELATION]


def test_an_arrow_belongs_to_the_slice_before_it_alone(tmp_path: Path) -> None:
    """At its time, and on its thread; nothing is guessed of a file in another order."""
    a, b, c = (kernel(name, ts, 5, stream=stream) for name, ts, stream in (("a", 20, 7), ("b", 30, 7), ("c", 30, 8)))
    for each in (a, b, c):
        del each["args"]["correlation"]
    trace = read(str(write_trace(tmp_path / "a.json", launch(), a, b, c, arrow("f", a, 5), arrow("f", b, 6))))
    assert correlations_of(trace, gpu_work(trace).row).tolist() == [NO_CORRELATION] * 3
    assert correlations_of(trace, np.empty(0, np.int64)).tolist() == []


#: of which slices cross by a microsecond or much more; each is small
CROSSING = (
    "v100_4rank_pair_torchrec/control/pid44239.pt.trace.json.gz",
    "pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_mi300.json.gz",
    "mi300_tracelens/normalization_layers.json.gz",
)


def test_annotations_that_overlap_by_a_nanosecond(shared_traces: Path) -> None:
    findings = gpu_time_by_annotation.analyze(
        read(str(shared_traces / "mi300_tracelens" / "resnet_act_checkpoint_rank0of8.json.gz"))
    )
    output = {row.annotation: (row.kernel_count, row.gpu_ns) for row in findings.rows}
    assert output["Optimizer.step#SGD.step"] == (3, 90_756)
    assert output["DistributedDataParallel.forward"] == (840, 6_452_323)


def test_an_operator_whose_end_python_functions_cross(shared_traces: Path) -> None:
    findings = operator_breakdown.analyze(
        read(str(shared_traces / "xdit_flux_mi300_tracelens" / "capture_trace_rank_0.json.gz"))
    )
    (row,) = (row for row in findings.rows if row.operator == "Torch-Compiled Region: 0/0")
    assert (row.kernel_count, row.gpu_ns, row.self_cpu_ns) == (993, 35_558_520, 300_854_568)
    assert {diagnostic.code: diagnostic.count for diagnostic in findings.diagnostics}["slices_cross"] > 0


@pytest.mark.parametrize("name", CROSSING)
def test_equal_to_an_independent_implementation(shared_traces: Path, name: str) -> None:
    script = shared_traces.parent / "repro" / "oracle" / "compare.py"
    if not script.is_file():
        pytest.skip("the independent implementation is not at hand")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    # but for steps, and the path of each, which it measures on the host, under names that here are of the window
    but_steps = (
        "from compare import *; del KEYS['steps']\n"
        "sys.modules['compare'].sums = lambda trace, told: sums(trace, {**told, 'critical_path': {}})\n"
        "end(main([Path(sys.argv[1])]))"
    )
    command = [sys.executable, "-c", but_steps, str(shared_traces / name)]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
