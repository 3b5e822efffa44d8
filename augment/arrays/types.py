"""The types of columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]  #: indexes into columns
EventRows = Int64s  #: indexes of events: rows of ``trace.events``
WorkIndexes = Places  #: indexes of GPU work: of the columns of ``gpu.work``
StackIndexes = Places  #: indexes of call stacks: of the columns of ``host.stacks``
NO_INDEX = -1  #: in a column of indexes: there is none
NO_VALUE = -1  #: in a column of figures: not known; an arg of an annotation is left out
