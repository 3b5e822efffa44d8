"""The names of engines' steps, and when such steps end."""

from __future__ import annotations

from pathlib import Path

import pytest

import augment
from augment import facts
from augment.core.trace import Trace
from augment.diagnosis.judging import measure
from augment.errors import UsageError
from augment.facts.steps.engine_steps import UNKNOWN, batch_of, step_rows
from augment.facts.steps.step_windows import recorded_windows, steps
from tables import Event, annotation, call, kernel, op, rows_of, trace_of

MS = 1_000_000


@pytest.mark.parametrize(
    ("name", "engine", "phase", "requests", "new", "cached"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "vLLM", "decode", 32, 32,
         55054),
        ("execute_61_context_2(sq58sk70sqsq9sqsk9)_generation_3(sq3sk60sqsq3sqsk60)", "vLLM", "mixed", 5, 61, 69),
        ("execute_context_2(14721)_generation_0(0)", "vLLM", "prefill", 2, 14721, UNKNOWN),
        ("execute_context_1(888_788544)_generation_0(0)", "vLLM", "prefill", 1, 888, UNKNOWN),
        ("execute_context_0(0)_generation_0(0)", "vLLM", "idle", 0, 0, 0),
        ("execute_new_3_cached_0", "vLLM", "prefill", 3, UNKNOWN, UNKNOWN),
        ("execute_new_0_cached_7", "vLLM", "decode", 7, UNKNOWN, UNKNOWN),
        ("step[DECODE bs=32]", "SGLang", "decode", 32, 32, UNKNOWN),
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", "SGLang", "decode", 2, 2, 28),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", "SGLang", "prefill", 2, 12, 8),
        ("step[EXTEND bs=1 toks=107]", "SGLang", "prefill", 1, 107, UNKNOWN),
        ("step[MIXED bs=2]", "SGLang", "mixed", 2, UNKNOWN, UNKNOWN),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]", "SGLang",
         "mixed", 2, 6, 14),
        ("step[TARGET_VERIFY bs=4]", "SGLang", "decode", 4, UNKNOWN, UNKNOWN),
        ("step[IDLE bs=0]", "SGLang", "idle", 0, 0, 0),
        ("decode[bs=117/128 tok=117 d=117]", "ATOM", "decode", 117, 117, UNKNOWN),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=9 sqsk=9 sk=14721]", "ATOM", "prefill", 2, 14721, 0),
        ("[Executor] _forward_step 12: 1 ctx reqs, 900 ctx tokens, 3 gen reqs", "TensorRT-LLM", "mixed", 4, UNKNOWN,
         UNKNOWN),
        ("[Executor] _forward_step 7: 0 ctx reqs, 3 gen reqs", "TensorRT-LLM", "decode", 3, UNKNOWN, UNKNOWN),
        ("denoise_step17", "diffusion", "denoise", UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)  # fmt: skip
def test_the_names_of_steps_say_what_is_in_the_batch(
    name: str, engine: str, phase: str, requests: int, new: int, cached: int
) -> None:
    batch = batch_of(name)
    assert (batch.engine, batch.phase, batch.requests) == (engine, phase, requests)
    assert (batch.new_tokens, batch.cached_tokens) == (new, cached)


@pytest.mark.parametrize(
    "name", ["execute_model", "step[DRAFT_EXTEND bs=3]", "step 3", "decode", "ProfilerStep#3", "prefill[0]", "executed"]
)
def test_other_names_are_no_steps_of_an_engine(name: str) -> None:
    assert batch_of(name) is None


def test_a_graph_larger_than_its_batch_is_told_by_the_name() -> None:
    batch = batch_of("decode[bs=117/128 tok=117 d=117]")
    assert batch.graph_requests == 128


def served(*names: str, period: int = 10 * MS, pauses: tuple[int, ...] = ()) -> Trace:
    """A step every ``period``: its annotation ends after a fifth, its kernel fills half, a second one a tenth."""
    events, at = list[Event](), 0
    for number, name in enumerate(names):
        events += [
            annotation(name, at, at + period // 5),
            call("cudaGraphLaunch", at + 1_000, at + 5_000, correlation=2 * number + 1),
            kernel("gemm", at + 6_000, at + period // 2, correlation=2 * number + 1),
            op("aten::argmax", at + period // 2 - 1_000, at + period // 2 + 2_000),
            call("cudaLaunchKernel", at + period // 2, at + period // 2 + 1_000, correlation=2 * number + 2),
            kernel("sample", at + period // 2 + 2_000, at + 6 * period // 10, correlation=2 * number + 2),
        ]
        at += period + (pauses[number] if number < len(pauses) else 0)
    return trace_of(*events)


def test_a_step_lasts_until_the_next_begins() -> None:
    trace = served(*["step[DECODE bs=8]"] * 4)
    assert steps(trace).number.tolist() == [0, 1, 2, 3]
    assert (steps(trace).end - steps(trace).ts).tolist()[:3] == [10 * MS] * 3
    assert measure(trace).unit == "step"
    assert measure(trace).count == 4


def test_a_pause_between_requests_belongs_to_no_step() -> None:
    trace = served(*["step[DECODE bs=8]"] * 6, pauses=(0, 0, 5_000 * MS))
    length = (steps(trace).end - steps(trace).ts).tolist()
    assert length[:5] == [10 * MS] * 5


def test_a_step_without_requests_is_none() -> None:
    trace = served("step[DECODE bs=8]", "step[IDLE bs=0]", "step[DECODE bs=8]")
    assert len(steps(trace)) == 2
    assert (steps(trace).end - steps(trace).ts).tolist()[0] == 10 * MS


def test_the_passes_of_a_draft_model_are_no_steps() -> None:
    trace = served("step[TARGET_VERIFY bs=8]", "step[DECODE bs=8]", "step[TARGET_VERIFY bs=8]")
    assert len(steps(trace)) == 2


def test_steps_of_the_profiler_come_first() -> None:
    trace = trace_of(
        annotation("ProfilerStep#7", 0, 100), annotation("step[DECODE bs=8]", 10, 50), op("aten::mm", 12, 14)
    )
    assert steps(trace).number.tolist() == [7]


def test_a_prefill_is_no_slow_first_step_and_no_outlier() -> None:
    names = ["execute_context_1(4096)_generation_0(0)", *["execute_context_0(0)_generation_1(1)"] * 9]
    events, at = list[Event](), 0
    for number, name in enumerate(names):
        length = 80 * MS if number == 0 else 10 * MS
        events += [
            annotation(name, at, at + MS),
            call("cudaLaunchKernel", at + 1_000, at + 5_000, correlation=number + 1),
            kernel("gemm", at + 6_000, at + length - 1_000, correlation=number + 1),
        ]
        at += length
    trace = trace_of(*events)
    assert not measure(trace).warm_up
    assert measure(trace).count == 10
    rows = rows_of(augment.augment(trace, only=["steps"]).outcomes["steps"], "is_outlier", "robust_z")
    assert not any(is_outlier for is_outlier, _ in rows)
    assert rows[0] == (None, None)


def test_one_step_cut_out_of_a_server_begins_when_the_device_is_free() -> None:
    trace = trace_of(
        annotation("execute_context_0(0)_generation_4(4)", 0, 2 * MS),
        call("cudaMemcpyAsync", 5_000, 9_000, correlation=1),
        kernel("small", 10_000, 12_000, correlation=1, stream=3),
        call("cudaGraphLaunch", 1 * MS, 2 * MS, correlation=2),
        *(kernel("gemm", (400 + at) * MS, (401 + at) * MS, correlation=2) for at in range(20)),
    )
    windows = recorded_windows(trace)
    assert (windows.start[0], windows.end[0]) == (400 * MS, 420 * MS)
    rows = rows_of(augment.augment(trace, only=["diagnosis"]).outcomes["diagnosis"], "rule", "status")
    assert not [rule for rule, status in rows if status == "found"]


def test_users_name_their_steps() -> None:
    trace = served(*["my_loop 4 of 8"] * 3)
    assert not len(steps(trace))
    for region in ("my_loop 4 of 8", "my_loop*"):
        ours = augment.with_tables(trace, region=region)
        assert (steps(ours).end - steps(ours).ts).tolist() == [2 * MS] * 3
    assert len(rows_of(augment.augment(trace, region="my_loop*").outcomes["steps"], "step")) == 3


def test_a_table_names_steps_and_their_counts(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        "[[step]]\npattern = 'my_loop (?P<prefill_requests>\\d+) of (?P<decode_requests>\\d+)'\n", encoding="utf-8"
    )
    trace = augment.with_tables(served(*["my_loop 4 of 8"] * 3), path)
    assert (steps(trace).end - steps(trace).ts).tolist()[:2] == [10 * MS] * 2
    assert facts.steps.batches(trace)[0].phase == "mixed"


@pytest.mark.parametrize("row", [{}, {"pattern": "("}, {"pattern": "a", "phase": "b"}, {"pattern": "(?P<a>.)"}])
def test_a_wrong_table_is_refused(row: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="step"):
        step_rows([row])
