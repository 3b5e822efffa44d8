"""Access to files and folders by path or URL; the differences between the two are in this module alone.

A URL is anything that fsspec supports (``s3://``, ``gs://``, ``az://``, ``hdfs://``, ``https://`` …). fsspec and the
package of a protocol are loaded with the first URL, never for paths. ``file://`` is a path.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from augment.errors import AugmentError, InputError, OutputError, UsageError

HEAD = 256 << 10  #: bytes of a file that suffice to identify it
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
WEB = ("http", "https")
#: protocols whose uploads appear whole, under the final name, at the end; others need a temporary name
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "adl": "az"}
_MODIFIED = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


def protocol(name: str) -> str | None:
    """``s3`` for ``s3://bucket/key``; None for a path."""
    match = _URL.match(name)
    return match[1].lower() if match else None


def settled(name: str) -> str:
    """``name``, or the path in a ``file://`` URL."""
    return name[len("file://") :] if protocol(name) == "file" else name


def join(folder: str, *below: str) -> str:
    """``folder`` joined with the parts in ``below``; empty parts and ``.`` are skipped."""
    parts = [part for part in below if part not in ("", ".")]
    if protocol(folder):
        return "/".join([folder.rstrip("/"), *parts])
    return os.path.normpath(os.path.join(folder, *parts))


def basename(name: str) -> str:
    """The base name of a file, without the query of a web address."""
    base = os.path.basename(name)
    return re.split(r"[?#]", base, maxsplit=1)[0] if protocol(name) in WEB else base


def parent(name: str) -> str:
    """The folder of ``name``."""
    return name.rpartition("/")[0] if protocol(name) else os.path.dirname(name) or "."


def below(name: str, folder: str) -> str:
    """``name`` relative to ``folder``, which contains it; ``.`` for the folder itself. Always with slashes."""
    if protocol(folder):
        return name[len(folder.rstrip("/")) :].strip("/") or "."
    return os.path.relpath(name, folder).replace(os.sep, "/")


def common(folders: Sequence[str]) -> str:
    """The deepest folder that contains all, all paths or all URLs; relative if all are, empty if URLs share none."""
    if not protocol(folders[0]):
        if any(os.path.isabs(folder) or os.pardir in folder.split(os.sep) for folder in folders):
            folders = [os.path.abspath(folder) for folder in folders]
        return os.path.commonpath(folders) or "."
    shared = []
    for parts in zip(*(folder.split("/") for folder in folders), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def absolute(name: str) -> str:
    """A path from the root on; a URL is one."""
    return name if protocol(name) else os.path.abspath(name)


def real(name: str) -> str:
    """A canonical name: equal for all names of the same file."""
    return name if protocol(name) else os.path.realpath(name)


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of ``url``, and the path in it.

    Raises:
        UsageError: fsspec or the protocol's package is not installed, or the protocol does not exist.
    """
    extra = _EXTRAS.get(protocol(url) or "", "remote")
    with errors_as(lambda why: UsageError(f"{url}: {why}")):
        try:
            from fsspec.core import url_to_fs

            resolved: tuple[Any, str] = url_to_fs(url)
        except ImportError as error:
            raise UsageError(f"{url}: {error}; pip install 'kineto-augment[{extra}]'") from error
    return resolved


def modified(info: dict[str, Any]) -> str:
    """A text that changes when a remote file does, from its metadata; empty if the service gives none."""
    return next((str(info[key]) for key in _MODIFIED if info.get(key) is not None), "")


def sizes_below(folder: str) -> dict[str, int]:
    """The size of every file below a remote folder, by its relative name; empty if the folder does not exist.

    Raises:
        InputError: the folder cannot be listed.
    """
    fs, top = filesystem(folder)
    files: dict[str, Any] = {}
    with errors_as(lambda why: InputError(folder, f"cannot be listed: {why}")), contextlib.suppress(FileNotFoundError):
        fs.invalidate_cache()
        files = fs.find(top, detail=True)
    return {path[len(top) :].strip("/"): int(info.get("size") or 0) for path, info in files.items()}


def size(name: str) -> int | None:
    """The size of a local file; None if it does not exist."""
    try:
        return os.path.getsize(name)
    except OSError:
        return None


def read(name: str) -> bytes:
    """The content of a small file.

    Raises:
        InputError: the file cannot be read.
    """
    with errors_as(lambda why: InputError(name, why)):
        if not protocol(name):
            return Path(name).read_bytes()
        fs, path = filesystem(name)
        content: bytes = fs.cat_file(path)
    return content


def head(url: str, count: int = HEAD) -> bytes:
    """The first ``count`` bytes of a remote file.

    Raises:
        InputError: the file cannot be read.
    """
    fs, path = filesystem(url)
    with errors_as(lambda why: InputError(url, why)), fs.open(path, "rb", block_size=count) as remote:
        data: bytes = remote.read(count)
    return data


def write(name: str, content: bytes) -> None:
    """Write a small file atomically.

    Raises:
        OutputError: the file cannot be written.
    """
    if protocol(name):
        _store(name, lambda fs, path: fs.pipe_file(path, content))
        return
    from augment.core.output_files import replacing

    with replacing(Path(name)) as target:
        target.write(content)


def put(source: Path, url: str) -> None:
    """Upload ``source`` to ``url`` atomically.

    Raises:
        OutputError: the upload failed.
    """
    _store(url, lambda fs, path: fs.put_file(str(source), path))


def _store(url: str, send: Callable[[Any, str], object]) -> None:
    fs, path = filesystem(url)
    with errors_as(lambda why: OutputError(f"{url}: cannot be written: {why}")):
        if protocol(url) in _OBJECT_STORES:
            try:
                send(fs, path)
            except FileExistsError:  # some stores do not overwrite by default
                fs.rm_file(path)
                send(fs, path)
        else:
            folder, _, name = path.rpartition("/")
            temporary = f"{folder}/.{name}.{os.urandom(6).hex()}.tmp"
            try:
                fs.makedirs(folder, exist_ok=True)
                send(fs, temporary)
                if fs.exists(path):
                    fs.rm_file(path)  # HDFS and SFTP do not move onto an existing file
                fs.mv(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    fs.rm_file(temporary)
                raise


def expect_writable(folder: str) -> None:
    """Check before the work that ``folder`` can be written to.

    Raises:
        OutputError: it cannot.
    """
    if protocol(folder) in WEB:
        raise OutputError(f"{folder}: files cannot be written to a web server; choose a folder with -o")
    if protocol(folder):
        filesystem(folder)
        return
    there = Path(folder)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"{folder}: {there} is a file; choose another -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: {there} is not writable; choose a folder with -o")


@contextlib.contextmanager
def at_hand(source: str, folder: str, size: int = 0, *, fetch: bool = True) -> Iterator[tuple[str, Path]]:
    """A path to read ``source`` from and a folder to write into. For remote names, both are local substitutes.

    A remote source is copied into a temporary folder (``TMPDIR``), because a trace is read twice. :func:`deliver`
    uploads the written files. Without ``fetch``, a source is left where it is. Errors name ``source``, not the copy.

    Raises:
        InputError: the source cannot be fetched, or the disk is too small.
    """
    fetch = fetch and bool(protocol(source))
    if not fetch and not protocol(folder):
        yield source, Path(folder)
        return
    import tempfile
    from shutil import disk_usage

    with tempfile.TemporaryDirectory(prefix="augment-") as spool:
        path = source
        if fetch:
            path = os.path.join(spool, "input", basename(source) or "trace")
            os.mkdir(os.path.dirname(path))
            if size > disk_usage(spool).free:
                raise InputError(
                    source, f"its {size >> 20} MiB do not fit into {spool}; set TMPDIR to a folder on a larger disk"
                )
            fs, remote = filesystem(source)
            with errors_as(lambda why: InputError(source, f"cannot be fetched: {why}")):
                fs.get_file(remote, path)
        target = Path(spool, "outputs") if protocol(folder) else Path(folder)
        try:
            yield path, target
        except AugmentError as error:
            error.args = (str(error).replace(path, source).replace(str(target), folder),)
            raise


def deliver(written: Sequence[Path], folder: str) -> tuple[str, ...]:
    """The final names of files written into the folder of :func:`at_hand`; remote ones are uploaded now, in order."""
    if not protocol(folder):
        return tuple(map(str, written))
    urls = tuple(join(folder, path.name) for path in written)
    for path, url in zip(written, urls, strict=True):
        put(path, url)
    return urls


@contextlib.contextmanager
def errors_as(make: Callable[[str], AugmentError]) -> Iterator[None]:
    """Convert any foreign exception within into the error that ``make`` builds from its text."""
    try:
        yield
    except AugmentError:
        raise
    except Exception as error:  # each store has exceptions of its own
        # The text of a foreign exception on one line
        if isinstance(error, FileNotFoundError):
            reason = "no such file or folder"
        elif isinstance(error, OSError) and error.strerror:
            reason = error.strerror.lower()
        else:
            reason = " ".join(str(error).split()) or type(error).__name__
        raise make(reason) from error
