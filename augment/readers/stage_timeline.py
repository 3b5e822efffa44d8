"""Timelines of a pipeline stage: when each microbatch went forward and backward, measured with events of the device.

Two kinds are read: Primus' ``pp_rank_N.json``, an object of iterations with ``fwd_start``, ``fwd_end``, ``bwd_start``
and ``bwd_end`` in milliseconds; and MegatronApp's, an array of ``B`` and ``E`` events with ``rel_ts`` in nanoseconds.
Their times begin anew with each iteration. Here an iteration begins when the one before it ends on the same rank, so
times of several ranks can be compared only within an iteration. The rank is that in the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from augment.core.trace import COMPLETE, NO_CORRELATION, NOTHING, Trace
from augment.errors import MalformedTrace
from augment.readers.assembly import Outline, assemble
from augment.readers.containers import CHUNK, OpenText, TextAgain
from augment.readers.raw import ABSENT, COLUMNS, Place, RawEvents, Tally, TrackNames

NAME = "stage_timeline"
SUFFIXES: tuple[str, ...] = (".json",)
_PRIMUS = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\{[^{}\[\]]*"(?:fwd_start|fwd_end|bwd_start|bwd_end)"\s*:\s*\[')
_MEGATRON_APP = re.compile(rb'\s*\[\s*\{\s*"name"\s*:\s*"iteration"\s*,\s*"ph"\s*:\s*"B"\s*,\s*"pad_before"\s*:')
_STREAM = 7
Slice = tuple[str, str, int, int]  #: category, name, start and duration in ns


def recognizes(head: bytes) -> bool:
    """Whether a text that begins with ``head`` is such a timeline."""
    return bool(_PRIMUS.match(head) or _MEGATRON_APP.match(head))


def layout(head: bytes) -> str:
    """Whose timeline it is."""
    return "Primus" if _PRIMUS.match(head) else "MegatronApp"


def read(path: str, text: OpenText, head: bytes) -> Trace:
    """The trace in ``text``, of which ``head`` has been taken already.

    Raises:
        MalformedTrace: the text is no JSON, or lacks a member.
    """
    pieces = [head]
    while piece := text.read(CHUNK):
        pieces.append(piece)
    data = b"".join(pieces)
    try:
        content = msgspec.json.decode(data)
        slices = list(_primus(content) if layout(head) == "Primus" else _megatron_app(content))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise MalformedTrace(path, 0, f"no timeline of a pipeline stage by {layout(head)}: {error!r}") from error
    text.limits.expect_events(path, len(slices))
    outline = Outline(text_bytes=len(data), partial=text.damage)
    again = TextAgain(path, len(data))
    # A row for each slice. No byte range of the text belongs to a slice alone.
    strings = {text: code for code, text in enumerate(dict.fromkeys(chain([""], *[each[:2] for each in slices])))}
    places: list[Place] = [(0, 0, ABSENT, ABSENT), (0, _STREAM, ABSENT, ABSENT)]
    nothing = (NO_CORRELATION, 0, 0)
    rows = [
        (start, dur, COMPLETE, strings[category], strings[name], int(category != "user_annotation"), *nothing)
        for category, name, start, dur in slices
    ]
    table = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
    columns: dict[str, Any] = {name: table[:, at].astype(kind) for at, (name, kind) in enumerate(COLUMNS.items())}
    raw_events = RawEvents(
        **columns,
        sizes=NOTHING,
        flows=NOTHING,
        strings=list(strings),
        places=places,
        names=TrackNames(),
        tally=Tally(),
        event_count=len(rows),
    )
    return assemble(path, NAME, text.stored.sha256(), again, raw_events, outline, _decode)


def _primus(content: Any) -> Iterator[Slice]:
    """The slices of all iterations, one after the other."""
    origin = 0
    for number, of in content.items():
        passes = [
            (name, batch, _ns(start), _ns(end))
            for name, key in (("Forward", "fwd"), ("Backward", "bwd"))
            for batch, (start, end) in enumerate(zip(of[f"{key}_start"], of[f"{key}_end"], strict=True))
        ]
        length = max([_ns(of.get("total", 0)), *(end for *_, end in passes)])
        yield "user_annotation", f"ProfilerStep#{int(number)}", origin, length
        for name, batch, start, end in passes:
            yield "gpu_user_annotation", f"{name} {batch}", origin + start, end - start
        origin += length


def _megatron_app(content: Any) -> Iterator[Slice]:
    """The slices of all iterations. An ``E`` ends the newest open ``B``."""
    origin, number = 0, -1
    opened: list[int] = []
    passes: list[Slice] = []
    for event in content:
        name, begins = event["name"], event["ph"] == "B"
        if name == "iteration" and begins:
            origin, number = origin + int(event["pad_before"]), number + 1
        elif name == "iteration":
            length = max([int(event["rel_ts"]), *(start + dur - origin for *_, start, dur in passes)])
            yield "user_annotation", f"ProfilerStep#{number}", origin, length
            yield from passes
            origin, passes = origin + length, []
        elif begins:
            opened.append(int(event["rel_ts"]))
        elif name in ("forward", "backward"):
            start, chunk = opened.pop(), event.get("model_chunk")
            part = "" if chunk is None else f" of chunk {int(chunk)}"
            label = f"{name.capitalize()} {int(event['microbatch'])}{part}"
            passes.append(("gpu_user_annotation", label, origin + start, int(event["rel_ts"]) - start))
        else:
            opened.pop()
    yield from passes


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1_000_000)


def _decode(_piece: bytes, _offset: int) -> dict[str, Any]:
    """Slices have no args."""
    return {"args": {}}
