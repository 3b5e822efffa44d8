"""A zip of the untouched source and the annotations, which Perfetto opens as one timeline.

The source is neither parsed nor compressed again, so this is the fastest format, and the source can be extracted again.
The annotations are in Perfetto's native format. They cannot link slices of the source by flows, and they are only as
exact as Perfetto reads the times of a Chrome file. The zip holds nothing else, because Perfetto refuses a zip with a
file that is not a trace.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from augment.core.findings import AugmentedTrace
from augment.core.trace import Diagnostic
from augment.errors import InputError, OutputError
from augment.writers import perfetto, seams
from augment.writers.checksums import Checked
from augment.writers.compression import END, DeflateWriter, fastest
from augment.writers.files import replacing
from augment.writers.perfetto.added import Room
from augment.writers.seams import Addable, Seam, Written
from augment.writers.zip_members import DEFLATED, LIMIT, STORED, Member, directory

NAME = "bundle"
SUFFIX = ".augmented.zip"
ANNOTATIONS = "annotations.pftrace"
_MOST_BYTES = (1 << 31) - 1  #: bytes of a member; larger members need a form of zip that Perfetto does not read


class BundleSeam(Seam, frozen=True, tag=NAME):
    """``at`` is the byte of the file at which the first annotations end; ``before`` is the checksum of these
    annotations.

    Their member begins at ``added_at``, behind the ``source``; ``shift_ns`` was added to all times.
    """

    SUFFIX = SUFFIX

    added_at: int
    source: Member
    before: Checked
    shift_ns: int
    room: Room

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`."""
        seams.copy(old, new, self.at)
        text = self.before
        if annotations:
            out = DeflateWriter(new, text)
            perfetto.add(out, self.room, self.shift_ns, annotations)
            text, _ = out.mark()
        _close(new, self.source, self.added_at, text)


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """Write the bundle to ``path``; equal traces give equal files.

    Raises:
        InputError: the source cannot be read again.
        OutputError: ``path`` cannot be written, or the source is too large for a zip that Perfetto reads.
    """
    return write_seamed(augmented, path).diagnostics


def write_seamed(augmented: AugmentedTrace, path: Path) -> Written:
    """As :func:`write`, and returns what is needed to add tracks to the file."""
    source = augmented.trace.source
    if os.path.exists(source.path) and os.path.getsize(source.path) > _MOST_BYTES:
        raise OutputError(f"{path}: Perfetto reads no zip with more than 2 GiB; compress {source.name} first")
    with replacing(path, source.path) as file:
        part = _stored(file, source.path, source.label)
        added_at = file.tell()
        file.write(Member(ANNOTATIONS, DEFLATED, added_at).header)
        out = DeflateWriter(file)
        arrows, tracks = perfetto.write_annotations(augmented, out)
        before, at = out.mark()
        _close(file, part, added_at, before)
    message = "added flows link slices of the source, which a bundle cannot: not drawn"
    diagnostics = [Diagnostic("bundle_flow_left_out", arrows, message)] if arrows else []
    shift_ns = -source.base_ns
    return Written(diagnostics, lambda under: BundleSeam(at, added_at, part, before, shift_ns, tracks.room(under)))


def _stored(file: BinaryIO, path: str, name: str) -> Member:
    """Write the source unchanged, under its own name."""
    member = Member(name, STORED, file.tell())
    file.write(member.header)
    crc, size = 0, 0
    crc32, _ = fastest(-zlib.MAX_WBITS)
    try:
        with open(path, "rb") as source:
            while data := source.read(1 << 20):
                file.write(data)
                crc, size = crc32(data, crc), size + len(data)
    except FileNotFoundError as error:
        raise InputError(path, "is no longer there") from error
    return _described(file, member._replace(text=Checked(crc, size), packed=size))


def _close(file: BinaryIO, source: Member, added_at: int, text: Checked) -> None:
    """Write everything after the annotations, whose bytes are ``text``."""
    file.write(END)
    member = Member(ANNOTATIONS, DEFLATED, added_at)
    packed = file.tell() - added_at - len(member.header)
    added = _described(file, member._replace(text=text, packed=packed))
    file.write(directory([source, added], file.tell()))


def _described(file: BinaryIO, member: Member) -> Member:
    """Write the header of a member after its bytes."""
    end = file.tell()
    if max(end, member.text.size) >= LIMIT:
        raise OutputError(f"{member.name}: is too large for a zip that Perfetto reads; write another format")
    file.seek(member.at)
    file.write(member.header)
    file.seek(end)
    return member
