"""Attention that is written out: found by its operators and shapes, and by nothing else; norms by their kernels."""

from __future__ import annotations

import gzip
import json

import pytest
from msgspec.structs import replace

from augment import Trace, read
from augment.diagnosis.judging import measure
from augment.diagnosis.rule import Answer, Fine, Found, NotApplicable
from augment.diagnosis.rules import elementwise_chains, written_attention
from metamorphic import CALLS, load, real_trace
from said import evidence_of, problem_of, title_of
from tables import Event, annotation, kernel, launched_kernel, op, shaped, trace_of

RECORDED = "xdit_flux_mi300_tracelens/capture_trace_rank_0.json.gz"
B, S, D = 16, 1024, 64
FORWARD = [
    ("aten::bmm", shaped([B, S, D], [B, D, S]), 300),
    ("aten::_softmax", shaped([4, 4, S, S], [], [], values={1: "-1", 2: "False"}), 400),
    ("aten::bmm", shaped([B, S, S], [B, S, D]), 300),
]
PROJECTION = ("aten::mm", shaped([S, D], [D, D]), 200)
MASK = ("aten::add", shaped([4, 4, S, S], [1, 1, S, S], []), 100)
OTHER = ("aten::_softmax", shaped([S, 1000], [], [], values={1: "-1", 2: "False"}), 400)
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}


def run(*operators: tuple[str, dict[str, object], int]) -> Trace:
    """A step of these operators, each with a kernel of so many µs."""
    events: list[Event] = []
    host = device = 0
    for number, (name, args, us) in enumerate(operators):
        begun = max(host + 5_000, device)
        device = begun + us * 1000
        events += [
            op(name, host + 1_000, host + 6_000, args=args),
            *launched_kernel(f"kernel of {name}", (host + 2_000, host + 4_000), (begun, device), correlation=number),
        ]
        host += 8_000
    trace = trace_of(*events, annotation("ProfilerStep#0", 0, host))
    return replace(trace, source=replace(trace.source, metadata=H100))


def answer(*operators: tuple[str, dict[str, object], int]) -> Answer:
    return written_attention.check(run(*operators))


def test_two_products_with_a_softmax_between_are_found() -> None:
    result = problem_of(answer(*FORWARD))
    assert result.at_most
    assert result.confidence == "medium"
    assert title_of(result).startswith("1 attention per step writes its scores (16x1024x1024) to memory (400 ")
    products_ns = 2 * 2 * B * S * S * D / 989.4 / 1000
    assert result.saved_ns == pytest.approx(1_000_000 - products_ns, rel=0.02)  # what stays are products at the peak
    assert not evidence_of(result)


def test_what_touches_scores_counts_and_nothing_else() -> None:
    plain = answer(*FORWARD)
    first, softmax, second = FORWARD
    masked, projected = answer(first, MASK, softmax, second), answer(first, softmax, PROJECTION, second)
    for result, more in ((plain, 0), (masked, 100_000), (projected, 0)):
        assert isinstance(result, Found)
        assert result.seen.figures["scores_ns"] == 400_000 + more


@pytest.mark.parametrize("operators", [
    FORWARD[:2],
    FORWARD[1:],
    [FORWARD[0], FORWARD[2]],
    [FORWARD[0], OTHER, FORWARD[2]],
    [FORWARD[2], FORWARD[1], FORWARD[0]],
    [FORWARD[0], FORWARD[1], PROJECTION],
    [("aten::bmm", {}, 300), FORWARD[1], ("aten::bmm", {}, 300)],
], ids=range(7))  # fmt: skip
def test_nothing_else_is_called_attention(operators: list[tuple[str, dict[str, object], int]]) -> None:
    """Metamorphic: without one of the three, with another softmax, in another order, or without shapes."""
    assert isinstance(answer(*operators), NotApplicable)


def test_a_short_softmax_is_fine() -> None:
    first, (name, args, _), second = FORWARD
    assert isinstance(answer(("aten::mm", shaped([S, D], [D, D]), 40_000), first, (name, args, 30), second), Fine)


def test_recorded_attention_has_the_time_of_plain_sums() -> None:
    """In raw JSON: kernels of the softmax between batched products, by the operators' ids."""
    path = real_trace(RECORDED)
    trace = read(str(path))
    result = written_attention.check(trace)
    assert isinstance(result, Found | Fine)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = json.loads(text)["traceEvents"]
    soft = [row for row in rows if row.get("cat") == "kernel" and "softmax" in row["name"].lower()]
    spent = sum(row["dur"] for row in soft) * 1000 / measure(trace).count
    assert result.seen.figures["scores_ns"] >= 0.9 * spent  # type: ignore[union-attr]


COPY, MEAN = (
    "void unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
    "void reduce_kernel<512, ReduceOp<float, MeanOps>>",
)
POW, ROOT, MUL = (
    f"void at::native::vectorized_elementwise_kernel<4, {each}>" for each in ("pow", "rsqrt_kernel", "mul")
)
NORM = [COPY, POW, MEAN, MUL, ROOT, MUL, COPY, MUL]


@pytest.mark.parametrize(("kernels", "count"), [
    (NORM, 1),
    ([*NORM, "gemm", *NORM], 2),
    ([*NORM, *NORM], 2),  # in one chain
    ([*NORM[:4], MUL, *NORM[5:]], 0),  # no root
    ([*NORM[:2], MUL, *NORM[3:]], 0),  # no mean
    ([*NORM[:2], "gemm", *NORM[3:]], 0),
    ([ROOT, MUL, MUL, MEAN, MUL], 0),  # its mean is of what comes after
    ([COPY, MUL, MUL, MUL, MEAN, COPY], 0),
])  # fmt: skip
def test_a_norm_is_a_chain_with_its_reduction_and_casts(kernels: list[str], count: int) -> None:
    """Metamorphic: another kernel in the place of one that makes it a norm."""
    ran = [kernel(name, 10_000 * at, 10_000 * (at + 1)) for at, name in enumerate(kernels)]
    seen = elementwise_chains.check(trace_of(annotation("ProfilerStep#0", 0, ran[-1].end), *ran)).seen
    assert (seen.norm_count, seen.norm_ns) == (count, 80_000 * count)


@pytest.mark.parametrize("name", ["h100", "mi300"])
def test_recorded_norms_are_means_before_roots(name: str) -> None:
    """Plainly, of what was launched in the recording; before the cast, additions are in the chains, too."""
    path = real_trace(f"pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_{name}.json.gz")
    events = load(path)["traceEvents"]
    called = {each["args"].get("correlation") for each in events if each.get("cat") in CALLS}
    rows = [each for each in events if each.get("cat") == "kernel" and each["args"]["correlation"] in called]
    rows.sort(key=lambda each: each["ts"])
    ends = [at for at, each in enumerate(rows) if "rsqrt" in each["name"] and "MeanOps" in rows[at - 2]["name"]]
    us = float(sum(each["dur"] for at in ends for each in rows[at - 4 : at + 4]))
    seen = elementwise_chains.check(read(str(path))).seen
    assert seen.norm_count == len(ends) == 49
    assert us < seen.norm_ns / 1_000 < 1.25 * us
