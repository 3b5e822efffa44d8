"""The store of bytes in a folder of this machine: what clients sent, and what their jobs made.

::

    parts/ID                the bytes of an unfinished upload
    blobs/SHA256            the bytes of complete uploads, each content once
    ranks/ID/ATTEMPT/       the outputs of one trace of a job of several traces, until the job ends
    artifacts/ID/ATTEMPT/   the outputs of a job

A *key* is a path in there, such as ``blobs/SHA256``. Outputs lie under a key that no other attempt has, and count once
the database names it. Those of earlier versions have no folder for the attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from augment_server.base.names import new_id
from augment_server.storage.roots import open_inside, place_inside, steps_of, take_over

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20


class BytesLost(Exception):
    """Fewer bytes of an unfinished upload are stored than were recorded."""


class Part:
    """The bytes of an unfinished upload, to which one call appends.

    Args:
        path: of its file.
        received: how many bytes of it are recorded; more are cut off.

    Raises:
        BytesLost: it has fewer.
    """

    def __init__(self, path: Path, received: int) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - close() does
        if os.fstat(self._file.fileno()).st_size < received:  # never filled with zeros, whose digest is another's
            self._file.close()
            raise BytesLost
        self._file.truncate(received)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def save(self) -> str:
        """Make sure that what was written survives a crash; returns what the row has to say of where it lies."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return ""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Folder:
    """The store in a folder. Every method may be called from any thread, and may block.

    Args:
        root: the folder.
        lock: held while rows and contents change together.
    """

    def __init__(self, root: Path, lock: contextlib.AbstractContextManager[Any]) -> None:
        self._root, self.lock = root, lock

    is_far = False  #: whether requests go over a network

    def free_bytes(self) -> int:
        """How many bytes more it can take."""
        disk = os.statvfs(self._root)
        return disk.f_bavail * disk.f_frsize

    def part(self, upload: str, received: int, pieces: str) -> Part:  # noqa: ARG002 - the file has all
        """The unfinished upload, to append to; ``pieces`` is what the last :meth:`Part.save` returned.

        Raises:
            BytesLost: it has fewer than ``received`` bytes.
        """
        return Part(self._root / "parts" / upload, received)

    def received(self, upload: str, pieces: str) -> Iterator[bytes]:  # noqa: ARG002
        """The bytes of an unfinished upload.

        Raises:
            FileNotFoundError: there are none.
        """
        with open(self._root / "parts" / upload, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def separate(self, upload: str) -> None:
        """Copy an unfinished upload: another server that still has it open changes only what has no name any more."""
        path = self._root / "parts" / upload
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path, copy := path.with_name(f"{upload}.{new_id()}"))
            os.replace(copy, path)

    @contextlib.contextmanager
    def completing(self, upload: str, sha256: str, size: int, pieces: str) -> Iterator[None]:  # noqa: ARG002
        """Store the bytes of an upload by content, once the block has written the row: :meth:`recover` ends that."""
        with self.lock:
            yield
            os.replace(self._root / "parts" / upload, self._blob(sha256))  # replaces equal or damaged bytes
            sync_folder(self._root / "blobs")

    def recover(self, upload: Any, *, same_boot: bool) -> int:
        """After a start: how many bytes of an upload, a row, are there; -1 without those of a complete one, whose move
        this completes.

        All bytes in the file are the upload's, in order. After a crash of the machine some may be missing before its
        end; then only those count that were synced.

        Raises:
            OSError: the bytes cannot be moved or looked at.
        """
        part, blob = self._root / "parts" / upload["id"], self._blob(upload["sha256"] or "-")
        there = part.stat().st_size if part.exists() else 0
        if upload["complete"]:
            if not blob.exists() and part.exists():
                os.rename(part, blob)
            return upload["size"] if blob.exists() else -1
        most = upload["size"] if upload["size"] is not None else there
        return min(there, most if same_boot else upload["received"])

    def _blob(self, sha256: str) -> Path:
        return self._root / "blobs" / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Whether a content is there, with all of its bytes if its ``size`` is given."""
        blob = self._blob(sha256)
        return blob.exists() and size in (None, blob.stat().st_size)

    def give(self, files: Sequence[tuple[str, Path, str]]) -> None:
        """Put files where a worker can read them: of each its key, a folder, and its path below that. None is copied.

        Those that are missing are left out.

        Raises:
            OSError: another one is there.
        """
        for key, folder, relative in files:
            with contextlib.suppress(FileNotFoundError):  # which the worker tells
                place_inside(folder, relative, self._root, key)

    def publish(
        self,
        key: str,
        source: tuple[Path, Sequence[str]],
        names: Sequence[str],
        known: Mapping[str, str],
        most: int,
        before_each: Callable[[], object],
    ) -> list[int]:
        """Store the outputs of a worker under ``key``, all or none; returns their sizes, bytes.

        Args:
            key: a new one.
            source: the worker's folder, and the way from there to that of the outputs.
            names: their paths below it.
            known: of some of ``names`` the keys of files that are taken in place of symbolic links.
            most: bytes that may be copied.
            before_each: called before each file; may raise.

        Raises:
            OSError: one is missing, listed twice, no regular file or too large.
        """
        target = self._root / key
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            ours = {name: (str(self._root), of) for name, of in known.items()}
            sizes = take_over(*source, names, target, ours, most, before_each)
            sync_tree(target, before_each)
            for folder in (target.parent, target.parent.parent):
                sync_folder(folder)
        except BaseException:
            remove(target)
            raise
        return sizes

    def open(self, key: str) -> BinaryIO:
        """A file, to read; no link is followed.

        Raises:
            OSError: there is none.
        """
        return os.fdopen(open_inside(self._root, key), "rb")

    def link(self, key: str, life: timedelta) -> str:  # noqa: ARG002
        """No address: there is none under which others can read a file."""
        return ""

    def begun(self) -> set[str]:
        """The uploads of which there are bytes that no content has."""
        return set(self.names("parts"))

    def attempts(self, before_s: float) -> set[str]:
        """The keys of attempts, ``KIND/JOB/ATTEMPT``, which nothing was added to since this time, s since 1970."""
        keys = set()
        for kind in ("ranks", "artifacts"):
            for job in os.listdir(self._root / kind):
                with (
                    contextlib.suppress(OSError),
                    os.scandir(self._root / kind / job) as of,
                ):
                    keys |= {f"{kind}/{job}/{each.name}" for each in of if each.stat().st_mtime < before_s}
        return keys

    def close(self) -> None:
        """Nothing is open."""

    def names(self, folder: str) -> list[str]:
        """What lies in ``parts``, ``blobs``, ``ranks`` or ``artifacts``: the last step of each key."""
        return os.listdir(self._root / folder)

    def remove(self, key: str, may: Callable[[], bool] = lambda: True) -> None:
        """Remove a file, or all under a key, if there is any and it ``may`` be.

        Raises:
            OSError: it cannot be removed.
        """
        if may():
            remove(self._root.joinpath(*steps_of(key)))


def sync_folder(path: Path) -> None:
    """Sync a folder, so that a rename in it survives a loss of power."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_tree(path: Path, before_each: Callable[[], object] = lambda: None) -> None:
    """Sync a folder and all folders below it; ``before_each`` may raise."""
    for folder, _, _ in os.walk(path):
        before_each()
        sync_folder(Path(folder))


def remove(path: Path, enough: Callable[[], bool] = lambda: False) -> None:
    """Remove a file, or, as far as possible, a folder, if it exists. No link is followed, and no depth is too great.

    Args:
        enough: when to stop.

    Raises:
        OSError: it is a file, and cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
    empty(path, enough)
    with contextlib.suppress(OSError):
        path.rmdir()


def empty(path: Path, enough: Callable[[], bool]) -> bool:
    """Remove what is in a folder, as far as possible, as :func:`remove` does; False if that was enough."""
    with contextlib.suppress(OSError):
        top = os.open(path, _FOLDER)
        try:
            folders = ["."]
            while folders and not enough():
                folders += _emptied(folders.pop(), top, enough)
        finally:
            os.close(top)
    return not enough()


def _emptied(folder: str, top: int, enough: Callable[[], bool]) -> list[str]:
    """Remove a folder in ``top``, but move the folders in it to ``top`` first; returns their new names."""
    moved = []
    with contextlib.suppress(OSError):
        at = os.open(folder, _FOLDER, dir_fd=top)
        try:
            for name in os.listdir(at):
                if enough():
                    break
                try:
                    os.unlink(name, dir_fd=at)
                except OSError:
                    with contextlib.suppress(OSError):
                        if sys.platform == "linux":  # its mode may keep its owner out
                            itself = os.open(name, os.O_PATH | _FOLDER, dir_fd=at)
                            try:
                                os.chmod(f"/proc/self/fd/{itself}", 0o700)
                            finally:
                                os.close(itself)
                        os.rename(name, new := new_id(), src_dir_fd=at, dst_dir_fd=top)
                        moved.append(new)
        finally:
            os.close(at)
        os.rmdir(folder, dir_fd=top)
    return moved
