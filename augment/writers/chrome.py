"""Chrome JSON: the source's own text, whole and in order, with the added events inside its ``traceEvents``.

The added events are one block, right after the last event of the source: ``,``, then a line for each, beginning
``{"cat":"augment.``, and a line's end. Taking the block out gives the source back, byte for byte. Only of a truncated
source is the piece of an event at its end left out, and its brackets are closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from augment.errors import InputError, OutputError
from augment.findings import AugmentedTrace
from augment.trace import Diagnostic, Source, Trace
from augment.writers.chrome_events import ChromeEvents
from augment.writers.compression import GzipWriter
from augment.writers.files import replacing
from augment.writers.gzip_splice import Splice, find_splice, write_spliced
from augment.writers.render import Rendered

NAME = "chrome"
SUFFIX = ".augmented.json.gz"
SPLICED_FROM = 32 << 20  #: bytes of text


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """Write the augmented trace to ``path``; equal traces give equal files.

    Raises:
        OutputError: the source is no Chrome JSON, or ``path`` cannot be written.
    """
    source = augmented.trace.source
    if source.insert_at is None:
        raise OutputError(
            f"{path}: {source.name} ({source.format}) has no place for Chrome events; write another format"
        )
    events = ChromeEvents(augmented.trace)
    added = _block(source, events.render(augmented.annotations))
    splice, tail = _splice(source, source.insert_at)
    with replacing(path, source.path) as file:
        if splice is not None:
            write_spliced(file, source.path, splice, tail, source.text_bytes, source.insert_at, added)
        else:
            out = GzipWriter(file)
            for piece in _spliced(source, source.insert_at, added):
                out.write(piece)
            out.finish()
    return _diagnostics(events, augmented.trace)


def _splice(source: Source, insert_at: int) -> tuple[Splice | None, bytes]:
    """Where the source's own compressed bytes can be copied up to; small files are not worth the search."""
    tail = source.text.gzip_tail
    if tail is None or source.closing is not None or source.text_bytes < SPLICED_FROM:
        return None, b""
    return find_splice(source.path, tail, source.text_bytes, insert_at), tail


def _block(source: Source, added: Iterator[Rendered]) -> Iterator[Rendered]:
    """The text to add; nothing where there is nothing to add."""
    empty = True
    for piece in added:
        yield piece[1:] if empty and not source.insert_comma else piece
        empty = False
    if not empty:
        yield b"\n"


def _spliced(source: Source, insert_at: int, added: Iterator[Rendered]) -> Iterator[Rendered]:
    """The source's text with ``added`` before its byte ``insert_at``."""
    at = 0
    for chunk in source.text.chunks():
        before = insert_at - at
        at += len(chunk)
        if not 0 <= before < len(chunk):
            yield chunk
            continue
        yield chunk[:before]
        yield from added
        if source.closing is not None:
            break
        yield chunk[before:]
    if at < insert_at:
        raise InputError(source.path, f"has changed while it was read: {at} bytes of text, not {source.text_bytes}")
    yield from added  # of which nothing is left, unless the place is the end of the text
    yield source.closing or b""


def _diagnostics(events: ChromeEvents, trace: Trace) -> list[Diagnostic]:
    found = []
    if early := events.early + int(np.count_nonzero(trace.events.ts < trace.source.base_ns)):
        message = "events before time 0, the source's and added ones, which Perfetto drops; --to perfetto keeps them"
        found.append(Diagnostic("chrome_negative_time", early, message))
    if events.shortened:
        message = "added slices were written up to 512 ns shorter, because Perfetto rounds the times of Chrome files"
        found.append(
            Diagnostic("chrome_slices_shortened", events.shortened, message + "; dur_ns has the exact duration")
        )
    if events.not_finite:
        found.append(Diagnostic("counter_not_finite", events.not_finite, "points of added counters were no number"))
    return found
