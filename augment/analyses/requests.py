"""Where did the time of each request of a server go: front, queue, prefill, decode, and what did the device do?

The input is the spans that vLLM or SGLang recorded, given with ``--spans``, joined by Unix time. Without them the
analysis is skipped: steps alone do not tell which request waited.

A row is a request. Its time to the first token is parted into the time before the engine's queue, the queue, and the
prefill. ``behind_prefill_ns`` is the part of the queue in steps with prompts of others, ``behind_decode_ns`` in steps
without. Prefill and decode are parted by what the device did: it computed, only communicated or copied, or idled.
``decode_other_ns`` is the part of the decode in steps with prompts of other requests. Parts of a phase are told where
the recording has the whole of it. Each request is drawn with its phases as ``Requests``, cut at the ends of the
recording.

**What to do**: a queue behind prefill wants chunked prefill or more replicas; much idle time in decode, a faster
scheduler (asynchronous scheduling, CUDA graphs); decode in steps with prompts, smaller chunks
(``--max-num-batched-tokens``, ``--chunked-prefill-size``) or prefill by servers of its own. See
[inference](inference.md#requests).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, Intervals, clip, sums, union
from augment.core import Annotation, Diagnostic, Findings, RequestSpans, Skipped, SliceTrack, Texts, Trace, column
from augment.facts import gpu, steps
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, MEMORY
from augment.facts.source.recorded_times import apart

NAME = "requests"
NEEDS = ()
LANES = 64  #: rows of requests that are drawn; further requests at the same time are left out
PHASES = ("front", "queue", "prefill", "decode", "answer")


class Row(Struct, frozen=True):
    """A request that was under way while the trace was recorded."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    request: Annotated[str, column("The request's id.")]
    engine: Annotated[str, column("vllm or sglang.")]
    arrival_ns: Annotated[int, column("When it arrived, from the trace's first event; negative before it.", "ns")]
    ttft_ns: Annotated[int, column("From its arrival to its first token.", "ns")]
    front_ns: Annotated[int, column("From its arrival to the engine's queue: HTTP, tokens of the text.", "ns")]
    queue_ns: Annotated[int, column("From there until the engine scheduled it.", "ns")]
    prefill_ns: Annotated[int, column("From there to its first token.", "ns")]
    decode_ns: Annotated[int, column("From the first token to the last.", "ns")]
    e2e_ns: Annotated[int, column("From its arrival to its end.", "ns")]
    itl_ns: Annotated[int | None, column("Decode per token after the first: the mean inter-token latency.", "ns")]
    prompt_tokens_count: Annotated[int | None, column("Tokens of the prompt, if recorded.", "count")]
    output_tokens_count: Annotated[int | None, column("Generated tokens, if recorded.", "count")]
    recorded_ratio: Annotated[float, column("The part of the request's time that the trace covers.", "ratio")]
    behind_prefill_ns: Annotated[int | None, column("The queue's part in steps with prompts of others.", "ns")]
    behind_decode_ns: Annotated[int | None, column("The queue's part in steps without prompts.", "ns")]
    prefill_computing_ns: Annotated[int | None, column("The prefill's part in which the device computes.", "ns")]
    prefill_transfer_ns: Annotated[int | None, column("The prefill's part in which the device only moves data.", "ns")]
    prefill_idle_ns: Annotated[int | None, column("The prefill's part in which the device idles.", "ns")]
    decode_computing_ns: Annotated[int | None, column("The decode's part in which the device computes.", "ns")]
    decode_transfer_ns: Annotated[int | None, column("The decode's part in which the device only moves data.", "ns")]
    decode_idle_ns: Annotated[int | None, column("The decode's part in which the device idles.", "ns")]
    decode_other_ns: Annotated[int | None, column("The decode's part in steps with prompts of other requests.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Part the time of each request, and draw it."""
    spans = trace.context.attached(RequestSpans)
    if spans is None:
        return Skipped("no spans of requests are given beside the trace; name them with --spans")
    arrived, ended = spans.moments[:, 0], spans.moments[:, -1]
    if not len(trace.events):
        return Skipped("the trace has no events")
    if why := apart(trace, int(arrived[0]), int(ended.max()), f"the spans of {spans.name}"):
        return Skipped(why)
    begin, end = int(trace.events.ts[0]), int(trace.events.end.max())
    places = np.flatnonzero((arrived < end) & (ended > begin))
    if not len(places):
        return Skipped(f"no request of {spans.name} was under way while the trace was recorded")
    # the requests in as few rows as they need; and how many there was no row for
    lanes: list[list[int]] = []
    left_out = 0
    for place in places.tolist():
        lane = next((lane for lane in lanes if spans.moments[lane[-1], -1] <= spans.moments[place, 0]), None)
        if lane is not None:
            lane.append(place)
        elif len(lanes) < LANES:
            lanes.append([place])
        else:
            left_out += 1
    annotated = steps.recorded(trace)
    under = int(trace.events.track[annotated.row[0]]) if len(annotated) else int(trace.events.track[0])
    tracks: list[Annotation] = []
    for number, lane in enumerate(lanes, 1):
        # a row for each request and then its phases: the slice of a phase lies in that of the request
        drawn_moments = np.clip(spans.moments[lane], begin, end)
        start = np.concatenate([drawn_moments[:, :1], drawn_moments[:, :-1]], axis=1).ravel()
        finish = np.concatenate([drawn_moments[:, -1:], drawn_moments[:, 1:]], axis=1).ravel()
        phase_of = np.tile(np.arange(len(PHASES) + 1), len(lane))
        request_of = np.repeat(np.arange(len(lane)), len(PHASES) + 1)
        drawn = start < finish
        names = np.where(phase_of == 0, len(PHASES) + request_of, phase_of - 1)[drawn].astype(np.int32)
        life, request_of = spans.moments[lane], request_of[drawn]
        tracks.append(
            SliceTrack(
                analysis=NAME,
                name=f"Requests {number}",
                under=under,
                ts=start[drawn],
                dur=(finish - start)[drawn],
                names=Texts(names, [*PHASES, *(spans.ids[place] for place in lane)]),
                args={
                    "ttft_ns": (life[:, 3] - life[:, 0])[request_of],
                    "e2e_ns": (life[:, -1] - life[:, 0])[request_of],
                    "prompt_tokens": spans.prompt_tokens[lane][request_of],
                    "output_tokens": spans.output_tokens[lane][request_of],
                },
                description="requests of the server's spans, with their phases",
                of_process=True,
            )
        )
    others = len(spans.ids) - len(places)
    diagnostics = [
        Diagnostic(code, count, message)
        for code, count, message in (
            ("requests_apart", others, "requests ended before the trace begins, or arrived after its end"),
            ("spans_unreadable", spans.unreadable, "lines or spans that are none: left out"),
            ("requests_not_drawn", left_out, f"requests beyond {LANES} at the same time are not drawn"),
        )
        if count
    ]
    moments = spans.moments[places]
    whole = (moments[:, :-1] >= begin) & (moments[:, 1:] <= end)  # of each phase, whether the trace has all of it
    length = np.diff(moments)
    queue, prefill, decode = (PHASES.index(name) for name in ("queue", "prefill", "decode"))
    parts: dict[str, tuple[int, Int64s]] = {}  # by name of the column: of which phase, and how much of it
    batches = steps.batches(trace)
    if batches:
        prompts = np.array([batch.phase in ("prefill", "mixed") for batch in batches], np.bool_)
        with_prompts = union(annotated.ts[prompts], annotated.end[prompts])
        without = union(annotated.ts[~prompts], annotated.end[~prompts])
        parts["behind_prefill_ns"] = queue, _within(moments, queue, with_prompts)
        parts["behind_decode_ns"] = queue, _within(moments, queue, without)
        parts["decode_other_ns"] = decode, _within(moments, decode, with_prompts)
    for device in sorted(gpu.coverage(trace), key=lambda each: -each.time_of(any_of=COMPUTATION))[:1]:
        computes = device.intervals_of(any_of=COMPUTATION)
        moves = device.intervals_of(any_of=COMMUNICATION | MEMORY, none_of=COMPUTATION)
        for name, phase in (("prefill", prefill), ("decode", decode)):
            computing, transfer = _within(moments, phase, computes), _within(moments, phase, moves)
            parts[f"{name}_computing_ns"], parts[f"{name}_transfer_ns"] = (phase, computing), (phase, transfer)
            parts[f"{name}_idle_ns"] = phase, length[:, phase] - computing - transfer
    rows = []
    for at, place in enumerate(places.tolist()):
        front_ns, queue_ns, prefill_ns, decode_ns, _ = length[at].tolist()
        arrival, *_, first_token, _, last = moments[at].tolist()
        prompt, output = int(spans.prompt_tokens[place]), int(spans.output_tokens[place])
        known = {name: int(times[at]) for name, (phase, times) in parts.items() if whole[at, phase]}
        rows.append(
            Row(
                rank=trace.rank,
                request=spans.ids[place],
                engine=spans.engines[place],
                arrival_ns=arrival - begin,
                ttft_ns=first_token - arrival,
                front_ns=front_ns,
                queue_ns=queue_ns,
                prefill_ns=prefill_ns,
                decode_ns=decode_ns,
                e2e_ns=last - arrival,
                itl_ns=round(decode_ns / (output - 1)) if output > 1 else None,
                prompt_tokens_count=prompt if prompt >= 0 else None,
                output_tokens_count=output if output >= 0 else None,
                recorded_ratio=(min(end, last) - max(begin, arrival)) / max(last - arrival, 1),
                **(dict.fromkeys(_PARTS) | known),
            )
        )
    return Findings(rows, tracks, diagnostics)


_PARTS = Row.__struct_fields__[Row.__struct_fields__.index("behind_prefill_ns") :]


def _within(moments: Int64s, phase: int, disjoint: Intervals) -> Int64s:
    """How much of each request's phase lies in the ``disjoint`` intervals, ns."""
    which, _, parts = clip(Intervals(moments[:, phase], moments[:, phase + 1]), disjoint)
    return sums(which, parts.end - parts.start, len(moments))
