"""Traces of the capture of CUDA graphs, attached to traces of their replay.

::

    trace = augment.with_graph_capture(augment.read("decode.json.gz"), "capture_bs32.json.gz")
    augment.write(augment.augment(trace))  # operators of graphs' kernels have shapes, operations and roofs
"""

from __future__ import annotations

import os

from augment.core.attachments import GraphCapture
from augment.core.trace import Trace
from augment.readers import read

__all__ = ["with_graph_capture"]


def with_graph_capture(trace: Trace, path: str | os.PathLike[str]) -> Trace:
    """``trace`` with the recording at ``path`` of the capture of its graphs.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not a trace.
    """
    return trace.changed(GraphCapture(read(os.fspath(path))))
