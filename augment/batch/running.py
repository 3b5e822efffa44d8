"""A whole run: what a manifest says is done is skipped, the rest is converted here, in processes or on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from augment.batch.convert import Result, Settings, Told, convert
from augment.batch.inputs import Input, sweep
from augment.batch.manifest import Manifest

if TYPE_CHECKING:
    from augment.client import Client

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


def _converted(
    inputs: Sequence[Input], settings: Settings, manner: Manner, watch: Watch, finished: Finished
) -> Generator[Result, None, None]:
    if manner.client:
        from augment.batch.remote import convert_remotely

        yield from convert_remotely(inputs, settings, manner.client, manner.jobs, watch.stage, finished)
    elif manner.scheduler and inputs:
        from augment.batch.cluster import Cluster
        from augment.batch.pool import convert_all

        yield from convert_all(inputs, settings, Cluster(manner.scheduler), finished)
    elif min(manner.jobs, len(inputs)) > 1:
        from augment.batch import memory
        from augment.batch.pool import convert_all
        from augment.batch.workers import Processes

        workers = Processes(min(manner.jobs, len(inputs)))
        budget = int(memory.USED * memory.available())
        yield from convert_all(inputs, settings, workers, finished, memory.needed, budget)
    else:
        for one in inputs:
            result = convert(one, settings, watch.announce, lambda what, one=one: watch.stage(one, what))  # type: ignore[misc]
            finished(one, result)
            yield result
