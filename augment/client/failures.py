"""Translates errors of gRPC and of jobs to the exceptions of ``augment.errors``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import grpc
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status
from msgspec import Struct, field

from augment.errors import (
    AugmentError,
    InputError,
    LimitExceeded,
    MalformedTrace,
    ServiceError,
    UnknownFormat,
    UsageError,
)
from augment.v1 import resources_pb2

_INPUT_ERRORS: Mapping[str, type[InputError]] = {
    "UNKNOWN_FORMAT": UnknownFormat,
    "UNREADABLE_INPUT": InputError,
    "LIMIT_EXCEEDED": LimitExceeded,
}


class Failure(Struct, frozen=True):
    """Why a call or a job failed.

    ``code`` is the name of the canonical code; ``reason`` comes from the augment server and is empty if something else
    answered; ``retry_after_s`` is set if the server asks for a retry.
    """

    code: str
    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None

    @property
    def passing(self) -> bool:
        """Whether the failure may pass, so that a retry can help: the connection failed, or the server was busy."""
        if self.code == "INTERNAL":  # a proxy, or a server that died, cut the stream
            return not self.reason and "RST_STREAM" in self.message
        full = self.code == "RESOURCE_EXHAUSTED" and "Concurrent RPC limit" in self.message
        dropped = self.code == self.message == "CANCELLED" and not self.reason  # from a server with too many calls
        return dropped or self.code == "UNAVAILABLE" or self.reason == "UPLOAD_TAKEN_OVER" or full

    def error(self, address: str, path: str) -> AugmentError:
        """The exception for this failure; for a bad trace the same as without a server."""
        because = self.metadata.get("because", self.message)
        if self.reason == "MALFORMED_TRACE" and self.metadata.get("offset", "").isdigit():
            offset = int(self.metadata["offset"])
            return MalformedTrace(path, offset, because.removeprefix(f"byte {offset}: "))
        if self.reason in _INPUT_ERRORS:
            return _INPUT_ERRORS[self.reason](path, because)
        if self.reason == "USAGE":
            return UsageError(because)
        proxied = None if self.reason else _OF_A_PROXY.search(self.message)
        if proxied and self.code != "UNAVAILABLE":
            spoken = _SPOKEN_BY_PROXIES.get(proxied[1], "a proxy before the server refuses the call; ask its operator")
        else:
            spoken = _SPOKEN.get(self.code, self.code.lower())
        reason = self.message if self.reason else f"{spoken} ({self.message})"
        return ServiceError(f"{path}: {address}: {reason}" if path else f"{address}: {reason}", self.code, self.reason)


_SPOKEN = {
    "UNAVAILABLE": "the server cannot be reached; check its address, and that both sides use TLS or neither does",
    "DEADLINE_EXCEEDED": "not done in time",
    "UNIMPLEMENTED": "another service, or another version of this one, answers at this address",
}


#: what gRPC says of a response that is none of gRPC's: augment's server sends no such response
_OF_A_PROXY = re.compile(r"^Received http2 header with status: (\d{3})$")
_SPOKEN_BY_PROXIES = {
    "413": "a proxy before the server allows no upload of this size; its operator must allow more (nginx: "
    "client_max_body_size 0)",
}


def failure_of(error: grpc.RpcError) -> Failure:
    """The failure of a call."""
    call = cast("grpc.Call", error)  # errors of the channel are also calls
    code, message = call.code().name, call.details() or ""
    reason, metadata, retry_after_s = "", {}, None
    status = rpc_status.from_call(call)
    for detail in status.details if status else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Failure(code, reason, message, metadata, retry_after_s)


def job_failure(error: resources_pb2.JobError) -> Failure:
    """The failure of a job."""
    return Failure(code_pb2.Code.Name(error.code), error.reason, error.message, dict(error.metadata))
