"""Perfetto's own messages. Tests that import them are skipped without ``perfetto``, and with a protobuf that is older
than the compiler of its messages: that of the lowest versions that ``pyproject.toml`` allows."""

from __future__ import annotations

import pytest
from google.protobuf.runtime_version import VersionError

try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
except (ImportError, VersionError) as error:
    pytest.skip(f"Perfetto's messages cannot be loaded: {error}", allow_module_level=True)

__all__ = ["protos"]
