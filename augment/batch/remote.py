"""Converts many files through a server; results come in the order of the inputs, as in a local batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from augment.batch import locations
from augment.batch.convert import Report, Settings, delivered
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
    """Convert ``inputs``, ``jobs`` at once. On an interrupt the conversions under way are cancelled.

    Args:
        stage: called in this thread with an input and the current activity, if only one conversion runs at once.
        finished: called in this thread with each result.
    """
    if min(jobs, len(inputs)) > 1:
        results = _several(inputs, settings, client, jobs)
    else:
        results = (_one(item, settings, client, lambda what, item=item: stage(item, what)) for item in inputs)  # type: ignore[misc]
    for item, result in zip(inputs, results, strict=True):
        finished(item, result)
        yield result


def _one(item: Input, settings: Settings, client: Client, stage: Report) -> Result:
    """Convert ``item`` on the server and return the result. An error is a result, too; only an interrupt raises."""

    def work() -> Result:
        from augment.writers.seams import seams_of_files

        locations.expect_writable(item.folder)
        with locations.at_hand(item.path, item.folder, item.size) as (path, folder):
            augmented = client.augment(
                path,
                settings.request,
                summaries=bool(settings.stages),
                out=folder,
                progress=lambda what, done, of: stage(progress_text(what, done, of)),
            )
            source = augmented.metrics["source"]
            rank = source["ranks"][0] if source["ranks"] else None
            count = len(augmented.summaries)
            seams = [None] * count + seams_of_files(augmented.seams, augmented.files)
            files = delivered([*augmented.summaries, *augmented.files], item, seams)
            world = identify(path).world_size  # the sidecar does not contain it
            return Result(
                item.path,
                "augmented",
                files[count:],
                sha256=source["sha256"],
                rank=rank,
                world_size=world,
                summaries=files[:count],
                partial=source["partial"] or "",
            )

    return result_of(item, work)


def _several(inputs: Sequence[Input], settings: Settings, client: Client, jobs: int) -> Iterator[Result]:
    ended = threading.Event()

    def work(item: Input) -> Result:
        return _one(item, settings, client, lambda _: _go_on(ended))

    waiting, running = deque(inputs), deque[Future[Result]]()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(pool.submit(work, waiting.popleft()))
                yield running.popleft().result()
        except BaseException:
            ended.set()  # each conversion cancels its job at its next progress report
            wait(running, _FAREWELL_S)
            client.close()  # ends calls that still wait
            raise


class _Ended(BaseException):
    """The batch was interrupted: its results are no longer needed."""


def _go_on(ended: threading.Event) -> None:
    if ended.is_set():
        raise _Ended


def progress_text(what: str, done: int, of: int) -> str:
    """A client's progress as text."""
    return f"{what}, {100 * done // of} %" if of and what in ("sending", "fetching") else what
