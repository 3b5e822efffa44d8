"""The raw files of PyTorch's ``export_memory_timeline``: allocated memory by category, beside a trace or as columns.

::

    trace = augment.with_memory_timeline(augment.read("rank0.json.gz"), "rank0.raw.json.gz")
    augment.write(augment.augment(trace))  # the analysis memory_timeline has its rows and tracks

Such a file (``*.raw.json.gz``) is a list of ``[time, action, bytes, category]``, bytes negative where memory is freed
or changes its category. The categories are what PyTorch's profiler took the tensors for, from its own record of the
whole program; a trace alone cannot tell them.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from augment.arrays.types import Int64s
from augment.derived.memory.memory_categories import CATEGORIES, held_by_category
from augment.errors import UnknownFormat
from augment.readers.document import read_document
from augment.trace import MemoryChanges, Trace

__all__ = ["CATEGORIES", "read_memory_timeline", "with_memory_timeline"]


def with_memory_timeline(trace: Trace, path: str | os.PathLike[str]) -> Trace:
    """``trace`` and what the memory timeline at ``path`` tells, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it is no memory timeline.
    """
    return replace(trace, memory_changes=_changes(os.fspath(path)), facts=dict(trace.facts))


def read_memory_timeline(path: str | os.PathLike[str]) -> dict[str, Int64s]:
    """``ts`` (int64 ns, strictly ascending), and for each category the bytes allocated from then on (int64).

    What was allocated before the recording (its time is negative) counts from the first moment of the recording.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it is no memory timeline.
    """
    changes = _changes(os.fspath(path))
    recorded = changes.ts[changes.ts >= 0]
    ts, held = held_by_category(changes, int(recorded.min()) if len(recorded) else 0)
    return {"ts": ts, **dict(zip(CATEGORIES, held.T, strict=True))}


def _changes(path: str) -> MemoryChanges:
    """The file's rows of four integers."""
    document = read_document(path)
    problem = "no memory timeline: that is a list of [time, action, bytes, category], as *.raw.json.gz has it"
    try:
        rows = np.array(document if document != [] else np.empty((0, 4), np.int64))
    except (ValueError, OverflowError) as error:
        raise UnknownFormat(path, problem) from error
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype != np.int64:
        raise UnknownFormat(path, problem)
    if len(rows) and not ((rows[:, 3] >= 0) & (rows[:, 3] < len(CATEGORIES))).all():
        raise UnknownFormat(path, f"a memory timeline with categories other than the {len(CATEGORIES)} that are known")
    return MemoryChanges(*np.ascontiguousarray(rows.T))
