"""Writes the bytes of upload calls into uploads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal
from augment_server.base.limits import Limits
from augment_server.base.names import expect_plain, id_of, safe_file_name, sha256_of
from augment_server.base.people import Caller
from augment_server.base.threads import Apart
from augment_server.jobs.retention import Retention
from augment_server.storage.requests import Requests, expect_id
from augment_server.storage.uploads import SYNC_BYTES, Announced, Uploads, Writer

_MOST_VALUES = 5_000  #: of a message of a stream
SLOWEST = 1024  #: bytes a second, averaged over a call, below which an upload is ended
Pieces = AsyncGenerator[tuple[bytes, bool], None]  #: the next bytes, and whether they are the last


class Receiving:
    """Receives streams of bytes."""

    def __init__(
        self, uploads: Uploads, retention: Retention, limits: Limits, apart: Apart, requests: Requests
    ) -> None:
        self._uploads, self._retention, self._limits, self._apart = uploads, retention, limits, apart
        self._requests = requests

    async def start(self, caller: Caller, request: Any) -> v1.Upload:
        """Announce an upload: its name, size and SHA-256 are fields of ``request``."""
        announced = self._announced(request)
        text = msgspec.json.encode([announced.file_name, announced.size, announced.sha256])

        def start() -> v1.Upload:
            if known := self._requests.known(caller, "StartUpload", request.request_id, text):
                with contextlib.suppress(Refusal):  # the upload was removed in the meantime: it begins again
                    return self._uploads.get(caller, known)
            self._retention.announce(caller.client, announced.size or 0)
            upload = self._uploads.start(caller, announced)
            self._requests.remember(caller, "StartUpload", request.request_id, text, id_of(upload.name, "uploads"))
            return upload

        return await self._apart(start)

    def expect(self, request: Any) -> v1.Upload:
        """Check whether an upload may be announced; returns what it would be, without a name."""
        announced = self._announced(request)
        expect_id(request.request_id)
        state = v1.Upload.STATE_ACTIVE
        return v1.Upload(file_name=announced.file_name, state=state, size_bytes=announced.size, sha256=announced.sha256)

    def _announced(self, request: Any) -> Announced:
        size = request.size_bytes if request.HasField("size_bytes") else None
        announced = Announced(safe_file_name(request.file_name), size, sha256_of(request.sha256))
        self._uploads.expect_size(size)
        return announced

    async def receive(self, caller: Caller, upload: str, offset: int, pieces: Pieces) -> None:
        """Write the pieces, until the upload is complete.

        Raises:
            Refusal: the pieces end before, or come too slowly: a byte now and then must not keep a call for ever. The
                upload keeps what has arrived.
        """
        began_s, idle_s = time.monotonic(), self._limits.max_upload_idle_s
        async with self._writing(caller, upload, offset) as writer, contextlib.aclosing(pieces):
            if writer is None:
                return  # it is complete
            first = writer.received
            checked = first  # there is room up to here: what is announced has none before it comes
            slow = False

            def take(chunk: bytes, last: bool) -> bool:  # in a thread, as few times as possible: each has its price
                nonlocal checked
                end = writer.received + len(chunk)
                if end > checked or last or writer.is_whole(len(chunk)):
                    checked = end + SYNC_BYTES
                    self._retention.make_room(caller.client, writer.unsaved + len(chunk))
                writer.write(chunk)
                whole = last or writer.is_whole()
                if whole and not slow:
                    writer.finish()
                return whole

            if writer.is_whole():
                await self._apart(writer.finish)
                return
            whole = False
            while not whole:
                piece = await anext(pieces, None)
                if piece is None:
                    raise writer.incomplete()
                arrived = writer.received + len(piece[0]) - first
                slow = time.monotonic() - began_s > idle_s + arrived / SLOWEST
                whole = await self._apart(take, *piece)
                if slow:
                    what = f"less than {SLOWEST} bytes a second arrived; continue the upload in a new call"
                    raise Refusal("UPLOAD_IDLE", what)

    async def chunks(self, finish: bool, messages: AsyncIterator[Any]) -> Pieces:
        """The pieces after the first message of a stream of ``chunk``; none if ``finish`` is set."""
        if finish:
            yield b"", True
        while (message := await self.next(messages)) is not None:
            if message.WhichOneof("part") not in ("chunk", None):
                raise Refusal("INVALID_REQUEST", "after the first message only chunks may follow")
            yield message.chunk, message.finish

    async def contents(self, first: Any, messages: AsyncIterator[Any]) -> Pieces:
        """The pieces of a stream of ``content``, including that of its first message."""
        message = first
        while message is not None:
            yield message.content.data, message.finish
            message = await self.next(messages)

    async def next(self, messages: AsyncIterator[Any]) -> Any:
        """The next message; None after the last."""
        idle = self._limits.max_upload_idle_s
        try:
            message = await asyncio.wait_for(anext(messages, None), idle)
        except asyncio.TimeoutError as error:
            raise Refusal(
                "UPLOAD_IDLE", f"no bytes arrived for {idle:g} s; continue the upload in a new call"
            ) from error
        if message is not None:
            expect_plain(message, most=_MOST_VALUES)
        return message

    @contextlib.asynccontextmanager
    async def _writing(self, caller: Caller, upload: str, offset: int) -> AsyncIterator[Writer | None]:
        """A writer that is closed at the end, even if the call is cancelled while it opens."""
        opening = asyncio.ensure_future(self._apart(self._uploads.open, caller, upload, offset))

        async def close() -> None:
            with contextlib.suppress(Refusal):
                writer = await opening
                if writer and not writer.closed:
                    await self._apart(writer.close)

        try:
            yield await asyncio.shield(opening)
        finally:
            await asyncio.shield(asyncio.ensure_future(close()))
