"""Norms that are written out in elementwise kernels: changed by hand, and in recorded traces by plain counting."""

from __future__ import annotations

import pytest

from augment import read
from augment.diagnosis.rules import elementwise_chains
from metamorphic import CALLS, load, real_trace
from tables import annotation, kernel, trace_of

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
SIMPLE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
MEAN, ROOT = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>",
    SIMPLE.format("rsqrt_kernel"),
)
NORM = [COPY, SIMPLE.format("pow"), MEAN, SIMPLE.format("add"), ROOT, SIMPLE.format("mul"), COPY, SIMPLE.format("mul")]
OTHER = SIMPLE.format("exp")


@pytest.mark.parametrize(("kernels", "count", "times"), [
    (NORM, 1, 8),
    ([*NORM, *NORM], 1, 16),  # of one chain
    ([*NORM, "gemm", *NORM], 2, 16),
    ([OTHER if each == ROOT else each for each in NORM], 0, 0),
    ([OTHER if each == MEAN else each for each in NORM], 0, 0),
    ([*NORM[:2], "gemm", *NORM[3:]], 0, 0),
    ([ROOT, OTHER, OTHER, MEAN, OTHER], 0, 0),  # its mean is of what comes after
    ([COPY, OTHER, OTHER, OTHER, MEAN, COPY], 0, 0),
])  # fmt: skip
def test_a_norm_is_a_chain_with_its_reduction_and_casts(kernels: list[str], count: int, times: int) -> None:
    """Metamorphic: another kernel in the place of one that makes it a norm. Each takes 10 µs, but products 200."""
    events, at = [], 0
    for name in kernels:
        events.append(kernel(name, at, at + (200_000 if name == "gemm" else 10_000)))
        at = events[-1].end
    seen = elementwise_chains.check(trace_of(annotation("ProfilerStep#0", 0, at), *events)).seen
    assert (seen.norm_count, seen.norm_ns) == (count, 10_000 * times)


@pytest.mark.parametrize("name", ["qwen1.5_0.5b_h100.json.gz", "qwen1.5_0.5b_mi300.json.gz"])
def test_recorded_norms(name: str) -> None:
    """Plainly: means that are followed by a root, of what was launched in the recording, and the time from the cast
    before to the last product: there are additions before in the chains."""
    events = load(real_trace(f"pairs_h100_vs_mi300_tracelens/{name}"))["traceEvents"]
    called = {each["args"].get("correlation") for each in events if each.get("cat") in CALLS}
    rows = [each for each in events if each.get("cat") == "kernel" and each["args"]["correlation"] in called]
    rows.sort(key=lambda each: each["ts"])
    means = [place for place, each in enumerate(rows) if "MeanOps" in each["name"]
             and any("rsqrt" in other["name"] for other in rows[place : place + 3])]  # fmt: skip
    own_us = sum(each["dur"] for place in means for each in rows[place - 2 : place + 6])
    seen = elementwise_chains.check(read(str(real_trace(f"pairs_h100_vs_mi300_tracelens/{name}")))).seen
    assert seen.norm_count == len(means) == 49
    assert 1 < seen.norm_ns / 1_000 / float(own_us) < 1.25
