"""Fixtures that several folders of tests use."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from running import Augment, Ended, start

from augment import UsageError, cli
from oracles import plain_kernels
from perfetto_engine import PerfettoEngine

# the first call loads compiled code, and machines are busy; each run tries the same examples, `make fuzz` others
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("augment", settings.get_profile("explore"), derandomize=True, max_examples=30)
settings.load_profile("augment")
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its threads would go on in a test's os.fork, and crash now and then
gc.set_threshold(200_000, 20, 100)  # traces as plain Python are millions of objects, walked at each collection

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SHARED_TRACES = Path(__file__).parents[2] / "shared" / "traces"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the snapshots of sentences anew")
    parser.addoption("--beyond", action="store_true", help="tests' servers use PostgreSQL and a bucket")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``make quick`` leaves out as a whole; None leaves the decision to others."""
    wanted = config.getoption("markexpr")
    if "not server" in wanted and collection_path == TESTS / "server":
        return True
    if "not slow" in wanted and collection_path.suffix == ".py":
        marks = [line for line in collection_path.read_text("utf-8").splitlines() if line.startswith("pytestmark = ")]
        return any("pytest.mark.slow" in line for line in marks) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the service's tests, and as slow what reads recorded traces."""
    for item in items:
        if item.path.is_relative_to(TESTS / "server"):
            item.add_marker(pytest.mark.server)
        if "_recorded" in item.path.name or "shared_traces" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def perfetto() -> Iterator[PerfettoEngine]:
    """Perfetto's real engine; one for the session."""
    try:
        engine = PerfettoEngine()
    except UsageError as missing:
        pytest.skip(str(missing))
    with contextlib.closing(engine):
        yield engine


@pytest.fixture
def running_engine(perfetto: PerfettoEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """``augment query`` asks the session's engine: starting another takes a second."""
    ask = perfetto._engine.ask
    from_here = {"load": os.path.abspath, "query": str}  # it was started in another folder
    monkeypatch.setattr(perfetto._engine, "ask", lambda what, text: ask(what, from_here[what](text)))
    monkeypatch.setattr(perfetto._engine, "close", lambda: None)
    monkeypatch.setattr("augment.viewer.engine.CarriedEngine", lambda: perfetto._engine)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces."""
    if not SHARED_TRACES.is_dir():
        pytest.skip(f"no real traces at {SHARED_TRACES}")
    return SHARED_TRACES


@pytest.fixture(params=["compiled", "plain"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels as they are compiled, and once more as the plain Python that they are written in."""
    with plain_kernels() if request.param == "plain" else contextlib.nullcontext():
        yield request.param


@pytest.fixture
def augment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Augment:
    """``augment ARGS…`` in this process."""

    def run(*args: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["augment", *map(str, args)])
        capsys.readouterr()
        return Ended(cli.main(), *capsys.readouterr())

    return run


@pytest.fixture
def augment_apart() -> Augment:
    """``augment ARGS…`` in a process of its own."""

    def run(*args: object) -> Ended:
        process = start(*args)
        out, err = process.communicate(timeout=600)
        return Ended(process.returncode, out, err)

    return run
