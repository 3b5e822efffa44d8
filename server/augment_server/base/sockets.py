"""Ends connections through the system, because gRPC for Python cannot end a connection, nor a call that it serves."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from urllib.parse import unquote


def hang_up(peer: str) -> bool:
    """Shut down the connection from ``peer``, so that all calls over it end. Blocks. Returns whether there was one.

    Args:
        peer: as gRPC names it: ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``.
    """
    wanted = _place(peer)
    return wanted is not None and any(_shut_down(number, wanted) for number in _open_files())


def _shut_down(number: int, wanted: tuple[str, int]) -> bool:
    """Shut down the socket with this descriptor if it is connected to ``wanted``."""
    with contextlib.suppress(OSError, ValueError), _copy(number) as connection:
        host, port, *_ = connection.getpeername()
        if (_address(host), port) == wanted:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _copy(number: int) -> socket.socket:
    """The socket with this descriptor, duplicated: the original descriptor may be reused by another file meanwhile.

    Raises:
        OSError: the descriptor is not a socket.
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
    """Address and port; None for a socket that is not connected by TCP."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (_address(host.strip("[]")), int(port)) if family in ("ipv4", "ipv6") and port.isdigit() else None


def _address(host: str) -> str:
    """The address in a canonical form: a server that listens on IPv6 sees IPv4 addresses as a part of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
