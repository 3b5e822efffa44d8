"""Recorded steps of engines against figures from their JSON: this code shares nothing with the package's."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

import augment
from metamorphic import real_trace

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
#: trace; requests, new tokens and lengths of sequences, which a person read in the annotation's name
TRACES = [
    ("vllm_mi300_tracelens/decode_full_graph_execution.json.gz", 32, 32, 55_086),
    ("sglang_mi300_tracelens/qwen3_8b_decode.json.gz", 32, 32, 32_785),
    ("sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_B300_TP0.trace.json.gz", 16, 16, 8_193),
    ("sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_MI300_TP0.trace.json.gz", 16, 16, 8_193),
]


def events_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(real_trace(name), "rt", encoding="utf-8") as file:
        return [each for each in json.load(file)["traceEvents"] if each.get("ph") == "X"]


def row_of(name: str, capture: str | None = None) -> Any:
    trace = augment.read(str(real_trace(name)))
    if capture:
        trace = augment.with_graph_capture(trace, str(real_trace(capture)))
    outcome = augment.augment(trace, only=["inference_steps"]).outcomes["inference_steps"]
    (row,) = outcome.rows
    return row


@pytest.mark.parametrize(("name", "requests", "new", "lengths"), TRACES)
def test_the_step_of_a_recording(name: str, requests: int, new: int, lengths: int) -> None:
    events = events_of(name)
    calls = {
        each["args"]["correlation"]: each
        for each in events
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each.get("args", {})
    }
    # the device is free when the first kernel of a stream begins that waited for long on an idle device
    work = sorted((each for each in events if each.get("cat") in WORK), key=lambda each: each["ts"])
    begin, reached = work[0]["ts"], work[0]["ts"]
    for each in work:
        call = calls.get(each["args"].get("correlation"))
        if each["ts"] - reached > 10_000 and call and call["ts"] + call["dur"] < each["ts"] - 10_000:
            begin = each["ts"]
        reached = max(reached, each["ts"] + each["dur"])
    busy, until = 0.0, begin
    for each in work:
        end = each["ts"] + each["dur"]
        if end > until and each["ts"] + each["dur"] > begin:
            busy += end - max(until, each["ts"])
            until = end
    last_call = max(
        call["ts"] + call["dur"]
        for call in calls.values()
        if call["args"]["correlation"] in {each["args"].get("correlation") for each in work}
    )
    wall = max(reached, last_call) - begin
    row = row_of(name)
    assert (row.phase, row.requests, row.decode_tokens, row.prefill_tokens) == ("decode", requests, new, 0)
    assert row.cached_tokens == lengths - new
    assert row.wall_ns == pytest.approx(wall * 1e3, abs=2_000)
    assert row.busy_ns == pytest.approx(busy * 1e3, abs=2_000)
    assert row.token_ns == row.wall_ns
    assert row.tokens_per_s == pytest.approx(new / wall * 1e6, rel=1e-3)


def test_attention_of_layers_with_and_without_a_window() -> None:
    """32 sequences of 55,086 tokens; 64 heads of 64 elements and 8 of the cache, 2 bytes each, by the capture's shapes.

    TraceLens gives 43 TFLOP/s and 5.4 TB/s, means of the rates of 24 calls. Half of the layers attend to a window: they
    would have read the cache at 8.4 TB/s, and the device moves 5.3. The others reach 2.4 TB/s.
    """
    name = TRACES[0][0]
    attention = [each for each in events_of(name) if each["name"] == "kernel_unified_attention_3d"]
    assert len(attention) == 12
    row = row_of(name, "vllm_mi300_tracelens/decode_full_capture.pt.trace.json.gz")
    assert row.attention_flops == 12 * 4 * 64 * 64 * 55_086
    assert row.cache_bytes == 12 * (2 * 8 * 64 * 2 * 55_086 + 2 * 32 * 64 * 64 * 2)
    moved = row.cache_bytes / 12
    longest, shortest = max(each["dur"] for each in attention), min(each["dur"] for each in attention)
    assert 2_600 < moved / longest / 1e3 < moved / shortest / 1e3 < 2_900  # GB/s, of the kernel without its reduction


def test_bytes_of_a_whole_step() -> None:
    """The weights of Qwen3-8B, layer by layer, and its cache: 36 layers of four products, and the last one."""
    name = TRACES[1][0]
    events_of(name)
    row = row_of(name, "sglang_mi300_tracelens/capture_bs32_rank0.json.gz")
    weights = 36 * 4096 * (6144 + 4096 + 24576 + 12288) * 2 + 4096 * 151_936 * 2
    cache = 36 * 2 * 8 * 128 * 2 * 32_785
    assert weights + cache < row.moved_bytes < 1.05 * (weights + cache)
    assert row.mbu_ratio == pytest.approx(row.moved_bytes / row.wall_ns / 5_300, rel=0.01)
    assert row.covered_ratio > 0.99


def test_products_and_attention_of_a_diffusion_model() -> None:
    """FLUX, a warm-up and a replayed graph: 57 blocks attend, each 24 heads of 128 over 768 tokens."""
    name = "xdit_flux_mi300_tracelens/capture_trace_rank_0.json.gz"
    events = events_of(name)
    attends = [each for each in events if each["name"] == "aiter::fmha_v3_fwd"]
    assert {str(each["args"]["Input Dims"][:3]) for each in attends} == {str([[1, 768, 24, 128]] * 3)}
    outcome = augment.augment(augment.read(str(real_trace(name))), only=["roofline"]).outcomes["roofline"]
    (row,) = (row for row in outcome.rows if row.operator == "aiter::fmha_v3_fwd")
    assert row.count == len(attends) == 57
    assert row.flops == 57 * 4 * 24 * 768 * 768 * 128
    kernels = [each for each in events if each.get("cat") == "kernel" and each["name"].startswith("aiter::fmha")]
    assert row.time_ns == pytest.approx(sum(each["dur"] for each in kernels) * 1e3, rel=1e-6)
    products: dict[tuple[int, int, int], int] = {}
    for each in events:
        if each["name"] == "aten::mm":
            (m, k), (_, n) = each["args"]["Input Dims"][:2]
            products[m, n, k] = products.get((m, n, k), 0) + 2 * m * n * k
    counted: dict[tuple[int, int, int], int] = {}
    for row in outcome.rows:
        if row.operator == "aten::mm":
            (m, k), (_, n) = json.loads(row.shapes)[:2]
            counted[m, n, k] = counted.get((m, n, k), 0) + row.flops
    assert counted == products
