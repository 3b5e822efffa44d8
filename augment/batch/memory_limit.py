"""How much memory is available, and how much a conversion needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from augment.batch import locations
from augment.batch.inputs import Input

BASE = 100 << 20  #: bytes of a process with all modules loaded
SHARE = 1.0  #: most bytes of memory per byte of text: of recorded and simulated traces it was 0.4 to 0.8
USED = 0.8  #: usable part of the available memory
_WRAP = 1 << 32  #: gzip stores the length of a text modulo this


def available() -> int:
    """Bytes available without swapping, on the machine and within our control groups, of version 2 or 1."""
    left = [_machine()]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
            names = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
            )
            inner = top / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder == top.parent:
                    break
                left += _left(folder, *names)
    return min(left)


def needed(item: Input, bound: int | None = None) -> int:
    """Estimated memory of one conversion, from the file's size and compression ratio; at most its ``bound``."""
    estimate = BASE + int(SHARE * _text_bytes(item))
    return estimate if bound is None else min(estimate, bound)


def bound_for(items: Iterable[Input], bound: int | None) -> int | None:
    """``bound``, if the traces may need more when all are in memory at once; else None: nothing need be done."""
    return bound if bound is not None and needed_together(items) > bound else None


def needed_together(items: Iterable[Input]) -> int:
    """Estimated memory of a process that has all these traces in memory at once."""
    return BASE + sum(needed(item) - BASE for item in items)


def expect_possible(bound: int | None) -> None:
    """Refuse a bound that cannot be kept: see ``spilling.expect_possible``."""
    if bound is not None:
        from augment.batch.spilling import expect_possible

        expect_possible(bound)


def bounded(bound: int | None, folder: Path) -> AbstractContextManager[Callable[[], None]]:
    """Keeps this process below ``bound`` bytes by files in ``folder``, or in the first folder above that exists: see
    ``spilling.spilled``. Without a bound, nothing is done.
    """
    if bound is None:
        return contextlib.nullcontext(lambda: None)
    from augment.batch.spilling import spilled

    absolute = folder.absolute()
    return spilled(bound, next(each for each in (absolute, *absolute.parents) if each.is_dir()))


def _text_bytes(item: Input) -> int:
    from augment.readers.chrome import TYPICAL_RATIO
    from augment.readers.containers import GZIP, ZIP, ZSTD

    guess = TYPICAL_RATIO * item.size
    if locations.protocol(item.path):
        return item.size if item.basename.lower().endswith((".json", ".pftrace")) else guess
    if item.size < 18:  # too short for gzip; pipes are not opened either
        return item.size
    try:
        with open(item.path, "rb") as file:
            head = file.read(4)
            if head.startswith(GZIP):
                file.seek(-4, os.SEEK_END)
                return _unwrapped(int.from_bytes(file.read(4), "little"), item.size, guess)
    except OSError:  # the reader reports it
        return item.size
    return guess if head.startswith((ZSTD, *ZIP)) else item.size


def _unwrapped(low_bits: int, size: int, guess: int) -> int:
    """The length of a gzip file's text, of which the file stores the last 32 bits, those of its last member."""
    if low_bits < size and 4 * guess < _WRAP:
        return guess  # several members: traces rarely compress so badly
    return low_bits + max(0, round((guess - low_bits) / _WRAP)) * _WRAP


def _machine() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS has no simple query


def _left(folder: Path, limit_name: str, usage_name: str) -> list[int]:
    try:
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # the limit is "max", or the file does not exist
        return []
    cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    cache = int(cached)  # the kernel frees it on demand
    return [max(0, limit - usage + cache)]
