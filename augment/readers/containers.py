"""Opens a path and decompresses its text: plain, gzip, zstd or a zip with one file, recognised by content; and says
what a file is that is no trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from augment.arrays import Int32s, Int64s
from augment.core.jsontext import lenient_json
from augment.core.threads import ALONE, Threads
from augment.errors import InputError, UnknownFormat, expect_regular
from augment.readers.limits import UNLIMITED, Limits

CHUNK = 1 << 18  #: bytes asked of the file and of the decompressor; larger ones make malloc map and unmap each
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", (b"PK\x03\x04", b"PK\x05\x06")
SUFFIXES = (".gz", ".zst", ".zip")
MAX_LAYERS = 4
_OF_TABLES = (b"S", b"P", b'"', b"K", b"D")  #: how tables of other recorders begin
AHEAD_FROM = 1 << 20  #: bytes of a file that several threads read
_PIECES_AHEAD = 16  #: the number of pieces, each of at most CHUNK bytes, that may wait


Piece = TypeVar("Piece", bytes, memoryview, covariant=True)


class Pieces(Protocol[Piece]):
    """Pieces of a text in order."""

    def read(self, size: int) -> Piece:
        """At most ``size`` bytes; empty at the end."""


TextStream = Pieces[bytes]


class StoredFile:
    """The bytes of the file itself. They are hashed while they are read, so that the file is read only once. A second
    reading is not hashed.
    """

    def __init__(self, file: BinaryIO, *, hashed: bool = True) -> None:
        self._file, self._hashed = file, hashed
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        data = self._file.read(size)
        if self._hashed:
            self._hash.update(data)
        return data

    def sha256(self) -> str:
        """The digest of the whole file. This reads the rest of it."""
        while self.read(CHUNK):
            pass
        return self._hash.hexdigest()


class Replayed:
    """A stream whose first bytes were already read for inspection."""

    def __init__(self, head: bytes, rest: TextStream) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._rest.read(size)


class Counted(Replayed):
    """Such a stream that counts its bytes and keeps as many of its last ones as ``most``."""

    def __init__(self, head: bytes, rest: TextStream, most: int = 0) -> None:
        super().__init__(head, rest)
        self.count = self._kept = 0
        self._most, self._last = most, deque[bytes]()

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        data = super().read(size)
        self.count += len(data)
        if self._most and data:
            self._last.append(data)
            self._kept += len(data)
            while self._kept - len(self._last[0]) >= self._most:
                self._kept -= len(self._last.popleft())
        return data

    def tail(self) -> bytes:
        """The last bytes of what was read. Can be taken once."""
        if self._kept > self._most:
            self._last[0] = self._last[0][self._kept - self._most :]
        return b"".join(self._last)


class Limited:
    """A stream that raises LimitExceeded instead of growing without bound."""

    def __init__(self, stream: TextStream, path: str, file_bytes: int, limits: Limits) -> None:
        self._stream, self._path, self._file_bytes, self._limits = stream, path, file_bytes, limits
        self._most = limits.most_text(file_bytes)
        self._count = 0

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        data = self._stream.read(size)
        self._count += len(data)
        if self._count > self._most:
            self._limits.expect_text(self._path, self._count, self._file_bytes)
        return data


class GzipText:
    """One or more gzip members as one text. ``damage`` gives the reason if the text ended early."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._new, self._error = _gzip_decompressor()
        self._member: Any = self._new()
        self._waiting = b""
        self.members = 1
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end, or where the data are damaged."""
        while not self.damage:
            if self._member.eof and not self._next_member():
                break
            if not self._waiting and self._member.needs_input:
                self._waiting = self._stream.read(CHUNK)
                if not self._waiting:
                    self.damage = "the gzip stream is cut off"
                    break
            try:
                data: bytes = self._member.decompress(self._waiting, size)
            except (zlib.error, self._error) as error:
                self.damage = f"the gzip stream is damaged ({error})"
                break
            self._waiting = b""
            if data:
                return data
        return b""

    def _next_member(self) -> bool:
        rest: bytes = self._member.unused_data or self._stream.read(CHUNK)
        rest = rest.lstrip(b"\0")  # padding, as tape and block tools write it
        while rest == b"":
            more = self._stream.read(CHUNK)
            if not more:
                return False
            rest = more.lstrip(b"\0")
        if not rest.startswith(GZIP[: len(rest)]):
            return False  # bytes after the last member: gzip itself ignores them
        self._member, self._waiting = self._new(), rest
        self.members += 1
        return True


class ZstdText:
    """One or more zstd frames as one text."""

    def __init__(self, stream: TextStream) -> None:
        import zstandard

        self._reader: Any = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)  # type: ignore[arg-type]
        self._error = zstandard.ZstdError
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end, or where the data are damaged."""
        try:
            data: bytes = self._reader.read(size)
        except self._error as error:
            self.damage = f"the zstd stream is damaged ({error})"
            return b""
        return data


class ZipText:
    """The single file in a zip."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        import zipfile

        self.damage: str | None = None
        try:
            archive = zipfile.ZipFile(file)
            members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith(("__MACOSX", "."))]
            if len(members) != 1:
                if any(member.filename.endswith(("data.pkl", "/version")) for member in members):
                    what = "a checkpoint of torch.save (.pt), not a trace"
                    raise UnknownFormat(path, f"{what}: export the trace with prof.export_chrome_trace()")
                raise UnknownFormat(path, f"a zip of {len(members)} files; only one with a single trace can be read")
            self._member = archive.open(members[0])
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise UnknownFormat(path, f"the zip cannot be opened ({error})") from error

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end, or where the data are damaged."""
        from zipfile import BadZipFile

        try:
            return self._member.read(size)
        except (BadZipFile, zlib.error, EOFError) as error:
            self.damage = f"the zip is damaged ({error})"
            return b""


class _ZlibMember:
    """zlib's decompressor with the interface of isal's: input that was not consumed yet stays inside."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, size)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _gzip_decompressor() -> tuple[Any, Any]:
    """What makes the decompressor of a gzip member, and the error that it raises."""
    try:
        from isal import igzip_lib, isal_zlib
    except ImportError:
        return _ZlibMember, zlib.error
    return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), isal_zlib.error


class Ahead(Generic[Piece]):
    """A stream that a thread reads ahead of its reader, so that decompression runs in parallel."""

    def __init__(self, stream: Pieces[Piece], pieces: int = _PIECES_AHEAD) -> None:
        self._stream: Pieces[Piece] = stream
        self._pieces: queue.Queue[Piece | BaseException] = queue.Queue(pieces)
        self._rest: Any = b""
        self._stopped = self._ended = False
        self._thread = threading.Thread(target=self._read_all, name="augment-read-ahead", daemon=True)
        self._thread.start()

    def _read_all(self) -> None:
        while not self._stopped:
            try:
                piece: Piece | BaseException = self._stream.read(CHUNK)
            except BaseException as error:  # raised again in the reader's thread
                piece = error
            self._pieces.put(piece)
            if not piece or isinstance(piece, BaseException):
                break

    def read(self, size: int) -> Piece:
        """At most ``size`` bytes; empty at the end."""
        if not self._rest and not self._ended:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                self._ended = True
                raise piece
            self._rest, self._ended = piece, not piece
        data: Piece = self._rest[:size]
        self._rest = self._rest[size:]
        return data

    def stop(self) -> None:
        """End the thread in any state."""
        self._stopped = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._pieces.get(timeout=0.01)
        self._ended = True


class OpenText:
    """The decompressed text of one file, open from its beginning. Close it, or use it in a ``with``."""

    def __init__(self, path: str, file: BinaryIO, limits: Limits = UNLIMITED, *, hashed: bool = True) -> None:
        self._file = file
        self.stored = StoredFile(file, hashed=hashed)
        self.limits, self.threads = limits, ALONE
        self.layers: list[Any] = []
        file_bytes = os.fstat(file.fileno()).st_size
        stream: TextStream = Limited(self.stored, path, file_bytes, limits)
        for _ in range(MAX_LAYERS + 1):
            head = at_least(stream, 4)
            stream = Replayed(head, stream)
            if head.startswith(GZIP):
                stream = GzipText(stream)
            elif head.startswith(ZSTD):
                stream = ZstdText(stream)
            elif head.startswith(ZIP) and not self.layers:
                stream = ZipText(path, file)
            else:
                break
            self.layers.append(stream)
            stream = Limited(stream, path, file_bytes, limits)
        else:
            raise UnknownFormat(path, f"more than {MAX_LAYERS} layers of compression; unpack it first")
        if head.startswith(b"\n"):  # as a packet does, and some JSON
            from augment.readers.perfetto.wire_format import LOOK_AT, PackedText, holds_packed

            head = at_least(stream, LOOK_AT)
            stream = Replayed(head, stream)
            if holds_packed(head):
                stream = PackedText(stream.read)
                self.layers.append(stream)
                stream = Limited(stream, path, file_bytes, limits)
        elif head[:1] in _OF_TABLES:
            from augment.readers.recorders.converting import LOOK_AT as LOOK_AT_TABLES
            from augment.readers.recorders.converting import RecorderText, kind_of

            head = at_least(stream, LOOK_AT_TABLES)
            stream = Replayed(head, stream)
            if kind := kind_of(head):
                stream = RecorderText(path, stream, kind, None if self.layers else file)
                self.layers.append(stream)
                stream = Limited(stream, path, file_bytes, limits)
        self._stream: TextStream = stream
        self._ahead: Ahead[bytes] | None = None
        self._file_bytes = file_bytes

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes of the text; empty at the end or where a layer is damaged."""
        return self._stream.read(size)

    def share(self, threads: int) -> None:
        """Let as many threads work on the text and its events, if that is worthwhile."""
        if threads > 1 and self._file_bytes >= AHEAD_FROM:
            self.threads = Threads(threads)
            self.read_ahead()

    def read_ahead(self) -> None:
        """Start a thread that decompresses what is read from now on, if that is worthwhile."""
        if self.layers and self._file_bytes >= AHEAD_FROM:
            self._stream = self._ahead = Ahead(self._stream)

    def sha256(self) -> str:
        """The digest of the stored file. Call it after reading."""
        if self._ahead:
            self._ahead.stop()
        return self.stored.sha256()

    @property
    def is_read_ahead(self) -> bool:
        """Whether a thread decompresses."""
        return self._ahead is not None

    @property
    def damage(self) -> str | None:
        """The reason why the text ended early, if a layer of compression was damaged."""
        return next((layer.damage for layer in self.layers if getattr(layer, "damage", None)), None)

    @property
    def is_one_gzip_member(self) -> bool:
        """Whether the file is a single gzip member and nothing else. Call it after reading."""
        return len(self.layers) == 1 and getattr(self.layers[0], "members", 0) == 1 and not self.damage

    def __enter__(self) -> OpenText:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead:
            self._ahead.stop()
        self._file.close()


def at_least(stream: TextStream, size: int) -> bytes:
    """The next ``size`` bytes; fewer at the end."""
    head = b""
    while len(head) < size and (more := stream.read(size - len(head))):
        head += more
    return head


def open_text(path: str, limits: Limits = UNLIMITED, *, hashed: bool = True) -> OpenText:
    """Open ``path`` and look through its layers of compression. ``hashed``: the caller will ask for its digest.

    Raises:
        InputError: the file does not exist, access is denied, or it is a pipe or device.
        UnknownFormat: a zip does not hold exactly one file.
        LimitExceeded: even the beginning of the file exceeds ``limits``.
    """
    try:
        expect_regular(path)
        file = open(path, "rb")  # noqa: SIM115 - OpenText closes it
    except OSError as error:
        raise InputError.of(path, error) from error
    try:
        return OpenText(path, file, limits, hashed=hashed)
    except BaseException:
        file.close()
        raise


class TextAgain:
    """The text of a file for a second reading (``SourceBytes``). ``ahead``: a thread decompresses."""

    def __init__(self, path: str, size: int, gzip_tail: bytes | None = None, *, ahead: bool = False) -> None:
        self.path, self.size, self.gzip_tail, self.ahead = path, size, gzip_tail, ahead

    def chunks(self) -> Iterator[memoryview]:
        """The text in order, whole, in pieces of at most :data:`CHUNK` bytes."""
        left = self.size
        with open_text(self.path, hashed=False) as text:
            if self.ahead:
                text.read_ahead()
            while left > 0 and (data := text.read(min(CHUNK, left))):
                left -= len(data)
                yield memoryview(data)
        if left:
            raise InputError(self.path, "the file changed while it was worked on; run again")

    def read_at(self, offsets: Int64s, lengths: Int32s) -> list[bytes]:
        """The text at each of the ascending ``offsets``; stops decompressing at the last."""
        texts: list[bytes] = []
        wanted = zip(offsets.tolist(), lengths.tolist(), strict=True)
        held, base = b"", 0
        chunks = iter(self.chunks())
        for offset, length in wanted:
            while base + len(held) < offset + length:
                kept = held[max(0, offset - base) :]
                base += len(held) - len(kept)
                held = kept + bytes(next(chunks))
            texts.append(held[offset - base : offset - base + length])
        return texts


def read_document(path: str, limits: Limits = UNLIMITED) -> Any:
    """The JSON value in the small file at ``path``, plain or compressed.

    Raises:
        InputError: the file does not exist, or access is denied.
        UnknownFormat: the file is not JSON.
        LimitExceeded: the decompressed text is absurdly large.
    """
    pieces = []
    with open_text(path, limits) as text:
        while piece := text.read(CHUNK):
            pieces.append(piece)
        damage = text.damage
    try:
        return lenient_json(b"".join(pieces))
    except ValueError as error:
        raise UnknownFormat(path, damage or "no JSON") from error


_COLOUR = re.compile(rb"\x1b\[[\d;]*[A-Za-z]")  #: what programs write for a terminal


def bounded_lines(path: str, longest: int, limits: Limits = UNLIMITED) -> Iterator[tuple[bytes, bool]]:
    """Each line of the text at ``path``, without colours: at most its first ``longest`` bytes, and whether it was cut.

    Raises:
        InputError: the file cannot be read.
        LimitExceeded: the text is larger than ``limits`` allow.
    """
    rest, skipping = b"", False
    with open_text(path, limits) as text:
        while piece := bytes(text.read(CHUNK)):
            first, *others = _COLOUR.sub(b"", rest + piece).split(b"\n")
            for line in (first, *others[:-1]) if others else ():
                if not skipping:
                    yield line[:longest], len(line) > longest
                skipping = False
            rest = others[-1] if others else first
            if skipping:
                rest = b""
            elif len(rest) > longest:
                yield rest[:longest], True
                rest, skipping = b"", True
    if rest:
        yield rest, False


_PROTON = re.compile(rb'\s*\[\s*\{\s*"children"\s*:\s*\[')  #: the root of a tree that Hatchet reads
Told = Callable[[str, bytes], bool]  #: takes a path and the first bytes of its text

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_LIST_OF_COLLECTIVES = re.compile(rb"(?s)\x80[\x02-\x05](?:\x95.{8})?\].{0,2000}?(?:profiling_name|record_id|seq_id)")
#: a record of Triton's trace extension: a request's model, or its moments, of a clock that counts from the boot on
_TRITON = re.compile(rb'\s*\[?\s*\{\s*"id"\s*:\s*"?\d+"?\s*,\s*"(?:model_name"\s*:|timestamps"\s*:\s*\[\s*\{\s*"n)')


def _begins(*starts: bytes) -> Told:
    return lambda _path, head: head.startswith(starts)


def _is_page(_path: str, head: bytes) -> bool:
    begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    return begin.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml"))


def _ends(*suffixes: str) -> Told:
    return lambda path, head: path.lower().endswith(suffixes) and not head.lstrip().startswith((b"{", b"["))


#: what a file is, and what to do with it; the first match counts
KINDS: tuple[tuple[Told, str, str], ...] = (
    (_begins(b"\xff\xfe", b"\xfe\xff"), "text in UTF-16, as PowerShell writes", "convert it: iconv -f UTF-16 -t UTF-8"),
    (_begins(b"version https://git-lfs"), "a pointer of Git LFS, not the file", "run git lfs pull in its repository"),
    (_is_page, "a web page (HTML), not a trace", "download the raw file; a login may be missing"),
    (
        _ends(".nsys-rep", ".qdrep"),
        "a report of Nsight Systems, which only nsys can read",
        "export it, and name what it writes: nsys export --type sqlite --include-blobs=true REPORT.nsys-rep",
    ),
    (
        lambda _path, head: bool(_TRITON.match(head)),
        "a trace of Triton Inference Server, which has moments of requests and no work of a device",
        "record its backend with torch.profiler or nsys; triton's trace_summary.py sums up such a file",
    ),
    (
        lambda path, head: bool(_PROTON.match(head)) and (path.lower().endswith(".hatchet") or b'"frame"' in head),
        "a call tree of Triton's Proton, without times of events",
        "open it with proton-viewer, or record with torch.profiler",
    ),
    (_ends(".ncu-rep"), "a report of Nsight Compute", "open it there; augment reads exports of Nsight Systems"),
    (_ends(".tar", ".tar.gz", ".tgz"), "an archive (tar)", "unpack it, and name its folder, or a file of it"),
    (
        _ends(".et"),
        "an execution trace of Chakra, which is no timeline",
        "name the profiler's trace that it was made of",
    ),
    (_ends(".xplane.pb"), "an XPlane of JAX or TensorFlow", "name the *.trace.json.gz beside it"),
    (
        _begins(b'"Correlation_Id","Dispatch_Id"', b"Correlation_Id,Dispatch_Id"),
        "counters of rocprofv3, whose kernels ran one by one",
        "name the _kernel_trace.csv of a run without counters",
    ),
    (
        _begins(b'"Index","KernelName"', b"Index,KernelName"),
        "a table of the first rocprof (CSV)",
        "record with rocprofv3 --sys-trace, or with torch.profiler",
    ),
    (
        lambda _path, head: bool(_LIST_OF_COLLECTIVES.match(head)),
        "a dump of the flight recorder of an old PyTorch, without the groups of its collectives",
        "record it with a later PyTorch, and give the dumps of all ranks",
    ),
    (
        lambda _path, head: bool(_PICKLE.match(head)),
        "a Python pickle, such as a checkpoint or a snapshot",
        "export the trace with prof.export_chrome_trace(); pickles are never loaded, as they can run code",
    ),
)


def described(path: str, head: bytes) -> str | None:
    """What the file at ``path`` with the text ``head`` is, and what to do with it; None if unknown."""
    return next((f"{kind}: {advice}" for fits, kind, advice in KINDS if fits(path, head)), None)
