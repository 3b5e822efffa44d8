"""Real traces whose slices cross: figures counted by hand, and by an implementation that shares nothing with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from augment.analyses import gpu_time_by_annotation, operator_breakdown
from augment.core.findings import Findings
from augment.readers import read

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
    assert isinstance(findings, Findings)
    output = {row.annotation: (row.kernel_count, row.gpu_ns) for row in findings.rows}
    assert output["Optimizer.step#SGD.step"] == (3, 90_756)
    assert output["DistributedDataParallel.forward"] == (840, 6_452_323)


def test_an_operator_whose_end_python_functions_cross(shared_traces: Path) -> None:
    findings = operator_breakdown.analyze(
        read(str(shared_traces / "xdit_flux_mi300_tracelens" / "capture_trace_rank_0.json.gz"))
    )
    assert isinstance(findings, Findings)
    (row,) = (row for row in findings.rows if row.operator == "Torch-Compiled Region: 0/0")
    assert (row.kernel_count, row.gpu_ns, row.self_cpu_ns) == (993, 35_558_520, 300_854_568)
    assert {diagnostic.code: diagnostic.count for diagnostic in findings.diagnostics}["slices_cross"] > 0


@pytest.mark.parametrize("name", CROSSING)
def test_equal_to_an_independent_implementation(shared_traces: Path, name: str) -> None:
    script = shared_traces.parent / "repro" / "oracle" / "compare.py"
    if not script.is_file():
        pytest.skip("the independent implementation is not at hand")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    # but for steps, which it measures on the host, under names that here are of the window
    but_steps = "from compare import *; del KEYS['steps']; end(main([Path(sys.argv[1])]))"
    done = subprocess.run(
        [sys.executable, "-c", but_steps, str(shared_traces / name)],
        cwd=script.parent,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
