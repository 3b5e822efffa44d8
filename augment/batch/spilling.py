"""Keeps the arrays of a conversion within a bound of memory: what exceeds it lies in files, mapped into memory.

numpy requests the memory of its arrays from a handler (NEP 49), and :func:`spilled` installs one. When the process
comes near the bound, the oldest large arrays are written to deleted files in a folder, and these files take their place
at the same addresses: the system reads pages again when they are next used. So figures cannot depend on the bound.
Deleted files vanish with the process, however it ends.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import ctypes
import mmap
import os
import shutil
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from augment.errors import OutputError, UsageError

LEAST_BOUND = 512 << 20  #: bytes: what a process needs beside large arrays
LEAST_ARRAY = 1 << 20  #: bytes; smaller arrays are never spilled
_FULL, _EASED = 0.8, 0.5  #: of the bound: arrays are spilled from the first on, down to the second
_KEPT = 0.15  #: of the bound: freed memory that is kept for the next arrays, as the system clears what it gives
_BLOCK = 1 << 20  #: bytes that are written at once
_WATCHED_S = 0.02
_SMALL_ONES = 16  #: small arrays between two looks at the memory in use
_IN_MEMORY = ("tmpfs", "ramfs")
_SET_HANDLER = 304  #: the place of PyDataMem_SetHandler in numpy's table of functions, the same since 1.22
_LEAST_HUGE = 1 << 22  #: bytes of arrays for which large pages are requested, as numpy does
_DONT_NEED, _HUGE_PAGES, _FIXED = 4, 14, 0x10  #: MADV_DONTNEED, MADV_HUGEPAGE and MAP_FIXED of Linux


@contextlib.contextmanager
def spilled(bound: int, folder: Path) -> Iterator[Callable[[], None]]:
    """Keep this process below ``bound`` bytes while the block runs, by files in ``folder``. The block gets a function
    to call now and then: if no more files can be made, the bound does not hold, and it raises an error.

    This holds for the arrays that this thread makes: no other may write to them. One block runs at a time in a process.

    Raises:
        OutputError: the folder lies in memory itself, or its disk has less room than ``bound``, or is full later.
    """
    expect_disk(folder, bound)
    with _memory().bounded(bound, folder) as expect_room:
        yield expect_room


def expect_possible(bound: int) -> None:
    """Refuse a bound that cannot be kept.

    Raises:
        UsageError: it is too low, or the system is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError("--memory: needs Linux; elsewhere, convert fewer files at once (--jobs)")
    if bound < LEAST_BOUND:
        raise UsageError(f"--memory: each process needs at least {LEAST_BOUND >> 20}M, so use more, or fewer --jobs")


def expect_disk(folder: Path, room: int) -> None:
    """Refuse a folder for files of arrays.

    Raises:
        OutputError: it lies in memory itself, or its disk has less room.
    """
    device = os.stat(folder).st_dev
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == f"{os.major(device)}:{os.minor(device)}" and after.split()[0] in _IN_MEMORY:
                raise OutputError(f"{folder}: lies in memory, so --memory cannot put arrays there; write to a disk")
    if shutil.disk_usage(folder).free < room:
        raise OutputError(f"{folder}: --memory needs {room >> 20} MB of free disk there for arrays")


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class _Handler(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


class _Memory:
    """A handler of numpy's arrays. There is one for a process: arrays refer to it until they are freed."""

    def __init__(self) -> None:
        self._c = ctypes.PyDLL(None, use_errno=True)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, *arguments in (
            ("malloc", pointer, size),
            ("calloc", pointer, size, size),
            ("realloc", pointer, pointer, size),
            ("free", None, pointer),
            ("malloc_usable_size", size, pointer),
            ("mmap", pointer, pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
            ("munmap", ctypes.c_int, pointer, size),
            ("memcmp", ctypes.c_int, pointer, pointer, size),
            ("madvise", ctypes.c_int, pointer, size, ctypes.c_int),
        ):
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        self._arrays: OrderedDict[int, int] = OrderedDict()  #: the length by address, the longest in memory first
        self._files: set[int] = set()  #: those that lie in files
        self._kept: list[tuple[int, int]] = []  #: length and address of memory that was freed, ascending
        self._easing, self._freed = False, list[int]()  #: what to free afterwards
        self._lock = threading.RLock()
        self._small = 0
        self._one = threading.Lock()
        self._bound, self._folder = 0, ""
        self._failure: OSError | None = None  #: why no file could be made
        self._zeros = bytes(_BLOCK)
        self._capsule = self._made()
        atexit.register(self._retire)

    def _made(self) -> Any:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        functions: tuple[tuple[Callable[..., Any], Any], ...] = (
            (self._malloc, ctypes.PYFUNCTYPE(pointer, pointer, size)),
            (self._calloc, ctypes.PYFUNCTYPE(pointer, pointer, size, size)),
            (self._realloc, ctypes.PYFUNCTYPE(pointer, pointer, pointer, size)),
            (self._free, ctypes.PYFUNCTYPE(None, pointer, pointer, size)),
        )
        self._functions = [kind(function) for function, kind in functions]  # ctypes does not keep them
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in self._functions)
        self._handler = _Handler(b"augment: bounded", 1, _Allocator(None, *addresses))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return capsule(ctypes.addressof(self._handler), b"mem_handler", None)

    def _retire(self) -> None:
        """Leave the arrays that are still there to the system: Python's functions end before they do."""
        self._handler.allocator.free = ctypes.cast(self._c.getpid, ctypes.c_void_p).value  # ignores its arguments

    @contextlib.contextmanager
    def bounded(self, bound: int, folder: Path) -> Iterator[Callable[[], None]]:
        """See :func:`spilled`."""
        with self._one:
            self._bound, self._folder, self._failure = bound, str(folder), None
            ended = threading.Event()
            watch = threading.Thread(target=self._watch, args=(ended,), daemon=True)
            watch.start()
            before = _set_handler()(self._capsule)
            try:
                yield self._expect_room
                self._expect_room()
            finally:
                _set_handler()(before)
                ended.set()
                watch.join()
                self._bound = 0
                with self._lock:
                    self._give_back()

    def _expect_room(self) -> None:
        if self._failure is not None:
            why = f"--memory cannot put arrays there: {self._failure.strerror}"
            raise OutputError(f"{self._folder}: {why}; free some room, or allow more memory") from self._failure

    def _watch(self, ended: threading.Event) -> None:
        """What lies in files is read again without any request for memory, so look regularly, too."""
        while not ended.wait(_WATCHED_S):
            self._expect(0, in_files=True)

    def _expect(self, size: int, *, in_files: bool = False) -> None:
        """Spill arrays, or only those that lie in files, if the process would otherwise come near the bound by ``size``
        more.
        """
        with self._lock:
            if self._easing:
                return  # this thread makes a file, which takes memory, too
            self._easing = True
            try:
                self._ease(size, self._files if in_files else self._arrays)
            finally:
                self._easing = False
            while self._freed:
                self._free(None, self._freed.pop(), 0)

    def _ease(self, size: int, chosen: Container[int]) -> None:
        """Spill ``chosen`` arrays: the oldest first, then those that were spilled longest ago."""
        if self._failure or not self._bound or _resident() + size <= _FULL * self._bound:
            return
        self._give_back()
        if _resident() + size <= _FULL * self._bound:
            return
        for address, length in list(self._arrays.items()):
            if address not in chosen:
                continue
            if address in self._files:
                self._c.madvise(address, length, _DONT_NEED)
            else:
                try:
                    self._spill(address, length)
                except OSError as error:  # to raise it here, within numpy's functions, could not be relied on
                    self._failure = error
                    return
            self._arrays.move_to_end(address)
            if _resident() + size < _EASED * self._bound:
                return

    def _spill(self, address: int, length: int) -> None:
        """Put a file in the place of an array."""
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, length)  # a write to memory without room on the disk ends the process
            for start in range(0, length, _BLOCK):
                size = min(_BLOCK, length - start)
                if self._c.memcmp(address + start, self._zeros, size):
                    _write(file.fileno(), address, start, size)
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            made = self._c.mmap(address, length, protection, mmap.MAP_SHARED | _FIXED, file.fileno(), 0)
        if made == address:
            self._files.add(address)

    def _give_back(self) -> None:
        """Return memory that was kept to the system."""
        while self._kept:
            length, address = self._kept.pop()
            self._c.munmap(address, length)

    def _again(self, length: int) -> int:
        """The address of ``length`` bytes that were kept, or 0. Of a longer piece, the rest stays kept."""
        with self._lock:
            place = bisect.bisect_left(self._kept, (length, 0))
            if self._easing or place == len(self._kept):
                return 0
            kept, address = self._kept.pop(place)
            if kept < length:  # the garbage collector ran in between, and put what it freed in this place
                bisect.insort(self._kept, (kept, address))
                return 0
            if kept > length:
                bisect.insort(self._kept, (kept - length, address + length))
            self._arrays[address] = length
            return address

    def _large(self, size: int, *, zeros: bool = False) -> int:
        """The address of at least ``size`` bytes, or 0."""
        length = _rounded(size)
        self._expect(0)
        if address := self._again(length):
            if zeros:
                ctypes.memset(address, 0, length)
            return address
        self._expect(2 * length if self._files else length)  # as much may be read from files to fill it
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._c.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return 0
        if length >= _LEAST_HUGE:
            self._c.madvise(address, length, _HUGE_PAGES)
        self._arrays[address] = length
        return int(address)

    def _malloc(self, _: Any, size: int) -> Any:
        if size >= LEAST_ARRAY:
            return self._large(size)
        self._small += 1
        if self._small == _SMALL_ONES:
            self._small = 0
            self._expect(0)
        return self._c.malloc(size)

    def _calloc(self, _: Any, count: int, size: int) -> Any:
        return self._large(count * size, zeros=True) if count * size >= LEAST_ARRAY else self._c.calloc(count, size)

    def _realloc(self, _: Any, address: int, size: int) -> Any:
        length = self._arrays.get(address)
        if length is None and size < LEAST_ARRAY:
            return self._c.realloc(address, size)
        if length and 0 < size <= length:
            if (left := _rounded(size)) < length:
                with self._lock:
                    self._arrays[address] = left
                    self._c.munmap(address + left, length - left)
            return address
        moved = self._malloc(None, size)
        if moved:
            ctypes.memmove(moved, address, min(size, length or self._c.malloc_usable_size(address)))
            self._free(None, address, 0)
        return moved

    def _free(self, _: Any, address: int, __: int) -> None:
        if address not in self._arrays:
            self._c.free(address)
        elif self._easing:
            self._freed.append(address)  # the garbage collector can run at any time
        else:
            with self._lock:
                # Keep memory that an array in memory has freed, or return it to the system
                length = self._arrays.pop(address)
                if address in self._files or sum(kept for kept, _ in self._kept) + length > _KEPT * self._bound:
                    self._files.discard(address)
                    self._c.munmap(address, length)
                else:
                    bisect.insort(self._kept, (length, address))


def _rounded(size: int) -> int:
    """``size`` in whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _write(file: int, address: int, start: int, size: int) -> None:
    """Write ``size`` bytes from ``start`` on of what lies at ``address`` to the same place of a file."""
    end = start + size
    while start < end:
        start += os.pwrite(file, (ctypes.c_char * (end - start)).from_address(address + start), start)


_known: list[_Memory] = []


def _memory() -> _Memory:
    if not _known:
        _known.append(_Memory())
    return _known[0]


def _set_handler() -> Callable[[Any], Any]:
    """numpy's function that replaces the handler of this thread and returns the one before."""
    try:
        table = import_module("numpy._core._multiarray_umath")
    except ImportError:  # numpy 1
        table = import_module("numpy.core._multiarray_umath")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    functions = ctypes.cast(pointer(table._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])


def _resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
