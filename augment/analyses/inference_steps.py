"""What did each step of an inference engine do, and how near is it to what the device can?

There is a row for each step and device. [Names of steps](inference.md#steps) tell the engine, the ``phase``
(``prefill``: new prompts alone; ``decode``: running sequences alone; ``mixed``: both), the requests, and the new and
cached tokens. What a name does not tell is null. ``wall_ns`` is the step's window of [steps](#steps), which lasts until
the next step begins; a sequence that decodes has waited ``token_ns`` for its token, which is the same. ``gap_ns`` is
how long the device is idle between the last work of the step and the first of the next. ``kept_tokens`` are those that
running sequences keep: where drafts are verified, by how much their cache has grown at the next step, if that has the
same sequences and no prompts; ``tokens_per_s`` counts them.

``graph_ratio`` is the share of the device's work that graphs launched: 0 is an eager step. ``graph_requests`` is the
batch that the graph was captured for where the name tells it, and ``padding_ratio`` the part of it that is padding.

``bytes`` are what operators with a formula have to move: weights, the cache that attention reads, and what lies between
them; ``covered_ratio`` is the share of the busy time that they have. ``mbu_ratio`` is that by what the memory can move
in the step, so that much is used at least. Shapes of kernels in graphs come from a recording of their capture
(``--graph-capture``). ``attention_flops`` and ``cache_bytes`` rest on the sums in the names, and on the sizes of heads
in shapes; layers that take less time than the cache needs to be read attend to a window, and are left out.

The tracks ``Inference steps``, ``Inference tokens`` and ``Memory bandwidth used`` show the rows. The analysis is
skipped without steps of an engine.

**What to do**: decodes are bound by memory: where ``mbu_ratio`` is low, look at gaps, at eager steps, and at the
largest operators of [roofline](#roofline); a larger batch reads the weights for more tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import facts
from augment.core import (
    GPU_WORK,
    Annotation,
    CounterTrack,
    Findings,
    OfDevice,
    Skipped,
    SliceTrack,
    Texts,
    Trace,
    column,
    text,
)
from augment.diagnosis.judging import measure

NAME = "inference_steps"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One step on one device."""

    step: Annotated[int, column("The number of the step, from 0.")]
    engine: Annotated[str, column("The engine that names its steps so; empty of the user's own.", key=False)]
    phase: Annotated[str, column("prefill, decode, mixed, denoise, or step where the name does not tell.")]
    requests: Annotated[int | None, column("Sequences in the batch.", "count")]
    prefill_tokens: Annotated[int | None, column("New tokens of prompts.", "count")]
    decode_tokens: Annotated[int | None, column("New tokens of running sequences.", "count")]
    cached_tokens: Annotated[int | None, column("Tokens of these sequences that were in the cache.", "count")]
    kept_tokens: Annotated[
        int | None, column("New tokens that running sequences keep; drafts may be rejected.", "count")
    ]
    start_ns: Annotated[int, column("When the step's window begins, after the first event of the trace.", "ns")]
    wall_ns: Annotated[int, column("Length of the step's window.", "ns")]
    busy_ns: Annotated[int, column("Time in which any GPU work runs.", "ns")]
    gap_ns: Annotated[int | None, column("Idle time from its last work to the first of the next step.", "ns")]
    token_ns: Annotated[int | None, column("Time from one token of a running sequence to its next.", "ns")]
    tokens_per_s: Annotated[float | None, column("Tokens of running sequences in a second.", key=False)]
    graph_ratio: Annotated[float | None, column("Share of the GPU work that graphs launched.", "ratio")]
    graph_requests: Annotated[int | None, column("Batch that the graph was captured for, where told.", "count")]
    padding_ratio: Annotated[float | None, column("Part of that batch that is padding.", "ratio")]
    attention_flops: Annotated[int | None, column("Operations of attention over the cache.", "FLOP")]
    cache_bytes: Annotated[int | None, column("Bytes that attention moves, mostly of the cache.", "bytes")]
    product_flops: Annotated[int | None, column("Operations of products with a formula.", "FLOP")]
    moved_bytes: Annotated[int | None, column("Bytes that operators with a formula have to move.", "bytes")]
    mbu_ratio: Annotated[float | None, column("Those bytes by what the memory can move in the step.", "ratio")]
    covered_ratio: Annotated[float | None, column("Share of the busy time whose bytes are known.", "ratio")]
    is_steady: Annotated[bool, column("Whether it is one of the steps that verdicts are about.")]
    lacking: Annotated[str | None, column("Why no bytes are known.")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Tell each step."""
    served = facts.operators.served_steps(trace)
    if not served:
        return Skipped("no step of an inference engine: see docs/inference.md for the names")
    rows: list[Row] = []
    tracks: list[Annotation] = []
    for steps in served:
        of_device = list(_rows(trace, steps))
        rows += of_device
        tracks += _drawn(trace, steps, of_device)
    return Findings(rows, tracks)


def _rows(trace: Trace, served: facts.operators.ServedSteps) -> Iterator[Row]:
    device, first = facts.gpu.work(trace).devices[served.device], int(trace.events.ts[0])
    steady = np.isin(served.windows.begin, measure(trace).windows.begin)
    mbu = served.mbu_ratio
    for place, batch in enumerate(served.batches):
        wall = int(served.wall_ns[place])
        decodes = batch.phase in ("decode", "mixed")
        kept = int(served.accepted[place])
        padded = batch.graph_requests if batch.graph_requests >= max(batch.requests, 1) else None
        known = not served.lacking
        yield Row(
            rank=device.rank,
            device=device.device,
            step=int(served.windows.number[place]),
            engine=batch.engine,
            phase=batch.phase,
            requests=_told(batch.requests),
            prefill_tokens=_told(batch.prefill_tokens),
            decode_tokens=_told(batch.decode_tokens),
            cached_tokens=_told(batch.cached_tokens),
            kept_tokens=_told(kept),
            start_ns=int(served.windows.start[place]) - first,
            wall_ns=wall,
            busy_ns=int(served.busy_ns[place]),
            gap_ns=_told(int(served.gap_ns[place])),
            token_ns=wall if decodes else None,
            tokens_per_s=kept / wall * 1e9 if decodes and kept >= 0 and wall else None,
            graph_ratio=_number(float(served.graph_ratio[place])),
            graph_requests=padded,
            padding_ratio=None if padded is None else 1 - batch.requests / padded,
            attention_flops=_whole(float(served.attention_flops[place])),
            cache_bytes=_whole(float(served.attention_bytes[place])),
            product_flops=_whole(float(served.flops[place])) if known else None,
            moved_bytes=_whole(float(served.bytes[place])) if known else None,
            mbu_ratio=_number(float(mbu[place])),
            covered_ratio=float(served.covered_ratio[place]) if known else None,
            is_steady=bool(steady[place]),
            lacking=served.lacking or None,
        )


def _told(count: int) -> int | None:
    return count if count >= 0 else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else round(value)


def _drawn(trace: Trace, served: facts.operators.ServedSteps, rows: list[Row]) -> Iterator[Annotation]:
    """The steps by phase, their tokens, and the part of memory bandwidth that they use."""
    track = facts.gpu.work(trace).devices[served.device].track
    start, wall = served.windows.start, served.wall_ns
    lasting = np.flatnonzero(wall > 0)
    texts = []
    for place in lasting.tolist():
        # as 32 requests, 55,054 cached, 10.74 ms
        row = rows[place]
        parts = [] if row.requests is None else [text.counted(row.requests, "request")]
        parts += [f"{row.prefill_tokens:,} new"] if row.prefill_tokens else []
        parts += [f"{row.cached_tokens:,} cached"] if row.cached_tokens else []
        texts.append(", ".join([*parts, text.four_digits(row.wall_ns, text.TIMES)]))
    codes = {label: code for code, label in enumerate(dict.fromkeys(texts))}
    phases = [row.phase for row in rows]
    names = ("requests", "prefill_tokens", "decode_tokens", "cached_tokens", "gap_ns", "graph_requests")
    values_of = {name: [getattr(row, name) for row in rows] for name in names}
    of_args = {name: [-1 if value is None else value for value in values] for name, values in values_of.items()}
    yield SliceTrack(
        analysis=NAME,
        name="Inference steps",
        under=track,
        ts=start[lasting],
        dur=wall[lasting],
        names=Texts(
            np.array([facts.steps.PHASES.index(batch.phase) for batch in served.batches], np.int32)[lasting],
            facts.steps.PHASES,
        ),
        args={name: np.array(values, np.int64)[lasting] for name, values in of_args.items()},
        description="steps of the engine by phase, with what is in the batch",
        inner=Texts(np.array([codes[label] for label in texts], np.int32), list(codes)),
        colour=np.array([facts.steps.PHASES.index(batch.phase) for batch in served.batches], np.int64)[lasting],
    )
    ends = start + wall
    closing = np.append(start[1:] > ends[:-1], True)  # a counter falls to 0 where no step follows at once
    ts = np.concatenate((start, ends[closing]))
    order = np.argsort(ts, kind="stable")
    distinct = np.append(np.diff(ts[order]) > 0, True)
    counters = (
        ("Inference tokens", "tokens", [batch.new_tokens for batch in served.batches], "new tokens of the step"),
        ("Memory bandwidth used", "%", (100 * served.mbu_ratio).tolist(), "the least that operators have to move"),
    )
    for name, unit, values, about in counters:
        known = np.array([np.nan if value is None or value < 0 else value for value in values], np.float64)
        if phases and not np.isnan(known).all():
            drawn = np.concatenate((np.nan_to_num(known), np.zeros(int(closing.sum()))))[order][distinct]
            yield CounterTrack(NAME, name, track, ts[order][distinct], drawn, unit, about)
