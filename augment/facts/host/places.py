"""Where in the user's program something was called from."""

from __future__ import annotations

from collections import Counter

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.core.text import short
from augment.core.trace import Category, Trace
from augment.facts.host.enclosing import innermost, outermost
from augment.facts.names.matching import STEP, starting, strings_where

#: frames of libraries: not what the user would change
_LIBRARIES = ("torch/", "<", "nn.Module", "contextlib.py", "threading.py", "importlib", "site-packages")


def python_lines(trace: Trace, rows: Int64s) -> list[str]:
    """The innermost frames of the user's own program around ``rows``, the most frequent first; none without stacks."""
    rows = rows[rows >= 0]
    is_users = strings_where(trace, _is_theirs)
    frames = innermost(trace, rows, (Category.PYTHON_FUNCTION,), is_users)
    frames = frames[frames >= 0]
    return [short(name) for name, _ in Counter(trace.names_of(frames)).most_common()]


def _is_theirs(name: str) -> bool:
    return not any(name.startswith(library) or f"/{library}" in name for library in _LIBRARIES)


def callers(trace: Trace, calls: Int64s) -> list[str]:
    """What waits, by the outermost operator around each of ``calls``, else by the call; the longest first."""
    around = outermost(trace, calls, (Category.CPU_OP,), _no_step(trace))
    inner = innermost(trace, calls, (Category.USER_ANNOTATION,), _no_step(trace))
    named = np.where(around >= 0, around, np.where(inner >= 0, inner, calls))
    spent: Counter[str] = Counter()
    for name, ns in zip(trace.names_of(named), trace.events.dur[calls].tolist(), strict=True):
        spent[short(name)] += ns
    return [name for name, _ in spent.most_common()]


def _no_step(trace: Trace) -> Bools:
    return ~starting(trace, STEP)
