"""What clients may name by a URI: files below folders of this machine, and objects below prefixes of buckets.

A client chooses only what follows the operator's folder or prefix. Each prefix has a connection of its own, whose
requests, and with them the server's credentials, go to its bucket alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from augment.errors import AugmentError, UsageError
from augment_server.base.errors import Refusal
from augment_server.base.names import safe_file_name
from augment_server.storage.roots import OutsideFolder, not_allowed, open_below, path_of, resolve, resolved, steps_of

if TYPE_CHECKING:
    from augment_server.storage.bucket import Objects
    from augment_server.storage.storage import Store

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 8
_MOST_KEY = 1000  #: bytes
_SCHEMES = {"s3a": "s3", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az"}
_IS_URL = re.compile(r"(?!file:)[a-z0-9]+://", re.IGNORECASE).match


class Places:
    """The places.

    Args:
        folders: to read from.
        readable: prefixes to read from, such as ``s3://bucket/traces``.
        writable: prefixes to write to.
        most: bytes of an object that is read.
        store: the URL of the server's own store, of which a prefix would show everything to everybody.

    Raises:
        AugmentError: a prefix cannot be used, or obstore is not installed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        most: int = 0,
        store: str = "",
    ) -> None:
        self.folders = resolved(folders)
        self._most = most
        self._readable = {_folder(url): _objects(url, "--allow-prefix", store) for url in readable}
        self._writable = {_folder(url): _objects(url, "--allow-output", store) for url in writable}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="augment-places")
        #: the prefixes, as :class:`v1.ServerInfo` tells them
        self.readable, self.writable = list(self._readable), list(self._writable)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results of ``work``, several at a time if requests may go over a network.

        Raises:
            Exception: the first one that ``work`` raises.
        """
        return list(self._threads.map(work, items) if self._readable else map(work, items))

    def expect_file(self, uri: str) -> str:
        """The file name of what a client names, which must be there.

        Raises:
            Refusal: it is not there, may not be read, is too large, or its store does not answer.
        """
        if not _IS_URL(uri):
            name = safe_file_name(path_of(uri), "uri")
            os.close(open_below(*resolve(uri, self.folders)))
            return name
        objects, key = _below(uri, self._readable)
        try:
            size = objects.size(key)
        except FileNotFoundError as error:
            raise not_allowed() from error
        if size > self._most:
            raise self._too_large()
        return safe_file_name(key, "uri")

    def _too_large(self) -> Refusal:
        what = f"uri: this server takes up to {self._most} bytes"
        return Refusal("UPLOAD_TOO_LARGE", what, {"max_bytes": str(self._most)}, field_path="uri")

    def order(self, uri: str) -> dict[str, Any]:
        """What an order says of a file that a client has named."""
        return {"uri": uri} if _IS_URL(uri) else {"below": resolve(uri, self.folders)}

    def give(self, uris: Sequence[tuple[str, Path]]) -> None:
        """Copy objects to where a worker can read them: of each its URI, and the path of a new file.

        Raises:
            Refusal: as of :meth:`expect_file`.
        """
        self.each(self._fetch, uris)

    def _fetch(self, given: tuple[str, Path]) -> None:
        from augment_server.storage.bucket import TooLarge

        uri, path = given
        objects, key = _below(uri, self._readable)
        try:
            with open(path, "xb") as file:
                objects.copy(key, file, self._most)
        except FileNotFoundError as error:
            raise not_allowed() from error
        except TooLarge as error:
            raise self._too_large() from error

    def expect_output(self, uri: str) -> None:
        """Check that outputs may go to ``uri``.

        Raises:
            Refusal: they may not.
        """
        if uri:
            self._output(uri)

    def _output(self, uri: str) -> tuple[Objects, str]:
        try:
            objects, key = _below(f"{uri.rstrip('/')}/-", self._writable)
        except Refusal:
            what = "output_uri: no place that this server may write to; its operator names prefixes with --allow-output"
            raise Refusal("URI_NOT_ALLOWED", what, field_path="output_uri") from None
        return objects, key.removesuffix("-")

    def deliver(
        self, uri: str, store: Store, folder: str, names: Sequence[str], before_each: Callable[[], object]
    ) -> None:
        """Copy what the store has in ``folder`` to ``uri``, the last file once all others are there.

        Raises:
            Refusal: a store does not answer.
        """
        objects, prefix = self._output(uri)

        def put(name: str) -> None:
            before_each()
            steps_of(name)
            with store.open(f"{folder}/{name}") as file:
                objects.put(prefix + name, file)

        list(self._threads.map(put, names[:-1]))
        for name in names[-1:]:
            put(name)

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown()


def _folder(url: str) -> str:
    return url.rstrip("/") + "/"


def _objects(url: str, option: str, store: str) -> Objects:
    """The objects below a prefix that an operator names."""
    try:
        from augment_server.storage.bucket import Objects
    except ImportError as error:
        raise AugmentError(f"{option} needs obstore: pip install 'kineto-augment-server[store]'") from error
    if re.search(r"[\s%?#\\*]|//.*//|/\.{1,2}(/|$)", url):
        raise UsageError(f"{option} {url}: must be a plain prefix, such as s3://BUCKET/PREFIX")
    objects = Objects(url.rstrip("/"), option)
    ours, theirs = _plain(url), _plain(store)
    if store and (ours.startswith(theirs) or theirs.startswith(ours)):
        raise UsageError(f"{option} {url}: must not overlap --store, whose bytes belong to clients")
    return objects


def _plain(url: str) -> str:
    """The URL with the one name of its scheme, to compare it."""
    scheme, _, rest = _folder(url).partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}"


def _below(uri: str, prefixes: dict[str, Objects]) -> tuple[Objects, str]:
    """The prefix that contains a client's URI, and the key below it.

    Raises:
        Refusal: none does. The message does not tell whether there is such an object.
    """
    for prefix, objects in prefixes.items():
        key = uri.removeprefix(prefix)
        # some stores take a backslash for a slash
        if key != uri and "\\" not in key and len(key.encode()) <= _MOST_KEY:
            try:
                steps_of(key)
            except OutsideFolder:
                break
            return objects, key
    raise not_allowed()
