"""Many files through a server; results come in the order of the inputs, as if they were converted here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from augment.batch import locations
from augment.batch.convert import Settings, Told, delivered
from augment.batch.inputs import Input
from augment.batch.peek import identify
from augment.batch.results import Result, result_of

if TYPE_CHECKING:
    from augment.client import Client

_FAREWELL_S = 2.0


def convert_remotely(
    inputs: Sequence[Input],
    settings: Settings,
    client: Client,
    jobs: int,
    stage: Callable[[Input, str], None],
    finished: Callable[[Input, Result], None],
) -> Iterator[Result]:
    """Convert ``inputs``, ``jobs`` at once. On an interrupt those under way are given up.

    Args:
        stage: told of an input what is being done, in this thread: only where one is under way at once.
        finished: told of each result, in this thread.
    """
    if min(jobs, len(inputs)) > 1:
        results = _several(inputs, settings, client, jobs)
    else:
        results = (_one(one, settings, client, lambda what, one=one: stage(one, what)) for one in inputs)  # type: ignore[misc]
    for one, result in zip(inputs, results, strict=True):
        finished(one, result)
        yield result


def _one(one: Input, settings: Settings, client: Client, stage: Told) -> Result:
    """Have ``one`` converted by the server. Never raises but for an interrupt: an error is a result, too."""

    def work() -> Result:
        from augment.writers.adding import of_files

        locations.expect_writable(one.folder)
        with locations.at_hand(one.path, one.folder, one.size) as (path, folder):
            augmented = client.augment(
                path,
                settings.request,
                summaries=bool(settings.stages),
                out=folder,
                progress=lambda what, done, of: stage(told(what, done, of)),
            )
            source = augmented.metrics["source"]
            rank = source["ranks"][0] if source["ranks"] else None
            count = len(augmented.summaries)
            seams = [None] * count + of_files(augmented.seams, augmented.files)
            files = delivered([*augmented.summaries, *augmented.files], one, seams)
            world = identify(path).world_size  # the sidecar does not tell
            return Result(
                one.path, "augmented", files[count:], sha256=source["sha256"], rank=rank, world_size=world,
                summaries=files[:count], partial=source["partial"] or "",
            )  # fmt: skip

    return result_of(one, work)


def _several(inputs: Sequence[Input], settings: Settings, client: Client, jobs: int) -> Iterator[Result]:
    ended = threading.Event()

    def work(one: Input) -> Result:
        return _one(one, settings, client, lambda _: _go_on(ended))

    waiting, running = deque(inputs), deque[Future[Result]]()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(pool.submit(work, waiting.popleft()))
                yield running.popleft().result()
        except BaseException:
            ended.set()  # each cancels its job as soon as it hears of it
            wait(running, _FAREWELL_S)
            client.close()  # calls that still wait end now
            raise


class _Ended(BaseException):
    """Nobody wants the result any more."""


def _go_on(ended: threading.Event) -> None:
    if ended.is_set():
        raise _Ended


def told(what: str, done: int, of: int) -> str:
    """What a client's progress tells, in words."""
    return f"{what}, {100 * done // of} %" if of and what in ("sending", "fetching") else what
