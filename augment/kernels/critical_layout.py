"""What the loops along the critical path and their Python side share: kinds, and a record in memory."""

from __future__ import annotations

from augment.kernels.memory import record

KIND_COUNT = 12  #: kinds of time: see ``critical_path.BoundBy``
CPU_OPERATOR, DATA_LOADING, OUTSIDE, IDLE = 0, 2, 3, 11
THREAD, STREAM = 0, 3  #: kinds of edges: see ``dependencies.Kind``


@record
class Progress:
    """How far :func:`follow` is."""

    made: int  #: slices
    last_kind: int  #: of the last slice
    last_source: int
    last_window: int
    window: int  #: the current window, or the next
    rows: int  #: the stretch outside operators: its rows, and the row with most time
    most_ns: int
    most_row: int
    names: int  #: of the names that have time in the window ``named_window``
    named_window: int
    named: int  #: of the names of all earlier windows
