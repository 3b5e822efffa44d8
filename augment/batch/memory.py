"""How much memory there is, and how much a conversion will take."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from augment.batch import locations
from augment.batch.inputs import Input

BASE = 100 << 20  #: bytes of a process that has everything loaded
SHARE = 1.25  #: bytes of memory to a byte of text, at most (README, "What it costs")
USED = 0.8  #: of what is available
_WRAP = 1 << 32  #: gzip tells the length of a text modulo this


def available() -> int:
    """Bytes that can be taken without swapping: of the machine, and of the control group that we are in."""
    return min([_machine(), *_groups()])


def needed(one: Input) -> int:
    """Bytes that the conversion of ``one`` will take, about: told by its size, and by what its compression tells."""
    return BASE + int(SHARE * _text_bytes(one))


def _text_bytes(one: Input) -> int:
    from augment.readers.chrome import TYPICAL_RATIO
    from augment.readers.containers import GZIP, ZIP, ZSTD

    guess = TYPICAL_RATIO * one.size
    if locations.protocol(one.path):
        return one.size if one.basename.lower().endswith((".json", ".pftrace")) else guess
    if one.size < 18:  # nor is a pipe opened
        return one.size
    try:
        with open(one.path, "rb") as file:
            head = file.read(4)
            if head.startswith(GZIP):
                file.seek(-4, os.SEEK_END)
                return _unwrapped(int.from_bytes(file.read(4), "little"), one.size, guess)
    except OSError:  # whoever reads it says why
        return one.size
    return guess if head.startswith((ZSTD, *ZIP)) else one.size


def _unwrapped(told: int, size: int, guess: int) -> int:
    """The length of a gzip file's text, of which the file tells the last 32 bits; of several members, the last's."""
    if told < size and 4 * guess < _WRAP:
        return guess  # several members: traces hardly compress so badly
    return told + max(0, round((guess - told) / _WRAP)) * _WRAP


def _machine() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS does not tell so easily


def _groups() -> list[int]:
    """What is left below the limit of each control group around us, of version 2 or 1."""
    left = []
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
    return left


def _left(folder: Path, limit_name: str, usage_name: str) -> list[int]:
    try:
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
        told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit is "max", or there is no such file
        return []
    cache = int(told.get("total_inactive_file", told.get("inactive_file", 0)))  # is given up when asked for
    return [max(0, limit - usage + cache)]
