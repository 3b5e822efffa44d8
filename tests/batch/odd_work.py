"""Work for other processes that is not converting; they import it by name."""

from __future__ import annotations

import os
import signal
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from augment.batch.conversion import Result
from augment.batch.inputs import Input
from augment.batch.workers import Workers, work_through
from augment.errors import InputError


def dies_of_some(input: Input) -> Result:
    """Work that kills its process when the input is called so, having begun to write."""
    half = Path(input.folder, f".{input.path}.augmented.pftrace.0123456789ab.tmp")
    half.write_bytes(b"half")
    if input.path.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    half.unlink()
    return Result(input.path, "augmented")


def only_the_deadly_fail(workers: Workers, folder: Path) -> list[Result]:
    """The results of inputs of which some kill the workers; nothing half written is left."""
    names = ["a", "deadly1", "b", "c", "deadly2", "d"]
    inputs = [Input(name, str(folder), named=True) for name in names]
    results = list(work_through(inputs, lambda item: partial(dies_of_some, item), workers))
    assert [(result.path, result.status) for result in results] == [
        (name, "failed" if name.startswith("deadly") else "augmented") for name in names
    ]
    assert list(folder.iterdir()) == []
    return results


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
