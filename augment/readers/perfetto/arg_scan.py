"""Reads args of packets as columns: in compiled code, and in Python for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from augment.arrays.types import Int64s
from augment.facts.source.event_args import PADDING, Block, ScanTask, plain
from augment.kernels import packet_args_layout as layout
from augment.kernels.native import Native, address, native
from augment.readers.perfetto.state import Generation, PacketSequence, strings_at
from augment.readers.perfetto.values import interned_value

_MOST_IIDS = 1 << 20  #: larger numbers are left to Python
_LARGEST = 1 << 54  #: the most values of strings: they share 64 bits with a flag


class ArgScan:
    """Fills the columns of a job, block by block."""

    def __init__(self, sequences: Mapping[int, PacketSequence]) -> None:
        self._scan: Native = native("packet_args.scan_args")
        self._sequences = sequences
        self._state = layout.ArgScan()
        self._state.begins = self._state.ends = -1
        self._known: dict[int, _Strings] = {}  # the strings last used, by sequence: generations come in order
        self._now: _Strings | None = None

    def __call__(self, job: ScanTask, block: Block) -> None:
        """Take the rows of a block."""
        span = slice(block.start, block.stop)
        taken = [np.ascontiguousarray(each[span]) for each in (job.offsets, job.lengths, job.categories, job.rows)]
        state = self._state
        state.row = 0
        targets, why = np.empty(0, np.int64), layout.ODD_ROW
        while True:
            if why != layout.OTHER_STRINGS:  # Python may have added entries
                targets = job.room_for(len(taken[0]) - state.row)
            why = self._scan(address(block.data) + PADDING, block.base, *taken, targets, state)
            if why == layout.DONE:
                return
            place = state.row
            if why == layout.OTHER_STRINGS:
                self._turn_to(job, state.sequence, int(taken[0][place]))
                continue
            for column in job.columns:  # the entries stored before the new or unusual part was met
                column.take_back(int(taken[3][place]))
            if why == layout.MISS and self._now and self._now.learn(job, state.miss_column, state.miss_iid):
                continue
            plain(job, block._replace(start=block.start + place, stop=block.start + place + 1))
            state.row = place + 1

    def _turn_to(self, job: ScanTask, number: int, offset: int) -> None:
        """Switch to the strings that a sequence has at a byte."""
        generation, begins, ends = strings_at(self._sequences, number, offset)
        known = self._known.get(number)
        if known is None or known.generation is not generation:
            known = self._known[number] = _Strings(job, generation)
        self._now, state = known, self._state
        state.begins, state.ends = begins, ends
        state.keys, state.key_count, state.value_count = address(known.keys), len(known.keys), known.count
        for column, values in zip(job.columns, known.values, strict=True):
            column.table.known = address(values)


class _Strings:
    """Maps the numbered keys and strings of a generation to the columns of a job."""

    def __init__(self, job: ScanTask, generation: Generation) -> None:
        self.generation = generation
        column_of = {name: i for i, column in enumerate(job.columns) for name in (column.arg.name, *column.arg.also)}
        self.keys = np.full(_count(generation.keys), layout.UNWANTED, np.int64)
        for iid, name in generation.keys.items():
            if iid < len(self.keys):
                self.keys[iid] = column_of.get(name, layout.UNWANTED)
        self.count = max(_count(generation.strings), _count(generation.values))
        wanted = set(self.keys.tolist())
        self.values: list[Int64s] = [
            np.full(self.count if i in wanted else 0, layout.UNKNOWN, np.int64) for i in range(len(job.columns))
        ]

    def learn(self, job: ScanTask, column: int, iid: int) -> bool:
        """Store the value that a string has in a column; False if its number is too large."""
        flag, value = job.columns[column].stored(interned_value(iid, self.generation))
        if not -_LARGEST < value < _LARGEST:
            return False
        self.values[column][iid] = value << 8 | flag
        return True


def _count(strings: Mapping[int, str]) -> int:
    """The number of entries that a table has room for: all strings, if they are not too many."""
    return min(max(strings, default=-1) + 1, _MOST_IIDS)
