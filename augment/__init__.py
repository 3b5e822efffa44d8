"""Read PyTorch profiler traces, measure where GPU time went, and write augmented traces and metrics.

::

    import augment

    augmented = augment.augment("rank0.json.gz")  # or a trace: augment.read("rank0.json.gz")
    augmented.verdict  # what is wrong with the run
    augment.write(augmented)  # rank0.augmented.pftrace and rank0.metrics.json, beside the input

Importing this package loads nothing else. Each public name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from augment.compare import Diff, diff
    from augment.core import AugmentedTrace, Findings, Skipped, Trace
    from augment.core.tabular import Table
    from augment.errors import (
        AugmentError,
        InputError,
        LimitExceeded,
        MalformedTrace,
        OutputError,
        ServiceError,
        UnknownFormat,
        UsageError,
    )
    from augment.facts.steps.window import within
    from augment.pipeline import augment
    from augment.readers import read
    from augment.readers.attachments import (
        with_execution_trace,
        with_flight_recorder,
        with_graph_capture,
        with_inductor_provenance,
        with_memory_snapshot,
        with_memory_timeline,
        with_nccl_inspector,
        with_nccl_log,
        with_spans,
        with_telemetry,
        with_torch_trace,
    )
    from augment.readers.attachments.recorded_files import link_execution_trace, read_memory_timeline
    from augment.readers.attachments.tables import with_tables
    from augment.results.sidecars import frames
    from augment.version import __version__
    from augment.viewer.notebook import show

#: what people look for who know the command line
_COMMANDS = ("run", "open", "diagnose", "report", "check", "merge", "cut", "query", "summary", "doctor")
_INSTEAD = (
    ": it is a command of the shell; here augment.augment(PATH) analyses a trace, augment.write(…) writes the files"
)

# fmt: off
#: the public names of each module
_NAMES: dict[str, tuple[str, ...]] = {
    "augment.version": ("__version__",),
    "augment.readers": ("read",),
    "augment.pipeline": ("augment",),
    "augment.facts.steps.window": ("within",),
    "augment.compare": ("diff", "Diff"),
    "augment.readers.attachments.recorded_files": ("link_execution_trace", "read_memory_timeline"),
    "augment.readers.attachments": (
        "with_execution_trace", "with_flight_recorder", "with_graph_capture", "with_inductor_provenance",
        "with_memory_snapshot", "with_memory_timeline", "with_nccl_inspector", "with_nccl_log", "with_telemetry",
        "with_torch_trace", "with_spans",
    ),
    "augment.readers.attachments.tables": ("with_tables",),
    "augment.results.sidecars": ("frames",),
    "augment.viewer.notebook": ("show",),
    "augment.core.tabular": ("Table",),
    "augment.core.trace": ("Trace",),
    "augment.core.findings": ("AugmentedTrace", "Findings", "Skipped"),
    "augment.errors": (
        "AugmentError", "InputError", "LimitExceeded", "MalformedTrace", "OutputError", "ServiceError",
        "UnknownFormat", "UsageError",
    ),
}
__all__ = [
    "AugmentError", "AugmentedTrace", "Diff", "Findings", "InputError", "LimitExceeded", "MalformedTrace",
    "OutputError", "ServiceError", "Skipped", "Table", "Trace", "UnknownFormat", "UsageError", "__version__",
    "augment", "diff", "frames", "link_execution_trace", "read", "read_memory_timeline", "show",
    "with_execution_trace", "with_flight_recorder", "with_graph_capture", "with_inductor_provenance",
    "with_memory_snapshot", "with_memory_timeline", "with_nccl_inspector", "with_nccl_log", "with_spans",
    "with_tables", "with_telemetry", "with_torch_trace", "within", "write",
]
# fmt: on
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def write(
    augmented: AugmentedTrace, folder: str | os.PathLike[str] | None = None, *, formats: Sequence[str] = ()
) -> list[Path]:
    """Write the augmented trace in each of ``formats``, and its metrics, under the input's STEM.

    Args:
        augmented: the result of :func:`augment`.
        folder: the output folder; by default the folder of the input.
        formats: names of writers, as ``augment list`` shows them; by default Perfetto's own.

    Returns:
        The paths of the files written; the metrics come last.

    Raises:
        UsageError: no writer has such a name.
        OutputError: a file cannot be written.
    """
    from pathlib import Path

    from augment.writers import write_all

    folder_ = Path(augmented.trace.source.path).parent
    return write_all(augmented, folder_ if folder is None else Path(folder), formats)


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_INSTEAD if name in _COMMANDS else ''}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, including those that are not loaded yet."""
    return sorted({*globals(), *__all__})
