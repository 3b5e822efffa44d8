"""Chrome JSON: the source's own text, whole and in order, with the added events inside its ``traceEvents``.

The added events are one block, right after the last event of the source: ``,``, then a line for each, beginning
``{"cat":"augment.``, and a line's end. Taking the block out gives the source back, byte for byte. Only of a truncated
source is the piece of an event at its end left out, and its brackets are closed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import Struct

from augment.core import Annotation, AugmentedTrace, Diagnostic, Source, output_files
from augment.errors import InputError, OutputError
from augment.writers.chrome_events import ChromeEvents, Layout, PidRoom, layout_of
from augment.writers.compression import NOTHING, TRAILER, Checked, GzipWriter, find_splice, resumed
from augment.writers.seams import Addable, Seam, Written, at_seam, homes_of
from augment.writers.templates import Rendered

NAME = "chrome"
SUFFIX = ".augmented.json.gz"
SPLICED_FROM = 32 << 20  #: bytes of text, below which the search for a place to splice does not pay


class ChromeSeam(Seam, frozen=True, tag=NAME):
    """The text ``before`` the seam and ``after`` it, the last ``rest`` bytes. It is ``at`` a byte of the file.

    ``bare``: nothing was added before it, and ``after`` lacks the block's end.
    """

    SUFFIX = SUFFIX

    rest: int
    before: Checked
    after: Checked
    bare: bool
    base_ns: int
    room: PidRoom

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`."""
        output_files.copy_bytes(old, new, self.at)
        text = self.before
        if annotations:
            out = GzipWriter(new, text)
            for piece in ChromeEvents(Layout(self.room), self.base_ns).render(annotations):
                out.write(piece)
            out.write(b"\n" if self.bare else b"")
            text, _ = out.mark()
        old.seek(-self.rest, os.SEEK_END)
        output_files.copy_bytes(old, new, self.rest - TRAILER.size)
        new.write(text.then(self.after).trailer)


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """Write the augmented trace to ``path``; equal traces give equal files.

    Raises:
        OutputError: the source is no Chrome JSON, or ``path`` cannot be written.
    """
    return write_seamed(augmented, path).diagnostics


def write_seamed(augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> Written:
    """As :func:`write`, and returns the seam for tracks ``under`` these."""
    source = augmented.trace.source
    if source.insert_at is None:
        raise OutputError(
            f"{path}: tracks can be added to Chrome JSON only, and {source.name} has another format: --to perfetto"
        )
    stay, later = at_seam(augmented.annotations)
    events = ChromeEvents(layout_of(augmented.trace), source.base_ns, augmented.trace)
    with output_files.replacing(path, source.path) as file:
        out, chunks, insert_at = _begun(file, source, source.insert_at)
        block = _TextBlock(source.insert_comma, events, stay, later, sorted({*under, *homes_of(later)}), out)
        for piece in _spliced(source, chunks, insert_at, block.pieces()):
            out.write(piece)
        text, size = out.finish(), file.tell()

    assert block.room is not None
    after, rest = text.without_beginning(block.until), size - block.rest_at
    seam = ChromeSeam(block.at, rest, block.before, after, block.bare, source.base_ns, block.room)
    diagnostics = []
    if early := events.early + int(np.count_nonzero(augmented.trace.events.ts < augmented.trace.source.base_ns)):
        message = "events before time 0, the source's and added ones, which Perfetto drops; --to perfetto keeps them"
        diagnostics.append(Diagnostic("chrome_negative_time", early, message))
    if events.shortened:
        message = "added slices were written up to 512 ns shorter, because Perfetto rounds the times of Chrome files"
        diagnostics.append(
            Diagnostic("chrome_slices_shortened", events.shortened, message + "; dur_ns has the exact duration")
        )
    if events.not_finite:
        why = "points of added counters were no number"
        diagnostics.append(Diagnostic("counter_not_finite", events.not_finite, why))
    return Written(diagnostics, seam)


def _begun(file: BinaryIO, source: Source, insert_at: int) -> tuple[GzipWriter, Iterable[memoryview], int]:
    """A writer into ``file``, the text that is still to be written, and the place of insertion in that text."""
    tail = source.text.gzip_tail
    if tail is not None and source.closing is None and source.text_bytes >= SPLICED_FROM:
        splice = find_splice(source.path, tail, source.text_bytes, insert_at)
        if splice is not None:  # up to there the source's compressed bytes can be copied
            out, rest = resumed(file, source.path, splice, tail, source.text_bytes)
            return out, [rest], insert_at - splice.text_at
    return GzipWriter(file), source.text.chunks(), insert_at


class _TextBlock(Struct):
    """The text to add, or nothing: that of annotations that ``stay``, up to the seam, and of those ``later``.

    The seam is ``at`` a byte of the file, with the text ``before`` it; that ``until`` the end of the latter reaches to
    ``rest_at``.
    """

    comma: bool
    events: ChromeEvents
    stay: Sequence[Annotation]
    later: Sequence[Addable]
    under: Sequence[int]
    out: GzipWriter
    bare: bool = True
    before: Checked = NOTHING
    at: int = 0
    until: Checked = NOTHING
    rest_at: int = 0
    room: PidRoom | None = None

    def pieces(self) -> Iterator[Rendered]:
        """All of the text, in pieces to write one by one."""
        if self.room is not None:
            return
        for piece in self.events.render(self.stay):
            yield piece[1:] if self.bare and not self.comma else piece
            self.bare = False
        (self.before, self.at), self.room = self.out.mark(), self.events.layout.room(self.under)
        self.until, self.rest_at = self.before, self.at
        if self.later:
            layout, self.events.layout = self.events.layout, Layout(self.room)
            yield from self.events.render(self.later)
            self.events.layout = layout
            yield b"\n" if self.bare else b""
            self.until, self.rest_at = self.out.mark()
        if not self.bare:
            yield b"\n"


def _spliced(
    source: Source, chunks: Iterable[memoryview], insert_at: int, added: Iterator[Rendered]
) -> Iterator[Rendered]:
    """The text of ``chunks`` with ``added`` before its byte ``insert_at``."""
    at = 0
    for chunk in chunks:
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
    yield from added  # nothing is left of it, unless the place of insertion is the end of the text
    yield source.closing or b""
