"""The loop of ``derived/call_stacks.py``, compiled: line by line the same."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int32


@compiled
def nest(ts: int, end: int, thread: int, parent: int, depth: int, stop: int, count: int) -> int:
    """See :func:`augment.derived.call_stacks._nest`; the first six are addresses of columns."""
    for i in range(count):
        store_int32(stop + 4 * i, count)
        start, own_end, own = load_int(ts + 8 * i), load_int(end + 8 * i), load_int32(thread + 4 * i)
        outer = i - 1
        while outer >= 0 and (
            load_int(end + 8 * outer) < own_end
            or load_int(end + 8 * outer) <= start
            or load_int32(thread + 4 * outer) != own
        ):
            store_int32(stop + 4 * outer, i)
            outer = load_int32(parent + 4 * outer)
        store_int32(parent + 4 * i, outer)
        store_int32(depth + 4 * i, 0 if outer < 0 else load_int32(depth + 4 * outer) + 1)
    return 0
