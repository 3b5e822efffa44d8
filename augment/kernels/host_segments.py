"""The loop of ``derived/host_segments.py``, compiled."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int, store_int32


@compiled
def divide(ts: int, end: int, thread: int, when: int, place: int, stop: int, opened: int, count: int) -> int:
    """See :func:`augment.derived.host_segments._divided`; all but ``count`` are addresses of columns: of int64
    ones (``ts``, ``end``, ``when``, ``stop``) and int32 ones (``thread``, ``place``, ``opened``).

    What is written is overwritten by what comes at the same moment; ``opened`` is room for the stack.
    """
    made, depth, current = 0, 0, -1
    for i in range(count + 1):
        own = load_int32(thread + 4 * i) if i < count else -1
        start = load_int(ts + 8 * i) if i < count else 0
        while depth > 0:
            last = load_int32(opened + 4 * (depth - 1))
            moment = load_int(end + 8 * last)
            if own == current and moment > start:
                break
            depth -= 1
            if moment <= load_int(when + 8 * (made - 1)):
                made -= 1
                moment = load_int(when + 8 * made)
            store_int(when + 8 * made, moment)
            store_int32(place + 4 * made, load_int32(opened + 4 * (depth - 1)) if depth > 0 else -1)
            made += 1
        if own != current:
            if current >= 0:
                store_int(stop + 8 * current, made)
            current = own
        elif made > 0 and load_int(when + 8 * (made - 1)) == start:
            made -= 1
        if i < count:
            store_int(when + 8 * made, start)
            store_int32(place + 4 * made, i)
            made += 1
            store_int32(opened + 4 * depth, i)
            depth += 1
    return made
