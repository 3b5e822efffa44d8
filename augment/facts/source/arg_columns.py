"""Args as columns: those that any analysis uses, read in one pass over the source at first use.

The reader of Chrome JSON collects them while reading: see ``augment/core/args.py``, which also says how to add an arg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from augment.arrays.types import Bools, Int64s
from augment.core.annotations import Texts
from augment.core.args import COLLECTIVES, RECORDED, SYNCS, WANTED, Arg
from augment.core.context import derived
from augment.core.trace import GPU_WORK, LAUNCHES, Category, Diagnostic, SparseColumn, Trace
from augment.facts.names.kernel_types import KernelType, types_of
from augment.facts.source.arg_columns_scan import ArgValues, args_of_rows, has_category, values_of
from augment.kernels.arg_columns_layout import CONVERTED, DROPPED

IDENTIFIERS = (Arg("External id", RECORDED, also=("external id",)), Arg("Record function id", RECORDED))
#: args of HTA's frames that :data:`WANTED` lacks, or lacks for some of these categories
OF_FRAMES = (
    Arg("External id", (*RECORDED, *LAUNCHES, *GPU_WORK, Category.GPU_USER_ANNOTATION), also=("external id",)),
    Arg("Input Dims", RECORDED, is_text=True, also=("Input dims",)),
    Arg("Input type", RECORDED, is_text=True),
    Arg("Input Strides", RECORDED, is_text=True),
    Arg("wait_on_stream", SYNCS),
    Arg("wait_on_cuda_event_record_corr_id", SYNCS),
    Arg("Python id", (Category.PYTHON_FUNCTION,)),
    Arg("Python parent id", (Category.PYTHON_FUNCTION,)),
    Arg("Rank", COLLECTIVES),
    Arg("In split size", COLLECTIVES, is_text=True),
    Arg("Out split size", COLLECTIVES, is_text=True),
)


class ArgColumns(Struct, frozen=True):
    """The args in a list such as :data:`WANTED`, for the rows of their categories."""

    args: Mapping[str, ArgValues]  #: by the arg's name

    def ints(self, name: str) -> SparseColumn:
        """The rows that have this arg, and its values.

        Numbers of [2^63, 2^64), as addresses may be, are the int64 of the same bits. Quoted numbers and whole floats
        are taken as numbers; other values are left out: see :meth:`diagnostics`.
        """
        return self.args[name].column

    def texts(self, name: str) -> tuple[Int64s, Texts]:
        """The rows that have this arg, and its values: a string as it is, any other value as its JSON.

        The JSON is Python's: a blank after each comma and colon. ``Texts.values`` are distinct.
        """
        texts = self.args[name]
        return texts.column.rows[:], Texts(texts.column.values[:].astype(np.int32), texts.texts)

    def diagnostics(self, names: Sequence[str]) -> list[Diagnostic]:
        """Diagnostics: repaired and dropped values of these args."""
        converted, dropped = (sum(self.args[name].counts[flag] for name in names) for flag in (CONVERTED, DROPPED))
        diagnostics = (
            Diagnostic("arg_converted", converted, "numbers in args were written as strings or floats"),
            Diagnostic("arg_dropped", dropped, "args that must be integers are not (left out)"),
        )
        return [diagnostic for diagnostic in diagnostics if diagnostic.count]


@derived(until="summary")
def arg_columns(trace: Trace) -> ArgColumns:
    """The columns of :data:`augment.core.args.WANTED`. It costs a pass over the source's text if the reader did not
    collect them.

    Of kernels, only communication kernels are read: the args of other kernels are most of the text.
    """
    taken = trace.events.args
    if taken is None:
        rows = _rows(trace, WANTED)
        return ArgColumns(args_of_rows(trace, rows[_may_have(trace, rows)], WANTED))

    def values(arg: Arg) -> ArgValues:
        return values_of(taken[arg.name], arg, lambda rows: has_category(trace, arg, rows) & _may_have(trace, rows))

    return ArgColumns({arg.name: values(arg) for arg in WANTED})


def _may_have(trace: Trace, rows: Int64s) -> Bools:
    """Which of ``rows`` are not kernels, or are communication kernels."""
    events = trace.events
    kernels = np.flatnonzero(events.category[rows] == Category.KERNEL)
    types = types_of(trace, events.name[rows[kernels]], events.category[rows[kernels]])
    may = np.ones(len(rows), np.bool_)
    may[kernels[types != KernelType.COMMUNICATION]] = False
    return may


@derived
def identifiers(trace: Trace) -> ArgColumns:
    """The columns of :data:`IDENTIFIERS`, read in a separate pass, because only links to other files need them."""
    return ArgColumns(args_of_rows(trace, _rows(trace, IDENTIFIERS), IDENTIFIERS))


@derived
def args_of_frames(trace: Trace) -> ArgColumns:
    """The columns of :data:`OF_FRAMES`, also read in a separate pass."""
    return ArgColumns(args_of_rows(trace, _rows(trace, OF_FRAMES), OF_FRAMES))


def _rows(trace: Trace, wanted: Sequence[Arg]) -> Int64s:
    mask = np.zeros(256, np.bool_)
    mask[[category for arg in wanted for category in arg.categories]] = True
    return np.flatnonzero(mask.take(trace.events.category))
