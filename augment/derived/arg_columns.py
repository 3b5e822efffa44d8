"""Rarely used args as columns: all that any analysis wants, in one pass over the source, when first asked for.

Another arg is another line of :data:`WANTED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from augment.annotations import Texts
from augment.derived.arg_columns_layout_compiled import CONVERTED, DROPPED
from augment.derived.arg_columns_scan import Arg, Column, fill
from augment.trace import GPU_WORK, Category, Diagnostic, Int64s, SparseColumn, Trace, derived

_OP = (Category.CPU_OP,)
_MEMORY = (Category.CPU_INSTANT_EVENT,)
_SYNC = (Category.CUDA_SYNC,)
_COLLECTIVE = (Category.KERNEL, Category.CPU_OP)  #: of the latter, record_param_comms has them
_LINKED = (Category.CPU_OP, Category.USER_ANNOTATION, *GPU_WORK)

WANTED = (
    Arg("External id", _LINKED, also=("external id",)),
    Arg("Record function id", (Category.CPU_OP, Category.USER_ANNOTATION)),
    Arg("Input Dims", _OP, is_text=True, also=("Input dims",)),
    Arg("Input type", _OP, is_text=True),
    Arg("Sequence number", _OP),
    Arg("Fwd thread id", _OP),
    Arg("Addr", _MEMORY),
    Arg("Bytes", _MEMORY),
    Arg("Total Allocated", _MEMORY),
    Arg("Total Reserved", _MEMORY),
    Arg("Device Type", _MEMORY),
    Arg("Device Id", _MEMORY),
    # as torch/csrc/profiler/util.h names them
    Arg("Collective name", _COLLECTIVE, is_text=True),
    Arg("dtype", _COLLECTIVE, is_text=True),
    Arg("In msg nelems", _COLLECTIVE),
    Arg("Out msg nelems", _COLLECTIVE),
    Arg("In split size", _COLLECTIVE, is_text=True),
    Arg("Out split size", _COLLECTIVE, is_text=True),
    Arg("Group size", _COLLECTIVE),
    Arg("Process Group Name", _COLLECTIVE, is_text=True),
    Arg("Process Group Description", _COLLECTIVE, is_text=True),
    Arg("Process Group Ranks", _COLLECTIVE, is_text=True),
    Arg("Process Group ID", _COLLECTIVE),
    Arg("Rank", _COLLECTIVE),
    Arg("Src Rank", _COLLECTIVE),
    Arg("Dst Rank", _COLLECTIVE),
    Arg("Seq", _COLLECTIVE),
    Arg("Comms Id", _COLLECTIVE, is_text=True),
    Arg("cuda_sync_kind", _SYNC, is_text=True),
    Arg("wait_on_stream", _SYNC),
    Arg("wait_on_cuda_event_record_corr_id", _SYNC),
    Arg("wait_on_cuda_event_id", _SYNC),
)


@dataclass(frozen=True, slots=True)
class ArgColumns:
    """The args in :data:`WANTED` of ``rows`` (ascending): those of the categories that may have any."""

    rows: Int64s
    columns: dict[str, Column]

    def ints(self, name: str) -> SparseColumn:
        """The rows that have this arg, and its values.

        Numbers of [2^63, 2^64), as addresses may be, are the int64 of the same bits. Quoted numbers and whole floats
        are taken as numbers; other values are left out: see :meth:`diagnostics`.
        """
        column = self.columns[name]
        has = self._has(column)
        return SparseColumn(self.rows[has], column.values[has])

    def texts(self, name: str) -> tuple[Int64s, Texts]:
        """The rows that have this arg, and its values: a string as it is, any other value as its JSON.

        The JSON is Python's: a blank after each comma and colon. ``Texts.values`` are distinct.
        """
        column = self.columns[name]
        has = self._has(column)
        return self.rows[has], Texts(column.values[has].astype(np.int32), column.texts)

    def diagnostics(self, names: Sequence[str]) -> list[Diagnostic]:
        """What was repaired and dropped of these args."""
        counts = {flag: sum(self._count(name, flag) for name in names) for flag in (CONVERTED, DROPPED)}
        found = (
            Diagnostic("arg_converted", counts[CONVERTED], "numbers in args were written as strings or floats"),
            Diagnostic("arg_dropped", counts[DROPPED], "args that must be integers are none; left out"),
        )
        return [one for one in found if one.count]

    def _count(self, name: str, flag: int) -> int:
        return int(np.count_nonzero(self.columns[name].flags == flag))

    @staticmethod
    def _has(column: Column) -> npt.NDArray[np.intp]:
        return np.flatnonzero((column.flags != 0) & (column.flags != DROPPED))


@derived
def arg_columns(trace: Trace) -> ArgColumns:
    """The columns; a pass over the text of the source."""
    mask = np.zeros(256, np.bool_)
    mask[[category for arg in WANTED for category in arg.categories]] = True
    rows = np.flatnonzero(mask[trace.events.category])
    columns = {arg.name: Column(arg, len(rows)) for arg in WANTED}
    fill(trace, rows, list(columns.values()))
    return ArgColumns(rows, columns)
