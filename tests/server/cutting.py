"""A TCP proxy in a thread, which can cut what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

_PIECE = 1 << 16


class Proxy:
    """Passes connections on to ``port``.

    ``cuts`` are the amounts of bytes after which, in turn, a connection is cut, whichever way they went; a connection
    for which there is none left lives as long as it likes. Before each cut ``ready`` is called: it may wait for what
    the test wants to have happened by then, while nothing more passes.
    """

    def __init__(self, port: int, cuts: list[int], ready: Callable[[], object]) -> None:
        self._target, self._cuts, self._ready = port, list(cuts), ready
        self._lock = threading.Lock()
        self.cut_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._open):
            _end(each)

    def cut_all(self) -> None:
        """Cut every connection now."""
        with self._lock:
            self.cut_count += 1
            sockets, self._open[:] = self._open[:], []
        for each in sockets:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open += [near, far]
                    left = [self._cuts.pop(0)] if self._cuts else None
                for each, other, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass, args=(each, other, left, up), daemon=True).start()

    def _pass(self, first: socket.socket, other: socket.socket, left: list[int] | None, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := first.recv(_PIECE):
                other.sendall(data)
                if left is not None:
                    with self._lock:
                        before, left[0] = left[0], left[0] - len(data)
                    if before > 0 >= left[0]:
                        self._ready()
                        self.cut_count += 1
                    elif before <= 0:
                        continue  # the other way has used it up, and ends both
                    if left[0] <= 0:
                        break
        _end(first)
        _end(other)


def _end(value: socket.socket) -> None:
    with contextlib.suppress(OSError):
        value.shutdown(socket.SHUT_RDWR)
    value.close()


@contextlib.contextmanager
def proxy(port: int, *cuts: int, ready: Callable[[], object] = lambda: None) -> Iterator[Proxy]:
    """A proxy before ``port``."""
    made = Proxy(port, list(cuts), ready)
    try:
        yield made
    finally:
        made.close()
