"""Files and folders by path or by URL: what differs between them is here alone.

A URL is anything that fsspec takes (``s3://``, ``gs://``, ``az://``, ``hdfs://``, ``https://`` …); it and what a
protocol needs are loaded when the first URL is met, never for paths. ``file://`` is a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from augment.errors import AugmentError, InputError, OutputError, UsageError

HEAD = 256 << 10  #: bytes of a file that are enough to tell what it is
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
WEB = ("http", "https")
#: their uploads appear whole, under the final name, at the end; others get a temporary name first
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "adl": "az"}
_MODIFIED = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


def protocol(name: str) -> str | None:
    """``s3`` of ``s3://bucket/key``; None of a path."""
    match = _URL.match(name)
    return match[1].lower() if match else None


def settled(name: str) -> str:
    """``name``, or the path that a ``file://`` URL is."""
    return name[len("file://") :] if protocol(name) == "file" else name


def join(folder: str, *below: str) -> str:
    """``folder`` and what is below it; an empty part and ``.`` are nothing."""
    parts = [part for part in below if part not in ("", ".")]
    if protocol(folder):
        return "/".join([folder.rstrip("/"), *parts])
    return os.path.normpath(os.path.join(folder, *parts))


def basename(name: str) -> str:
    """The file's name, without the query that a web address may have."""
    base = os.path.basename(name)
    return re.split(r"[?#]", base, maxsplit=1)[0] if protocol(name) in WEB else base


def parent(name: str) -> str:
    """The folder that ``name`` lies in."""
    return name.rpartition("/")[0] if protocol(name) else os.path.dirname(name) or "."


def below(name: str, folder: str) -> str:
    """``name`` as seen from ``folder``, which it lies in; ``.`` for the folder itself. With slashes on every system."""
    if protocol(folder):
        return name[len(folder.rstrip("/")) :].strip("/") or "."
    return os.path.relpath(name, folder).replace(os.sep, "/")


def common(folders: Sequence[str]) -> str:
    """The deepest folder that holds all of ``folders``, which are of one kind; of URLs, empty if none does."""
    if not protocol(folders[0]):
        return os.path.commonpath(folders) or "."
    shared = []
    for parts in zip(*(folder.split("/") for folder in folders), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def real(name: str) -> str:
    """One name for all that lead to the same file."""
    return name if protocol(name) else os.path.realpath(name)


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system for ``url``, and the path there.

    Raises:
        UsageError: fsspec, or what the protocol needs, is not installed; or there is no such protocol.
    """
    extra = _EXTRAS.get(protocol(url) or "", "remote")
    with told_as(lambda why: UsageError(f"{url}: {why}")):
        try:
            from fsspec.core import url_to_fs

            found: tuple[Any, str] = url_to_fs(url)
        except ImportError as error:
            raise UsageError(f"{url}: {error}; pip install 'kineto-augment[{extra}]'") from error
    return found


def modified(info: dict[str, Any]) -> str:
    """What changes when a remote file does, as the service tells it; empty if it tells nothing."""
    return next((str(info[key]) for key in _MODIFIED if info.get(key) is not None), "")


def sizes_below(folder: str) -> dict[str, int]:
    """The size of every file below a remote folder, by its name seen from there; empty if there is no such folder.

    Raises:
        InputError: it cannot be listed.
    """
    fs, top = filesystem(folder)
    found: dict[str, Any] = {}
    with told_as(lambda why: InputError(folder, f"cannot be listed: {why}")), contextlib.suppress(FileNotFoundError):
        fs.invalidate_cache()
        found = fs.find(top, detail=True)
    return {path[len(top) :].strip("/"): int(info.get("size") or 0) for path, info in found.items()}


def size(name: str) -> int | None:
    """The size of a local file; None if it is not there."""
    try:
        return os.path.getsize(name)
    except OSError:
        return None


def read(name: str) -> bytes:
    """The whole of a small file.

    Raises:
        InputError: it cannot be read.
    """
    with told_as(lambda why: InputError(name, why)):
        if not protocol(name):
            return Path(name).read_bytes()
        fs, path = filesystem(name)
        content: bytes = fs.cat_file(path)
    return content


def head(url: str, count: int = HEAD) -> bytes:
    """The first ``count`` bytes of a remote file.

    Raises:
        InputError: they cannot be read.
    """
    fs, path = filesystem(url)
    with told_as(lambda why: InputError(url, why)), fs.open(path, "rb", block_size=count) as remote:
        data: bytes = remote.read(count)
    return data


def write(name: str, content: bytes) -> None:
    """Write a small file, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    if not protocol(name):
        from augment.writers.files import replacing

        with replacing(Path(name)) as target:
            target.write(content)
        return
    with tempfile.TemporaryDirectory(prefix="augment-") as folder:
        path = Path(folder, "content")
        path.write_bytes(content)
        put(path, name)


def put(source: Path, url: str) -> None:
    """Upload ``source``: afterwards all of it is at ``url``, or nothing new is.

    Raises:
        OutputError: the upload failed.
    """
    fs, path = filesystem(url)
    with told_as(lambda why: OutputError(f"{url}: cannot be written: {why}")):
        if protocol(url) in _OBJECT_STORES:
            _put_object(fs, str(source), path)
        else:
            _put_file(fs, str(source), path)


def _put_object(fs: Any, source: str, path: str) -> None:
    try:
        fs.put_file(source, path)
    except FileExistsError:  # some stores replace nothing unasked
        fs.rm_file(path)
        fs.put_file(source, path)


def _put_file(fs: Any, source: str, path: str) -> None:
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}.{secrets.token_hex(6)}.tmp"
    try:
        fs.makedirs(folder, exist_ok=True)
        fs.put_file(source, beside)
        if fs.exists(path):
            fs.rm_file(path)  # HDFS and SFTP move nothing over a file
        fs.mv(beside, path)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(beside)
        raise


def expect_writable(folder: str) -> None:
    """Find out before the work, not after it, that there is no place for its outcome.

    Raises:
        OutputError: there is none.
    """
    if protocol(folder) in WEB:
        raise OutputError(f"{folder}: a web server takes no files; choose a folder with -o")
    if protocol(folder):
        filesystem(folder)
        return
    there = Path(folder)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"{folder}: {there} is a file; choose another -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: {there} may not be written to; choose a folder with -o")


@contextlib.contextmanager
def at_hand(source: str, folder: str, size: int = 0) -> Iterator[tuple[str, Path]]:
    """A path to read ``source`` from and a folder to write into: themselves, or local stand-ins of what is remote.

    A remote source is copied into a temporary folder (``TMPDIR``), for a trace is read twice. What was written is
    for :func:`deliver`. Errors speak of ``source``, not of the copy.

    Raises:
        InputError: the source cannot be fetched, or there is no room for it.
    """
    if not protocol(source) and not protocol(folder):
        yield source, Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="augment-") as spool:
        path = source
        if protocol(source):
            path = os.path.join(spool, "input", basename(source) or "trace")
            os.mkdir(os.path.dirname(path))
            _fetch(source, path, size)
        target = Path(spool, "outputs") if protocol(folder) else Path(folder)
        try:
            yield path, target
        except AugmentError as error:
            error.args = (str(error).replace(path, source).replace(str(target), folder),)
            raise


def _fetch(url: str, path: str, size: int) -> None:
    folder = os.path.dirname(path)
    if size > shutil.disk_usage(folder).free:
        raise InputError(url, f"no room for its {size >> 20} MiB in {folder}; set TMPDIR to a larger disk")
    fs, remote = filesystem(url)
    with told_as(lambda why: InputError(url, f"cannot be fetched: {why}")):
        fs.get_file(remote, path)


def deliver(written: Sequence[Path], folder: str) -> tuple[str, ...]:
    """Where the files of :func:`at_hand`'s folder are in the end; remote ones are uploaded now, in their order."""
    if not protocol(folder):
        return tuple(map(str, written))
    urls = tuple(join(folder, path.name) for path in written)
    for path, url in zip(written, urls, strict=True):
        put(path, url)
    return urls


@contextlib.contextmanager
def told_as(make: Callable[[str], AugmentError]) -> Iterator[None]:
    """Whatever goes wrong within, other than errors of ours, is the error that ``make`` makes of what it says."""
    try:
        yield
    except AugmentError:
        raise
    except Exception as error:  # each store has exceptions of its own
        raise make(_told(error)) from error


def _told(error: Exception) -> str:
    """What an exception of somebody else's says, on one line."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__
