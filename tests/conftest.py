"""Fixtures that several folders of tests use."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from augment.errors import UsageError
from oracles import plain_kernels
from perfetto_engine import PerfettoEngine

settings.register_profile("augment", deadline=None)  # the first call loads compiled code, and machines are busy
settings.load_profile("augment")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
#: files whose tests take more than 5 s together, or compare recorded traces with what is known of them
SLOW = {
    "analyses/test_execution_trace_nodes.py", "batch/test_cluster.py", "batch/test_job_tracks.py",
    "batch/test_going_on.py", "batch/test_merging.py", "cli/test_diff.py", "cli/test_odd_inputs.py",
    "cli/test_open.py", "cli/test_processes.py", "cli/test_query.py", "cli/test_remote.py",
    "comparison/test_diff_truth.py", "comparison/test_gate_truth.py", "derived/test_arg_columns.py",
    "derived/test_critical_graph.py", "job/test_path.py", "job/test_path_truth.py", "job/test_truth.py",
    "kernels/test_native.py", "readers/test_event_scanner.py", "readers/test_perfetto_args.py",
    "readers/test_perfetto_damage.py", "readers/test_perfetto_round_trip.py", "test_browser.py", "test_fuzz.py",
    "test_reference_figures.py", "test_simulator_causes.py", "writers/test_adding.py",
    "writers/test_perfetto_annotations.py", "writers/test_perfetto_encoding.py", "writers/test_perfetto_lanes.py",
    "writers/test_perfetto_several.py", "writers/test_perfetto_source.py", "writers/test_perfetto_time.py",
    "writers/test_render.py",
}  # fmt: skip
SHARED_TRACES = Path(__file__).parents[2] / "shared" / "traces"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make quick`` leaves out: see the markers in ``pyproject.toml``."""
    for item in items:
        name = item.path.relative_to(TESTS).as_posix()
        if name.startswith("server/"):
            item.add_marker(pytest.mark.server)
        if name in SLOW or "_recorded" in name or "shared_traces" in getattr(item, "fixturenames", ()):
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
