"""A recorder's file as Kineto's text: recognised by its first bytes, and converted while it is read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from augment.errors import UnknownFormat
from augment.readers.recorders.kineto_text import NOTES, Piece, document
from augment.readers.recorders.nsight import SIGNS, Nsight, nothing_traced
from augment.readers.recorders.open_tables import CELL_BYTES, CsvTables, ParquetTables, RecorderTables, SqliteTables
from augment.readers.recorders.rocprof import CSV_KINDS, KERNELS_CSV, Rocpd, RocprofCsv, is_known, is_rocpd

_CHUNK = 1 << 18
SQLITE, PARQUET = b"SQLite format 3\0", b"PAR1"
LOOK_AT = 256  #: bytes that tell what a file is
_CSV = {"Kind,Agent_Id,": KERNELS_CSV, "Domain,Function,": "hip_api_trace", "Kind,Direction,": "memory_copy_trace"}


_Key = tuple[int, int, int, int]
_KEPT_BYTES = 32 << 20
_MADE: dict[_Key | None, tuple[str | None, bytes]] = {}  #: the text made last, compressed, and what its file lacks


class TextStream(Protocol):
    """The bytes of a file, unpacked."""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""


class RecorderText:
    """The text made of a recorder's file. ``damage``: why some of the file could not be read."""

    def __init__(self, path: str, stream: TextStream, kind: str, file: BinaryIO | None) -> None:
        """``file``: what is open at ``path``, unless it is compressed."""
        self._path, self._stream, self._kind, self._file = path, stream, kind, file
        status = os.fstat(file.fileno()) if file else None
        self._key = status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        self._rest = b""
        self._pieces = self._converted()
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        if not self._rest:
            self._rest = next(self._pieces, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _converted(self) -> Iterator[bytes]:
        """The text, in pieces: as it was made last, if it was of this very file; a trace is read several times."""
        if (made := _MADE.get(self._key)) is not None:
            self.damage, packed = made
            yield from zstandard.ZstdDecompressor().read_to_iter(packed)
            return
        packing, kept, size = zstandard.ZstdCompressor(level=1).compressobj(), list[bytes](), 0
        for piece in self._made():
            yield piece
            if size <= _KEPT_BYTES:
                kept.append(packing.compress(piece))
                size += len(kept[-1])
        if size <= _KEPT_BYTES and self._key is not None:
            _MADE.clear()
            _MADE[self._key] = self.damage, b"".join([*kept, packing.flush()])

    def _made(self) -> Iterator[bytes]:
        with ExitStack() as opened:
            tables = self._tables(opened)
            recording = self._recording(tables)
            last: dict[str, Any] = {}

            def events() -> Iterator[Piece]:
                yield from recording.events()
                if recording.text.notes:
                    last[NOTES] = recording.text.notes

            for piece in document(recording.members(), events(), last):
                yield piece.encode()
            self.damage = tables.damage

    def _tables(self, opened: ExitStack) -> RecorderTables:
        if self._kind == "parquet":
            return ParquetTables(os.path.dirname(self._path), self._path)
        if self._kind != "sqlite":
            # the file, and beside kernels the others of the run, by kind
            csv_files = {self._kind: _lines(self._stream)}
            name = os.path.basename(self._path)
            run, mark, suffix = name.rpartition(KERNELS_CSV + ".csv")
            if self._kind == KERNELS_CSV and mark:
                for kind in CSV_KINDS:
                    beside = Path(self._path).with_name(f"{run}{kind}.csv{suffix}")
                    if kind != KERNELS_CSV and beside.is_file():
                        opener = gzip.open if suffix == ".gz" else open
                        csv_files[kind] = _lines(opened.enter_context(opener(beside, "rb")))
            return CsvTables(csv_files)
        path = self._path
        # whether path is the open file itself: no URL, and no link, which might lead elsewhere when it is opened
        # again
        if self._file is None or not (
            os.path.lexists(path) and os.path.samestat(os.lstat(path), os.fstat(self._file.fileno()))
        ):  # SQLite reads files, by their names
            import tempfile

            path = os.path.join(opened.enter_context(tempfile.TemporaryDirectory()), "report.sqlite")
            with open(path, "wb") as spooled:
                while piece := self._stream.read(_CHUNK):
                    spooled.write(piece)
        return opened.enter_context(closing(SqliteTables(path, self._path)))

    def _recording(self, tables: RecorderTables) -> Nsight | Rocpd | RocprofCsv:
        if isinstance(tables, CsvTables):
            return RocprofCsv(tables)
        if tables.names & SIGNS:
            return Nsight(tables)
        if isinstance(tables, ParquetTables):
            raise UnknownFormat(self._path, "Parquet, but no folder of nsys export --type parquetdir")
        if is_rocpd(tables.names):
            recording = Rocpd(tables)
            if not is_known(recording.versions):
                known = ", ".join(sorted(map(repr, recording.versions)))[:100] or "none"
                raise UnknownFormat(self._path, f"a rocpd database of an unknown schema ({known}); 3 is known")
            return recording
        if "rocpd_api" in tables.names:
            raise UnknownFormat(self._path, "a database of rocmProfileData: record with rocprofv3, or make JSON of it")
        if {"KERN", "OPS"} <= set(tables.names):
            raise UnknownFormat(
                self._path, "a database of ROCm's first rocprof: name the .json that it wrote beside it"
            )
        if "StringIds" in tables.names:
            lacking = "an export of nsys without events of CUDA and NVTX"
            raise UnknownFormat(self._path, f"{lacking}: {nothing_traced(tables) or 'nsys profile -t cuda,nvtx'}")
        raise UnknownFormat(self._path, "an SQLite database, but neither of nsys export nor of rocprofv3")


def kind_of(head: bytes) -> str | None:
    """What a file is that begins with ``head``: sqlite, parquet, or a kind of CSV; None for anything else."""
    if head.startswith(SQLITE):
        return "sqlite"
    if head.startswith(PARQUET):
        return "parquet"
    plain = head.replace(b'"', b"").decode("latin-1")
    return next((kind for begins, kind in _CSV.items() if plain.startswith(begins)), None)


def _lines(stream: TextStream) -> Iterator[str]:
    """The lines of a text; a longer one than :data:`CELL_BYTES` ends it."""
    rest = b""
    while len(rest) < CELL_BYTES and (piece := stream.read(_CHUNK)):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    yield rest.decode("utf-8", "replace")
