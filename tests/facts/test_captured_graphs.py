"""Kernels of CUDA graphs and the operators of the graph's capture."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import augment
from augment.analyses import roofline
from augment.core import GraphCapture, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.captured_graphs import graph_launches, graph_work
from augment.facts.operators.operator_work import operator_work
from tables import Event, call, kernel, op, shaped, trace_of

GEMM, ADD = "nvjet_hsh_128x256", "vectorized_elementwise_kernel"
NODES = [GEMM, ADD, GEMM]


def captured(shapes: tuple[int, int] = (64, 32), *, calls: bool = False, at: int = 0, last: bool = True) -> list[Event]:
    """A capture of two products with an elementwise operator between them: launches without kernels."""
    events = [call("cudaStreamBeginCapture_v2", at, at + 1)] if calls else []
    for place, (name, size) in enumerate((("aten::mm", shapes[0]), ("aten::add", 16), ("aten::mm", shapes[1]))):
        if place < 2 or last:
            start = at + 10 + 20 * place
            dims = shaped([size, size], [size, size], types="c10::BFloat16")
            events += [op(name, start, start + 10, args=dims),
                       call("cudaLaunchKernel", start + 2, start + 4, correlation=at + 100 + place)]  # fmt: skip
    return [*events, call("cudaStreamEndCapture", at + 80, at + 81)] if calls else events


def replayed(nodes: list[str], at: int = 10_000, *, streams: tuple[int, ...] = (7,), number: int = 1) -> list[Event]:
    """A launch of the graph, and its kernels one after another."""
    kernels = [
        kernel(
            name, at + 100 + 50 * place, at + 140 + 50 * place, correlation=number, stream=streams[place % len(streams)]
        )
        for place, name in enumerate(nodes)
    ]
    return [call("cudaGraphLaunch", at, at + 20, correlation=number), *kernels]


def joined(trace: Trace) -> list[str | None]:
    """Of each kernel the operator with its first shape."""
    result = operator_work(trace)
    rows = [f"{call.operator} {call.dims[0][0]}" for call in result.calls]
    return [rows[result.kind[owner]] if owner >= 0 else None for owner in result.owner.tolist()]


EXPECTED = ["aten::mm 64", "aten::add 16", "aten::mm 32"]


def test_kernels_have_the_operators_of_the_capture_beside_the_trace() -> None:
    trace = trace_of(*replayed(NODES), *replayed(NODES, 20_000, number=2))
    assert joined(trace) == [None] * 6
    beside = trace.changed(GraphCapture(trace_of(*captured())))
    assert joined(beside) == EXPECTED * 2
    assert not graph_work(beside).reasons
    assert len(operator_work(beside)) == 6  # each launch of the graph has its own
    products = sorted((row.count, row.flops) for row in roofline.analyze(beside).rows if row.flops)
    assert products == [(2, 4 * 32**3), (2, 4 * 64**3)]


def test_a_capture_in_the_trace_itself() -> None:
    trace = trace_of(*captured(calls=True), *captured((8, 8), calls=True, at=1000, last=False), *replayed(NODES))
    assert joined(trace) == EXPECTED


@pytest.mark.parametrize(("capture", "nodes", "streams", "reason"), [
    (captured(last=False), NODES, (7,), "no capture has 3 kernels"),
    (captured(), NODES, (7, 8), "several streams"),
    (captured(), [ADD, GEMM, GEMM], (7,), "of other work"),
    (captured(calls=True) + captured((8, 8), calls=True, at=1000), NODES, (7,), "differ in their operators"),
])  # fmt: skip
def test_what_does_not_fit_is_not_joined(
    capture: list[Event], nodes: list[str], streams: tuple[int, ...], reason: str
) -> None:
    trace = trace_of(*replayed(nodes, streams=streams), beside=[GraphCapture(trace_of(*capture))])
    assert joined(trace) == [None] * 3
    (output,) = graph_work(trace).reasons
    assert reason in output


def test_captures_that_agree_are_one() -> None:
    capture = captured(calls=True) + captured(calls=True, at=1000)
    assert joined(trace_of(*replayed(NODES), beside=[GraphCapture(trace_of(*capture))])) == EXPECTED


# --- graphs of several streams ---

SHAPES = (8, 16, 24, 32)


def several_streams(rng: random.Random, *, ids: int, hip: bool, alike: bool = False) -> tuple[Trace, list[str | None]]:
    """A graph of three captured streams, as its executor runs them: any order that the streams allow, on others of its
    own. The trace, and of each kernel in the order of ``gpu_work`` its operator.

    Products launch two kernels, other operators one. The first ``ids`` kernels have the id of their node.
    """
    capture: list[Event] = []
    operators: list[list[tuple[int, str, str]]] = [[], [], []]
    vendor = "hip" if hip else "cuda"
    for place in range(24):
        branch, product = rng.randrange(3), rng.random() < 0.5
        name, size = ("aten::mm" if product else "aten::add"), SHAPES[0 if alike else rng.randrange(4)]
        start = 10 + 20 * place
        capture.append(op(name, start, start + 15, args=shaped([size, size], [size, size])))
        kernels = [GEMM, "splitKreduce_kernel"] if product else [ADD]
        for number, kernel_name in enumerate(kernels):
            launch = call(
                f"{vendor}LaunchKernel",
                start + 2 + 4 * number,
                start + 4 + 4 * number,
                correlation=1000 + 10 * place + number,
            )
            capture.append(replace(launch, args={"kernel": kernel_name}) if hip else launch)
            operators[branch].append((len(capture), kernel_name, f"{name} {size}"))
    ran: list[Event] = []
    truth: dict[tuple[int, int], str] = {}
    moment = 20_000
    while any(operators):
        branch = rng.choice([which for which in range(3) if operators[which]])
        identity, kernel_name, text = operators[branch].pop(0)
        moment += rng.randrange(5, 40)
        lane = 20 + rng.randrange(2) * 3 + branch  # an executor's streams are not those of the capture
        args = {"graph node id": identity, "graph id": 7} if len(ran) < ids else {}
        work_on = kernel(kernel_name, moment, moment + rng.randrange(1, 60), correlation=5, stream=lane)
        ran.append(replace(work_on, args=args))
        truth[lane, moment] = text
    trace = trace_of(call(f"{vendor}GraphLaunch", 19_000, 19_020, correlation=5), *ran)
    trace = trace.changed(GraphCapture(trace_of(*capture)))
    work = gpu_work(trace)
    lanes = [int(str(trace.tracks[track].stream)) for track in trace.events.track[work.row].tolist()]
    return trace, [truth[lane, ts] for lane, ts in zip(lanes, work.ts.tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hip", [False, True])
def test_node_ids_order_the_kernels_of_several_streams(seed: int, hip: bool) -> None:
    trace, truth = several_streams(random.Random(seed), ids=99, hip=hip)
    assert joined(trace) == truth
    assert not graph_work(trace).reasons


@pytest.mark.parametrize("seed", range(6))
def test_names_join_kernels_whose_operators_are_alike(seed: int) -> None:
    trace, truth = several_streams(random.Random(seed), ids=0, hip=True, alike=True)
    assert joined(trace) == truth
    mixed, truth = several_streams(random.Random(seed), ids=0, hip=True)
    assert all(each in (None, expected) for each, expected in zip(joined(mixed), truth, strict=True))
    assert len(graph_work(mixed).reasons) == 1


def test_without_names_and_ids_several_streams_are_not_joined() -> None:
    trace, truth = several_streams(random.Random(1), ids=0, hip=False)
    assert joined(trace) == [None] * len(truth)
    (reason,) = graph_work(trace).reasons
    assert "several streams" in reason


def test_one_kernel_without_its_id_leaves_the_order_open() -> None:
    trace, truth = several_streams(random.Random(2), ids=5, hip=False)
    assert joined(trace) == [None] * len(truth)


@pytest.mark.parametrize(("first", "last"), [(0, 5), (1, 6), (3, 6)])
def test_a_graph_of_which_the_recording_lacks_kernels(first: int, last: int) -> None:
    """Operators with kernels beyond the cut are left out: their time is not known."""
    names = ["gemm_a", "reduce_b", "gemm_a", "add_c", "gemm_d", "reduce_e"]
    capture: list[Event] = []
    for place, (name, size) in enumerate((("aten::mm", 2), ("aten::mm", 1), ("aten::add", 1), ("aten::mm", 2))):
        at = 100 * place
        capture.append(op(name, at, at + 90, args=shaped(*[[8 + place, 8 + place]] * 2)))
        for _ in range(size):
            number = sum(event.name == "hipLaunchKernel" for event in capture)
            launch = call(
                "hipLaunchKernel", at + 10 + 20 * (number % 2), at + 20 + 20 * (number % 2), correlation=number
            )
            capture.append(replace(launch, args={"kernel": names[number]}))
    replay = [replace(event, name="hipGraphLaunch") if "Launch" in event.name else event
              for event in replayed(names[first:last])]  # fmt: skip
    trace = trace_of(*replay, beside=[GraphCapture(trace_of(*capture))])
    whole = ["aten::mm 8", "aten::mm 8", "aten::mm 9", "aten::add 10", "aten::mm 11", "aten::mm 11"]
    lost = {*whole[:first], *whole[last:]}
    assert joined(trace) == [None if each in lost else each for each in whole[first:last]]
    too_little = [replace(event, name="hipGraphLaunch") if "Launch" in event.name else event
                  for event in replayed(names[:2])]  # fmt: skip
    assert joined(trace_of(*too_little, beside=[GraphCapture(trace_of(*capture))])) == [None, None]


def test_a_recorded_graph_without_its_last_kernel(shared_traces: Path) -> None:
    """Of 994 captured kernels, 993 of the same names in the same order were recorded."""
    trace = augment.read(shared_traces / "xdit_flux_mi300_tracelens" / "capture_trace_rank_0.json.gz")
    assert not graph_work(trace).reasons
    owner = graph_work(trace).owner
    ((_, places),) = graph_launches(trace)
    assert len(places) == 993
    assert (owner[places] >= 0).sum() > 500
    assert "above_peak" not in [diagnostic.code for diagnostic in roofline.analyze(trace).diagnostics]


SGLANG = "sglang_mi300_tracelens"


def test_a_recorded_graph_and_its_capture(shared_traces: Path) -> None:
    """Against the capture's own text: the operations of its products are those of the graph's kernels."""
    folder = shared_traces / SGLANG
    trace = augment.with_graph_capture(
        augment.read(folder / "qwen3_8b_decode.json.gz"), folder / "capture_bs32_rank0.json.gz"
    )
    findings = roofline.analyze(trace)
    events = json.loads(gzip.decompress((folder / "capture_bs32_rank0.json.gz").read_bytes()))["traceEvents"]
    shapes = [event["args"]["Input Dims"] for event in events if event.get("name") == "aten::mm"]
    expected = sum(2 * left[0] * left[1] * right[1] for left, right in shapes)
    assert sum(row.flops or 0 for row in findings.rows if row.operator == "aten::mm") == expected > 0
    assert sum(row.count for row in findings.rows if row.operator == "aten::mm") == len(shapes)
    assert not any(diagnostic.code in ("graph_not_joined", "above_peak") for diagnostic in findings.diagnostics)


def test_recorded_kernels_on_several_streams_have_the_same_operators_or_none(shared_traces: Path) -> None:
    """The recorded graph ran on one stream. If the trace said that a third of its kernels ran on another, their order
    would not be known: each must still have an operator of the same shapes as before, or none.
    """
    folder = shared_traces / SGLANG
    trace = augment.with_graph_capture(
        augment.read(folder / "qwen3_8b_decode.json.gz"), folder / "capture_bs32_rank0.json.gz"
    )
    expected = dict(zip(gpu_work(trace).row.tolist(), calls_of(trace), strict=True))
    ((_, places),) = graph_launches(trace)
    rows = gpu_work(trace).row[places]
    track = trace.events.track[:].copy()
    track[rows[np.array([random.Random(row).random() < 0.3 for row in rows.tolist()])]] = len(trace.tracks)
    tracks = (*trace.tracks, replace(trace.tracks[trace.events.track[rows[0]]], stream=99))
    moved = trace.changed(events=replace(trace.events, track=track), tracks=tracks)
    result = dict(zip(gpu_work(moved).row.tolist(), calls_of(moved), strict=True))
    assert all(result[row] in (None, expected[row]) for row in expected)
    counts = [sum(call is not None for call in calls.values()) for calls in (result, expected)]
    assert counts[0] > 0.5 * counts[1]
    (reason,) = graph_work(moved).reasons
    assert "of 544 kernels are not joined" in reason


def calls_of(trace: Trace) -> list[tuple[str, str] | None]:
    """Of each kernel its operator with its shapes."""
    result = operator_work(trace)
    texts = [(call.operator, str(call.dims)) for call in result.calls]
    return [texts[result.kind[owner]] if owner >= 0 else None for owner in result.owner.tolist()]


def test_another_runs_capture_is_refused(shared_traces: Path) -> None:
    other = shared_traces / "vllm_mi300_tracelens" / "decode_full_capture.pt.trace.json.gz"
    trace = augment.with_graph_capture(augment.read(shared_traces / SGLANG / "qwen3_8b_decode.json.gz"), other)
    (reason,) = graph_work(trace).reasons
    assert reason == "no capture has 544 kernels"


def test_a_recorded_cuda_graph_with_its_capture_in_the_trace(shared_traces: Path) -> None:
    """CUDA records no names of captured kernels: each kernel's own name says what its operator must be."""
    trace = augment.read(shared_traces / "a100_torch_compile_ao" / "quantize_vit_bfloat16.json.gz")
    work, result = gpu_work(trace), graph_work(trace)
    assert not result.reasons
    in_graph = [places for _, places in graph_launches(trace)]
    assert [len(places) for places in in_graph] == [124] * 5
    for place in np.concatenate(in_graph).tolist():
        name = trace.strings[trace.events.name[work.row[place]]]
        owner = result.owner[place]
        operator = result.calls[result.kind[owner]].operator if owner >= 0 else ""
        if "flash_fwd" in name:
            assert operator == "aten::_flash_attention_forward"
        elif "convolve" in name:
            assert operator == "aten::cudnn_convolution"
        elif "gemm_bf16" in name or "splitK" in name:
            assert operator in ("aten::mm", "aten::addmm")
        elif name.startswith("triton"):
            assert operator == ""
