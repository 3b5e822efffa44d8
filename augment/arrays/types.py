"""The types of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]  #: indexes into columns
# Each space of indexes has its type, so that mypy refuses an index of GPU work where an event's row is expected: masks,
# slices and orders of such an array are of its type, too. They are also the dtypes of arrays, at run time plain int64.
if TYPE_CHECKING:
    EventRow = NewType("EventRow", np.int64)
    WorkIndex = NewType("WorkIndex", np.int64)
    StackIndex = NewType("StackIndex", np.int64)
    CollectiveIndex = NewType("CollectiveIndex", np.int64)
    MemberIndex = NewType("MemberIndex", np.int64)
else:
    EventRow = WorkIndex = StackIndex = CollectiveIndex = MemberIndex = np.int64
EventRows = npt.NDArray[EventRow]  #: indexes of events: rows of ``trace.events``
WorkIndexes = npt.NDArray[WorkIndex]  #: indexes of GPU work: of the columns of ``gpu.work``
StackIndexes = npt.NDArray[StackIndex]  #: indexes of call stacks: of the columns of ``host.stacks``
CollectiveIndexes = npt.NDArray[CollectiveIndex]  #: indexes of a rank's collectives: of ``collectives.kernels``
MemberIndexes = npt.NDArray[MemberIndex]  #: indexes of the ranks of a job, in the order of their summaries
NO_INDEX = -1  #: in a column of indexes: there is none
NO_VALUE = -1  #: in a column of figures: not known; an arg of an annotation is left out
