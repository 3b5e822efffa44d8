"""Steps and phases of simulated engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import augment
from augment.core import CounterTrack, Findings, Skipped, SliceTrack
from augment.diagnosis.served import served_sentence
from augment.diagnosis.verdict import verdict
from serving import MS, Serving, serve
from tables import Event, annotation, launched_kernel, op, shaped, trace_of


def found(trace: Any, name: str) -> Findings:
    outcome = augment.augment(trace, only=[name]).outcomes[name]
    assert isinstance(outcome, Findings)
    return outcome


def test_steps_of_a_server() -> None:
    trace = serve(Serving(prefill_every=10, prefill_times=4))
    rows = found(trace, "inference_steps").rows
    assert [row.phase for row in rows].count("prefill") == 4
    decode = next(row for row in rows if row.phase == "decode")
    assert decode.engine == "vLLM"
    assert decode.graph_ratio > 0.95
    assert decode.decode_tokens == decode.requests
    assert decode.token_ns == decode.wall_ns > decode.busy_ns
    assert decode.tokens_per_s == pytest.approx(decode.decode_tokens / decode.wall_ns * 1e9)
    prefill = next(row for row in rows if row.phase == "prefill")
    assert (prefill.prefill_tokens, prefill.graph_ratio, prefill.token_ns) == (4096, 0.0, None)
    # a step begins where the one before ends, and gaps lie between their work
    ends = [row.start_ns + row.wall_ns for row in rows]
    assert ends[:-1] == [row.start_ns for row in rows[1:]]
    assert all(0 < row.gap_ns < 400_000 for row in rows[:-1])
    assert rows[-1].gap_ns is None


def test_phases_of_a_server() -> None:
    trace = serve(Serving(prefill_every=10, prefill_times=4))
    rows = found(trace, "inference_phases").rows
    whole, decode, prefill = (next(row for row in rows if row.phase == name) for name in ("all", "decode", "prefill"))
    assert (whole.step_count, decode.step_count, prefill.step_count) == (40, 36, 4)
    assert whole.sum_ns == decode.sum_ns + prefill.sum_ns
    assert prefill.median_ns > 3 * decode.median_ns
    assert whole.tokens_per_s < decode.tokens_per_s


def test_the_first_sentence() -> None:
    trace = serve(Serving(prefill_every=10, prefill_times=4))
    text = served_sentence(trace)
    assert text.startswith("vLLM decodes 31 sequences in 5.")
    assert " ms a step (36 of 40 steps), " in text
    assert "prefills 1 sequence (4,096 new tokens) in " in text
    assert "the device idles" in text
    assert "(MBU)" not in text
    assert "(MBU) is unknown: no operator of these steps has shapes" in verdict(trace)[-1]
    assert "idles" not in served_sentence(serve(Serving(is_async=True, schedule_ns=20_000, answer_ns=20_000)))


def test_memory_bandwidth_is_said_of_decodes_alone() -> None:
    """A prefill computes: how much of the bandwidth it uses says nothing about how fast it could be."""
    for name, said in (("context_1(888)_generation_0(0)", False), ("context_0(0)_generation_4(4)", True)):
        text = " ".join(verdict(trace_of(*(each for at in range(4) for each in step_of(f"execute_{name}", at * MS)))))
        assert ("(4 steps)" in text, "The decodes' use of memory bandwidth" in text) == (True, said)


def step_of(name: str, ts: int) -> tuple[Event, ...]:
    work = launched_kernel("gemm", (ts + 1_000, ts + 5_000), (ts + 6_000, ts + 900_000), correlation=ts + 1)
    return annotation(name, ts, ts + MS), *work


def test_tracks() -> None:
    tracks = found(serve(Serving(graph_requests=48, prefill_every=0)), "inference_steps").annotations
    steps, tokens = tracks
    assert isinstance(steps, SliceTrack)
    assert isinstance(tokens, CounterTrack)
    assert steps.name == "Inference steps"
    assert set(np.asarray(steps.args["graph_requests"]).tolist()) == {48}
    assert tokens.values.tolist()[-2:] == [32.0, 0.0]


def test_padding_where_the_name_tells_the_graph() -> None:
    rows = found(serve(Serving(graph_requests=48)), "inference_steps").rows
    assert {(row.requests, row.graph_requests, row.padding_ratio) for row in rows} == {(32, 48, 1 - 32 / 48)}


def test_a_pause_is_a_row_of_its_own() -> None:
    events = []
    for number, at in enumerate([0, 10, 20, 5_020, 5_030]):
        ts = at * MS
        events += [
            annotation("execute_context_0(0)_generation_1(1)", ts, ts + MS),
            *launched_kernel("gemm", (ts + 1_000, ts + 5_000), (ts + 6_000, ts + 9 * MS), correlation=number + 1),
        ]
    rows = found(trace_of(*events), "inference_phases").rows
    (pause,) = [row for row in rows if row.phase == "pause"]
    assert pause.step_count == 1
    assert 4_980 * MS < pause.sum_ns < 5_000 * MS


def attending(name: str, tokens: int) -> Any:
    """The row of a step in which 4 heads attend to 2 of keys and values."""
    heads = shaped(*([tokens, count, 16] for count in (4, 2, 2, 4)))
    trace = trace_of(
        annotation(name, 0, 100_000),
        op("vllm::unified_attention_with_output", 10_000, 30_000, args=heads),
        *launched_kernel("flash", (12_000, 15_000), (20_000, 60_000), correlation=1),
    )
    (row,) = found(augment.with_tables(trace, peaks=["memory_gbps=1000", "bf16=100"]), "inference_steps").rows
    return row


def test_attention_over_a_cache_is_counted_by_the_name_of_the_step() -> None:
    """Two sequences prefill 3 and 2 tokens after 1 and 0 in the cache, one decodes in a cache of 7: pairs by hand."""
    name = "execute_6_context_2(sq5sk6sqsq13sqsk16)_generation_1(sq1sk7sqsq1sqsk7)"
    pairs = (2 + 3 + 4) + (1 + 2) + 7
    row = attending(name, tokens=6)
    assert row.attention_flops == 4 * 4 * 16 * pairs
    assert row.cache_bytes == 2 * 2 * 16 * 2 * (6 + 7) + 2 * 6 * 4 * 16 * 2
    assert row.mbu_ratio == pytest.approx(row.cache_bytes / row.wall_ns / 1000)


def test_attention_that_is_too_fast_for_the_cache_is_not_counted() -> None:
    """Such a layer attends to a window: its cache cannot have been read."""
    row = attending("execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk900000sqsq1sqsk900000)", tokens=1)
    assert (row.attention_flops, row.cache_bytes) == (None, None)


def test_other_traces_have_no_such_steps() -> None:
    trace = trace_of(annotation("ProfilerStep#1", 0, 100), *launched_kernel("gemm", (3, 4), (20, 30), correlation=1))
    for name in ("inference_steps", "inference_phases"):
        assert isinstance(augment.augment(trace, only=[name]).outcomes[name], Skipped)
