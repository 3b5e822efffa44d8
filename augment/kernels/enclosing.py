"""The loop of ``derived/enclosing.py``, compiled: line by line the same. Importing this module imports numba."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int32


@compiled
def around(end: int, thread: int, needed: int, own: int, where: int, opened: int, found: int, count: int) -> int:
    """See :func:`augment.derived.enclosing._around`; all but ``count`` are addresses of columns: of int64 ones
    (``end``, ``needed``, ``where``) and int32 ones (``thread``, ``own``, ``opened``, ``found``)."""
    depth, passed = 0, 0
    for i in range(count):
        least, stop = load_int(needed + 8 * i), load_int(where + 8 * i)
        while passed < stop:
            mine, track = load_int(end + 8 * passed), load_int32(thread + 4 * passed)
            while depth > 0:
                last = load_int32(opened + 4 * (depth - 1))
                if load_int(end + 8 * last) >= mine and load_int32(thread + 4 * last) == track:
                    break
                depth -= 1
            store_int32(opened + 4 * depth, passed)
            depth += 1
            passed += 1
        low, high = 0, depth
        while low < high:
            middle = (low + high) // 2
            if load_int(end + 8 * load_int32(opened + 4 * middle)) >= least:
                low = middle + 1
            else:
                high = middle
        which = load_int32(opened + 4 * (low - 1)) if low > 0 else -1
        if which >= 0 and load_int32(thread + 4 * which) != load_int32(own + 4 * i):
            which = -1
        store_int32(found + 4 * i, which)
    return 0
