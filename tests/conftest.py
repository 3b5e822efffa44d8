"""Fixtures that several folders of tests use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from augment.errors import UsageError
from perfetto_engine import PerfettoEngine

settings.register_profile("augment", deadline=None)  # the first call loads compiled code, and machines are busy
settings.load_profile("augment")

SHARED_TRACES = Path(__file__).parents[2] / "shared" / "traces"


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
