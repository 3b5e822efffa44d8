"""A TCP proxy in a thread, which can cut what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

_PIECE = 1 << 16


class Proxy:
    """Passes connections on to ``port``.

    ``cuts`` are the amounts of bytes after which, in turn, a connection is cut, whichever way they went; a connection
    for which there is none left lives as long as it likes. It takes ``pause_s`` for each 64 KiB, as a network does:
    what has been sent but not taken by the other side is lost in a cut.
    """

    def __init__(self, port: int, cuts: list[int], pause_s: float) -> None:
        self._target, self._cuts, self._pause_s = port, list(cuts), pause_s
        self._lock = threading.Lock()
        self.cut_count = 0
        self.upstream_bytes = self.downstream_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            _end(one)

    def cut_all(self) -> None:
        """Cut every connection now."""
        with self._lock:
            self.cut_count += 1
            sockets, self._open[:] = self._open[:], []
        for one in sockets:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open += [near, far]
                    left = [self._cuts.pop(0)] if self._cuts else None
                for one, other, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass, args=(one, other, left, up), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, left: list[int] | None, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_PIECE):
                other.sendall(data)
                time.sleep(self._pause_s * len(data) / _PIECE)
                with self._lock:
                    self.upstream_bytes += len(data) if up else 0
                    self.downstream_bytes += 0 if up else len(data)
                if left is not None:
                    with self._lock:
                        before, left[0] = left[0], left[0] - len(data)
                        self.cut_count += before > 0 >= left[0]
                    if left[0] <= 0:
                        break
        _end(one)
        _end(other)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def proxy(port: int, *cuts: int, pause_s: float = 0.0) -> Iterator[Proxy]:
    """A proxy before ``port``."""
    made = Proxy(port, list(cuts), pause_s)
    try:
        yield made
    finally:
        made.close()
