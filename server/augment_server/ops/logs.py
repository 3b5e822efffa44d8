"""Log lines on stderr: JSON for collectors, or text for people."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, TextIO

from augment_server.base.interception import Call
from augment_server.base.observer import Observer
from augment_server.base.people import WRITES
from augment_server.base.threads import relay

_LOGGER = "augment_server"
_LIBRARIES = ("grpc", "asyncio", "concurrent.futures", "aiohttp")  #: libraries whose log is included


class Logs(Observer):
    """Writes a line for each event of a job, and for each call that failed or changed something.

    In the form ``json``, all other output on stderr becomes such lines, too.
    """

    def __init__(self, form: str) -> None:
        self._logger = logging.getLogger(_LOGGER)
        stream = relay_stderr(lambda text: self.log(logging.WARNING, text)) if form == "json" else sys.stderr
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Json() if form == "json" else _Text())
        for logger in (self._logger, *map(logging.getLogger, _LIBRARIES)):
            logger.handlers[:] = [handler]
            logger.propagate = False
        self._logger.setLevel(logging.INFO)

    @contextlib.contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Log the call when it has ended."""
        begin = time.monotonic()
        try:
            yield
        finally:
            name = call.method.rpartition("/")[2]
            if call.code != "OK" or name in WRITES:
                seconds = round(time.monotonic() - begin, 6)
                about = {"resource": call.resource, "reason": call.reason}
                self.log(
                    logging.INFO,
                    "call",
                    method=name,
                    code=call.code,
                    client=call.client,
                    **{field: value for field, value in about.items() if value},
                    seconds=seconds,
                    received_bytes=call.received_bytes,
                    sent_bytes=call.sent_bytes,
                )

    def job_queued(self, job_id: str) -> None:
        """Log that a job was queued, or queued again."""
        self.log(logging.INFO, "job queued", job_id=job_id)

    def job_started(self, job_id: str, queued_s: float) -> None:
        """Log that a job was started."""
        self.log(logging.INFO, "job started", job_id=job_id, queued_s=round(queued_s, 6))

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """Log that a job has ended."""
        level = logging.WARNING if state == "FAILED" else logging.INFO
        more = {"reason": reason} if reason else {}
        self.log(level, "job finished", job_id=job_id, state=state, seconds=round(seconds, 6), **more)

    def log(self, level: int, message: str, *, job_id: str = "", **fields: Any) -> None:
        """Log a line."""
        known = {"job_id": job_id} if job_id else {}
        self._logger.log(level, "%s", message, extra={"fields": {**known, **fields}})


class _Json(logging.Formatter):
    """A JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The time (RFC 3339, UTC), the level, the message and its fields."""
        members = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, default=str)


class _Text(logging.Formatter):
    """``12:31:07 INFO job queued job_id=…``."""

    def format(self, record: logging.LogRecord) -> str:
        """Text without quotes; control characters are escaped, so that a client's file name cannot forge a line."""
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{_time(record):%H:%M:%S} {record.levelname} {record.getMessage()}{fields}"
        if not line.isprintable():
            line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, timezone.utc)


_LAST_S = 2.0  #: how long to wait at exit for lines that are still in the pipe


def relay_stderr(log: Callable[[str], object]) -> TextIO:
    """From now on pass each line that C libraries, workers or the exiting interpreter write to stderr to ``log``.

    Returns:
        The original stderr, for output that must not be changed.
    """
    sys.stderr.flush()
    stream = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")

    def take(line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            log(text)

    writing, thread = relay(take)
    os.dup2(writing, 2)
    os.close(writing)

    def restore() -> None:
        sys.stderr.flush()
        os.dup2(stream.fileno(), 2)  # the pipe ends
        thread.join(_LAST_S)

    atexit.register(restore)
    return stream
