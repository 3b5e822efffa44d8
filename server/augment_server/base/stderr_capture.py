"""Turns stderr output of C libraries, workers and the exiting interpreter into lines of the log."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_LAST_S = 2.0  #: how long to wait at exit for lines that are still in the pipe


def relay_stderr(log: Callable[[str], object]) -> TextIO:
    """From now on pass each line that is written to stderr to ``log``.

    Returns:
        The original stderr, for output that must not be changed.
    """
    sys.stderr.flush()
    stream = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def relay() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if text := line.decode(errors="replace").rstrip():
                    log(text)

    thread = threading.Thread(target=relay, name="stderr", daemon=True)
    thread.start()

    def restore() -> None:
        sys.stderr.flush()
        os.dup2(stream.fileno(), 2)  # the pipe ends
        thread.join(_LAST_S)

    atexit.register(restore)
    return stream
