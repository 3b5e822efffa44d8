"""The traces of a whole job: what they, and what is made of them, are called there and here."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import TypeVar

from augment.client.transfers import Moved, sent_name
from augment.errors import ServiceError
from augment.writers.files import stem

AT_ONCE = 8  #: traces that are sent, or artifacts that are fetched
_TOLD_EVERY_S = 0.1
#: the base names of files about a whole job
_OF_JOB = re.compile(r"(?:.+\.)?job(?:-\d+)?\.(?:metrics\.json|augmented\.pftrace)")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Names:
    """Names there, which any program can read and show, and here.

    Args:
        traces: the paths of the traces by their names below the folder of the job, with ``/``.
        out: the folder to write into.
        address: of the server, for errors.
        title: the name of the folder.
    """

    def __init__(self, traces: Mapping[str, str], out: Path, address: str, title: str = "") -> None:
        self._out, self._address = out, address
        self.title = _sent(title)
        self.there = {name: _sent(name) for name in traces}
        self._outputs: dict[tuple[str, str], str] = {}  # traces, by the folder and the stem of their outputs there
        self._folders = {"": out}
        for name, there in self.there.items():
            folder, _, base = there.rpartition("/")
            self._outputs[folder, stem(base)] = name
            parts = zip(PurePosixPath(name).parts[:-1], PurePosixPath(there).parts[:-1], strict=True)
            at, here = "", out
            for part, sent in parts:
                at, here = f"{at}/{sent}".lstrip("/"), here / part
                self._folders[at] = here

    def place(self, file_name: str) -> tuple[str | None, Path]:
        """The trace that an artifact is made of, None if it is about the job; and its path here.

        Raises:
            ServiceError: the server means another file, perhaps outside of the folder.
        """
        folder, slash, base = file_name.rpartition("/")
        known = folder in self._folders and bool(folder) == bool(slash) and "\\" not in base
        dots = [at for at, letter in enumerate(base) if letter == "."]
        for at in reversed(dots if known else ()):
            name = self._outputs.get((folder, base[:at]))
            if name is not None:
                return name, self._folders[folder] / (stem(name.rpartition("/")[2]) + base[at:])
        if known and _OF_JOB.fullmatch(base):
            return None, self._folders[folder] / base
        what = f"the server made a file called {file_name!r}, which is not of this job"
        raise ServiceError(f"{self._address}: {what}", "", "")


def _sent(name: str) -> str:
    return "/".join(map(sent_name, name.split("/")))


def all_of(
    items: Sequence[Item], sizes: Sequence[int], work: Callable[[Item, Moved], Answer], output: Moved
) -> list[Answer]:
    """What ``work`` gives of each of ``items``, several at once.

    Args:
        sizes: bytes of the items.
        work: called in threads, with an item and what it shall call when bytes have moved.
        told: called in this thread with how many bytes of all have moved, and of how many.

    Raises:
        Exception: the first that ``work`` raises; the rest is broken off, as on an interrupt.
    """
    moved = [0] * len(items)
    ended = threading.Event()

    def make_one(at: int) -> Answer:
        def count(done: int, _of: int) -> None:
            if ended.is_set():
                raise _Ended
            moved[at] = done

        count(0, 0)
        return work(items[at], count)

    threads = ThreadPoolExecutor(AT_ONCE)
    futures = [threads.submit(make_one, at) for at in range(len(items))]
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, _TOLD_EVERY_S)
            for future in done:
                future.result()
            output(sum(moved), sum(sizes))
    finally:
        ended.set()  # if some still run, they end when next something moves, or the connection is closed
        threads.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in futures]


class _Ended(Exception):
    """Another one has failed."""
