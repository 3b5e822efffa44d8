"""The args that readers collect for all rows of a category, as the sparse columns of ``EventTable.args``.

:data:`WANTED` lists them: add a line for an arg that an analysis needs, remove the line of an arg that none needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from augment.arrays import Bytes, Int32s, Int64s, Values, each
from augment.core.threads import ALONE, Threads
from augment.core.trace import ArgColumn, Category, SparseColumn, args_of_event, json_event
from augment.kernels.wanted_args import IS_CODE, Wanted, WantedArgs


class Arg(Struct, frozen=True):
    """An arg wanted from events of ``categories``: an integer or a text; ``also`` lists other spellings of its name."""

    name: str
    categories: tuple[Category, ...]
    is_text: bool = False
    also: tuple[str, ...] = ()


OPS = (Category.CPU_OP,)
MEMORY = (Category.CPU_INSTANT_EVENT,)
SYNCS = (Category.CUDA_SYNC,)
COLLECTIVES = (Category.KERNEL, Category.CPU_OP)  #: among operators, record_param_comms has these args
KERNELS = (Category.KERNEL,)  #: of all kernels, as Kineto computes them from launches: read for every one
RECORDED = (Category.CPU_OP, Category.USER_ANNOTATION)

WANTED = (
    Arg("Input Dims", OPS, is_text=True, also=("Input dims",)),
    Arg("Input type", OPS, is_text=True),
    Arg("Input Strides", OPS, is_text=True),
    Arg("Concrete Inputs", OPS, is_text=True),
    Arg("Sequence number", OPS),
    Arg("Fwd thread id", OPS),
    Arg("Addr", MEMORY),
    Arg("Bytes", MEMORY),
    Arg("Total Allocated", MEMORY),
    Arg("Total Reserved", MEMORY),
    Arg("Device Type", MEMORY),
    Arg("Device Id", MEMORY),
    # names as in torch/csrc/profiler/util.h
    Arg("Collective name", COLLECTIVES, is_text=True),
    Arg("dtype", COLLECTIVES, is_text=True),
    Arg("In msg nelems", COLLECTIVES),
    Arg("Out msg nelems", COLLECTIVES),
    Arg("Group size", COLLECTIVES),
    Arg("Process Group Name", COLLECTIVES, is_text=True),
    Arg("Process Group Description", COLLECTIVES, is_text=True),
    Arg("Process Group Ranks", COLLECTIVES, is_text=True),
    Arg("Src Rank", COLLECTIVES),
    Arg("Dst Rank", COLLECTIVES),
    Arg("Seq", COLLECTIVES),
    Arg("Comms Id", COLLECTIVES, is_text=True),
    Arg("wait_on_stream", SYNCS),
    Arg("wait_on_cuda_event_record_corr_id", SYNCS),
    Arg("est. achieved occupancy %", KERNELS),
    Arg("blocks per SM", KERNELS, is_text=True),  # a number with a fraction
    Arg("stack", KERNELS, is_text=True),  # a list of stacks, by Inductor's handler of traces
)


_BLOCK = 1 << 18  #: values of args that are grouped at a time


class TakenArgs:
    """Collects ``args``: kernels in ascending order of rows, Python for the events that kernels cannot decode."""

    def __init__(
        self, args: Sequence[Arg], room: int, fields: Mapping[str, int] | None = None, wanted: Wanted | None = None
    ) -> None:
        """See :class:`augment.kernels.wanted_args.WantedArgs`."""
        self._args = args
        self._numbers = {name: number for number, arg in enumerate(args) for name in (arg.name, *arg.also)}
        keys = [(name, number, args[number].is_text) for name, number in self._numbers.items()]
        self.compiled = WantedArgs(wanted or Wanted(), keys, room, fields)
        self._odd: list[tuple[int, int, int]] = []
        self._odd_json: dict[bytes, int] = {}

    def add_odd(self, row: int, event_text: bytes) -> None:
        """Add the args of an event that the kernel left to Python."""
        args = args_of_event(json_event(event_text, 0))
        wanted = {self._numbers[name]: args[name] for name in args if name in self._numbers}
        for number, value in wanted.items():  # the last of two spellings counts
            code = self._odd_json.setdefault(json.dumps(value).encode(), len(self._odd_json))
            self._odd.append((row, number + IS_CODE, code))

    def finish(self, threads: Threads = ALONE) -> dict[str, ArgColumn]:
        """The columns by arg name."""
        rows, kinds, values, texts = self.compiled.finish()
        if self._odd:
            odd_rows, odd_kinds, odd_codes = np.array(self._odd, np.int64).T
            rows = np.concatenate([rows, odd_rows])
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            kinds = np.concatenate([kinds, odd_kinds.astype(np.uint8)])[order]
            values = np.concatenate([values, len(texts) + odd_codes])[order]
            texts += self._odd_json

        blocks = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
        by_kind = threads.all([partial(_by_kind, rows[block], kinds[block], values[block]) for block in blocks])
        kinds_ = [kind for number in range(len(self._args)) for kind in (number, number + IS_CODE)]
        columns = dict(zip(kinds_, threads.all([partial(_column, by_kind, kind) for kind in kinds_]), strict=True))
        shared: dict[int, Values[np.int64]] = {}  # by length: args of one kind of events have the same rows
        for kind, column in columns.items():
            known = shared.setdefault(len(column.rows), column.rows)
            if known is not column.rows and np.array_equal(known, column.rows):
                columns[kind] = SparseColumn(known, column.values)
        return {
            arg.name: ArgColumn(columns[number], columns[number + IS_CODE], texts)
            for number, arg in enumerate(self._args)
        }


def _by_kind(rows: Int32s, kinds: Bytes, values: Int64s) -> dict[int, tuple[Int32s, Int64s]]:
    """The rows and the values of each kind that occurs."""
    return {kind: (rows[places], values[places]) for kind, places in each(kinds, 2 * IS_CODE)}


def _column(by_kind: Sequence[dict[int, tuple[Int32s, Int64s]]], kind: int) -> SparseColumn:
    """All of one kind."""
    parts = [block[kind] for block in by_kind if kind in block]
    narrow = np.int64 if kind < IS_CODE else np.int32  # of texts there are fewer
    if not parts:
        return SparseColumn(np.empty(0, np.int64), np.empty(0, narrow))
    rows, values = zip(*parts, strict=True)
    return SparseColumn(np.concatenate(rows, dtype=np.int64), np.concatenate(values, dtype=narrow, casting="same_kind"))
