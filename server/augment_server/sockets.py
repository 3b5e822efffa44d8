"""Connections as the system sees them: gRPC for Python can end neither a call that it serves nor a connection."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from urllib.parse import unquote


def hang_up(peer: str) -> bool:
    """Shut down the connection from ``peer``, so that all calls over it end; whether there was one. Blocks.

    Args:
        peer: as gRPC names it: ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``.
    """
    wanted = _place(peer)
    return wanted is not None and any(_shut_down(number, wanted) for number in _open_files())


def _shut_down(number: int, wanted: tuple[str, int]) -> bool:
    """Shut down the socket of this number if it is connected to ``wanted``."""
    with contextlib.suppress(OSError, ValueError), _copy(number) as connection:
        host, port, *_ = connection.getpeername()
        if (_address(host), port) == wanted:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _copy(number: int) -> socket.socket:
    """The socket of this number, under another one that cannot become another file meanwhile.

    Raises:
        OSError: it is none.
    """
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return []


def _place(peer: str) -> tuple[str, int] | None:
    """Address and port; None of what is not connected by TCP."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (_address(host.strip("[]")), int(port)) if family in ("ipv4", "ipv6") and port.isdigit() else None


def _address(host: str) -> str:
    """One way to write it: a server that listens on IPv6 sees IPv4 as a part of that."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
