"""Where in the user's program something was called from."""

from __future__ import annotations

from collections import Counter

from augment.arrays.types import Int64s
from augment.derived.host.enclosing import innermost
from augment.derived.names.matching import strings_where
from augment.diagnosis.wording import short
from augment.trace import Category, Trace

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
