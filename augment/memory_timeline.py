"""The raw files of PyTorch's ``export_memory_timeline``: allocated memory by category, as columns.

Such a file (``*.raw.json.gz``) is a list of ``[time, action, bytes, category]``, bytes negative where memory is freed
or changes its category. The categories are what PyTorch's profiler took the tensors for, from its own record of the
whole program; a trace alone cannot tell them.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from augment.errors import UnknownFormat
from augment.readers.document import read_document
from augment.trace import Int64s

#: by their numbers in the file (torch/profiler/_memory_profiler.py)
CATEGORIES = ("Parameter", "Optimizer state", "Input", "Temporary", "Activation", "Gradient", "Autograd", "Unknown")


def read_memory_timeline(path: str | os.PathLike[str]) -> dict[str, Int64s]:
    """``ts`` (int64 ns, strictly ascending), and for each category the bytes allocated from then on (int64).

    What was allocated before the recording (its time is negative) counts from the first moment of the recording.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it is no memory timeline.
    """
    events = _events(os.fspath(path))
    ts, size, category = events[:, 0], events[:, 2], events[:, 3]
    recorded = ts[ts >= 0]
    ts = np.where(ts < 0, recorded.min() if len(recorded) else 0, ts)
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    last = np.flatnonzero(np.append(ts[1:] != ts[:-1], True)) if len(ts) else np.empty(0, np.intp)
    columns = {"ts": ts[last]}
    for number, name in enumerate(CATEGORIES):
        columns[name] = np.cumsum(np.where(category[order] == number, size[order], 0))[last]
    return columns


def _events(path: str) -> npt.NDArray[np.int64]:
    """The file's rows of four integers."""
    document = read_document(path)
    problem = "no memory timeline: that is a list of [time, action, bytes, category], as *.raw.json.gz has it"
    try:
        events = np.array(document if document != [] else np.empty((0, 4), np.int64))
    except (ValueError, OverflowError) as error:
        raise UnknownFormat(path, problem) from error
    if events.ndim != 2 or events.shape[1] != 4 or events.dtype != np.int64:
        raise UnknownFormat(path, problem)
    if len(events) and not ((events[:, 3] >= 0) & (events[:, 3] < len(CATEGORIES))).all():
        raise UnknownFormat(path, f"a memory timeline with categories other than the {len(CATEGORIES)} that are known")
    return events
