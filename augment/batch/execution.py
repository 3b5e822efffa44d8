"""A whole run: what a manifest says is done is skipped, the rest is converted here, in processes or on a cluster.

And then, when the jobs are known, drawn in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from augment.batch import job_tracks
from augment.batch.convert import Settings, Told, convert
from augment.batch.inputs import Input, sweep
from augment.batch.manifest import Manifest
from augment.batch.results import Result

if TYPE_CHECKING:
    from augment.batch.job_tracks import Errand
    from augment.batch.workers import Task, Workers
    from augment.client import Client

WORKERS_FROM = 256 << 20  #: bytes of outputs; fewer are drawn in sooner than workers are there

Finished = Callable[[Input, Result], None]


@dataclass(frozen=True)
class Manner:
    """How to convert many inputs, which changes nothing of the outcome.

    ``jobs`` inputs at once, in as many processes or, if there is a ``client``, under way to its server; or on the Dask
    cluster of ``scheduler``. ``force``: also what is done. ``shard`` distinguishes processes that share an output
    folder.
    """

    jobs: int = 1
    scheduler: str | None = None
    force: bool = False
    shard: str = ""
    client: Client | None = None


@dataclass
class Watch:
    """Who is told how it goes: of each input that is finished, of what takes long, of what is being done."""

    begun: Callable[[Sequence[Input]], None] = lambda _inputs: None
    finished: Finished = lambda _one, _result: None
    announce: Told = lambda _text: None
    stage: Callable[[Input, str], None] = lambda _one, _what: None


@dataclass
class _Books:
    """The manifests of the inputs' folders, opened when first asked for."""

    settings: Settings
    manner: Manner
    open: dict[str, Manifest] = field(default_factory=dict)

    def of(self, one: Input) -> Manifest | None:
        if one.root is None:
            return None
        if one.root not in self.open:
            self.open[one.root] = Manifest(one.root, self.settings, self.manner.shard)
        return self.open[one.root]

    def done(self, one: Input) -> Result | None:
        manifest = self.of(one)
        return None if manifest is None or self.manner.force else manifest.done(one)

    def record(self, one: Input, result: Result) -> None:
        manifest = self.of(one)
        if manifest is not None:
            manifest.record(one, result)

    def close(self) -> None:
        for manifest in self.open.values():
            manifest.close()


def run(inputs: Sequence[Input], settings: Settings, manner: Manner, watch: Watch) -> Iterator[Result]:
    """Convert ``inputs``; the results in their order. Of each that is finished, its folder's manifest tells at once.

    Raises:
        OutputError: a manifest cannot be written, or another process writes to it; the cluster is not there.
        UsageError: something that a URL or a cluster needs is not installed.
    """
    books = _Books(settings, manner)
    with contextlib.closing(books):
        before = [books.done(one) for one in inputs]
        to_do = [one for one, result in zip(inputs, before, strict=True) if result is None]
        sweep(to_do)
        watch.begun(to_do)

        def finished(one: Input, result: Result) -> None:
            books.record(one, result)
            watch.finished(one, result)

        with contextlib.closing(_converted(to_do, settings, manner, watch, finished)) as results:
            for result in before:
                yield next(results) if result is None else result


def draw(errands: Sequence[Errand], settings: Settings, manner: Manner, watch: Watch) -> Iterator[Result]:
    """Run ``errands``; the results in their order. The manifests tell of each as of a conversion.

    Raises:
        OutputError, UsageError: as :func:`run`.
    """
    if not errands:
        return
    books, by_path = _Books(settings, manner), {one.input.path: one for one in errands}
    inputs = [one.input for one in errands]

    def task_of(one: Input) -> Task:
        errand = by_path[one.path]
        return partial(job_tracks.draw, one, errand.before, errand.tracks(), errand.drawn)

    def finished(one: Input, result: Result) -> None:
        if result.status != "failed":  # else what was there before is
            books.record(one, result)
        watch.finished(one, result)

    with contextlib.closing(books):
        sweep(inputs)
        few = sum(one.size for one in errands) < WORKERS_FROM
        workers = None if few else _workers(manner, len(inputs))
        with contextlib.closing(_worked(inputs, task_of, workers, finished)) as results:
            yield from results


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

        def task_of(one: Input) -> Task:
            return partial(convert_apart, one, settings)
    else:

        def task_of(one: Input) -> Task:
            return lambda: convert(one, settings, watch.announce, lambda what: watch.stage(one, what))

    yield from _worked(inputs, task_of, workers, finished, limited=not manner.scheduler)


def _workers(manner: Manner, count: int) -> Workers | None:
    """Who does so many tasks; None: this process."""
    if manner.scheduler and count:
        from augment.batch.cluster import Cluster

        return Cluster(manner.scheduler)
    if min(manner.jobs, count) > 1:
        from augment.batch.workers import Processes

        return Processes(min(manner.jobs, count))
    return None


def _worked(
    inputs: Sequence[Input], task_of: Callable[[Input], Task], workers: Workers | None, finished: Finished,
    *, limited: bool = False,
) -> Generator[Result, None, None]:  # fmt: skip
    """The results of the tasks; ``limited``: no more at once than conversions of the inputs fit into memory."""
    if workers:
        from augment.batch import memory
        from augment.batch.pool import work_through

        budget = int(memory.USED * memory.available()) if limited else 0
        yield from work_through(inputs, task_of, workers, finished, memory.needed, budget)
        return
    for one in inputs:
        result = task_of(one)()
        finished(one, result)
        yield result
