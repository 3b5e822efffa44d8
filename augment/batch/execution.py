"""The execution traces that lie beside the traces of a batch: which is whose, and whether it is still the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.trace import Trace

RANK = "{rank}"  #: stands for the rank in the path of an execution trace


def path_of(named: str, rank: int | None) -> str:
    """The execution trace of ``rank``."""
    return named.replace(RANK, str(rank))


def state_of(named: str | None, rank: int | None) -> str:
    """Changes when the execution trace of ``rank`` does; empty without one."""
    if not named:
        return ""
    try:
        found = os.stat(path_of(named, rank))
    except OSError:  # whoever reads it says why
        return ""
    return f"{found.st_size}:{found.st_mtime_ns}"


def lacking(named: str, trace: Trace) -> str:
    """That there is no execution trace for the rank of ``trace``, in a sentence; empty if there is, or must be, one."""
    path = path_of(named, trace.rank)
    if RANK not in named or os.path.exists(path):
        return ""
    return f"{trace.source.name}: goes without an execution trace: there is no {path}"


def executed(trace: Trace, named: str | None) -> Trace:
    """``trace`` and the nodes of its rank's execution trace, if there is one.

    Raises:
        AugmentError: the file cannot be used.
    """
    from augment.execution_trace import with_execution_trace

    return with_execution_trace(trace, path_of(named, trace.rank)) if named and not lacking(named, trace) else trace
