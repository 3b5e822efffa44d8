"""Writes selected events of a trace to a separate file: the source's own bytes without the other events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays import Bools, Int64s
from augment.core import AugmentedTrace, Trace
from augment.errors import UsageError
from augment.facts.source.cut_mark import MEMBER, marked
from augment.facts.steps.window import only
from augment.writers import perfetto
from augment.writers.compression import GzipWriter
from augment.writers.files import replacing

_SPACE = np.zeros(256, np.bool_)
_SPACE[list(b" \t\r\n")] = True
_BETWEEN = b", \t\r\n"  #: the bytes between elements


def write_cut(trace: Trace, keep: Bools, path: Path, mark: Mapping[str, Any]) -> None:
    """Write the events in ``keep`` to ``path``. The name selects Chrome JSON (if the source is Chrome JSON) or the
    native format.

    In Chrome JSON everything that is not an event of the table stays, such as names of threads and members of the outer
    object. The ``mark``, a member of that object, says what was kept.

    Raises:
        UsageError: the name selects neither format.
        OutputError: ``path`` cannot be written.
    """
    if path.name.endswith(".pftrace"):
        perfetto.write(AugmentedTrace(marked(only(trace, keep), mark), {}), path)
    elif path.name.endswith((".json", ".json.gz")) and trace.source.insert_at is not None:
        pieces = _without_dangling_comma(_kept_text(trace, keep))
        if not any(
            each.code == "trailing_text" for each in trace.diagnostics
        ):  # an array's end would not be the text's
            pieces = _marked(pieces, mark)
        with replacing(path, trace.source.path) as file:
            if path.name.endswith(".gz"):
                packed = GzipWriter(file)
                for piece in pieces:
                    packed.write(piece)
                packed.finish()
            else:
                for piece in pieces:
                    file.write(piece)
    else:
        may = ".json.gz, .json or .pftrace" if trace.source.insert_at is not None else ".pftrace, as the source is none"
        raise UsageError(f"-o {path}: the name must end in {may}")


def _marked(pieces: Iterable[bytes], mark: Mapping[str, Any]) -> Iterator[bytes]:
    """The text with the mark as first member. An array becomes the ``traceEvents`` of an object."""
    name, again = b'"%s":' % MEMBER.encode(), b'"%sEarlier":' % MEMBER.encode()
    head, rest = b"", iter(pieces)
    for piece in rest:
        head += piece
        if len(head.lstrip()) > len(name):
            break
    at = min((place for place in map(head.find, (b"{", b"[")) if place >= 0), default=0)
    member = name + json.dumps(mark).encode() + b","
    if array := head[at : at + 1] == b"[":
        yield head[:at] + b"{" + member + b'"traceEvents":' + head[at:]
    else:
        behind = head[at + 1 :]
        if behind.startswith(name):  # of two equal names, the last one would count
            behind = again + behind[len(name) :]
        yield head[: at + 1] + member + behind
    yield from rest
    yield b"}" if array else b""


def _kept_text(trace: Trace, keep: Bools) -> Iterator[tuple[bytes, bool]]:
    """The text in pieces, without the removed events, and for each piece whether it lies after the last event."""
    source = trace.source
    insert_at = source.insert_at or 0
    gone = np.flatnonzero(~keep)
    order = np.argsort(trace.events.offset[gone], kind="stable")
    start = trace.events.offset[gone[order]]
    end = start + trace.events.length[gone[order]]
    rest, at = b"", 0  # the part of the text that is not written yet, and where it begins
    for chunk in _until(source.text.chunks(), insert_at):
        data = rest + chunk
        last = at + len(data) >= insert_at
        text = np.frombuffer(data, np.uint8)
        first, stop = np.searchsorted(start, (at, at + len(data))).tolist()
        begins, ends = start[first:stop] - at, _behind(text, end[first:stop] - at)
        open_ones = np.flatnonzero(ends >= len(data))
        limit = len(data) if last or not len(open_ones) else int(begins[open_ones[0]])
        yield _without(text[:limit], begins[begins < limit], np.minimum(ends[begins < limit], limit)), False
        rest, at = data[limit:], at + limit
    if source.closing is not None:
        yield source.closing, True
        return
    seen = 0
    for part in source.text.chunks():
        seen += len(part)
        if seen > insert_at:
            yield bytes(part[max(0, insert_at - seen + len(part)) :]), True


def _until(chunks: Iterable[memoryview], stop: int) -> Iterator[bytes]:
    """The text up to byte ``stop``."""
    at = 0
    for chunk in chunks:
        yield bytes(chunk[: max(0, stop - at)])
        at += len(chunk)
        if at >= stop:
            return


def _behind(text: npt.NDArray[np.uint8], end: Int64s) -> Int64s:
    """The start of the element after each one that ends at ``end``: after white space, a comma, and white space."""
    place = _behind_space(text, end)
    is_comma = text[np.minimum(place, len(text) - 1)] == ord(",")
    return _behind_space(text, place + (is_comma & (place < len(text))))


def _behind_space(text: npt.NDArray[np.uint8], place: Int64s) -> Int64s:
    place = place.copy()
    moving = np.arange(len(place))
    while len(moving):
        moving = moving[place[moving] < len(text)]
        moving = moving[_SPACE[text[place[moving]]]]
        place[moving] += 1
    return place


def _without(text: npt.NDArray[np.uint8], begin: Int64s, end: Int64s) -> bytes:
    depth = np.zeros(len(text) + 1, np.int32)
    np.add.at(depth, begin, 1)
    np.add.at(depth, end, -1)
    return bytes(text[np.cumsum(depth[:-1]) == 0].tobytes())


def _without_dangling_comma(pieces: Iterable[tuple[bytes, bool]]) -> Iterator[bytes]:
    """The text without the comma before the last events, if these were removed."""
    held, behind = b"", False
    for piece, is_behind in pieces:
        if is_behind and not behind:
            yield held.replace(b",", b"")
            held, behind = b"", True
        if behind:
            yield piece
            continue
        content = piece.rstrip(_BETWEEN)
        if content:
            yield held + content
            held = b""
        held += piece[len(content) :]
    yield held
