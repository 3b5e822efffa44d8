"""Uploads and downloads that resume after an interruption, several at once for a whole job."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import grpc

from augment.client.connection import CALL_S, Connection, Deadline, Patience, failure_of
from augment.core.output_files import OF_TRACE, replacing, stem
from augment.errors import InputError, OutputError, ServiceError
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc

CHUNK = 1 << 20
_MOST_CONTENT = 256 << 20  #: bytes of an artifact that is read into memory
_LINKED = 8 << 20  #: bytes of an artifact that is fetched from the server's store itself, if that has links
_LINK_S, _LINK_LIFE_S = 20.0, 600
_TOLD_EVERY_S = 0.1
_LOOK_S, _STANDSTILL_S = 0.5, 5.0  #: how often to look at an upload that another client continues

#: control characters, line ends and direction marks, which servers refuse in names
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

Moved = Callable[[int, int], None]  #: called with the bytes transferred and the total


class Upload:
    """One file on its way to the server.

    Args:
        path: the file.
        file_name: its name on the server.
        parent: the project whose it becomes; empty: the caller's own.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: str, file_name: str, connection: Connection, parent: str = "") -> None:
        self._path, self._connection = path, connection
        hashed, self._size = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                hashed.update(chunk)
                self._size += len(chunk)
        sha256 = hashed.hexdigest()
        start = service_pb2.StartUploadRequest(file_name=file_name, size_bytes=self._size, sha256=sha256, parent=parent)
        self._start = start
        self._sent = 0
        self._taken_over = False

    def send(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved) -> str:
        """Send the bytes that the server lacks; returns the upload's name.

        Raises:
            AugmentError: the server refuses the upload, or cannot be reached.
        """
        arrived = -1

        def attempt(patience: Patience) -> resources_pb2.Upload:
            nonlocal arrived
            there = self._begin(stub, deadline)
            if there.received_bytes > arrived:  # without any progress the attempts end
                patience.heard()
                arrived = there.received_bytes
            if self._taken_over:
                there = self._watched(there, stub, deadline, moved)
            if there.state == resources_pb2.Upload.STATE_COMPLETE:
                return there
            try:
                return self._rest(there, stub, deadline, moved)
            except grpc.RpcError as error:
                self._taken_over = failure_of(error).reason == "UPLOAD_TAKEN_OVER"
                raise

        # an idle upload may have gone to make room, or another server may have taken it over with less: ask again
        passing = ("NOT_FOUND", "OFFSET_OUT_OF_RANGE")
        done = self._connection.persist(attempt, deadline, self._path, passing=passing)
        if done.state != resources_pb2.Upload.STATE_COMPLETE:
            raise InputError(self._path, "was cut short while it was being sent; try again when it is whole")
        moved(self._size, self._size)
        return done.name

    def _begin(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline) -> resources_pb2.Upload:
        """Announce the file; the server recognises its digest and returns how much has arrived."""
        metadata, timeout = self._connection.metadata, deadline.left_s(CALL_S)
        return stub.StartUpload(self._start, timeout=timeout, metadata=metadata).upload

    def _watched(
        self, there: resources_pb2.Upload, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved
    ) -> resources_pb2.Upload:
        """Wait while another client sends the same file, until the upload is complete or makes no progress."""
        since = time.monotonic()
        while there.state != resources_pb2.Upload.STATE_COMPLETE and time.monotonic() - since < _STANDSTILL_S:
            moved(there.received_bytes, self._size)
            time.sleep(deadline.left_s(_LOOK_S) or 0)
            before, there = there.received_bytes, self._begin(stub, deadline)
            if there.received_bytes != before:
                since = time.monotonic()
        return there

    def _rest(
        self, there: resources_pb2.Upload, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved
    ) -> resources_pb2.Upload:
        """Send the missing bytes. gRPC reads them in its own thread; ``moved`` is called in this one."""
        metadata = self._connection.metadata
        call = stub.UploadTrace.future(self._requests(there), timeout=deadline.left_s(), metadata=metadata)
        try:
            while not _ended(call):
                moved(self._sent, self._size)
        except BaseException:
            call.cancel()
            raise
        return call.result().upload

    def _requests(self, there: resources_pb2.Upload) -> Iterator[service_pb2.UploadTraceRequest]:
        """The requests of one call. It opens the file anew, because an interrupted call may still be reading."""
        at = there.received_bytes
        resume = service_pb2.ResumeUpload(name=there.name, offset=at)
        yield service_pb2.UploadTraceRequest(resume=resume, finish=at == self._size)
        with open(self._path, "rb") as file:
            file.seek(at)
            while at < self._size and (chunk := file.read(min(CHUNK, self._size - at))):
                at += len(chunk)
                self._sent = at
                yield service_pb2.UploadTraceRequest(chunk=chunk, finish=at == self._size)


def _ended(call: Any) -> bool:
    """Whether the call has ended, with or without success; waits a moment for it."""
    try:
        call.exception(timeout=_TOLD_EVERY_S)
    except grpc.FutureTimeoutError:
        return False
    except grpc.FutureCancelledError:
        pass
    return True


class Download:
    """Receives one artifact into a file, which appears once it is complete and has the announced digest."""

    def __init__(self, artifact: resources_pb2.Artifact, target: Path, connection: Connection) -> None:
        self._artifact, self.target, self._connection = artifact, target, connection

    def receive(
        self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, source: str | None, moved: Moved
    ) -> None:
        """Write the artifact to its file, but never over ``source``, the input.

        Raises:
            OutputError: the file cannot be written.
            ServiceError: the artifact cannot be fetched, or differs from what was announced.
        """
        with replacing(self.target, source) as file:
            self._fill(file, stub, deadline, moved)

    def content(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline) -> bytes:
        """The content of a small artifact.

        Raises:
            ServiceError: as in :meth:`receive`, or it is not small.
        """
        if self._artifact.size_bytes > _MOST_CONTENT:
            what = f"{self._connection.address}: {self._artifact.file_name} is larger than {_MOST_CONTENT} bytes"
            raise ServiceError(what, "", "")
        file = io.BytesIO()
        self._fill(file, stub, deadline, lambda _done, _of: None)
        return file.getvalue()

    def _fill(
        self, file: BinaryIO, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved
    ) -> None:
        hashed, wanted = hashlib.sha256(), self._artifact

        def take(chunk: bytes) -> None:
            file.write(chunk)
            hashed.update(chunk)
            moved(file.tell(), wanted.size_bytes)

        def attempt(patience: Patience) -> bool:
            request = service_pb2.ReadArtifactRequest(name=wanted.name, offset=file.tell())
            for answer in stub.ReadArtifact(request, timeout=deadline.left_s(), metadata=self._connection.metadata):
                patience.heard()
                if answer.chunk:
                    take(answer.chunk)
            return True

        if wanted.size_bytes >= _LINKED and self._connection.has_links:
            self._from_store(stub, deadline, take)
        if file.tell() < wanted.size_bytes or not wanted.size_bytes:
            self._connection.persist(
                attempt, deadline, str(self.target), passing=("UNREAD",)
            )  # the process may have been suspended
        if file.tell() != wanted.size_bytes or hashed.hexdigest() != wanted.sha256:
            what = f"{self._connection.address}: {wanted.file_name} did not arrive as it was announced; try again"
            raise ServiceError(what, "DATA_LOSS", "")

    def _from_store(
        self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, take: Callable[[bytes], None]
    ) -> None:
        """Fetch the artifact by a link into the server's store, as far as that works from here."""
        request = service_pb2.GetArtifactRequest(name=self._artifact.name)
        request.link_life.FromSeconds(_LINK_LIFE_S)
        works = False
        try:
            answer = stub.GetArtifact(request, timeout=deadline.left_s(CALL_S), metadata=self._connection.metadata)
            if not answer.link.startswith(("http://", "https://")):
                return
            with urllib.request.urlopen(answer.link, timeout=deadline.left_s(_LINK_S)) as body:  # noqa: S310
                if body.headers["Content-Length"] != str(self._artifact.size_bytes):
                    return  # a proxy's page
                while chunk := body.read(CHUNK):
                    deadline.left_s()
                    take(chunk)
            works = True
        except (grpc.RpcError, OSError, http.client.HTTPException):
            pass  # the server itself has the rest
        finally:
            self._connection.has_links = works


def sent_name(path: str) -> str:
    """The file's name without characters that a server refuses."""
    return _UNSEEN.sub("_", os.fsencode(os.path.basename(path)).decode("utf-8", "replace"))


AT_ONCE = 8  #: traces sent, or artifacts fetched, in parallel
#: base names of files of a whole job
_OF_JOB = re.compile(r"(?:.+\.)?job(?:-\d+)?\.(?:metrics\.json|augmented\.pftrace)")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class JobNames:
    """Maps names on the server, free of refused characters, to local paths.

    Args:
        traces: the paths of the traces by their names relative to the job's folder, with ``/``.
        out: the output folder.
        address: the server's address, for errors.
        title: the name of the folder.
    """

    def __init__(self, traces: Mapping[str, str], out: Path, address: str, title: str = "") -> None:
        self._out, self._address = out, address
        self.title = sent_path(title)
        self.there = {name: sent_path(name) for name in traces}
        self._outputs: dict[tuple[str, str], str] = {}  # traces by folder and STEM of their outputs on the server
        self._folders = {"": out}
        for name, there in self.there.items():
            folder, _, base = there.rpartition("/")
            self._outputs[folder, stem(base)] = name
            parts = zip(PurePosixPath(name).parts[:-1], PurePosixPath(there).parts[:-1], strict=True)
            at, here = "", out
            for part, sent in parts:
                at, here = f"{at}/{sent}".lstrip("/"), here / part
                self._folders[at] = here

    def place(self, file_name: str) -> tuple[str | None, Path]:
        """The trace that an artifact belongs to (None: the job), and its local path.

        Raises:
            ServiceError: the artifact is no output of a trace of the job, or lies outside of the folder.
        """
        folder, slash, base = file_name.rpartition("/")
        known = folder in self._folders and bool(folder) == bool(slash) and "\\" not in base
        for ending in OF_TRACE if known else ():
            name = self._outputs.get((folder, base.removesuffix(ending))) if base.endswith(ending) else None
            if name is not None:
                return name, self._folders[folder] / (stem(name.rpartition("/")[2]) + ending)
        if known and _OF_JOB.fullmatch(base):
            return None, self._folders[folder] / base
        what = f"the server made a file called {file_name!r}, which is not of this job"
        raise ServiceError(f"{self._address}: {what}", "", "")


def expect_apart(targets: Iterable[Path], inputs: Iterable[str]) -> None:
    """Check that no file to be written is an input.

    Raises:
        OutputError: one is.
    """
    given = {_identity(path) for path in inputs} - {None}
    for target in targets:
        if _identity(target) in given:
            raise OutputError(f"{target}: is an input; choose another folder or name")


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Device and number of a file; None if there is none."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def sent_path(name: str) -> str:
    """The same of a path with ``/``."""
    return "/".join(map(sent_name, name.split("/")))


def all_of(
    items: Sequence[Item], sizes: Sequence[int], work: Callable[[Item, Moved], Answer], output: Moved
) -> list[Answer]:
    """The results of ``work`` for all ``items``, several in parallel.

    Args:
        sizes: the sizes of the items, bytes.
        work: called in threads with an item and a callback for its progress in bytes.
        output: called in this thread with the bytes transferred of all items, and their total.

    Raises:
        Exception: the first that ``work`` raises; it ends the other items, as an interrupt does.
    """
    moved = [0] * len(items)
    ended = threading.Event()

    def make_one(at: int) -> Answer:
        def count(done: int, _of: int) -> None:
            if ended.is_set():
                raise _OtherFailed
            moved[at] = done

        count(0, 0)
        return work(items[at], count)

    threads = ThreadPoolExecutor(AT_ONCE)
    futures = [threads.submit(make_one, at) for at in range(len(items))]
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, _TOLD_EVERY_S)
            for future in done:
                future.result()
            output(sum(moved), sum(sizes))
    finally:
        ended.set()  # running ones end at their next progress, or when the connection is closed
        threads.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in futures]


class _OtherFailed(Exception):
    """Another item has failed."""
