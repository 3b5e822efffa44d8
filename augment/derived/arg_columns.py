"""Rarely used args as columns: all that any analysis wants, in one pass over the source, when first asked for.

Another arg is another line of :data:`WANTED`, what no analysis asks for any more is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from augment.annotations import Texts
from augment.derived.arg_columns_layout_compiled import CONVERTED, DROPPED
from augment.derived.arg_columns_scan import Arg, Column, Found, fill
from augment.derived.kernel_types import KernelType, types_of
from augment.trace import GPU_WORK, LAUNCHES, Category, Diagnostic, Int64s, SparseColumn, Trace, derived

_OP = (Category.CPU_OP,)
_MEMORY = (Category.CPU_INSTANT_EVENT,)
_SYNC = (Category.CUDA_SYNC,)
_COLLECTIVE = (Category.KERNEL, Category.CPU_OP)  #: of the latter, record_param_comms has them
_RECORDED = (Category.CPU_OP, Category.USER_ANNOTATION)

WANTED = (
    Arg("Input Dims", _OP, is_text=True, also=("Input dims",)),
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
    Arg("Group size", _COLLECTIVE),
    Arg("Process Group Name", _COLLECTIVE, is_text=True),
    Arg("Process Group Description", _COLLECTIVE, is_text=True),
    Arg("Process Group Ranks", _COLLECTIVE, is_text=True),
    Arg("Src Rank", _COLLECTIVE),
    Arg("Dst Rank", _COLLECTIVE),
    Arg("Seq", _COLLECTIVE),
    Arg("Comms Id", _COLLECTIVE, is_text=True),
    Arg("wait_on_stream", _SYNC),
    Arg("wait_on_cuda_event_record_corr_id", _SYNC),
)
IDENTIFIERS = (Arg("External id", _RECORDED, also=("external id",)), Arg("Record function id", _RECORDED))
#: columns of HTA's frames
OF_FRAMES = (
    Arg("External id", (*_RECORDED, *LAUNCHES, *GPU_WORK), also=("external id",)),
    Arg("Input Dims", _OP, is_text=True, also=("Input dims",)),
    Arg("Input type", _OP, is_text=True),
    Arg("Input Strides", _OP, is_text=True),
    Arg("wait_on_stream", _SYNC),
    Arg("wait_on_cuda_event_record_corr_id", _SYNC),
)


@dataclass(frozen=True, slots=True)
class ArgColumns:
    """The args in a list such as :data:`WANTED`, of the rows of their categories."""

    found: Mapping[str, Found]

    def ints(self, name: str) -> SparseColumn:
        """The rows that have this arg, and its values.

        Numbers of [2^63, 2^64), as addresses may be, are the int64 of the same bits. Quoted numbers and whole floats
        are taken as numbers; other values are left out: see :meth:`diagnostics`.
        """
        return self.found[name].column

    def texts(self, name: str) -> tuple[Int64s, Texts]:
        """The rows that have this arg, and its values: a string as it is, any other value as its JSON.

        The JSON is Python's: a blank after each comma and colon. ``Texts.values`` are distinct.
        """
        found = self.found[name]
        return found.column.rows, Texts(found.column.values.astype(np.int32), found.texts)

    def diagnostics(self, names: Sequence[str]) -> list[Diagnostic]:
        """What was repaired and dropped of these args."""
        converted, dropped = (sum(self.found[name].counts[flag] for name in names) for flag in (CONVERTED, DROPPED))
        found = (
            Diagnostic("arg_converted", converted, "numbers in args were written as strings or floats"),
            Diagnostic("arg_dropped", dropped, "args that must be integers are none; left out"),
        )
        return [one for one in found if one.count]


@derived
def arg_columns(trace: Trace) -> ArgColumns:
    """The columns of :data:`WANTED`; a pass over the text of the source.

    Of kernels, only those that communicate are read: the args of the others are most of the text.
    """
    events = trace.events
    rows = _rows(trace, WANTED)
    kernels = np.flatnonzero(events.category[rows] == Category.KERNEL)
    types = types_of(trace, events.name[rows[kernels]], events.category[rows[kernels]])
    return _read(trace, np.delete(rows, kernels[types != KernelType.COMMUNICATION]), WANTED)


@derived
def identifiers(trace: Trace) -> ArgColumns:
    """The columns of :data:`IDENTIFIERS`; a pass of their own over the text, as only links to other files need them."""
    return _read(trace, _rows(trace, IDENTIFIERS), IDENTIFIERS)


@derived
def args_of_frames(trace: Trace) -> ArgColumns:
    """The columns of :data:`OF_FRAMES`; a pass of their own, too."""
    return _read(trace, _rows(trace, OF_FRAMES), OF_FRAMES)


def _rows(trace: Trace, wanted: Sequence[Arg]) -> Int64s:
    mask = np.zeros(256, np.bool_)
    mask[[category for arg in wanted for category in arg.categories]] = True
    return np.flatnonzero(mask[trace.events.category])


def _read(trace: Trace, rows: Int64s, wanted: Sequence[Arg]) -> ArgColumns:
    columns = [Column(arg) for arg in wanted]
    fill(trace, rows, columns)
    return ArgColumns({column.arg.name: column.found() for column in columns})
