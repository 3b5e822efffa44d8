"""The store of bytes in a bucket of S3, Google Cloud Storage or Azure, or of what speaks S3, by obstore.

::

    owner                  which catalog has the bucket; another one would remove its bytes as strays
    parts/ID/OFFSET-CALL   a piece of an upload; OFFSET in 12 hexadecimal digits, CALL of the call that has sent it
    blobs/SHA256/ID        of a complete upload: its size, and the names of its pieces, which stay where they are
    ranks/…, artifacts/…   as in :mod:`folder`

Nothing is overwritten: outputs have the keys of their attempt alone, and what one request stores is refused where there
is something. No reader sees half of an object. Until it makes a piece, what arrives lies
in a nameless file of this machine. Requests are repeated for some seconds; then a :class:`Refusal` tells what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from augment.errors import AugmentError, UsageError
from augment_server.base.errors import Refusal
from augment_server.storage.folder import BytesLost
from augment_server.storage.roots import OutsideFolder, folder_inside, open_inside, steps_of

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE = 16 << 20  #: bytes of a request
_THREADS = 8
_READ_AHEAD = 1 << 20
_CLIENT = {"connect_timeout": "3s", "read_timeout": "20s", "timeout": "10m"}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_RETRY = {"max_retries": 4, "retry_timeout": timedelta(seconds=15)}
IS_URL = re.compile(r"(s3|s3a|gs|az|azure|adl|abfs|abfss)://[^/]").match
_IS_FULL = re.compile(
    "status code: 507|InsufficientStorage|QuotaExceeded|StorageFull|No space|not enough space", re.IGNORECASE
)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn errors of the store into refusals, but that there is no such object (a FileNotFoundError).

    Raises:
        Refusal: its cause says what the store did, without the query of an address, which may have a secret.
    """
    try:
        yield
    except BaseError as error:
        cause = RuntimeError(re.sub(r"\?\S*", "?…", str(error).partition("\n")[0])[:1000])
        if _IS_FULL.search(str(error)):
            what = "the server's object store is full; tell its operator, or try again later"
            raise Refusal("STORAGE_FULL", what, retry_s=60) from cause
        what = "the server's object store does not answer; try again"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            what = "the server's object store refuses its server; tell its operator, or try again later"
        raise Refusal("STORE_UNAVAILABLE", what, retry_s=5) from cause


class TooLarge(Exception):
    """An object has more bytes than it may."""


class Manifest(msgspec.Struct):
    """What a complete upload has: its size, bytes, and the keys of its pieces, in order."""

    size: int
    pieces: list[str]


class Pieces:
    """The bytes of an unfinished upload, to which one call appends, as :class:`folder.Part`."""

    def __init__(self, bucket: Bucket, upload: str, received: int, names: list[str]) -> None:
        self._bucket, self._upload, self._at, self._names = bucket, upload, received, names
        self._call = secrets.token_hex(4)
        self._tail = tempfile.TemporaryFile(dir=bucket.scratch)  # noqa: SIM115 - close() does

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._tail.write(data)

    def save(self) -> str:
        """Store what was written as a piece; returns the names of all."""
        if size := self._tail.tell():
            name = f"{self._at:012x}-{self._call}"
            self._tail.seek(0)
            self._bucket.put(f"parts/{self._upload}/{name}", self._tail)
            self._tail.seek(0)
            self._tail.truncate()
            self._at += size
            self._names.append(name)
        return msgspec.json.encode(self._names).decode()

    def close(self) -> None:
        """Forget what is not saved."""
        self._tail.close()


class _Object(io.RawIOBase):
    """An object, read by ranges."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket, self._key, self._size, self._at = bucket, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count > 0:
            # by another thread: obstore.put, which may be who reads, lets nothing else of obstore run in its own
            part = self._bucket._threads.submit(self._bucket.range_of, self._key, self._at, count)
            buffer[:count] = part.result()
            self._at += count
        return max(count, 0)


class Objects:
    """The objects below a URL of a store, such as ``s3://bucket/prefix``.

    Credentials and endpoint are in the environment, as obstore takes them.

    Args:
        url: whose ``option`` is named in messages.

    Raises:
        AugmentError: it is no URL of a store.
    """

    def __init__(self, url: str, option: str) -> None:
        if not IS_URL(url):
            raise UsageError(f"{option} {url}: must be s3://BUCKET/PREFIX, gs://… or az://…")
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        try:
            client = {**_CLIENT, "allow_http": plain}
            self._store: Any = from_url(url, client_options=client, retry_config=_RETRY)  # type: ignore[call-overload]
        except (BaseError, ValueError, TypeError) as error:
            raise AugmentError(f"{option} {url}: {str(error).partition(chr(10))[0]}") from error

    def size(self, key: str) -> int:
        """The size of an object, bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        with _told():
            return int(obstore.head(self._store, key)["size"])

    def put(self, key: str, file: BinaryIO | bytes, *, new: bool = False) -> None:
        """Store an object as a whole; one that must be ``new``, and is no larger than a piece, where there is none."""
        with _told():
            if new and (isinstance(file, bytes) or os.fstat(file.fileno()).st_size <= PIECE):
                obstore.put(self._store, key, file, use_multipart=False, mode="create")
            else:
                obstore.put(self._store, key, file, chunk_size=PIECE, max_concurrency=2)

    def copy(self, key: str, file: BinaryIO, most: float = math.inf) -> None:
        """Append an object to a file, as it is at the beginning: if it changes meanwhile, this is to be done again.

        Raises:
            FileNotFoundError: there is none.
            TooLarge: it has more than ``most`` bytes.
        """
        at, size, options = 0, 1, cast("GetOptions", {})
        while at < size:
            with _told():
                part = obstore.get(self._store, key, options={**options, "range": (at, at + PIECE)})
                size, options = part.meta["size"], {"if_match": part.meta["e_tag"]}
                if size > most:
                    raise TooLarge
                at += file.write(part.bytes())


class Bucket(Objects):
    """The store in a bucket, with the front of :class:`folder.Folder`.

    Args:
        url: as of :class:`Objects`.
        scratch: a folder of this machine for what is under way.
        catalog: a name of the database that lists what is stored.
        is_new: whether that may take a store which nobody has.

    Raises:
        AugmentError: it is no URL of a store, belongs to another catalog, or cannot be used.
    """

    is_far = True

    def __init__(self, url: str, scratch: Path, catalog: str, *, is_new: bool) -> None:
        self.scratch = scratch
        self.lock = contextlib.nullcontext()  # nothing here has the name of something else, so that nobody waits
        super().__init__(url, "--store")
        try:
            with _told():
                if is_new:
                    with contextlib.suppress(AlreadyExistsError):
                        obstore.put(self._store, "owner", catalog.encode(), mode="create")
                owner = bytes(obstore.get(self._store, "owner").bytes()).decode()
        except (Refusal, FileNotFoundError) as error:
            raise AugmentError(f"--store {url}: cannot be used: {error.__cause__ or error}") from error
        if owner != catalog:
            raise AugmentError(f"--store {url}: belongs to another state directory; choose another prefix")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="augment-store")

    def free_bytes(self) -> int:
        """How many bytes more it can take: it does not tell."""
        return 1 << 62

    def range_of(self, key: str, at: int, count: int) -> Any:
        """Bytes of an object.

        Raises:
            FileNotFoundError: there is none.
        """
        with _told():
            return obstore.get_range(self._store, key, start=at, length=count)

    def part(self, upload: str, received: int, pieces: str) -> Pieces:
        """The unfinished upload, to append to; ``pieces`` is what the last :meth:`Pieces.save` returned.

        Raises:
            BytesLost: one of them is missing.
        """
        names = msgspec.json.decode(pieces or "[]", type=list[str])
        if names and not set(names) <= set(self.names(f"parts/{upload}")):
            raise BytesLost
        return Pieces(self, upload, received, names)

    def separate(self, upload: str) -> None:
        """Nothing that another server still writes is in the way: each call's pieces have names of their own."""

    def received(self, upload: str, pieces: str) -> Iterator[bytes]:
        """The bytes of an unfinished upload.

        Raises:
            FileNotFoundError: there are none.
        """
        for name in msgspec.json.decode(pieces or "[]"):
            with _told():
                yield bytes(obstore.get(self._store, f"parts/{upload}/{name}").bytes())

    @contextlib.contextmanager
    def completing(self, upload: str, sha256: str, size: int, pieces: str) -> Iterator[None]:
        """Store the bytes of an upload by content, before the block writes the row."""
        names = [f"parts/{upload}/{name}" for name in msgspec.json.decode(pieces)]
        self.put(f"blobs/{sha256}/{upload}", msgspec.json.encode(Manifest(size, names)))
        yield

    def recover(self, upload: Any, *, same_boot: bool) -> int:  # noqa: ARG002
        """After a start: how many bytes of an upload, a row, are there."""
        return int(upload["received"])

    def has(self, sha256: str, size: int | None = None) -> bool:  # noqa: ARG002 - all of it or nothing
        """Whether a content is there."""
        return bool(self.names(f"blobs/{sha256}"))

    def give(self, files: Sequence[tuple[str, Path, str]]) -> None:
        """Copy files to where a worker can read them: of each its key, a folder, and its path below that.

        Those that are missing are left out.

        Raises:
            OSError: another one is there.
        """
        list(self._threads.map(self._fetch, *zip(*files, strict=True)) if files else ())

    def _fetch(self, key: str, folder: Path, relative: str) -> None:
        *folders, name = steps_of(relative)
        for content in [f"{key}/{upload}" for upload in self.names(key)] if key.startswith("blobs/") else [key]:
            with contextlib.suppress(FileNotFoundError), folder_inside(folder, folders, make=True) as at:
                pieces, size = [content], None
                if content != key:
                    manifest = msgspec.json.decode(bytes(self.range_of(content, 0, PIECE)), type=Manifest)
                    pieces, size = manifest.pieces, manifest.size
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
                    try:
                        for piece in pieces:
                            self.copy(piece, file)
                        if size not in (None, file.tell()):
                            raise FileNotFoundError(f"{content}: has {file.tell()} bytes, not {size}")
                    except BaseException:
                        os.unlink(name, dir_fd=at)
                        raise
                return

    def publish(
        self,
        key: str,
        source: tuple[Path, Sequence[str]],
        names: Sequence[str],
        known: Mapping[str, str],
        most: int,
        before_each: Callable[[], object],
    ) -> list[int]:
        """Store the outputs of a worker under ``key``, all or none, as :meth:`folder.Folder.publish`.

        Raises:
            OSError: one is missing, listed twice, no regular file or too large.
        """
        if len(set(names)) < len(names):
            raise OutsideFolder("a file is listed twice")
        with folder_inside(*source) as out:

            def listed(name: str) -> os.stat_result:
                *inner, base = steps_of(name)
                with folder_inside(out, inner) as at:
                    return os.stat(base, dir_fd=at, follow_symlinks=False)

            def put(name: str, is_link: bool) -> int:
                before_each()
                if is_link and name in known:
                    with _told():
                        obstore.copy(self._store, known[name], f"{key}/{name}")
                    return self.size(f"{key}/{name}")
                with os.fdopen(open_inside(out, name), "rb") as file:
                    self.put(f"{key}/{name}", file, new=True)
                    return os.fstat(file.fileno()).st_size

            files = [listed(name) for name in names]
            if sum(file.st_size for file in files) > most:
                raise OutsideFolder("the files are too large")
            try:
                puts = [
                    self._threads.submit(put, name, stat.S_ISLNK(file.st_mode))
                    for name, file in zip(names, files, strict=True)
                ]
                wait(puts)  # else one that still runs stores its output after the others are removed
                return [each.result() for each in puts]
            except BaseException:
                with contextlib.suppress(Refusal):  # then it is a stray, and removed later
                    self.remove(key)
                raise

    def open(self, key: str) -> BinaryIO:
        """An object, to read.

        Raises:
            FileNotFoundError: there is none.
        """
        return cast("BinaryIO", io.BufferedReader(_Object(self, key, self.size(key)), _READ_AHEAD))

    def link(self, key: str, life: timedelta) -> str:
        """An address under which anybody can read an object for some time."""
        with _told():
            return str(obstore.sign(self._store, "GET", key, life))

    def begun(self) -> set[str]:
        """The uploads of which there are pieces that no content has."""
        uploads = set(self.names("parts"))
        with _told():
            return uploads - {
                entry["path"].rpartition("/")[2] for some in obstore.list(self._store, "blobs") for entry in some
            }

    def sizes(self) -> dict[str, int]:
        """The size of each object that there is, by its key."""
        with _told():
            return {each["path"]: each["size"] for some in obstore.list(self._store) for each in some}

    def attempts(self, before_s: float) -> set[str]:
        """The keys of attempts, ``KIND/JOB/ATTEMPT``, of which nothing was stored since this time, s since 1970."""
        last: dict[str, float] = {}
        for kind in ("ranks", "artifacts"):
            with _told():
                for entry in (each for some in obstore.list(self._store, kind) for each in some):
                    key = "/".join(entry["path"].split("/")[:3])
                    last[key] = max(last.get(key, 0.0), entry["last_modified"].timestamp())
        return {key for key, modified_s in last.items() if modified_s < before_s}

    def names(self, folder: str) -> list[str]:
        """What lies in a folder: the last step of each key."""
        with _told():
            listed = obstore.list_with_delimiter(self._store, folder)
        keys = [*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])]
        return [key.rpartition("/")[2] for key in keys]

    def remove(self, key: str, may: Callable[[], bool] = lambda: True) -> None:
        """Remove an object, or all under a key, if there is any and it ``may`` be; with a content its pieces.

        What is stored after ``may`` was asked stays: a store that is away for a while may outlast the caller's lock.
        """
        steps_of(key)
        with _told():
            keys = [entry["path"] for batch in obstore.list(self._store, key) for entry in batch]
            if not may():
                return
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, keys or [key])
        if key.startswith("blobs/"):
            for upload in [each.rpartition("/")[2] for each in keys]:
                self.remove(f"parts/{upload}")

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown()
