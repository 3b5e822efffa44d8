"""Requests of a server: spans by OpenTelemetry's own encoder, with the attributes that vLLM and SGLang write."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

import augment
from augment.core import Findings, RequestSpans, Skipped, SliceTrack, Trace
from augment.errors import UnknownFormat
from augment.readers.attachments.spans import read_spans
from tables import Event, annotation, call, kernel, launched_kernel, trace_of

MS = 1_000_000
BASE = 1_772_469_000 * 10**9  #: the first event, Unix time
Said = tuple[str, int, int, Mapping[str, Any]]  #: name, begin and end in ms after BASE, attributes


def otlp(path: Path, *traces: Sequence[Said], lines: bool = True) -> str:
    """A file as the collector's exporter writes it, of spans that the SDK made and encoded."""
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    from opentelemetry import trace as api
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("vllm.llm_engine")
    for spans in traces:
        context = None
        for name, begin, end, attributes in spans:
            span = tracer.start_span(name, context, api.SpanKind.SERVER, attributes, start_time=BASE + begin * MS)
            context = context or api.set_span_in_context(span)
            span.end(BASE + end * MS)
    document = MessageToDict(encoder.encode_spans(kept.get_finished_spans()))
    text = json.dumps(document) + "\n" if lines else json.dumps(document, indent=2)
    path.write_text(text)
    return str(path)


def llm_request(name: str, arrival: int, front: int, queue: int, prefill: int, decode: int, tokens: int) -> list[Said]:
    """vLLM's span of a request; times in ms."""
    seconds = {
        "time_to_first_token": front + queue + prefill,
        "e2e": front + queue + prefill + decode + 1,
        "time_in_queue": queue,
        "time_in_model_prefill": prefill,
        "time_in_model_decode": decode,
        "time_in_model_inference": prefill + decode,
    }
    attributes = {f"gen_ai.latency.{key}": ms / 1000 for key, ms in seconds.items()}
    counts = {"gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": tokens}
    end = arrival + front + queue + prefill + decode + 1
    return [("llm_request", arrival, end, {**attributes, **counts, "gen_ai.request.id": name})]


def engine(*steps: tuple[str, int, int, int]) -> Trace:
    """Steps: name, begin, end of its kernel and of its transfer in ms; the next begins where the transfer ends or
    later."""
    events = list[Event]()
    for number, (name, begin, computed, moved) in enumerate(steps):
        at, first = BASE + begin * MS, 2 * number + 1
        events += [annotation(name, at, at + MS // 2)]
        events += [*launched_kernel("gemm", (at, at + 10), (at + 10, BASE + computed * MS), correlation=first)]
        if moved > computed:
            events += [
                call("cudaLaunchKernel", at + 10, at + 20, correlation=first + 1),
                kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", BASE + computed * MS, BASE + moved * MS,
                    correlation=first + 1,
                ),
            ]  # fmt: skip
    return trace_of(*events)


PREFILL, DECODE = "execute_context_1(100)_generation_0(0)", "execute_context_0(0)_generation_2(2)"
#: prefill of a (0 to 20), of b (20 to 60), then decode: 6 ms computed, 2 of transfers, 2 idle each
STEPS = [
    (PREFILL, 0, 20, 20),
    (PREFILL, 20, 50, 60),
    *((DECODE, 60 + 10 * i, 66 + 10 * i, 68 + 10 * i) for i in range(4)),
]


def rows(trace: Trace) -> list[dict[str, Any]]:
    outcome = augment.augment(trace, only=["requests"]).outcomes["requests"]
    assert isinstance(outcome, Findings), outcome
    return [{name: getattr(row, name) for name in row.__struct_fields__} for row in outcome.rows]


def test_the_time_of_a_request_is_parted(tmp_path: Path) -> None:
    path = otlp(
        tmp_path / "spans.jsonl",
        llm_request("a", 0, 0, 0, 20, 70, 5),
        llm_request("b", 5, 2, 13, 40, 30, 4),  # in the queue from 7 on, scheduled at 20
    )
    a, b = rows(augment.with_spans(engine(*STEPS), path))
    assert [a["request"], b["request"]] == ["a", "b"]
    assert (b["arrival_ns"], b["front_ns"], b["queue_ns"], b["prefill_ns"]) == (5 * MS, 2 * MS, 13 * MS, 40 * MS)
    assert b["ttft_ns"] == 55 * MS
    assert (b["behind_prefill_ns"], b["behind_decode_ns"]) == (13 * MS, 0)
    assert b["prefill_computing_ns"] + b["prefill_transfer_ns"] + b["prefill_idle_ns"] == 40 * MS
    assert (b["prefill_computing_ns"], b["prefill_transfer_ns"]) == (30 * MS - 10, 10 * MS)
    assert (a["decode_ns"], a["decode_other_ns"]) == (70 * MS, 40 * MS)  # from 20 to 90, until 60 behind b
    assert a["itl_ns"] == round(70 * MS / 4)
    assert a["decode_computing_ns"] == 30 * MS - 10 + 3 * (6 * MS - 10)
    assert a["decode_transfer_ns"] == 10 * MS + 3 * 2 * MS
    assert (a["prompt_tokens_count"], a["output_tokens_count"]) == (100, 5)


def test_what_the_recording_lacks_is_not_told(tmp_path: Path) -> None:
    path = otlp(
        tmp_path / "spans.jsonl", llm_request("early", -100, 0, 50, 60, 20, 3), llm_request("late", 200, 0, 1, 1, 1, 2),
        llm_request("long", 62, 0, 0, 10, 500, 2),
    )  # fmt: skip
    augmented = augment.augment(augment.with_spans(engine(*STEPS), path), only=["requests"])
    findings = augmented.outcomes["requests"]
    early, long = findings.rows
    assert (early.request, early.behind_prefill_ns, early.prefill_idle_ns) == ("early", None, None)
    assert early.decode_computing_ns is not None
    assert (long.decode_computing_ns, long.prefill_computing_ns) == (None, 6 * MS - 10)
    assert 0 < long.recorded_ratio < 0.1
    assert [(each.code, each.count) for each in findings.diagnostics] == [("requests_apart", 1)]


def test_requests_are_drawn_in_rows_that_do_not_overlap(tmp_path: Path) -> None:
    path = otlp(
        tmp_path / "spans.jsonl", llm_request("a", -5, 0, 5, 20, 10, 5), llm_request("b", 5, 2, 13, 20, 30, 4),
        llm_request("c", 40, 1, 1, 1, 1, 2),
    )  # fmt: skip
    findings = augment.augment(augment.with_spans(engine(*STEPS), path), only=["requests"]).outcomes["requests"]
    tracks = [track for track in findings.annotations if isinstance(track, SliceTrack)]
    assert [track.name for track in tracks] == ["Requests 1", "Requests 2"]
    drawn = [list(zip(names(track), track.ts.tolist(), track.dur.tolist(), strict=True)) for track in tracks]
    assert drawn[0][:2] == [("a", BASE, 31 * MS), ("prefill", BASE, 20 * MS)]  # the queue was before the recording
    assert [name for name, _, _ in drawn[0]] == ["a", "prefill", "decode", "answer", "c", "front", "queue", "prefill",
                                                 "decode", "answer"]  # fmt: skip
    assert {name for name, _, _ in drawn[1]} == {"b", "front", "queue", "prefill", "decode", "answer"}


def names(track: SliceTrack) -> list[str]:
    return [track.names.values[code] for code in track.names.codes]


def test_stages_of_sglang_are_taken_together(tmp_path: Path) -> None:
    attributes = {"rid": "0123456789abcdef", "module": "sglang::request"}
    request: list[Said] = [
        (" Req 01234567", 0, 100, attributes),
        ("Tokenizer (host:1 | pid:7)", 0, 5, {}),
        ("tokenize", 0, 2, {}),
        ("dispatch", 2, 3, {}),
        ("Scheduler [TP 0] (host:1 | pid:8)", 5, 99, {}),
        ("prefill_waiting", 5, 20, {}),
        ("prefill_forward", 20, 60, {}),
        ("prefill_forward", 21, 61, {}),  # of another rank
        ("decode_forward", 60, 98, {}),
    ]
    (row,) = rows(augment.with_spans(engine(*STEPS), otlp(tmp_path / "spans.jsonl", request)))
    assert (row["request"], row["engine"]) == ("0123456789abcdef", "sglang")
    phases = "front", "queue", "prefill", "decode", "e2e"
    assert [row[f"{phase}_ns"] // MS for phase in phases] == [5, 15, 41, 37, 100]
    assert row["behind_prefill_ns"] == 15 * MS
    assert row["output_tokens_count"] is None


def test_a_document_of_several_lines_and_jaeger(tmp_path: Path) -> None:
    said = llm_request("a", 0, 1, 2, 20, 70, 5)
    plain = read_spans(otlp(tmp_path / "spans.jsonl", said))
    pretty = read_spans(otlp(tmp_path / "pretty.json", said, lines=False))
    ((name, begin, end, attributes),) = said
    tags = [{"key": key, "type": "float64", "value": value} for key, value in attributes.items()]
    times = {"startTime": BASE // 1000 + begin * 1000, "duration": (end - begin) * 1000}
    span = {"traceID": "1", "operationName": name, **times, "tags": tags}
    packed = tmp_path / "jaeger.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"data": [{"traceID": "1", "spans": [span]}]}).encode()))
    for other in (pretty, read_spans(str(packed))):
        assert (other.ids, other.moments.tolist()) == (plain.ids, plain.moments.tolist())
        assert (other.prompt_tokens.tolist(), other.output_tokens.tolist()) == ([100], [5])


def test_what_is_no_span_is_counted(tmp_path: Path) -> None:
    path = Path(otlp(tmp_path / "spans.jsonl", llm_request("a", 0, 1, 2, 20, 70, 5), [("GET /health", 0, 1, {})]))
    bad = {"name": "llm_request", "startTimeUnixNano": "1", "endTimeUnixNano": str(1 << 70)}
    more = [{"resourceSpans": [{"scopeSpans": [{"spans": [bad, {}, 3]}]}]}, {"resourceSpans": 3}, {"x": 1}]
    path.write_text(path.read_text() + "no json\n" + "".join(json.dumps(each) + "\n" for each in more))
    spans = read_spans(str(path))
    assert (len(spans.ids), spans.unreadable) == (1, 6)


@pytest.mark.parametrize("text", ["", "{}", '{"resourceSpans": []}', '{"resourceSpans": [{"scopeSpans": 3}]}', "[1]"])
def test_files_without_requests_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "spans.json").write_text(text)
    with pytest.raises(UnknownFormat):
        read_spans(str(tmp_path / "spans.json"))


def test_spans_of_another_hour_are_not_joined(tmp_path: Path) -> None:
    path = otlp(tmp_path / "spans.jsonl", llm_request("a", 10_000_000, 1, 2, 20, 70, 5))
    outcome = augment.augment(augment.with_spans(engine(*STEPS), path), only=["requests"]).outcomes["requests"]
    assert isinstance(outcome, Skipped)
    assert "do not overlap" in outcome.reason
    without = augment.augment(engine(*STEPS), only=["requests"]).outcomes["requests"]
    assert isinstance(without, Skipped)
    assert "--spans" in without.reason


def test_parts_never_exceed_their_phase(tmp_path: Path) -> None:
    for row in rows(augment.with_spans(engine(*STEPS), otlp(tmp_path / "spans.jsonl", *many()))):
        assert sum(row[f"{phase}_ns"] for phase in ("front", "queue", "prefill", "decode")) <= row["e2e_ns"]
        for phase in ("prefill", "decode"):
            parts = [row[f"{phase}_{what}_ns"] for what in ("computing", "transfer", "idle")]
            assert parts == [None] * 3 or sum(parts) == row[f"{phase}_ns"]
            assert all(part is None or part >= 0 for part in parts)
        if row["behind_prefill_ns"] is not None:
            assert row["behind_prefill_ns"] + row["behind_decode_ns"] <= row["queue_ns"]


def many() -> Iterator[list[Said]]:
    for at in range(40):
        yield llm_request(f"r{at}", at * 2 - 10, at % 3, at % 7, 1 + at % 11, at % 29, 1 + at % 5)


def test_the_spans_of_a_file_are_attached_once(tmp_path: Path) -> None:
    trace = augment.with_spans(engine(*STEPS), otlp(tmp_path / "spans.jsonl", *many()))
    spans = trace.context.attached(RequestSpans)
    assert spans.name == "spans.jsonl"
    assert spans.moments[:, 0].tolist() == sorted(spans.moments[:, 0].tolist())
    assert (np.diff(spans.moments) >= 0).all()
