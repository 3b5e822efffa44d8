"""Files below a folder, safe against links and races: the operator's folders with inputs, and the server's own.

No path that was derived from a client's text is opened, made or linked but by these functions.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from augment_server.base.errors import Refusal, invalid

_PIECE = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideFolder(OSError):
    """A path that does not stay below its folder."""


def path_of(uri: str) -> str:
    """The absolute path in a client's URI.

    Raises:
        Refusal: it is not an absolute path or a file URI.
    """
    path = uri
    if uri.startswith("file:"):
        try:
            parts = urlsplit(uri)
        except ValueError as error:  # brackets that are no address
            raise invalid("uri", "must be file:///PATH or an absolute path") from error
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise invalid("uri", "must be file:///PATH or an absolute path")
        path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise invalid("uri", "must be file:///PATH or an absolute path on the server")
    return path


def resolve(uri: str, roots: Sequence[str]) -> tuple[str, str]:
    """The root among ``roots`` that contains a file, and the path below it; both with links resolved.

    Args:
        roots: folders, resolved.

    Raises:
        Refusal: the file is outside the roots or does not exist. The message does not tell which.
    """
    real = os.path.realpath(path_of(uri))
    for root in roots:
        if real.startswith(root.rstrip("/") + "/"):
            return root, os.path.relpath(real, root)
    raise not_allowed()


def open_below(root: str, relative: str) -> int:
    """As :func:`open_inside`, for a client's file.

    Raises:
        Refusal: there is no such file.
    """
    try:
        return open_inside(root, relative)
    except OSError as error:
        raise not_allowed() from error


def steps_of(relative: str) -> list[str]:
    """The folders and the name of a path below a folder; it need not exist.

    Raises:
        OutsideFolder: the path is absolute, empty, or leads or may lead outside.
    """
    steps = relative.split("/")
    if "\0" in relative or any(step in ("", ".", "..") for step in steps):
        raise OutsideFolder(f"{relative[:200]!r} is no path below a folder")
    return steps


def open_inside(root: str | Path | int, relative: str) -> int:
    """The descriptor of the regular file at ``relative`` below ``root``, opened folder by folder, following no link.

    A link that replaces a folder in the meantime is refused, too.

    Raises:
        OSError: there is no such file; an :class:`OutsideFolder` if the path leads outside.
    """
    *folders, name = steps_of(relative)
    with folder_inside(root, folders) as at:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OutsideFolder(f"{relative[:200]!r} is no regular file")
    return opened


@contextlib.contextmanager
def folder_inside(root: str | Path | int, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """The descriptor of a folder below ``root``, opened folder by folder, following no link.

    Args:
        root: a folder, which is no link itself, or its descriptor.
        make: make the folders that are missing.

    Raises:
        OSError: there is no such folder, or one of ``folders`` is a link or a file.
    """
    at = os.dup(root) if isinstance(root, int) else os.open(root, _FOLDER)
    try:
        for folder in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=at)
            inner = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def place_inside(root: str | Path | int, relative: str, origin: str | Path, known: str) -> None:
    """Link the file ``known`` below ``origin`` to ``relative`` below ``root``; copy it where links are impossible.

    Nothing is overwritten, and no link is followed on either side.

    Raises:
        OSError: there is no such file, or another one at the new path.
    """
    *folders, name = steps_of(relative)
    *there, its_name = steps_of(known)
    source = open_inside(origin, known)
    with folder_inside(root, folders, make=True) as at, os.fdopen(source, "rb") as file:
        try:
            with folder_inside(origin, there) as beside:
                os.link(its_name, name, src_dir_fd=beside, dst_dir_fd=at, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            _copy(file, name, at)


def _copy(file: BinaryIO, name: str, at: int) -> int:
    """Copy a file to a new one in the folder ``at``, and sync it; returns its size, bytes.

    It may grow meanwhile: what it has at first is copied. Both share their bytes where the file system can.

    Raises:
        OSError: there is such a file, or no room.
    """
    room, size = os.fstatvfs(at), os.fstat(file.fileno()).st_size
    if size > room.f_bavail * room.f_frsize:  # a sparse file claims more than it takes
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    left = size
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=at), "wb") as copy:
        with contextlib.suppress(AttributeError, OSError):  # elsewhere, and where a file system cannot
            while copied := os.copy_file_range(file.fileno(), copy.fileno(), left):
                left -= copied
        while piece := file.read(min(left, _PIECE)):
            copy.write(piece)
            left -= len(piece)
        copy.flush()
        os.fsync(copy.fileno())
    return size - left


def take_over(
    root: Path,
    folders: Sequence[str],
    names: Sequence[str],
    target: Path,
    known: Mapping[str, tuple[str, str]],
    most: float = math.inf,
    before_each: Callable[[], object] = lambda: None,
) -> list[int]:
    """Copy the files ``names`` from a folder in which another process writes into ``target``, a new folder.

    What the process still has open it can change, the copies not. Each file goes once it is copied.

    Args:
        root: a folder that is no link and that the other process cannot replace; what is below it may be anything.
        folders: the way from there to the folder of the files.
        names: paths below it.
        known: of some of ``names`` the folder and the path below it of a file of our own, which is linked, or copied
            where links are impossible, in place of a symbolic link.
        most: bytes that may be copied: a sparse file claims terabytes, whose copy nobody can cancel.
        before_each: called before each file; may raise.

    Returns:
        The size of each, bytes.

    Raises:
        OSError: one is missing, listed twice, no regular file or too large. Then ``target`` is to be removed.
    """
    if len(set(names)) < len(names):
        raise OutsideFolder("a file is listed twice")
    os.mkdir(target, 0o700)
    sizes = []
    with folder_inside(root, folders) as source:
        for relative in names:
            before_each()
            *inner, name = steps_of(relative)
            with folder_inside(source, inner) as there, folder_inside(target, inner, make=True) as here:
                if relative in known and stat.S_ISLNK(os.stat(name, dir_fd=there, follow_symlinks=False).st_mode):
                    place_inside(here, name, *known[relative])
                    sizes.append(os.stat(name, dir_fd=here).st_size)
                    continue
                with os.fdopen(open_inside(there, name), "rb") as file:
                    if (most := most - os.fstat(file.fileno()).st_size) < 0:
                        raise OutsideFolder(f"{relative[:200]!r}: the files are too large")
                    sizes.append(_copy(file, name, here))
                os.unlink(name, dir_fd=there)
    return sizes


def resolved(roots: Sequence[Path]) -> list[str]:
    """The folders with links resolved, for :func:`resolve`."""
    return [os.path.realpath(root) for root in roots]


def not_allowed() -> Refusal:
    """The refusal of a URI, which does not tell whether there is such a file."""
    what = "uri: no file that this server may read; its operator names folders with --allow-root, or --allow-prefix"
    return Refusal("URI_NOT_ALLOWED", what, field_path="uri")
