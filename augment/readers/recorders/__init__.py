"""What other recorders wrote: Nsight Systems' exports, SQLite and Parquet, and rocprofv3's tables, rocpd and CSV.

:mod:`~augment.readers.recorders.converting` takes the bytes of such a file and gives the text that Kineto would have
written, as if the file were compressed. So all that reads, cuts, augments and writes Kineto's traces takes these, too.
The readers here know that text by its first member, ``recorder``; the rest is Chrome JSON.
"""

from __future__ import annotations

from msgspec.structs import replace

from augment.core import Diagnostic, Trace
from augment.readers import chrome, containers
from augment.readers.recorders.kineto_text import NOTES, NSIGHT_SYSTEMS, ROCPROFV3

_MESSAGES = {
    "unread_rows": "rows of tables whose cells are not what they should be; left out",
    "whole_graphs": "launches of graphs were recorded as a whole: gaps between their kernels, which are unknown, count"
    " as busy; nsys profile --cuda-graph-trace=node records them",
}


class RecorderReader:
    """The reader of what one recorder wrote."""

    def __init__(self, name: str, recorder: str, suffixes: tuple[str, ...], of: str) -> None:
        self.NAME, self.SUFFIXES, self.__doc__ = name, suffixes, of
        self._begins = f'{{"recorder": {{"name": "{recorder}"'.encode()

    def recognizes(self, head: bytes) -> bool:
        """Whether ``head`` begins a text that was made of this recorder's file."""
        return head.startswith(self._begins)

    def layout(self, head: bytes) -> str:  # noqa: ARG002 - the interface of all readers
        """The layout, which is always tables."""
        return "tables"

    def read(self, path: str, text: containers.OpenText, head: bytes) -> Trace:
        """The trace in ``text``. The bytes in ``head`` were already read from it.

        Raises:
            MalformedTrace: the text is broken.
            LimitExceeded: it is larger than the limits allow.
        """
        trace = chrome.read(path, text, head)
        counts = trace.source.metadata.get(NOTES)
        notes = [
            Diagnostic(code, counts[code], message)
            for code, message in _MESSAGES.items()
            if isinstance(counts, dict) and isinstance(counts.get(code), int)
        ]
        return replace(trace, source=replace(trace.source, format=self.NAME), diagnostics=(*trace.diagnostics, *notes))


NSIGHT = RecorderReader(
    "nsight_systems",
    NSIGHT_SYSTEMS,
    (".sqlite", "stringids.parquet"),
    "What ``nsys export`` writes of Nsight Systems' reports: SQLite, or a folder of Parquet files.",
)
ROCPROF = RecorderReader(
    "rocprofv3",
    ROCPROFV3,
    ("_results.db", "_kernel_trace.csv"),
    "What rocprofv3 writes: rocpd databases and CSV files.",
)
