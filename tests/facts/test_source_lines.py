"""The line of the program that each piece of GPU work comes from."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from augment import Skipped, augment, diff, read
from augment.analyses import critical_path, critical_path_operators, diagnosis, kernel_breakdown, source_lines
from augment.core.source_code import INSTALLED, NOT_USERS, USERS, CodeLine, innermost_line, labels, owner
from metamorphic import real_trace
from tables import annotation, call, fwdbwd, kernel, op, python, rows_of, trace_of
from traces import event, launch, step, write_trace
from traces import kernel as recorded_kernel


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("model.py", USERS), ("/home/me/torch/train.py", USERS), ("profile.py", USERS), ("C:\\code\\train.py", USERS),
        ("/usr/lib/python3.12/site-packages/vllm/v1/worker.py", INSTALLED), ("torch_geometric/nn/conv.py", USERS),
        ("/src/pytorch/torch/nn/modules/linear.py", NOT_USERS), ("torch/_ops.py", NOT_USERS),
        ("/usr/lib/python3.12/contextlib.py", NOT_USERS), ("threading.py", NOT_USERS), ("<frozen runpy>", NOT_USERS),
        ("/tmp/torchinductor_me/ab/cab.py", NOT_USERS), ("/x/site-packages/triton/runtime/jit.py", NOT_USERS),
    ],
)  # fmt: skip
def test_whose_a_file_is(file: str, whose: int) -> None:
    assert owner(file) == whose


def test_the_innermost_frame_that_is_the_users() -> None:
    stack = (
        '  File "/w/train.py", line 9, in main\n    loss = model(x)\n  File "/w/model.py", line 217, in forward\n'
        '    x = self.norm(x)\n  File "/x/site-packages/torch/nn/functional.py", line 3, in layer_norm\n    return\n'
    )
    assert innermost_line(stack) == CodeLine("/w/model.py", 217, "forward")
    package = (
        '  File "/x/site-packages/vllm/layer.py", line 4, in f\n  File "/x/site-packages/torch/_ops.py", line 1, in g'
    )
    assert innermost_line(package) == CodeLine("/x/site-packages/vllm/layer.py", 4, "f")
    assert innermost_line('  File "torch/_ops.py", line 1, in g') is None
    assert innermost_line("no stack") is None


def test_labels_tell_files_apart_and_join_one_file() -> None:
    a, b = CodeLine("/w/a/model.py", 1), CodeLine("/w/b/model.py", 1)
    assert labels([[a], [b], [CodeLine("train.py", 3)]]) == ["a/model.py:1", "b/model.py:1", "train.py:3"]
    same = [CodeLine("model.py", 2), CodeLine("/home/me/model.py", 7)]
    assert labels([[same[0]], [same[1]], [a.__class__("/home/me/model.py", 8), same[1]]]) == [
        "model.py:2", "model.py:7", "model.py:8, 7",
    ]  # fmt: skip
    assert labels([[CodeLine("m.py", number) for number in range(9)]]) == ["m.py:0, 1, 2, 3, 4, 5 and 3 more"]


def test_functions_around_the_launch_and_around_the_forward_operator() -> None:
    events = [
        annotation("ProfilerStep#1", 0, 1000),
        python("train.py(3): main", 0, 1000), python("model.py(217): forward", 10, 100),
        python("torch/nn/functional.py(9): linear", 20, 90), op("aten::linear", 30, 80), fwdbwd("s", 5, 30),
        call("cudaLaunchKernel", 40, 50, correlation=1), kernel("gemm", 100, 400, correlation=1),
        op("LinearBackward", 300, 400, thread=2), fwdbwd("f", 5, 300, thread=2),
        call("cudaLaunchKernel", 310, 320, thread=2, correlation=2), kernel("gemm_bwd", 400, 1100, correlation=2),
        call("cudaMemcpyAsync", 500, 510, correlation=3), kernel("copy", 1200, 1300, correlation=3),
        call("cudaLaunchKernel", 500, 510, thread=3, correlation=4), kernel("nccl", 1300, 1310, correlation=4),
    ]  # fmt: skip
    trace = trace_of(*events)
    assert rows_of(source_lines.analyze(trace), "source", "kind", "function", "gpu_ns", "kernel_count") == [
        ("model.py:217", "function", "forward", 1000, 2), ("train.py:3", "function", "main", 100, 1),
        (None, None, None, 10, 1),
    ]  # fmt: skip
    (first, *_) = source_lines.analyze(trace).rows  # type: ignore[union-attr]
    assert (first.gpu_ratio, first.per_step_ns, first.longest) == (1000 / 1110, 1000.0, "gemm_bwd")
    of_kernel = dict(rows_of(kernel_breakdown.analyze(trace), "name", "source"))
    assert of_kernel == {"gemm": "model.py:217", "gemm_bwd": "model.py:217", "copy": "train.py:3", "nccl": None}
    on_path = dict(rows_of(critical_path_operators.analyze(trace), "name", "source"))
    assert on_path["gemm_bwd"] == "model.py:217"
    (path, *_) = critical_path.analyze(trace).annotations
    line = path.args["line"]  # type: ignore[union-attr]
    assert "model.py:217" in {line.values[code] for code in line.codes.tolist() if code >= 0}


def stacked(path: Path, *, correlation: int = 1, dur: float = 10) -> Path:
    """A recording with a compiled kernel of two lines and an eager one without any."""
    stacks = [f'  File "/w/model.py", line {line}, in forward\n    x\n' for line in (81, 79)]
    compiled = recorded_kernel("triton_poi_fused_0", 20, dur, correlation=correlation)
    compiled["args"]["stack"] = stacks
    events = [launch(correlation=correlation), launch(ts=9, correlation=2), recorded_kernel(ts=50, correlation=2)]
    return write_trace(path, step(), *events, compiled)


def test_stacks_of_compiled_kernels(tmp_path: Path) -> None:
    trace = read(str(stacked(tmp_path / "a.json")))
    rows = rows_of(source_lines.analyze(trace), "source", "kind", "path", "gpu_ns")
    assert rows == [("model.py:79, 81", "line", "/w/model.py", 10_000), (None, None, None, 10_000)]


def test_a_diff_by_line(tmp_path: Path) -> None:
    paths = [stacked(tmp_path / name, dur=dur) for name, dur in (("a.json", 10), ("b.json", 14))]
    rows = rows_of(diff(*map(str, paths)).outcomes["diff_source_lines"], "source", "delta_ns", "delta_per_step_ns")
    assert rows == [("model.py:79, 81", 4000, 4000.0), (None, 0, 0.0)]
    without = write_trace(tmp_path / "c.json", step(), launch(), recorded_kernel())
    outcome = diff(str(without), str(paths[0])).outcomes["diff_source_lines"]
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith("no work of the control has a line")


@pytest.mark.parametrize(
    "stack", ["x", 7, None, [], [[1]], {"a": 1}, ['File "', 'File "m.py", line 99999999999999'], "[" * 9999]
)
def test_stacks_of_other_kinds_are_no_lines(tmp_path: Path, stack: Any) -> None:
    compiled = event("kernel", "k", 20, 5, 0, 7, device=0, stream=7, correlation=1, stack=stack)
    outcome = source_lines.analyze(read(str(write_trace(tmp_path / "a.json", launch(), compiled))))
    assert isinstance(outcome, Skipped)


def test_the_evidence_of_findings_names_lines() -> None:
    path = real_trace("pairs_h100_vs_mi300_tracelens/nsfw_vit_h100.json.gz")
    (bound,) = [row for row in diagnosis.analyze(read(str(path))).rows if row.rule == "launch_bound"]  # type: ignore[union-attr]
    lines = "vit/modeling_vit.py:252, vit/modeling_vit.py:407 and vit/modeling_vit.py:379"
    assert bound.evidence[-1] == f"70 % of these waits end with launches from {lines}"


def by_hand(path: Path) -> Counter[str]:
    """Nanoseconds of GPU work by frame, in plain Python: innermost frame around the launch, else of the forward op."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [each for each in events if each.get("ph") == "X" and "dur" in each]
    frames, ops, launches = defaultdict(list), defaultdict(list), {}
    for each in slices:
        span = (nano(each["ts"]), nano(each["ts"]) + nano(each["dur"]), each["name"])
        match each.get("cat"):
            case "python_function":
                frames[each["pid"], each["tid"]].append(span)
            case "cpu_op":
                ops[each["pid"], each["tid"]].append(span)
            case "cuda_runtime" | "cuda_driver" if "correlation" in each["args"]:
                launches.setdefault(each["args"]["correlation"], (each["pid"], each["tid"], *span[:2]))
    begins, ends = {}, {}
    for each in events:
        if each.get("cat") == "fwdbwd":
            where = (each["pid"], each["tid"], nano(each["ts"]))
            (begins if each["ph"] == "s" else ends)[each["id"]] = where
    backward = defaultdict(list)
    for number, (pid, tid, ts) in ends.items():
        if number in begins:
            outer = [span for span in ops[pid, tid] if span[0] == ts] or [s for s in ops[pid, tid] if s[0] <= ts < s[1]]
            if outer:
                until = max(span[1] for span in outer) if outer[0][0] == ts else max(outer)[1]
                backward[pid, tid].append((ts, until, begins[number]))
    spent: Counter[str] = Counter()
    for each in slices:
        if each.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        name = None
        if (call_ := launches.get(each["args"].get("correlation"))) is not None:
            pid, tid, begin, end = call_
            name = innermost(frames[pid, tid], begin, end)
            if name is None:
                around = [span for span in backward[pid, tid] if span[0] <= begin and end <= span[1]]
                if around:
                    pid, tid, ts = max(around)[2]
                    name = innermost(frames[pid, tid], ts, ts + 1)
        spent["" if name is None else f"{name.split('(')[0].split('/')[-1]}:{name.split('(')[1].split(')')[0]}"] += (
            nano(each["dur"])
        )
    return spent


def nano(value: float) -> int:
    return round(value * 1000)


def innermost(frames: list[tuple[int, int, str]], begin: int, end: int) -> str | None:
    around = [span for span in frames if span[0] <= begin and end <= span[1] and is_users(span[2])]
    return max(around)[2] if around else None


def is_users(name: str) -> bool:
    return (
        bool(re.match(r"[\w/.]+\.py\(\d+\)", name))
        and name.split("(")[0] not in ("threading.py", "contextlib.py")
        and (
            not name.startswith(
                ("torch/", "logging/", "json/", "multiprocessing/", "tqdm/", "triton/", "typing.py", "re.py")
            )
        )
    )


@pytest.mark.parametrize(
    "name", ["pairs_h100_vs_mi300_tracelens/nsfw_vit_h100", "mi300_tracelens/ddp_resnet18_no_pool"]
)
def test_real_traces_agree_with_plain_python(name: str) -> None:
    path = real_trace(f"{name}.json.gz")
    outcome = augment(str(path), only=["source_lines"]).outcomes["source_lines"]
    assert {row.source or "": row.gpu_ns for row in outcome.rows} == by_hand(path)
