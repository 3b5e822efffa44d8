"""Work for other processes that is not converting; they import it by name."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from augment.batch.conversion import Result
from augment.batch.inputs import Input
from augment.errors import InputError


def dies_of_some(input: Input) -> Result:
    """Work that kills its process when the input is called so, having begun to write."""
    half = Path(input.folder, f".{input.path}.augmented.pftrace.0123456789ab.tmp")
    half.write_bytes(b"half")
    if input.path.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    half.unlink()
    return Result(input.path, "augmented")


def fails() -> None:
    """Work with an error."""
    raise InputError("summary", "is damaged")


def long_result(size: int, parent: int) -> tuple[bytes, bool]:
    """A result of ``size`` bytes, and whether it was made in another process; that dies if it must send as many."""
    if os.getpid() == parent:
        return bytes(size), False

    def send(self: Connection, content: Any) -> None:
        if len(content) >= size:
            os.kill(os.getpid(), signal.SIGKILL)
        send_as_ever(self, content)

    send_as_ever = Connection._send_bytes  # type: ignore[attr-defined]
    Connection._send_bytes = send  # type: ignore[attr-defined]
    return bytes(size), True
