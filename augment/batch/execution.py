"""A run: skip the inputs that the manifest lists as done, convert the rest, then answer what is asked of whole jobs.

Conversions run in this process, in worker processes, on a cluster, or on a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from augment.batch.conversion import Progress, Result, RunPlan, convert
from augment.batch.inputs import Input, sweep

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from augment.batch.conversion import Executor
    from augment.batch.job_question import Concluded, Earlier
    from augment.batch.jobs import Job
    from augment.batch.manifest import Manifest
    from augment.batch.remote import Folder, RemoteJob
    from augment.batch.workers import Task, Workers
    from augment.job.answer import Answer

WORKERS_FROM = 256 << 20  #: bytes of outputs; for less, starting workers takes longer than drawing

T = TypeVar("T")


class Run:
    """One run: what a plan makes of some inputs.

    First :meth:`convert`, then :meth:`conclude` with a :meth:`draw` for each job, then :meth:`merge`. ``results`` are
    those so far, by path.

    Raises:
        OutputError: of each method; a manifest cannot be written, or another process writes to it; or the cluster does
            not answer.
        UsageError: a package that a URL or a cluster needs is not installed.
    """

    def __init__(self, inputs: Sequence[Input], plan: RunPlan, progress: Progress | None = None) -> None:
        self._earlier: dict[str, Earlier] = {}  #: what is recorded of whole jobs
        #: where the tracks of ranks are kept for the timeline of their job (``TMPDIR``); None if that makes them anew
        self._kept: TemporaryDirectory[str] | None = None
        if plan.merge and not (plan.client or plan.scheduler or plan.shard or plan.request.steps):
            import tempfile

            self._kept = tempfile.TemporaryDirectory(prefix="augment-")
            plan = replace(plan, kept=self._kept.name)
        self._inputs, self._plan, self._progress = inputs, plan, progress or Progress()
        self._remote: RemoteJob | None = None
        self._answers: list[tuple[Job, Answer]] = []  #: of jobs that are merged, or roles of a pipeline
        self._unwritten: set[str] = set()  #: paths of inputs whose traces are not written, or not yet
        self.results: dict[str, Result] = {}

    def convert(self) -> Iterator[Result]:
        """Convert the inputs and yield the results in their order. Manifests record each result at once."""
        with contextlib.closing(_Manifests(self._plan)) as manifests:
            before: list[Result | None] = []  # the earlier results of which nothing is missing
            for item in self._inputs:
                known = manifests.done(item)
                lacks = known and known.files and not known.traces and self._is_wanted(item, known)
                before.append(None if lacks else known)
            to_do = [item for item, result in zip(self._inputs, before, strict=True) if result is None]
            self._unwritten.update(
                item.path for item in to_do if not (self._is_wanted(item) or manifests.has_trace(item))
            )
            self._earlier = manifests.jobs()
            sweep(to_do)
            self._progress.begun(to_do)

            def finished(item: Input, result: Result) -> None:
                manifests.record(item, result)
                self._progress.finished(item, result)

            folder = self._folder_for_server() if len(to_do) == len(self._inputs) else None
            made = self._by_server(folder, finished) if folder else self._converted(to_do, finished)
            with contextlib.closing(made) as results:
                for done in before:
                    result = next(results) if done is None else done
                    self.results[result.path] = result
                    yield result

    def _is_wanted(self, item: Input, result: Result | None = None) -> bool:
        """Whether the trace of ``item`` is to be written, whatever is told of its job."""
        outputs = self._plan.outputs
        if isinstance(outputs, str):
            return outputs == "all"
        from augment.batch.inputs import identify

        rank = result.rank if result else identify(item.path).rank
        return rank is not None and any(rank in some for some in outputs)

    def conclude(self) -> Iterator[Concluded]:
        """What there is to say of each job. A share of the inputs does not have all ranks of a job."""
        if self._remote:
            yield from self._remote.concluded
        elif self._plan.compares and not self._plan.shard:
            from augment.batch.job_question import conclude, conclude_roles

            plan = self._plan
            earlier = {} if plan.force else self._earlier
            executor = executor_of(plan)
            asked = plan.request, executor, earlier, plan.outputs
            for job in conclude(self._inputs, self.results, *asked):
                if (plan.merge or job.job.role) and job.answer is not None:
                    self._answers.append((job.job, job.answer))
                yield job
            yield from conclude_roles(self._inputs, self.results, plan.request, dict(self._answers))

    def draw(self, job: Concluded) -> list[Result]:
        """Write missing traces, draw the job's tracks into the outputs of its ranks. Manifests record each result at
        once, then the job."""
        if job.missing:
            self._unwritten.difference_update(item.path for item in job.missing)
            with contextlib.closing(_Manifests(self._plan)) as manifests:

                def finished(item: Input, result: Result) -> None:
                    self._progress.stage(f"{item.basename}: written")
                    manifests.record(item, result)
                    self.results[item.path] = result

                for _ in self._converted(job.missing, finished):
                    pass
        drawn = self._drawn(job) if job.redraws else []
        if not self._remote and not self._plan.client:
            self._record(job)
        return drawn

    def _record(self, job: Concluded) -> None:
        from augment.batch.job_question import recordable

        root = job.job.members[0].input.root
        if root is None or job.job.parts or any(member.input.root != root for member in job.job.members):
            return
        recorded = recordable(job, self.results)
        if recorded and self._earlier.get(job.written[0]) != recorded:
            with contextlib.closing(_Manifests(self._plan)) as manifests:
                manifests.record_job(job.job.members[0].input, job.written[0], recorded)

    def _drawn(self, job: Concluded) -> list[Result]:
        from augment.batch.job_question import draw

        by_path = {redraw.input.path: redraw for redraw in job.redraws}
        inputs = [redraw.input for redraw in job.redraws if self.results[redraw.input.path].status != "failed"]

        def task_of(item: Input) -> Task:
            redraw = by_path[item.path]
            return partial(draw, item, self.results[item.path], redraw.tracks(), redraw.drawn)

        with contextlib.closing(_Manifests(self._plan)) as manifests:

            def finished(item: Input, result: Result) -> None:
                self._progress.stage(f"{item.basename}: drawing waits")
                if result.status == "failed":  # which leaves the previous output
                    self.results[item.path] = result
                else:
                    manifests.record(item, result)
                    self.results[item.path] = replace(result, status=self.results[item.path].status)

            sweep(inputs)
            few = sum(redraw.size for redraw in job.redraws) < WORKERS_FROM
            return list(_worked(inputs, task_of, None if few else _workers(self._plan, len(inputs)), finished))

    def merge(self) -> Iterator[str]:
        """Write the timeline of each job if the plan says so: its path."""
        if self._remote:
            yield from self._remote.timelines
            for note in self._remote.notes:
                self._progress.announce(note)
        elif self._plan.merge and not self._plan.shard:
            from augment.batch.merged_timeline import merge_all

            plan, stage = self._plan, self._progress.stage
            for path, merged in merge_all(self._inputs, self.results, plan, stage, executor_of(plan), self._answers):
                yield path
                if merged and merged.left_out:
                    self._progress.announce(f"{path}: {merged.left_out}")
        if self._kept:
            self._kept.cleanup()

    def _folder_for_server(self) -> Folder | None:
        """The folder of the inputs if a server can do all of it as one job."""
        client = self._plan.client
        if not (client and self._plan.compares) or self._plan.shard:
            return None
        from augment.batch.remote import Folder

        folder = Folder.of(self._inputs, client.reads)
        return folder if folder and len(self._inputs) <= client.most_job_inputs() else None

    def _by_server(self, folder: Folder, finished: Callable[[Input, Result], None]) -> Generator[Result, None, None]:
        from augment.batch.remote import convert_folder

        self._remote = convert_folder(folder, self._plan, self._progress)
        for item, result in zip(folder.inputs, self._remote.results, strict=True):
            finished(item, result)
            yield result

    def _converted(
        self, inputs: Sequence[Input], finished: Callable[[Input, Result], None]
    ) -> Generator[Result, None, None]:
        plan = self._plan
        if plan.client:
            from augment.batch.remote import convert_remotely

            yield from convert_remotely(inputs, plan, self._progress, finished)
            return
        workers = _workers(plan, len(inputs))
        if workers:
            from augment.batch.workers import convert_apart

            def task_of(item: Input) -> Task:
                return partial(convert_apart, item, self._plan_of(item))
        else:

            def task_of(item: Input) -> Task:
                return lambda: convert(item, self._plan_of(item), self._progress)

        yield from _worked(inputs, task_of, workers, finished, limited=not plan.scheduler, bound=plan.memory)

    def _plan_of(self, item: Input) -> RunPlan:
        return replace(self._plan, metrics_only=True) if item.path in self._unwritten else self._plan


class _Manifests:
    """The manifests of the inputs' folders, opened on first use."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._open: dict[str, Manifest] = {}

    def _of(self, item: Input) -> Manifest | None:
        if item.root is None:
            return None
        if item.root not in self._open:
            from augment.batch.manifest import Manifest

            self._open[item.root] = Manifest(item.root, self._plan)
        return self._open[item.root]

    def done(self, item: Input) -> Result | None:
        """The earlier result of ``item`` if it need not be converted again."""
        manifest = self._of(item)
        return None if manifest is None or self._plan.force else manifest.done(item)

    def has_trace(self, item: Input) -> bool:
        """Whether an augmented trace of ``item`` was written before."""
        manifest = self._of(item)
        return manifest is not None and manifest.has_trace(item)

    def jobs(self) -> dict[str, Earlier]:
        """What is recorded of whole jobs, by the paths of their files."""
        return {path: job for manifest in self._open.values() for path, job in manifest.jobs.items()}

    def record_job(self, item: Input, path: str, job: Earlier) -> None:
        """Record the outcome of the job of ``item``, whose file is at ``path``."""
        if manifest := self._of(item):
            manifest.record_job(path, job)

    def record(self, item: Input, result: Result) -> None:
        """Record a result, if it is that of a file of a folder."""
        if manifest := self._of(item):
            manifest.record(item, result)

    def close(self) -> None:
        """Release the files."""
        for manifest in self._open.values():
            manifest.close()


def executor_of(plan: RunPlan) -> Executor:
    """Who reads the summaries of a large job: worker processes, or the cluster."""

    def executor(tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
        from augment.batch.job_question import alone
        from augment.batch.workers import in_order, in_order_by_files

        workers = _workers(plan, len(tasks)) if len(tasks) > 1 else None
        if workers is None:
            return alone(tasks)
        return in_order(tasks, workers) if plan.scheduler else in_order_by_files(tasks, workers)

    return executor


def _workers(plan: RunPlan, count: int) -> Workers | None:
    """The workers for ``count`` tasks; None: this process."""
    if plan.scheduler and count:
        from augment.batch.workers import cluster

        return cluster(plan.scheduler)
    if min(plan.jobs, count) > 1:
        from augment.batch.workers import Processes

        return Processes(min(plan.jobs, count))
    return None


def _worked(
    inputs: Sequence[Input],
    task_of: Callable[[Input], Task],
    workers: Workers | None,
    finished: Callable[[Input, Result], None],
    *,
    limited: bool = False,
    bound: int | None = None,
) -> Generator[Result, None, None]:
    """The results of the tasks; ``limited``: run no more conversions at once than fit into memory, each in a bound."""
    if workers:
        from augment.batch import memory_limit
        from augment.batch.workers import work_through

        budget = int(memory_limit.USED * memory_limit.available()) if limited else 0
        yield from work_through(inputs, task_of, workers, finished, partial(memory_limit.needed, bound=bound), budget)
        return
    for item in inputs:
        result = task_of(item)()
        finished(item, result)
        yield result
