"""What reads traces, and numpy: loaded once a call needs it, since a server begins twice as quickly without it."""

from __future__ import annotations

import importlib
import threading

_MODULES = (
    "augment.pipeline.request",
    "augment.results.sidecars",
    "augment.writers.metrics",
    "augment.job.ranks.dimension_names",
    "augment.compare.gate",
    "augment_server.jobs.metrics_query",
)
_LOCK = threading.Lock()


def load() -> None:
    """Load it, in one thread at a time: of modules that import each other, several threads get unfinished ones."""
    with _LOCK:
        for name in _MODULES:
            importlib.import_module(name)
