"""The raw files of PyTorch's ``export_memory_timeline``, attached to a trace or read as columns.

::

    trace = augment.with_memory_timeline(augment.read("rank0.json.gz"), "rank0.raw.json.gz")
    augment.write(augment.augment(trace))  # see the analysis memory_timeline

Such a file (``*.raw.json.gz``) is a list of ``[time, action, bytes, category]``; bytes are negative where memory is
freed or leaves its category. PyTorch's profiler classifies the tensors from its record of the whole program; a trace
alone does not contain the categories.
"""

from __future__ import annotations

import os

import numpy as np

from augment.arrays.types import Int64s
from augment.core.attachments import MemoryChanges
from augment.core.trace import Trace
from augment.errors import UnknownFormat
from augment.facts.memory.memory_events import CATEGORIES, held_by_category
from augment.readers.document import read_document

__all__ = ["CATEGORIES", "read_memory_timeline", "with_memory_timeline"]


def with_memory_timeline(trace: Trace, path: str | os.PathLike[str]) -> Trace:
    """``trace`` with the changes in the memory timeline at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a memory timeline.
    """
    return trace.changed(_changes(os.fspath(path)))


def read_memory_timeline(path: str | os.PathLike[str]) -> dict[str, Int64s]:
    """``ts`` (int64 ns, strictly ascending), and for each category the allocated bytes from then on (int64).

    Memory allocated before the recording has a negative time; it counts from the first moment of the recording.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a memory timeline.
    """
    changes = _changes(os.fspath(path))
    recorded = changes.ts[changes.ts >= 0]
    ts, held = held_by_category(changes, int(recorded.min()) if len(recorded) else 0)
    return {"ts": ts, **dict(zip(CATEGORIES, held.T, strict=True))}


def _changes(path: str) -> MemoryChanges:
    """The file's rows as four integer columns."""
    document = read_document(path)
    problem = "not a memory timeline, which is a list of [time, action, bytes, category] (*.raw.json.gz)"
    try:
        rows = np.array(document if document != [] else np.empty((0, 4), np.int64))
    except (ValueError, OverflowError) as error:
        raise UnknownFormat(path, problem) from error
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64:
        raise UnknownFormat(path, problem)
    if len(rows) and not ((rows[:, 3] >= 0) & (rows[:, 3] < len(CATEGORIES))).all():
        raise UnknownFormat(path, f"a memory timeline with categories beyond the {len(CATEGORIES)} known")
    return MemoryChanges(*np.ascontiguousarray(rows.T))
