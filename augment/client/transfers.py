"""Bytes to the server and back, going on where a cut left them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from augment.client.connection import Connection, Deadline, Patience
from augment.errors import InputError, ServiceError
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc
from augment.writers.files import replacing

CHUNK = 1 << 20

Moved = Callable[[int, int], None]  #: told how many bytes are there, and of how many


def digest(file: BinaryIO) -> tuple[str, int]:
    """SHA-256 of what is in ``file``, in hexadecimal, and its size."""
    hashed, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
        size += len(chunk)
    return hashed.hexdigest(), size


class Upload:
    """One file on its way to the server.

    Args:
        path: of the file, for errors.
        file: its bytes.
        file_name: what the server shall call it.
    """

    def __init__(self, path: str, file: BinaryIO, file_name: str, connection: Connection) -> None:
        self._path, self._file, self._connection = path, file, connection
        sha256, self._size = digest(file)
        self._start = service_pb2.StartUploadRequest(file_name=file_name, size_bytes=self._size, sha256=sha256)
        self._name = ""

    def send(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, moved: Moved) -> str:
        """Send what the server has not yet; the upload's name.

        Raises:
            AugmentError: the server does not take it, or cannot be reached.
        """

        def attempt(patience: Patience) -> resources_pb2.Upload:
            there = self._begin(stub, deadline)
            patience.heard()
            if there.state == resources_pb2.Upload.STATE_COMPLETE:
                return there
            requests = self._requests(there, moved)
            metadata = self._connection.metadata
            return stub.UploadTrace(requests, timeout=deadline.left_s(), metadata=metadata).upload

        done = self._connection.persist(attempt, deadline, self._path)
        if done.state != resources_pb2.Upload.STATE_COMPLETE:
            raise InputError(self._path, "was cut short while it was being sent; try again when it is whole")
        moved(self._size, self._size)
        return done.name

    def _begin(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline) -> resources_pb2.Upload:
        """Announce the file, or find what has arrived of it: with its digest that is one question."""
        metadata, timeout = self._connection.metadata, deadline.left_s(60)
        return stub.StartUpload(self._start, timeout=timeout, metadata=metadata).upload

    def _requests(self, there: resources_pb2.Upload, moved: Moved) -> Iterator[service_pb2.UploadTraceRequest]:
        at = there.received_bytes
        resume = service_pb2.ResumeUpload(name=there.name, offset=at)
        yield service_pb2.UploadTraceRequest(resume=resume)
        self._file.seek(at)
        while at < self._size and (chunk := self._file.read(min(CHUNK, self._size - at))):
            moved(at, self._size)
            at += len(chunk)
            yield service_pb2.UploadTraceRequest(chunk=chunk, finish=at == self._size)
        if not self._size:
            yield service_pb2.UploadTraceRequest(finish=True)


class Download:
    """One artifact on its way into a file, which appears when it is whole and what the server says it is."""

    def __init__(self, artifact: resources_pb2.Artifact, target: Path, connection: Connection) -> None:
        self._artifact, self.target, self._connection = artifact, target, connection

    def receive(self, stub: service_pb2_grpc.AugmentServiceStub, deadline: Deadline, source: str, moved: Moved) -> None:
        """Fetch it; ``source`` is the input, which must not be overwritten.

        Raises:
            OutputError: the file cannot be written.
            ServiceError: it cannot be fetched, or is not what was announced.
        """
        with replacing(self.target, source) as file:
            self._fill(file, stub, deadline, moved)

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

        self._connection.persist(attempt, deadline, str(self.target))
        if file.tell() != wanted.size_bytes or hashed.hexdigest() != wanted.sha256:
            what = f"{self._connection.address}: {wanted.file_name} did not arrive as it was announced; try again"
            raise ServiceError(what, "DATA_LOSS", "")


def sent_name(path: str) -> str:
    """The file's name as text that any program can read."""
    return os.fsencode(os.path.basename(path)).decode("utf-8", "replace")
