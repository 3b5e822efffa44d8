"""A file to append lines to. A local line is on disk when :meth:`append` returns; a remote one, some seconds later."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Protocol

from augment.batch import locations
from augment.errors import OutputError

UPLOAD_S = 5.0  #: a remote file cannot be appended to: at most this often it is uploaded anew


class Journal(Protocol):
    """A file to append lines to, by one process at a time."""

    def append(self, line: bytes) -> None:
        """Append a line, given without its newline."""

    def close(self) -> None:
        """Release the file to other processes. A journal without lines leaves no file."""


def journal(name: str) -> Journal:
    """The journal at a path or URL; the file is created if it does not exist.

    Raises:
        OutputError: another process appends to it (detected for paths only), or it cannot be written.
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
            if content and not content.endswith(b"\n"):  # a crash cut off the last line
                self._file.write(b"\n")

    def append(self, line: bytes) -> None:
        """Append a line and flush it to the disk."""
        with self._errors():
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock the file."""
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
            because = "another augment run writes into this folder; wait for it, or give each run a --shard"
            raise OutputError(f"{os.path.dirname(self._path)}: {because}") from error
        except (ImportError, OSError):  # a file system without locks: other writers cannot be detected
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
        with locations.errors_as(lambda why: OutputError(f"{url}: cannot be read: {why}")):
            self._content = bytearray(locations.read(url) if fs.exists(path) else b"")
        if self._content and not self._content.endswith(b"\n"):
            self._content += b"\n"
        self._uploaded, self._new = time.monotonic(), False

    def append(self, line: bytes) -> None:
        """Append a line; it is uploaded some seconds after the last upload, or at the end."""
        self._content += line + b"\n"
        self._new = True
        if time.monotonic() - self._uploaded > UPLOAD_S:
            self._upload()

    def close(self) -> None:
        """Upload the new lines."""
        if self._new:
            self._upload()

    def _upload(self) -> None:
        locations.write(self._url, bytes(self._content))
        self._uploaded, self._new = time.monotonic(), False
