"""A zip of the untouched source and the annotations, which Perfetto opens as one timeline.

The source is neither parsed nor compressed again, so this is the fastest format, and the source can be extracted again.
The annotations are in Perfetto's native format. They cannot link slices of the source by flows, and they are only as
exact as Perfetto reads the times of a Chrome file. The zip holds nothing else, because Perfetto refuses a zip with a
file that is not a trace.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from augment.core import AugmentedTrace, Diagnostic, Flows, output_files
from augment.errors import InputError, OutputError
from augment.writers import perfetto
from augment.writers.compression import END, NOTHING, Checked, DeflateWriter, fastest
from augment.writers.perfetto.added import Room
from augment.writers.seams import Addable, Seam, Written, at_seam, homes_of

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
    source: ZipMember
    before: Checked
    shift_ns: int
    room: Room

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`."""
        output_files.copy_bytes(old, new, self.at)
        text = self.before
        if annotations:
            out = DeflateWriter(new, text)
            perfetto.add(out, self.room, self.shift_ns, _drawable(annotations))
            text, _ = out.mark()
        _close(new, self.source, self.added_at, text)


def write_seamed(augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> Written:
    """Write the bundle to ``path``; equal traces give equal files.

    Raises:
        InputError: the source cannot be read again.
        OutputError: ``path`` cannot be written, or the source is too large for a zip that Perfetto reads.
    """
    source = augmented.trace.source
    if "recorder" in source.metadata:
        raise OutputError(f"{path}: Perfetto cannot read {source.name}, which a bundle would hold: --to perfetto")
    if os.path.exists(source.path) and os.path.getsize(source.path) > _MOST_BYTES:
        raise OutputError(f"{path}: Perfetto reads no zip with more than 2 GiB; compress {source.name} first")
    with output_files.replacing(path, source.path) as file:
        part = _stored(file, source.path, source.label)
        added_at = file.tell()
        file.write(ZipMember(ANNOTATIONS, DEFLATED, added_at).header)
        out = DeflateWriter(file)
        arrows, tracks = perfetto.write_annotations(augmented, out)
        before, at = out.mark()
        text, (_, later), shift_ns = before, at_seam(augmented.annotations), -source.base_ns
        room = tracks.room(sorted({*under, *homes_of(later)}))
        if later:
            perfetto.add(out, room, shift_ns, _drawable(later))
            text, _ = out.mark()
        _close(file, part, added_at, text)
    message = "added flows link slices of the source, which a bundle cannot: not drawn"
    diagnostics = [Diagnostic("bundle_flow_left_out", arrows, message)] if arrows else []
    return Written(diagnostics, BundleSeam(at, added_at, part, before, shift_ns, room))


def _drawable(annotations: Sequence[Addable]) -> list[Addable]:
    """All but arrows."""
    return [each for each in annotations if not isinstance(each, Flows)]


def _stored(file: BinaryIO, path: str, name: str) -> ZipMember:
    """Write the source unchanged, under its own name."""
    member = ZipMember(name, STORED, file.tell())
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


def _close(file: BinaryIO, source: ZipMember, added_at: int, text: Checked) -> None:
    """Write everything after the annotations, whose bytes are ``text``."""
    file.write(END)
    member = ZipMember(ANNOTATIONS, DEFLATED, added_at)
    packed = file.tell() - added_at - len(member.header)
    added = _described(file, member._replace(text=text, packed=packed))
    file.write(directory([source, added], file.tell()))


def _described(file: BinaryIO, member: ZipMember) -> ZipMember:
    """Write the header of a member after its bytes."""
    end = file.tell()
    if max(end, member.text.size) >= LIMIT:
        raise OutputError(f"{member.name}: is too large for a zip that Perfetto reads; write another format")
    file.seek(member.at)
    file.write(member.header)
    file.seek(end)
    return member


STORED, DEFLATED = 0, 8
LIMIT = 1 << 32  #: the most bytes of a file or a member; larger ones need other headers
_VERSION = 20
_UTF8 = 0x800
_DATE = 1 << 5 | 1  #: always 1980-01-01
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END_OF_DIRECTORY = struct.Struct("<4s4H2IH")
_READABLE = 0o644 << 16


class ZipMember(NamedTuple):
    """A member whose header is ``at`` a byte of the file; its ``text`` takes ``packed`` bytes behind that."""

    name: str
    method: int
    at: int
    text: Checked = NOTHING
    packed: int = 0

    @property
    def header(self) -> bytes:
        """The header before the member's bytes. Its size does not depend on them."""
        name, common = self._common()
        return _LOCAL.pack(b"PK\3\4", *common, len(name), 0) + name

    @property
    def entry(self) -> bytes:
        """The member's entry in the directory."""
        name, common = self._common()
        return _CENTRAL.pack(b"PK\1\2", 3 << 8 | _VERSION, *common, len(name), 0, 0, 0, 0, _READABLE, self.at) + name

    def _common(self) -> tuple[bytes, tuple[int, ...]]:
        name = self.name.encode("utf-8", "replace")
        flags = 0 if self.name.isascii() else _UTF8
        return name, (_VERSION, flags, self.method, 0, _DATE, self.text.crc, self.packed, self.text.size)


def directory(members: Sequence[ZipMember], at: int) -> bytes:
    """The end of a zip: its directory, which begins ``at`` a byte of the file."""
    entries = b"".join(member.entry for member in members)
    return entries + _END_OF_DIRECTORY.pack(b"PK\5\6", 0, 0, len(members), len(members), len(entries), at, 0)
