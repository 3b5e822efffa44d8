"""A whole batch: skip the inputs that the manifest lists as done, convert the rest, then draw job results.

Conversions run in this process, in worker processes, on a cluster, or on a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from augment.batch.convert import Report, Settings, convert
from augment.batch.inputs import Input, sweep
from augment.batch.results import Result

if TYPE_CHECKING:
    from augment.batch.job_tracks import Errand
    from augment.batch.manifest import Manifest
    from augment.batch.remote_job import Folder, RemoteJob
    from augment.batch.stage import Crew
    from augment.batch.workers import Task, Workers
    from augment.client import Client

WORKERS_FROM = 256 << 20  #: bytes of outputs; for less, starting workers takes longer than drawing

Finished = Callable[[Input, Result], None]
T = TypeVar("T")


class Manner(Struct, frozen=True):
    """How to run a batch; nothing here changes the outputs.

    ``jobs`` inputs are converted at once: by as many processes, by the server of ``client``, or on the Dask cluster of
    ``scheduler``. ``force`` converts inputs again that are done. ``shard`` distinguishes processes that share an output
    folder. ``merge``: a server that converts a whole folder writes the timeline of each job, too.
    """

    jobs: int = 1
    scheduler: str | None = None
    force: bool = False
    shard: str = ""
    client: Client | None = None
    merge: bool = False


class Watch(Struct):
    """Callbacks for progress: each finished input, warnings, and the current activity; and what a server concluded."""

    begun: Callable[[Sequence[Input]], None] = lambda _inputs: None
    finished: Finished = lambda _one, _result: None
    announce: Report = lambda _text: None
    stage: Callable[[Input, str], None] = lambda _one, _what: None
    progress: Report = lambda _what: None
    concluded: Callable[[RemoteJob], None] = lambda _job: None


class _Books(Struct):
    """The manifests of the inputs' folders, opened on first use."""

    settings: Settings
    manner: Manner
    open: dict[str, Manifest] = field(default_factory=dict)

    def of(self, item: Input) -> Manifest | None:
        if item.root is None:
            return None
        if item.root not in self.open:
            from augment.batch.manifest import Manifest

            self.open[item.root] = Manifest(item.root, self.settings, self.manner.shard)
        return self.open[item.root]

    def done(self, item: Input) -> Result | None:
        manifest = self.of(item)
        return None if manifest is None or self.manner.force else manifest.done(item)

    def record(self, item: Input, result: Result) -> None:
        manifest = self.of(item)
        if manifest is not None:
            manifest.record(item, result)

    def close(self) -> None:
        for manifest in self.open.values():
            manifest.close()


def run(inputs: Sequence[Input], settings: Settings, manner: Manner, watch: Watch) -> Iterator[Result]:
    """Convert ``inputs`` and yield the results in their order. Manifests record each result at once.

    Raises:
        OutputError: a manifest cannot be written, or another process writes to it; or the cluster does not answer.
        UsageError: a package that a URL or a cluster needs is not installed.
    """
    books = _Books(settings, manner)
    with contextlib.closing(books):
        before = [books.done(item) for item in inputs]
        to_do = [item for item, result in zip(inputs, before, strict=True) if result is None]
        sweep(to_do)
        watch.begun(to_do)

        def finished(item: Input, result: Result) -> None:
            books.record(item, result)
            watch.finished(item, result)

        folder = _whole_folder(to_do, settings, manner) if len(to_do) == len(inputs) else None
        if folder and manner.client:
            yield from _whole(folder, settings, manner.client, merge=manner.merge, watch=watch, finished=finished)
            return
        with contextlib.closing(_converted(to_do, settings, manner, watch, finished)) as results:
            for result in before:
                yield next(results) if result is None else result


def _whole_folder(inputs: Sequence[Input], settings: Settings, manner: Manner) -> Folder | None:
    """The folder of ``inputs`` if a server can do all of it as one job."""
    if not (manner.client and settings.stages) or manner.shard:
        return None
    from augment.batch.remote_job import Folder

    folder = Folder.of(inputs)
    return folder if folder and len(inputs) <= manner.client.most_job_inputs() else None


def _whole(
    folder: Folder, settings: Settings, client: Client, *, merge: bool, watch: Watch, finished: Finished
) -> Iterator[Result]:
    from augment.batch.remote_job import convert_folder

    job = convert_folder(folder, settings, client, merge=merge, stage=watch.progress)
    watch.concluded(job)
    for item, result in zip(folder.inputs, job.results, strict=True):
        finished(item, result)
        yield result


def draw(errands: Sequence[Errand], settings: Settings, manner: Manner, watch: Watch) -> Iterator[Result]:
    """Draw the tracks of ``errands`` and yield the results in their order. Manifests record each result at once.

    Raises:
        OutputError, UsageError: as for :func:`run`.
    """
    if not errands:
        return
    from augment.batch import job_tracks

    books, by_path = _Books(settings, manner), {errand.input.path: errand for errand in errands}
    inputs = [errand.input for errand in errands]

    def task_of(item: Input) -> Task:
        errand = by_path[item.path]
        return partial(job_tracks.draw, item, errand.before, errand.tracks(), errand.drawn)

    def finished(item: Input, result: Result) -> None:
        if result.status != "failed":  # a failed drawing leaves the previous output
            books.record(item, result)
        watch.finished(item, result)

    with contextlib.closing(books):
        sweep(inputs)
        few = sum(errand.size for errand in errands) < WORKERS_FROM
        workers = None if few else _workers(manner, len(inputs))
        with contextlib.closing(_worked(inputs, task_of, workers, finished)) as results:
            yield from results


def crew_of(manner: Manner) -> Crew:
    """Who reads the summaries of a large job: worker processes, or the cluster."""

    def crew(tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
        from augment.batch.pool import in_order, in_order_by_files
        from augment.batch.stage import alone

        workers = _workers(manner, len(tasks)) if len(tasks) > 1 else None
        if workers is None:
            return alone(tasks)
        return in_order(tasks, workers) if manner.scheduler else in_order_by_files(tasks, workers)

    return crew


def _converted(
    inputs: Sequence[Input], settings: Settings, manner: Manner, watch: Watch, finished: Finished
) -> Generator[Result, None, None]:
    if manner.client:
        from augment.batch.remote import convert_remotely

        yield from convert_remotely(inputs, settings, manner.client, manner.jobs, watch.stage, finished)
        return
    workers = _workers(manner, len(inputs))
    if workers:
        from augment.batch.workers import convert_apart

        def task_of(item: Input) -> Task:
            return partial(convert_apart, item, settings)
    else:

        def task_of(item: Input) -> Task:
            return lambda: convert(item, settings, watch.announce, lambda what: watch.stage(item, what))

    yield from _worked(inputs, task_of, workers, finished, limited=not manner.scheduler, bound=settings.memory)


def _workers(manner: Manner, count: int) -> Workers | None:
    """The workers for ``count`` tasks; None: this process."""
    if manner.scheduler and count:
        from augment.batch.cluster import Cluster

        return Cluster(manner.scheduler)
    if min(manner.jobs, count) > 1:
        from augment.batch.workers import Processes

        return Processes(min(manner.jobs, count))
    return None


def _worked(
    inputs: Sequence[Input],
    task_of: Callable[[Input], Task],
    workers: Workers | None,
    finished: Finished,
    *,
    limited: bool = False,
    bound: int | None = None,
) -> Generator[Result, None, None]:
    """The results of the tasks; ``limited``: run no more conversions at once than fit into memory, each in a bound."""
    if workers:
        from augment.batch import memory_limit
        from augment.batch.pool import work_through

        budget = int(memory_limit.USED * memory_limit.available()) if limited else 0
        yield from work_through(inputs, task_of, workers, finished, partial(memory_limit.needed, bound=bound), budget)
        return
    for item in inputs:
        result = task_of(item)()
        finished(item, result)
        yield result
