"""Bytes to the server and back, going on where a cut left them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import grpc

from augment.client.connection import CALL_S, Connection, Deadline, Patience
from augment.client.failures import failure_of
from augment.errors import InputError, ServiceError
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc
from augment.writers.files import replacing

CHUNK = 1 << 20
_TOLD_EVERY_S = 0.1
_LOOK_S, _STANDSTILL_S = 0.5, 5.0  #: at an upload that another client goes on with

#: control characters, ends of lines, and marks of direction: no server takes them in names
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

Moved = Callable[[int, int], None]  #: told how many bytes are there, and of how many


class Upload:
    """One file on its way to the server.

    Args:
        path: of the file.
        file_name: what the server shall call it.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: str, file_name: str, connection: Connection) -> None:
        self._path, self._connection = path, connection
        sha256, self._size = _digest(path)
        self._start = service_pb2.StartUploadRequest(file_name=file_name, size_bytes=self._size, sha256=sha256)
        self._sent = 0
        self._taken_over = False

    def send(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved) -> str:
        """Send what the server has not yet; the upload's name.

        Raises:
            AugmentError: the server does not take it, or cannot be reached.
        """
        arrived = -1

        def attempt(patience: Patience) -> resources_pb2.Upload:
            nonlocal arrived
            there = self._begin(stub, deadline)
            if there.received_bytes > arrived:  # a connection on which nothing ever arrives is given up
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

        # an upload of which nothing had come may have had to make place for others: begin anew
        done = self._connection.persist(attempt, deadline, self._path, passing=("NOT_FOUND",))
        if done.state != resources_pb2.Upload.STATE_COMPLETE:
            raise InputError(self._path, "was cut short while it was being sent; try again when it is whole")
        moved(self._size, self._size)
        return done.name

    def _begin(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline) -> resources_pb2.Upload:
        """Announce the file, or find what has arrived of it: with its digest that is one question."""
        metadata, timeout = self._connection.metadata, deadline.left_s(CALL_S)
        return stub.StartUpload(self._start, timeout=timeout, metadata=metadata).upload

    def _watched(
        self, there: resources_pb2.Upload, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved
    ) -> resources_pb2.Upload:
        """The upload when it is complete, or nobody goes on with it: somebody else sends the same file."""
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
        """Send the bytes that are not there. gRPC takes them in a thread of its own, ``moved`` is called in ours."""
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
        """With a file of its own: a call that was cut may still be reading while the next one does."""
        at = there.received_bytes
        resume = service_pb2.ResumeUpload(name=there.name, offset=at)
        yield service_pb2.UploadTraceRequest(resume=resume, finish=at == self._size)
        with open(self._path, "rb") as file:
            file.seek(at)
            while at < self._size and (chunk := file.read(min(CHUNK, self._size - at))):
                at += len(chunk)
                self._sent = at
                yield service_pb2.UploadTraceRequest(chunk=chunk, finish=at == self._size)


def _digest(path: str) -> tuple[str, int]:
    """SHA-256 of what is in the file, in hexadecimal, and its size."""
    hashed, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
            size += len(chunk)
    return hashed.hexdigest(), size


def _ended(call: Any) -> bool:
    """Whether the call has ended, in whatever way; waits a moment for it."""
    try:
        call.exception(timeout=_TOLD_EVERY_S)
    except grpc.FutureTimeoutError:
        return False
    except grpc.FutureCancelledError:
        pass
    return True


class Download:
    """One artifact on its way into a file, which appears when it is whole and what the server says it is."""

    def __init__(self, artifact: resources_pb2.Artifact, target: Path, connection: Connection) -> None:
        self._artifact, self.target, self._connection = artifact, target, connection

    def receive(
        self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, source: str | None, moved: Moved
    ) -> None:
        """Fetch it; ``source`` is the input, if it has one, which must not be overwritten.

        Raises:
            OutputError: the file cannot be written.
            ServiceError: it cannot be fetched, or is not what was announced.
        """
        with replacing(self.target, source) as file:
            self._fill(file, stub, deadline, moved)

    def content(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline) -> bytes:
        """Fetch it, into memory: a small one.

        Raises:
            ServiceError: as of :meth:`receive`.
        """
        file = io.BytesIO()
        self._fill(file, stub, deadline, lambda _done, _of: None)
        return file.getvalue()

    def _fill(
        self, file: BinaryIO, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved
    ) -> None:
        hashed, wanted = hashlib.sha256(), self._artifact

        def attempt(patience: Patience) -> bool:
            request = service_pb2.ReadArtifactRequest(name=wanted.name, offset=file.tell())
            for answer in stub.ReadArtifact(request, timeout=deadline.left_s(), metadata=self._connection.metadata):
                patience.heard()
                if answer.chunk:
                    file.write(answer.chunk)
                    hashed.update(answer.chunk)
                    moved(file.tell(), wanted.size_bytes)
            return True

        self._connection.persist(
            attempt, deadline, str(self.target), passing=("UNREAD",)
        )  # this process may have slept
        if file.tell() != wanted.size_bytes or hashed.hexdigest() != wanted.sha256:
            what = f"{self._connection.address}: {wanted.file_name} did not arrive as it was announced; try again"
            raise ServiceError(what, "DATA_LOSS", "")


def sent_name(path: str) -> str:
    """The file's name as text that any program can read, and shows as it is."""
    return _UNSEEN.sub("_", os.fsencode(os.path.basename(path)).decode("utf-8", "replace"))
