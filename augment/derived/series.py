"""Time series as columns of equal length, ready for a data frame: ``pandas.DataFrame(queue_length_series(trace))``.

Identities are int64 where all of them are integers, else objects; times are absolute int64 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from augment.derived.copy_rates import copy_rates
from augment.derived.queue_lengths import queue_lengths
from augment.trace import Trace

Columns = dict[str, npt.NDArray[Any]]


def queue_length_series(trace: Trace) -> Columns:
    """``rank``, ``device``, ``stream``, ``ts``, ``queue_length``: a row for each change of a stream's queue.

    The length holds until the next row of the stream; the last is 0.
    """
    found = queue_lengths(trace)
    counts = [len(one.ts) for one in found]
    return {
        "rank": _repeated([one.stream.rank for one in found], counts),
        "device": _repeated([one.stream.device for one in found], counts),
        "stream": _repeated([one.stream.stream for one in found], counts),
        "ts": _joined([one.ts for one in found]),
        "queue_length": _joined([one.length for one in found]),
    }


def memory_bandwidth_series(trace: Trace) -> Columns:
    """``rank``, ``device``, ``kind``, ``ts``, ``bytes_per_second``: a row for each change of a kind's bandwidth.

    The bandwidth holds until the next row of the device and kind; the last is 0.
    """
    found = copy_rates(trace)
    counts = [len(one.ts) for one in found]
    return {
        "rank": _repeated([one.device.rank for one in found], counts),
        "device": _repeated([one.device.device for one in found], counts),
        "kind": _repeated([one.kind for one in found], counts),
        "ts": _joined([one.ts for one in found]),
        "bytes_per_second": _joined([one.rate for one in found]),
    }


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> npt.NDArray[Any]:
    kind = np.int64 if all(isinstance(value, int) for value in values) else np.object_
    column: npt.NDArray[Any] = np.repeat(np.array(values, kind), counts)
    return column


def _joined(pieces: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *pieces])
