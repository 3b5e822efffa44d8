"""Spans of requests that vLLM and SGLang export (``--otlp-traces-endpoint``), as OTLP's JSON of a collector's file
exporter, a line or a document; or as the JSON of Jaeger.

vLLM has one span a request, ``llm_request``: its durations are attributes ``gen_ai.latency.*``, in seconds
(vllm/tracing/utils.py, vllm/v1/engine/output_processor.py). SGLang has a span a stage of each thread below a root
``Req ID`` (python/sglang/srt/observability/trace.py); the stages of all ranks of a request are taken together.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from augment.core import RequestSpans
from augment.errors import UnknownFormat
from augment.readers.attachments import files_at
from augment.readers.containers import bounded_lines, read_document
from augment.readers.limits import UNLIMITED, Limits

LONGEST_LINE = 1 << 26  #: bytes; a longer line is passed over and counted
_ROOT = re.compile(r"\w* ?Req [0-9a-f]{1,8}")
_FAULTS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)  #: of what is no span


class _Span(Struct, frozen=True):
    trace: str
    name: str
    begin: int
    end: int
    attributes: dict[str, Any]


class _Request(Struct, frozen=True):
    id: str
    engine: str
    moments: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


def read_spans(path: str, limits: Limits = UNLIMITED) -> RequestSpans:
    """The requests in the file at ``path``, or in all files that match the glob, plain or compressed.

    Raises:
        InputError: a file cannot be read.
        UnknownFormat: no span is of a request that is known.
    """
    spans, unreadable = list[_Span](), 0
    for file in files_at(path):
        for document in _documents(file, limits):
            if document is None:
                unreadable += 1
                continue
            for made in _otlp(document) if "resourceSpans" in document else _jaeger(document):
                if made is None:
                    unreadable += 1
                else:
                    spans.append(made)
    requests = list[_Request]()
    stages = defaultdict[str, list[_Span]](list)
    for span in spans:
        if span.name == "llm_request":
            try:
                requests.append(_of_vllm(span))
            except _FAULTS:
                unreadable += 1
        else:
            stages[span.trace].append(span)
    for group in stages.values():
        if request := _of_sglang(group):
            requests.append(request)
    if not requests:
        raise UnknownFormat(path, "no spans of requests: neither vLLM's llm_request nor SGLang's Req")
    requests.sort(key=lambda request: (request.moments[0], request.id))
    moments = np.maximum.accumulate(np.array([request.moments for request in requests], np.int64), axis=1)
    return RequestSpans(
        os.path.basename(path),
        [request.id for request in requests],
        [request.engine for request in requests],
        moments,  # that ascend: clocks of processes are microseconds apart
        np.array([request.prompt_tokens for request in requests], np.int64),
        np.array([request.output_tokens for request in requests], np.int64),
        unreadable,
    )


def _documents(path: str, limits: Limits) -> Iterator[dict[str, Any] | None]:
    """The JSON objects of the file: one a line, or one in all; None for what is none."""
    first = True
    for line, is_cut in bounded_lines(path, LONGEST_LINE, limits):
        if not line.strip():
            continue
        try:
            document = None if is_cut else msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = None
        if first and document is None:
            whole = read_document(path, limits)  # of several lines
            yield whole if isinstance(whole, dict) else None
            return
        first = False
        yield document if isinstance(document, dict) else None


def _otlp(document: dict[str, Any]) -> Iterator[_Span | None]:
    try:
        scopes = [scope for resource in document["resourceSpans"] for scope in resource.get("scopeSpans", ())]
        entries = [span for scope in scopes for span in scope.get("spans", ())]
    except _FAULTS:
        yield None
        return
    for entry in entries:
        try:
            attributes = {each["key"]: next(iter(each["value"].values())) for each in entry.get("attributes", ())}
            begin, end = _ns(entry["startTimeUnixNano"]), _ns(entry["endTimeUnixNano"])
            yield _Span(str(entry.get("traceId", "")), str(entry["name"]), begin, end, attributes)
        except (*_FAULTS, StopIteration):  # noqa: PERF203
            yield None


def _jaeger(document: dict[str, Any]) -> Iterator[_Span | None]:
    try:
        entries = [span for trace in document["data"] for span in trace["spans"]]
    except _FAULTS:
        yield None
        return
    for entry in entries:
        try:
            begin = _ns(entry["startTime"]) * 1000
            attributes = {each["key"]: each["value"] for each in entry.get("tags", ())}
            end = begin + _ns(entry["duration"]) * 1000
            yield _Span(str(entry.get("traceID", "")), str(entry["operationName"]), begin, end, attributes)
        except _FAULTS:  # noqa: PERF203
            yield None


def _ns(text: Any) -> int:
    """A number that columns hold, of an integer or its text; ValueError beyond."""
    number = int(text)
    if not 0 <= number < 1 << 62:
        raise ValueError(text)
    return number


def _of_vllm(span: _Span) -> _Request:
    def seconds(name: str) -> int | None:
        value = span.attributes.get(f"gen_ai.latency.{name}")
        return None if value is None else _ns(max(0, round(float(value) * 1e9)))

    queue, prefill = seconds("time_in_queue") or 0, seconds("time_in_model_prefill") or 0
    decode, first = seconds("time_in_model_decode") or 0, seconds("time_to_first_token")
    # the time before the queue, in the server's front, is what the first token's has more
    first_token = span.begin + max(queue + prefill, first or 0)
    scheduled = first_token - prefill
    return _Request(
        str(span.attributes.get("gen_ai.request.id", "")),
        "vllm",
        (span.begin, scheduled - queue, scheduled, first_token, first_token + decode, span.end),
        _tokens(span.attributes.get("gen_ai.usage.prompt_tokens")),
        _tokens(span.attributes.get("gen_ai.usage.completion_tokens")),
    )


def _of_sglang(spans: list[_Span]) -> _Request | None:
    """The request of a trace of SGLang's; None if it has none."""
    root = next((span for span in spans if _ROOT.fullmatch(span.name)), None)
    if root is None:
        return None
    by_name = defaultdict[str, list[_Span]](list)
    for span in spans:
        by_name[span.name].append(span)
    waiting = by_name["prefill_waiting"]
    forward = [*by_name["prefill_forward"], *by_name["chunked_prefill"]]
    decoding = [*by_name["decode_forward"], *by_name["decode_loop"]]
    scheduled = min((span.begin for span in forward), default=max((span.end for span in waiting), default=root.begin))
    first_token = max((span.end for span in forward), default=scheduled)
    return _Request(
        str(root.attributes.get("rid", root.name.rpartition(" ")[2])),
        "sglang",
        (
            root.begin,
            min((span.begin for span in waiting), default=scheduled),
            scheduled,
            first_token,
            max((span.end for span in decoding), default=max(first_token, root.end)),
            root.end,
        ),
        _tokens(root.attributes.get("gen_ai.usage.prompt_tokens")),
        _tokens(root.attributes.get("gen_ai.usage.completion_tokens")),
    )


def _tokens(value: Any) -> int:
    return -1 if value is None else _ns(value)
