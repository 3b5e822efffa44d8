"""Threads that share the work on one trace, and what else a process may use: CPUs and memory. Results never depend on
them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


class Threads:
    """At most ``count`` threads, of which the calling one is the first. Others live while there is work for them.

    Calls may make further calls side by side: these go first. A thread that waits for its calls takes only those, so
    it never takes one that needs a lock held further up in its own stack.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = max(count, 1)
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._helpers = 0
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[type[Threads], tuple[()]]:
        return Threads, ()

    def all(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of ``calls``, which run side by side, begun in their order.

        Raises: the error of the first call that raised one; then calls that have not begun are left out.
        """
        if self.count < 2 or len(calls) < 2:
            return [call() for call in calls]
        made = [_Call(call) for call in calls]
        with self._changed:
            self._waiting.extendleft(reversed(made))
            for _ in range(min(self.count - 1 - self._helpers, len(self._waiting))):
                self._helpers += 1
                threading.Thread(target=self._help, name="augment-helper", daemon=True).start()
        try:
            self._take_part(made)
        finally:
            # forget the calls that have not begun, and wait for the others
            with self._changed:
                for call in [call for call in self._waiting if call in made]:
                    self._waiting.remove(call)
                    call.ended = True
                while not all(call.ended for call in made):
                    self._changed.wait()
        for call in made:
            if call.error is not None:
                raise call.error
        return [cast("Result", call.result) for call in made]

    def _help(self) -> None:
        self._of_thread.depth = 1
        while True:
            with self._changed:
                if not self._waiting:
                    self._helpers -= 1
                    return
                call = self._waiting.popleft()
            self._run(call)

    def _take_part(self, made: list[_Call]) -> None:
        """Run those of the calls ``made`` that no other thread takes, and wait for the rest. A thread outside of any
        call takes others', too.
        """
        depth = getattr(self._of_thread, "depth", 0)
        while True:
            with self._changed:
                while not (call := self._next(made, depth)):
                    if all(each.ended for each in made) or any(each.error for each in made):
                        return
                    self._changed.wait()
            self._of_thread.depth = depth + 1
            try:
                self._run(call)
            finally:
                self._of_thread.depth = depth

    def _next(self, made: list[_Call], depth: int) -> _Call | None:
        if not self._waiting or any(call.error for call in made):
            return None
        call = next((call for call in self._waiting if depth == 0 or call in made), None)
        if call:
            self._waiting.remove(call)
        return call

    def _run(self, call: _Call) -> None:
        try:
            call.result = call.function()
        except BaseException as error:  # raised again by the thread that waits for it
            call.error = error
        finally:
            call.function = None  # may hold memory
            with self._changed:
                call.ended = True
                self._changed.notify_all()


class _Call:
    """A call that waits, runs, or has ended with a result or an error."""

    __slots__ = ("ended", "error", "function", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function: Any = function
        self.result: Any = None
        self.ended = False
        self.error: BaseException | None = None


ALONE = Threads()  #: no others


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  #: of glibc's mallopt
_LARGE = 4 << 20  #: bytes, from which on an array has pages of its own
MOST_THREADS = 4  #: default per file: more need more memory, and cannot shorten the longest chain of derived facts


def processors() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def allow_files(count: int) -> int:
    """Raise the limit of open files to ``count``, as far as the system allows; returns the limit that then holds."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and now < count:
        wanted = count if most == resource.RLIM_INFINITY else min(most, count)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if now == resource.RLIM_INFINITY else now


def keep_freed_memory() -> None:
    """Make malloc serve arrays from memory that any thread freed before; with glibc only. This is for programs: the
    library never does it by itself.

    By default glibc returns the end of its memory when that is freed, and threads do not share what is free. Only large
    arrays are returned when they are freed: between others they would leave holes, a tenth of the memory of a large
    trace. The system clears their pages each time that they are taken, 1 % of the CPU time.
    """
    settings = (_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20)
    for setting, value in settings:
        _mallopt(setting, value)


def share_freed_memory() -> None:
    """Make malloc of all threads share what any of them freed, but for large arrays; with glibc only. For programs with
    many threads that live long: each would keep the most that it ever needed.
    """
    _mallopt(_ARENA_MAX, 2)


def _mallopt(setting: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(setting, value)
