"""A file to which lines are added: each is safe when :meth:`append` returns, locally; remotely a few seconds later."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Protocol

from augment.batch import locations
from augment.errors import OutputError

UPLOAD_S = 5.0  #: a remote file cannot be added to: it is uploaded anew, at most so often


class Journal(Protocol):
    """Lines, and who adds some."""

    def append(self, line: bytes) -> None:
        """Add a line, which is given without its end."""

    def close(self) -> None:
        """Let others add lines. A journal without any leaves no file."""


def journal(name: str) -> Journal:
    """The journal at a path or URL, which is made if it is not there.

    Raises:
        OutputError: another process adds to it (told of paths only), or it cannot be written.
    """
    return _Remote(name) if locations.protocol(name) else _Local(name)


class _Local:
    def __init__(self, path: str) -> None:
        self._path = path
        with self._errors():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - close() does
            self._lock()
            self._file.seek(0)
            content = self._file.read()
            if content and not content.endswith(b"\n"):  # a crash cut the last line off
                self._file.write(b"\n")

    def append(self, line: bytes) -> None:
        """On return it is on the disk."""
        with self._errors():
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock it."""
        if not self._file.tell():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._file.close()

    def _lock(self) -> None:
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            because = "another augment run writes into this folder; wait for it, or give each its --shard"
            raise OutputError(f"{os.path.dirname(self._path)}: {because}") from error
        except (ImportError, OSError):  # a file system without locks: nothing can be told
            pass

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written: {error.strerror or error}") from error


class _Remote:
    def __init__(self, url: str) -> None:
        self._url = url
        fs, path = locations.filesystem(url)
        with locations.told_as(lambda why: OutputError(f"{url}: cannot be read: {why}")):
            self._content = bytearray(locations.read(url) if fs.exists(path) else b"")
        if self._content and not self._content.endswith(b"\n"):
            self._content += b"\n"
        self._uploaded, self._new = time.monotonic(), False

    def append(self, line: bytes) -> None:
        """It is uploaded with the next that comes a few seconds after the last upload, or at the end."""
        self._content += line + b"\n"
        self._new = True
        if time.monotonic() - self._uploaded > UPLOAD_S:
            self._upload()

    def close(self) -> None:
        """Upload what is new."""
        if self._new:
            self._upload()

    def _upload(self) -> None:
        locations.write(self._url, bytes(self._content))
        self._uploaded, self._new = time.monotonic(), False
