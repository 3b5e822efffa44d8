"""Errors of the service: a canonical code, a reason for programs, and a sentence for people."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from augment.errors import (
    AugmentError,
    InputError,
    LimitExceeded,
    MalformedTrace,
    OutputError,
    UnknownFormat,
    UsageError,
)

if TYPE_CHECKING:  # workers, which load these errors, know no gRPC: they would start a fifth slower
    import grpc
    from google.rpc import status_pb2

DOMAIN = "kineto-augment"
_DETAILS = "grpc-status-details-bin"
_QUOTAS = (
    "QUEUE_FULL",
    "TOO_MANY_JOBS",
    "TOO_MUCH_CPU",
    "TOO_MANY_UPLOADS",
    "STORAGE_FULL",
    "TOO_MANY_CALLS",
    "TOO_MANY_CONNECTIONS",
)

AWAY = "CATALOG_AWAY"
#: reason → its code, by name, and its meaning
REASONS: dict[str, tuple[str, str]] = {
    "INVALID_REQUEST": ("INVALID_ARGUMENT", "the request is inconsistent or incomplete"),
    "USAGE": ("INVALID_ARGUMENT", "the analysis, format or option does not exist"),
    "UNKNOWN_FORMAT": ("INVALID_ARGUMENT", "the file is not a trace"),
    "MALFORMED_TRACE": ("INVALID_ARGUMENT", "the trace is damaged at the byte in the metadata's offset"),
    "UNREADABLE_INPUT": ("INVALID_ARGUMENT", "the trace cannot be read for another reason"),
    "LIMIT_EXCEEDED": ("INVALID_ARGUMENT", "the trace exceeds a limit of the server"),
    "CHECKSUM_MISMATCH": ("DATA_LOSS", "the bytes that arrived differ from what was announced"),
    "ARTIFACT_DAMAGED": ("DATA_LOSS", "the artifact was damaged on the server's disk"),
    "UPLOAD_TOO_LARGE": ("OUT_OF_RANGE", "the upload exceeds max_upload_bytes, or its announced size"),
    "OFFSET_OUT_OF_RANGE": ("OUT_OF_RANGE", "the bytes before the offset are missing, or the artifact ends before it"),
    "UPLOAD_INCOMPLETE": ("FAILED_PRECONDITION", "the upload is not complete; continue it"),
    "UPLOAD_TAKEN_OVER": ("ABORTED", "another call continued the same upload"),
    "UPLOAD_IDLE": (
        "DEADLINE_EXCEEDED",
        "the call's bytes did not come within max_upload_idle_s, or more slowly than 1 KiB a second",
    ),
    "UNREAD": ("DEADLINE_EXCEEDED", "the client read nothing for max_unread_s"),
    "NOT_FOUND": ("NOT_FOUND", "no such upload, job or artifact that this client may see"),
    "NOT_PERMITTED": ("PERMISSION_DENIED", "the caller's role in the project does not allow the call"),
    "URI_NOT_ALLOWED": ("PERMISSION_DENIED", "the file lies outside of the folders that the server may read"),
    "ORIGIN_NOT_ALLOWED": ("PERMISSION_DENIED", "over HTTP: a web page of another server asks, or Host differs"),
    "REQUEST_ID_REUSED": ("ALREADY_EXISTS", "the request_id was used with another spec"),
    "JOB_NOT_DONE": ("FAILED_PRECONDITION", "the job has not succeeded (metrics), or not ended (removal)"),
    "CANCELLED": ("CANCELLED", "the job was cancelled while the call waited for it"),
    "JOB_DEADLINE": ("DEADLINE_EXCEEDED", "the job took longer than job_deadline_s"),
    "JOB_MEMORY": ("RESOURCE_EXHAUSTED", "the job used more memory than max_job_memory_bytes"),
    "WORKER_DIED": ("ABORTED", "the worker process died twice; the metadata says how"),
    "OUTPUT_ERROR": ("INTERNAL", "the server could not write the outputs"),
    "STATE_DAMAGED": ("DATA_LOSS", "the server's database is damaged; its operator can repair it"),
    "INTERNAL": ("INTERNAL", "a bug; the server's log has more"),
    "QUEUE_FULL": (
        "RESOURCE_EXHAUSTED",
        "max_queued_jobs are waiting, and of this client as many as its equal share; try again",
    ),
    "TOO_MANY_JOBS": ("RESOURCE_EXHAUSTED", "max_client_jobs of this client are waiting or running; try again"),
    "TOO_MUCH_CPU": ("RESOURCE_EXHAUSTED", "jobs of this client took max_client_cpu_s within a day; try again later"),
    "TOO_MANY_UPLOADS": ("RESOURCE_EXHAUSTED", "max_open_uploads of this client are unfinished; finish one"),
    "STORAGE_FULL": ("RESOURCE_EXHAUSTED", "max_stored_bytes are in use, or the disk is full; try again"),
    "STORE_UNAVAILABLE": ("UNAVAILABLE", "the server's object store does not answer, or refuses it; try again"),
    "TOO_MANY_CALLS": ("RESOURCE_EXHAUSTED", "max_calls, or max_client_calls of this client; try again"),
    "TOO_MANY_CONNECTIONS": (
        "RESOURCE_EXHAUSTED",
        "max_connections, or all files that the system lets the server open; try again",
    ),
    "DRAINING": ("UNAVAILABLE", "the server is stopping; try again"),
    AWAY: ("UNAVAILABLE", "the server does not reach the database of its `--catalog`; try again"),
    "TOKEN_MISSING": ("UNAUTHENTICATED", "the server requires a token"),
    "TOKEN_UNKNOWN": ("UNAUTHENTICATED", "the server does not know the token, or it has expired"),
    "ISSUER_AWAY": ("UNAVAILABLE", "the server does not get the keys of the token's issuer; try again"),
}


@dataclass(eq=False)
class Refusal(Exception):
    """The error with which a call or a job ends.

    Args:
        reason: one of :data:`REASONS`.
        message: what is wrong and what to do about it; never contains paths of the server.
        metadata: particulars for programs.
        retry_s: seconds after which a retry makes sense.
        subject: the client whose quota is used up; empty: the server's quota.
        field_path: the wrong field of the request, such as ``spec.augment.only[0]``; empty if it is about no field.
            Where it is raised, it is relative to the message at hand; :func:`within` completes it.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_s: float | None = None
    field_path: str = ""
    subject: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def code(self) -> grpc.StatusCode:
        """The canonical code."""
        import grpc

        return grpc.StatusCode[REASONS[self.reason][0]]

    @property
    def code_number(self) -> int:
        """The code as google.rpc.Code has it."""
        number: int = self.code.value[0]
        return number

    def status(self) -> status_pb2.Status:
        """The error in gRPC's rich error model."""
        from google.protobuf import any_pb2, duration_pb2
        from google.rpc import error_details_pb2, status_pb2

        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=dict(self.metadata))
        details: list[Any] = [info]
        if self.retry_s is not None:
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(round(1000 * self.retry_s))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if self.field_path:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field_path, description=self.message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.reason in _QUOTAS:
            subject = f"client:{self.subject}" if self.subject else "server"
            used = error_details_pb2.QuotaFailure.Violation(subject=subject, description=self.message)
            details.append(error_details_pb2.QuotaFailure(violations=[used]))
        packed = [any_pb2.Any() for _ in details]
        for packed_detail, detail in zip(packed, details, strict=True):
            packed_detail.Pack(detail)
        return status_pb2.Status(code=self.code_number, message=self.message, details=packed)


def invalid(field_path: str, what: str) -> Refusal:
    """The refusal of a field's value; its message begins with the field."""
    return Refusal("INVALID_REQUEST", f"{field_path}: {what}", field_path=field_path)


@contextlib.contextmanager
def within(path: str) -> Iterator[None]:
    """Refusals raised inside are of fields of the message at ``path``, which is put before their paths.

    An empty path, and refusals about no field, such as that of a full queue, change nothing.
    """
    try:
        yield
    except Refusal as refusal:
        if path and refusal.field_path:
            refusal.field_path = f"{path}.{refusal.field_path}"
        raise


async def refuse(context: Any, refusal: Refusal) -> NoReturn:
    """End the call of ``context``; its line in the log has the reason."""
    from augment_server.base.interception import concern  # knows gRPC

    concern(reason=refusal.reason)
    details = (_DETAILS, refusal.status().SerializeToString())
    refusal.__traceback__ = None
    try:
        await context.abort(refusal.code, refusal.message, trailing_metadata=(details,))
    except Exception as error:
        context.add_done_callback(partial(_without_traceback, error))
        raise
    raise AssertionError("abort() returned")


def _without_traceback(error: Exception, _context: Any) -> None:
    """Let the frames of an ended call go: gRPC keeps its error, which refers to them, and they to the request."""
    error.__traceback__ = None


def status_of(code: grpc.StatusCode, message: str, trailing_metadata: Mapping[str, Any] | None = None) -> Any:
    """The ``google.rpc.Status`` with which a call was aborted."""
    from google.rpc import status_pb2

    if details := (trailing_metadata or {}).get(_DETAILS):
        return status_pb2.Status.FromString(details)
    return status_pb2.Status(code=code.value[0], message=message)


def disk_is_full(error: BaseException) -> bool:
    """Whether the error, or its cause, is a full disk. SQLite's error for it is no OSError."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if isinstance(error, sqlite3.OperationalError) and "disk is full" in str(error):
        return True
    return error.__cause__ is not None and disk_is_full(error.__cause__)


def files_are_out(error: BaseException) -> bool:
    """Whether the error, or its cause, is that the system lets this process open no more files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    if isinstance(error, sqlite3.OperationalError) and "unable to open database file" in str(error):
        try:
            os.close(os.dup(2))  # SQLite does not say why it cannot
        except OSError as reason:
            return files_are_out(reason)
    return error.__cause__ is not None and files_are_out(error.__cause__)


def database_is_damaged(error: BaseException) -> bool:
    """Whether SQLite reports a damaged database."""
    text = str(error)
    return isinstance(error, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text)


def refusal_of(error: Exception, name: str) -> Refusal:
    """The refusal that a client gets for ``error``, caused by its file ``name``; without paths and tracebacks."""
    if isinstance(error, InputError):
        metadata = {"because": error.because}
        if isinstance(error, MalformedTrace):
            metadata["offset"] = str(error.offset)
        return Refusal(_input_reason(error), f"{name}: {error.because}", metadata)
    if isinstance(error, UsageError):
        return Refusal("USAGE", str(error))
    if isinstance(error, MemoryError):
        return Refusal(
            "JOB_MEMORY",
            f"{name}: needs more memory than the server allows a job; split it, or ask the server's operator",
        )
    if disk_is_full(error):
        return Refusal("STORAGE_FULL", f"{name}: the server's disk has no room for its outputs", retry_s=60)
    if isinstance(error, OutputError | OSError):
        return Refusal(
            "OUTPUT_ERROR", f"{name}: the server could not write its outputs; the reason is in the server's log"
        )
    if isinstance(error, AugmentError):
        return Refusal("UNREADABLE_INPUT", f"{name}: cannot be augmented")
    return Refusal("INTERNAL", f"{name}: internal error ({type(error).__name__}); the server's log has more")


def _input_reason(error: InputError) -> str:
    for kind, reason in (
        (UnknownFormat, "UNKNOWN_FORMAT"),
        (MalformedTrace, "MALFORMED_TRACE"),
        (LimitExceeded, "LIMIT_EXCEEDED"),
    ):
        if isinstance(error, kind):
            return reason
    return "UNREADABLE_INPUT"
