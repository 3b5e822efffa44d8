"""gRPC calls as frames of HTTP/2 on a socket: of which no more than a part is sent, as no client library can."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW, _FRAME_BYTES = 4, 16384


class Connection:
    """A connection, whose frames are answered in a thread.

    Attributes:
        ended: the calls that the server has ended.
    """

    def __init__(self, port: int, patience_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._patience_s, self._changed = patience_s, threading.Condition()
        self._windows, self._initial, self._calls = {0: 65535}, 65535, 0
        self._settings, self._acknowledged = 0, 0
        self.ended: set[int] = set()
        self._socket.sendall(_PREFACE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.settle()

    def call(self, path: str, token: str = "") -> int:
        """Begin a call: its headers alone."""
        number, self._calls = 2 * self._calls + 1, self._calls + 1
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        headers |= {"content-type": "application/grpc", "te": "trailers"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        with self._changed:
            self._windows[number] = self._initial
            self._send(_HEADERS, _END_HEADERS, number, b"".join(_literal(*header) for header in headers.items()))
        return number

    def send(self, call: int, data: bytes) -> int:
        """Send as much of ``data`` as the server takes of it now; returns how many bytes."""
        at = 0
        with self._changed:
            while room := max(0, min(self._windows[0], self._windows[call], _FRAME_BYTES, len(data) - at)):
                self._send(_DATA, 0, call, data[at : at + room])
                self._windows[0] -= room
                self._windows[call] -= room
                at += room
        return at

    def settle(self) -> None:
        """Wait until the server has read all that was sent, and its answer is here. It ends those that ping often;
        settings are acknowledged as well, also where there are none."""
        with self._changed:
            self._settings = wanted = self._settings + 1
            self._send(_SETTINGS, 0, 0, b"")
            assert self._changed.wait_for(lambda: self._acknowledged >= wanted, self._patience_s)

    def close(self) -> None:
        """End the connection with all of its calls."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(self._patience_s)
        self._socket.close()

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._socket.sendall(head + payload)

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as frames:
            while head := frames.read(9):
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = frames.read(int.from_bytes(head[:3], "big"))
                with self._changed:
                    self._take(kind, flags, stream, payload)
                    self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW:
            self._windows[stream] = self._windows.get(stream, self._initial) + int.from_bytes(payload, "big")
        elif kind == _SETTINGS and flags & _ACK:
            self._acknowledged += 1
        elif kind == _SETTINGS:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW:
                    more, self._initial = value - self._initial, value
                    self._windows = {call: room + bool(call) * more for call, room in self._windows.items()}
            self._send(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, payload)
        elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
            self.ended.add(stream)


@contextlib.contextmanager
def connected(port: int, patience_s: float) -> Iterator[Connection]:
    """A connection, ended at the end."""
    connection = Connection(port, patience_s)
    try:
        yield connection
    finally:
        connection.close()


def _literal(name: str, value: str) -> bytes:
    """A header as it is, in no table."""
    assert max(len(name), len(value)) < 127
    return b"".join((b"\0", bytes([len(name)]), name.encode(), bytes([len(value)]), value.encode()))


def sent(stack: contextlib.ExitStack, address: str, data: bytes) -> socket.socket:
    """A connection to the port of an address or a URL that has sent something and waits; ``stack`` ends it."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=300.0))
    with contextlib.suppress(ConnectionError):  # what is beyond a limit may be closed at once
        connection.sendall(data)
    return connection
