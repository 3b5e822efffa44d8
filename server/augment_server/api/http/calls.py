"""One HTTP request as a call: its message, and its response."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import ClientError, web
from google.api import httpbody_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2

from augment_server.api.http.messages import Found, request_of, streamed, text_of
from augment_server.base.errors import Refusal
from augment_server.base.interception import LARGE, Unread, calling, count_received, count_sent
from augment_server.base.threads import Apart

#: as grpc-gateway maps google.rpc.Code
HTTP_STATUS = {
    0: 200, 1: 499, 2: 500, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501,
    13: 500, 14: 503, 15: 500, 16: 401,
}  # fmt: skip
JSON = "application/json"
_WORTH_PACKING = 4 << 10  #: bytes of JSON from which gzip saves a packet or more
_GZIP = 31  #: zlib's number for gzip
_BYTES = "application/octet-stream"
_MOST_INCOMPLETE = 32  #: of messages of the largest size, the bytes that a client may have sent in part
_FINISH = "finish"  #: the field that marks the last part of a streamed request
FILE = httpbody_pb2.HttpBody.DESCRIPTOR.full_name  #: the message that is bytes of a file
#: an artifact shown in a browser must not run scripts with this server's origin
_ALWAYS = {"Server": "kineto-augment", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Body:
    """The body of a request.

    Args:
        request: the HTTP request.
        found: its route.
        most: maximum size of a message, bytes.
        within_s: how long the body of a unary method may take.
        incomplete: the bytes of incomplete messages of each client, in all bodies.
        apart: converts large messages.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        route: Found,
        most: int,
        within_s: float,
        incomplete: Counter[str],
        apart: Apart,
    ) -> None:
        self._request, self._found, self._most, self._within_s, self._apart = request, route, most, within_s, apart
        self._incomplete, self._held, self._client = incomplete, 0, ""

    def close(self) -> None:
        """Let go of an incomplete message."""
        self._hold(0)

    def _hold(self, size: int) -> None:
        """Count the bytes of the incomplete message.

        Raises:
            Refusal: those of all calls of the client are too many; they take memory, and may never be complete.
        """
        self._client = self._client or calling()
        self._incomplete[self._client] += size - self._held
        self._held = size
        if not self._incomplete[self._client]:
            del self._incomplete[self._client]
        elif size and self._incomplete[self._client] > _MOST_INCOMPLETE * self._most:
            what = "too many bytes of your incomplete messages are here; send fewer at once, or smaller parts"
            raise Refusal("TOO_MANY_CALLS", what, retry_s=1, subject=self._client)

    @property
    def message(self) -> Any:
        """The argument of the method: an awaitable message, or a stream of messages."""
        method = self._found.route.method
        if not method.client_streaming:
            return _Awaited(self)
        field = method.input_type.fields_by_name.get(self._found.route.body)
        inner = field.message_type if field else None
        return self._files() if inner and inner.full_name == FILE else self._lines()

    async def read(self) -> Message | Refusal | Unread:
        """The message of a unary method, or what is wrong with it."""
        try:
            text = await asyncio.wait_for(self._text(), self._within_s) if self._found.route.body else b""
            if len(text) > LARGE:
                return Unread(len(text), partial(self._converted, text))
            return request_of(self._found, self._query(), text)
        except asyncio.TimeoutError:
            return Refusal("UPLOAD_IDLE", f"the body did not come within {self._within_s:g} s; send it again")
        except Refusal as refusal:
            return refusal

    async def _converted(self, text: bytes) -> Message | Refusal:
        """The message of a large body."""
        try:
            return await self._apart(request_of, self._found, self._query(), text)
        except Refusal as refusal:
            return refusal

    async def _text(self) -> bytes:
        await self._continue()
        text = bytearray()
        while part := await self._part():
            text += part
            if len(text) > self._most:
                raise Refusal("INVALID_REQUEST", f"the body must not be larger than {self._most} bytes")
            self._hold(len(text))
        count_received(len(text))
        return bytes(text)

    async def _lines(self) -> AsyncIterator[Message]:
        """A message from each line of a JSON body."""
        await self._continue()
        line, most = bytearray(), 2 * self._most  # base64 makes bytes a third longer
        while part := await self._part():
            count_received(len(part))
            *ends, rest = part.split(b"\n")
            for end in ends:
                line += end
                if line.strip():
                    yield await self._apart(streamed, bytes(line), self._found.route.method.input_type)
                line.clear()
            line += rest
            if len(line) > most:
                raise Refusal("INVALID_REQUEST", f"a line must not be longer than {most} bytes; send smaller parts")
            self._hold(len(line))
        if line.strip():
            yield await self._apart(streamed, bytes(line), self._found.route.method.input_type)

    async def _files(self) -> AsyncIterator[Message]:
        """The body as it is, in parts. The first also has the fields from path and parameters; the last is marked.

        The last part of a truncated body is never sent.
        """
        message: Any = request_of(self._found, self._query())
        content, name = self._request.content_type, self._found.route.body
        await self._continue()
        getattr(message, name).content_type = content
        while part := await self._part():
            count_received(len(part))
            getattr(message, name).data = part
            yield message
            message = type(message)()
        if _FINISH in message.DESCRIPTOR.fields_by_name:
            setattr(message, _FINISH, True)
            yield message

    async def _part(self) -> bytes:
        """The next bytes of the body; empty at its end.

        Raises:
            CancelledError: the client has gone.
        """
        try:
            return await self._request.content.readany()
        except (ConnectionError, ClientError, web.RequestPayloadError) as error:
            raise asyncio.CancelledError from error

    async def _continue(self) -> None:
        """Send ``100 Continue`` to a client that expects it. Refuse an encoded body."""
        encoding = self._request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise Refusal("INVALID_REQUEST", f"Content-Encoding {encoding[:40]!r}: send the body as it is")
        if self._request.headers.get("Expect", "").lower() == "100-continue" and self._request.transport:
            self._request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _query(self) -> list[tuple[str, str]]:
        return list(self._request.query.items())


class _Awaited:
    """Reads the message when it is awaited: after the interceptors have checked the caller."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, Message | Refusal | Unread]:
        return self._body.read().__await__()


class Answer:
    """The response.

    Args:
        request: the HTTP request.
        streams: whether the method has several messages.
        shared: headers of the response, whatever it is.
        apart: converts large messages.
    """

    def __init__(self, request: web.BaseRequest, shared: Mapping[str, str], apart: Apart, *, streams: bool) -> None:
        self._request, self._shared, self._apart, self._streams = request, shared, apart, streams
        self._response: web.StreamResponse | None = None
        self._part = Part(200, 0, 0, {})
        self._packer = zlib.compressobj(1, wbits=_GZIP) if _accepts_gzip(request) else None
        self._lines = True  # whether the response is lines of JSON, and not a file
        self.headers: Mapping[str, str] = {}  #: sent with the first bytes, in addition to those of every response

    def part(self, size: int, sha256: str) -> tuple[int, int]:
        """The first byte of a file, and how many from there on, that the request asks for.

        Raises:
            Refusal: the file ends before that.
        """
        self._part = part_of(self._request.method, self._request.headers, size, sha256)
        if self._part.status == 416:
            raise Refusal("OFFSET_OUT_OF_RANGE", f"there are {size} bytes, and none of them in the range")
        return self._part.first, self._part.count

    async def write(self, message: Any) -> None:
        """Send a message of a stream: a line of JSON, or bytes of a file.

        Raises:
            CancelledError: the client has gone.
        """
        if isinstance(message, httpbody_pb2.HttpBody):
            self._lines, self._packer = False, None
            await self._send(message.data, message.content_type)
        else:
            await self._send_line(b'{"result":' + await _text(message, self._apart) + b"}\n")

    async def finish(self, message: Any = None) -> web.StreamResponse:
        """End the response, with the message if the method has a single one."""
        if message is not None:
            status = 200
            if isinstance(message, health_pb2.HealthCheckResponse) and message.status != message.SERVING:
                status = 503  # as grpc-gateway's /healthz
            text = await _text(message, self._apart) + b"\n"
            self._packer = self._packer if len(text) >= _WORTH_PACKING else None
            packed = await self._packed(text, zlib.Z_FINISH)
            return web.Response(body=packed, status=status, headers=self._all(JSON))
        if self._response is None:
            await self._send(b"", JSON)
            assert self._response is not None
        await self._end()
        return self._response

    async def fail(self, status: Any) -> web.StreamResponse:
        """Respond with an error; if the response has begun, append it as the last line of JSON, or cut off a file."""
        if self._response is None:
            behind = self._part.status == 416
            headers = {**self._shared, **(self._part.headers if behind else {})}
            return failure(status, 416 if behind else None, headers)
        if self._lines:
            await self._send_line(b'{"error":' + text_of(status) + b"}\n")
            await self._end()
        elif self._request.transport:
            self._request.transport.abort()
        return self._response

    async def _send_line(self, line: bytes) -> None:
        """Send a line of JSON, so that it arrives at once."""
        await self._send(await self._packed(line, zlib.Z_SYNC_FLUSH), JSON)

    async def _end(self) -> None:
        """Send what belongs at the end of a stream of lines."""
        if self._packer:
            await self._send(await self._packed(b"", zlib.Z_FINISH), JSON)

    async def _packed(self, text: bytes, mode: int) -> bytes:
        """The text as it is sent: by gzip if the client accepts that."""
        packer = self._packer
        if packer is None:
            return text

        def packed() -> bytes:
            return packer.compress(text) + packer.flush(mode)

        return await self._apart(packed) if len(text) > LARGE else packed()

    async def _send(self, data: bytes, content_type: str) -> None:
        try:
            if self._response is None:
                headers = self._all(content_type or _BYTES)
                self._response = web.StreamResponse(status=self._part.status, headers=headers)
                await self._response.prepare(self._request)
            if data:
                count_sent(len(data))
                await self._response.write(data)
        except (ConnectionError, ClientError) as error:
            raise asyncio.CancelledError from error

    def _all(self, content_type: str) -> dict[str, str]:
        headers = {**_ALWAYS, **self._shared, "Content-Type": content_type, **self._part.headers, **self.headers}
        if self._streams:
            headers["X-Accel-Buffering"] = "no"  # nginx would keep what comes until there is much of it
        if self._packer:
            headers["Content-Encoding"] = "gzip"
            headers["Vary"] = ", ".join(filter(None, (headers.get("Vary"), "Accept-Encoding")))
        return headers


def failure(status: Any, http_status: int | None = None, headers: Mapping[str, str] | None = None) -> web.Response:
    """The response for an error: ``google.rpc.Status`` in JSON."""
    number = http_status or HTTP_STATUS.get(status.code, 500)
    more = dict(headers or {})
    if number == 401:
        more["WWW-Authenticate"] = "Bearer"
    if (seconds := _retry_s(status)) is not None:
        more["Retry-After"] = str(seconds)
    return web.Response(body=text_of(status) + b"\n", status=number, headers={**_ALWAYS, "Content-Type": JSON, **more})


def _retry_s(status: Any) -> int | None:
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(retry):
            return max(1, round(float(retry.retry_delay.ToTimedelta().total_seconds())))
    return None


def _accepts_gzip(request: web.BaseRequest) -> bool:
    for coding in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, weight = coding.replace(" ", "").partition(";q=")
        if name == "gzip":
            return weight.strip("0.") != "" or not weight
    return False


async def _text(message: Message, apart: Apart) -> bytes:
    if message.ByteSize() > LARGE:
        return await apart(text_of, message)
    return text_of(message)


#: of a file, by ``Range``, ``If-Range`` and ``If-None-Match`` (RFC 9110)
_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """Bytes of a file: the status of the response, its headers, and ``count`` bytes from byte ``first`` on."""

    status: int
    first: int
    count: int
    headers: Mapping[str, str]


def part_of(verb: str, asked: Mapping[str, str], size: int, sha256: str) -> Part:
    """The part that a request asks for. A status of 416 has no bytes: the file ends before the range.

    Several ranges, and units other than bytes, are answered by the whole file, as the RFC allows.

    Args:
        verb: ``GET`` or ``HEAD``.
        asked: the headers of the request, by name in any case.
        size: of the file, bytes.
        sha256: of its content; the file's ETag.
    """
    tag = f'"{sha256}"'
    same = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    known = [name.strip().removeprefix("W/") for name in asked.get("If-None-Match", "").split(",")]
    if tag in known or known == ["*"]:
        return Part(304, 0, 0, same)
    whole = Part(200, 0, 0 if verb == "HEAD" else size, {**same, "Content-Length": str(size)})
    match = _RANGE.fullmatch(asked.get("Range", ""))
    begin, end = match.groups() if match else ("", "")
    if not (begin or end) or (begin and end and int(end) < int(begin)) or asked.get("If-Range", tag) != tag:
        return whole
    first = int(begin) if begin else max(0, size - int(end))
    last = min(int(end), size - 1) if begin and end else size - 1
    if first > last:
        return Part(416, 0, 0, {"Content-Range": f"bytes */{size}"})
    count = last - first + 1
    headers = {**same, "Content-Length": str(count), "Content-Range": f"bytes {first}-{last}/{size}"}
    return Part(206, first, 0 if verb == "HEAD" else count, headers)
