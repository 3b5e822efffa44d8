"""The names of a whole job's traces and artifacts on the server, and their paths here."""

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

AT_ONCE = 8  #: traces sent, or artifacts fetched, in parallel
_TOLD_EVERY_S = 0.1
#: base names of files of a whole job
_OF_JOB = re.compile(r"(?:.+\.)?job(?:-\d+)?\.(?:metrics\.json|augmented\.pftrace)")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Names:
    """Maps names on the server, free of refused characters, to local paths.

    Args:
        traces: the paths of the traces by their names relative to the job's folder, with ``/``.
        out: the output folder.
        address: the server's address, for errors.
        title: the name of the folder.
    """

    def __init__(self, traces: Mapping[str, str], out: Path, address: str, title: str = "") -> None:
        self._out, self._address = out, address
        self.title = _sent(title)
        self.there = {name: _sent(name) for name in traces}
        self._outputs: dict[tuple[str, str], str] = {}  # traces by folder and STEM of their outputs on the server
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
        """The trace that an artifact belongs to (None: the job), and its local path.

        Raises:
            ServiceError: the artifact belongs to no trace of the job, or lies outside of the folder.
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
    """The results of ``work`` for all ``items``, several in parallel.

    Args:
        sizes: the sizes of the items, bytes.
        work: called in threads with an item and a callback for its progress in bytes.
        output: called in this thread with the bytes transferred of all items, and their total.

    Raises:
        Exception: the first that ``work`` raises; it ends the other items, as an interrupt does.
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
        ended.set()  # running ones end at their next progress, or when the connection is closed
        threads.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in futures]


class _Ended(Exception):
    """Another item has failed."""
