"""Decides which job runs when, and records its outcome. Runs in the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import pkgutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from augment.v1 import resources_pb2 as v1
from augment_server.base import confinement
from augment_server.base.errors import AWAY, Refusal, disk_is_full, refusal_of
from augment_server.base.interception import work_for
from augment_server.base.limits import Limits
from augment_server.base.names import new_id
from augment_server.base.observer import Observer
from augment_server.base.threads import Apart
from augment_server.jobs.jobs import CANCELLED, FAILED, SUCCEEDED, Begun, Jobs, state_name
from augment_server.jobs.parts import CONVERTING
from augment_server.jobs.worker_requests import Order, Orders, expect_outputs, handed_over
from augment_server.storage.inputs import NOTHING, Failure, Made, Outputs
from augment_server.storage.places import Places
from augment_server.storage.storage import Storage
from augment_server.workers.workers import Said, TookTooMuch, Worker, WorkerDied, Workers

T = TypeVar("T")
MOST_DEATHS = 2  #: a job whose worker died is tried once more
_NO_MORE = "this attempt no longer counts: the job was cancelled, or another server has it"
_TOGETHER_S = 0.1  #: changes of a job within this time are reported as one
_PAUSE_S = 1.0
_SPENT_S = 2.0  #: for so long what jobs took is gathered, before it is counted
_STORE_PAUSE_S = 5.0  #: before a job that cannot reach the store of bytes is tried again
_WATCH_S = 0.1  #: how often the free room is looked at while a whole job works
_LONG_S = 60.0  #: how long a client waits for another's jobs to end by themselves
_LOOK_S = 10.0  #: how often to look for waiting jobs, in case a notification was lost
_MOST_TOLD = 1000  #: jobs whose progress a watcher of many is told of together
_TEND_S = 0.5  #: how often to tell other servers of progress, and to look whether attempts still count


@dataclass(eq=False)
class _Attempt:
    """One attempt at a job: ``work`` may be cancelled; ``whole``, which also records the outcome, may not."""

    begun: Begun
    work: asyncio.Task[Outputs] = field(init=False)
    worker: Worker | None = None  #: that it has taken and not yet given back
    folder: Path | None = None  #: below the worker's
    order: Order = field(default_factory=dict)
    whole: asyncio.Task[None] | None = None
    cancelled: bool = False
    yielded: bool = False  #: whether it ends so that another client has its turn
    began_s: float = field(default_factory=time.monotonic)
    deadline_s: float = math.inf  #: of the work, until its outputs are published
    ends_s: float = math.inf  #: when that is over

    def late(self) -> Refusal:
        """The refusal once the deadline is over."""
        most = f"{self.deadline_s:g} s"
        return Refusal("JOB_DEADLINE", f"{self.begun.file_name}: exceeded the time limit of a job, {most}")

    def expect_time(self) -> None:
        """Check the deadline.

        Raises:
            Refusal: it is over.
        """
        if time.monotonic() > self.ends_s:
            raise self.late()


class ListWatch:
    """What a watcher of many jobs is told: that some changed, and which of them, as far as these are few."""

    def __init__(self) -> None:
        self.event, self.jobs = asyncio.Event(), set[str]()

    def tell(self, job: str) -> None:
        """Note that a job has changed; empty: perhaps any."""
        if job and len(self.jobs) < _MOST_TOLD:
            self.jobs.add(job)
        self.event.set()

    def taken(self) -> list[str]:
        """The jobs since the last call."""
        self.event.clear()
        jobs = sorted(self.jobs)
        self.jobs.clear()
        return jobs


class Scheduler:
    """Runs the waiting jobs."""

    def __init__(
        self, storage: Storage, jobs: Jobs, limits: Limits, places: Places, observer: Observer, apart: Apart
    ) -> None:
        self._catalog, self._store, self._jobs, self._limits = storage.catalog, storage.store, jobs, limits
        self._orders, self._places = Orders(storage, limits, places), places
        self._observer, self._apart = observer, apart
        self._workers = Workers(limits, storage, apart, places.folders)
        self._attempts: set[_Attempt] = set()
        self._ended_s = time.monotonic()  # when the last of them did
        self._spent: dict[str, float] = {}  # CPU seconds by client, still to be counted
        self._telling_spent: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()  # held while the database and _attempts are updated
        self._cancelling: set[asyncio.Task[None]] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._list_watchers: set[ListWatch] = set()
        self._telling: dict[str, asyncio.TimerHandle] = {}
        self._began_s: dict[str, float] = {}  # running jobs, and since when
        self._without_store: dict[str, float] = {}  # jobs that wait for the store of bytes, and since when
        self._wake, self._attend = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._unsaved: set[str] = set()  # jobs with progress that other servers do not know
        self.worker_deaths = 0
        self.released = False  #: whether watchers shall end, because no job changes any more
        self._tasks: list[asyncio.Task[None]] = []

    def worker_bytes(self) -> int:
        """The memory of the workers, bytes, as far as the system reports it. May be called from any thread."""
        return self._workers.memory_bytes()

    def idle_s(self) -> float:
        """How long no job has run here, s."""
        return 0.0 if self._attempts else time.monotonic() - self._ended_s

    async def start(self, *, works: bool = True) -> None:
        """Start to run jobs, or only to follow what others do of them."""
        if works:
            if not confinement.version():
                text = "this system has no Landlock: workers can read and write what the server can"
                self._observer.log(logging.WARNING, text)
            await self._workers.prepare()
            self._ended_s = time.monotonic()
            self._tasks.append(asyncio.create_task(self._loop()))
        if self._catalog.is_shared:
            loop = asyncio.get_running_loop()

            def changed(job: str) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the server is ending anyway
                    loop.call_soon_threadsafe(self._elsewhere, job)

            self._catalog.follow(changed)
            self._tasks.append(asyncio.create_task(self._tend()))

    def _elsewhere(self, job: str) -> None:
        """A job has changed in the catalog, perhaps by another server; empty: perhaps any has."""
        for each in [job] if job else ["", *self._watchers]:
            self.changed(each)
        self._wake.set()
        if not job or any(attempt.begun.id == job for attempt in self._attempts):
            self._attend.set()

    async def _tend(self) -> None:
        """Tell other servers of progress, and end attempts that no longer count."""
        while True:
            self._attend.clear()
            try:
                while self._unsaved:
                    await self._apart(self._jobs.save_progress, self._unsaved.pop())
                for attempt in self._attempts.copy():
                    if not (attempt.work.done() or await self._apart(self._jobs.is_ours, attempt.begun)):
                        self._observer.log(logging.INFO, _NO_MORE, job_id=attempt.begun.id)
                        attempt.cancelled = True
                        attempt.work.cancel()
            except Exception as error:
                self._observer.log(logging.WARNING, f"the catalog cannot be asked about running jobs: {error!r}")
                await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._attend.wait(), _TEND_S)

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                while len(self._attempts) < self._workers.size and await self._begin():
                    pass
                await self._yield()
            except Exception as error:
                self._observer.log(logging.ERROR, f"no job can be started: {error!r}")
                asyncio.get_running_loop().call_later(_PAUSE_S, self._wake.set)
            look = asyncio.get_running_loop().call_later(_LOOK_S, self._wake.set)
            await self._wake.wait()
            look.cancel()

    async def _begin(self) -> bool:
        """Begin the next job; False if there is none."""
        async with self._beginning:
            if self._stopping:
                return False
            begun = await self._apart(self._jobs.begin)
            if begun is None:
                return False
            attempt = _Attempt(begun)
            attempt.work = asyncio.create_task(self._work(attempt))
            attempt.whole = asyncio.create_task(self._run(attempt))
            self._attempts.add(attempt)
        return True

    async def _yield(self) -> None:
        """If a client has waited for long and nothing of it runs, end the newest attempt of one above its share."""
        if len(self._attempts) < self._workers.size or any(attempt.yielded for attempt in self._attempts):
            return
        waiting = await self._apart(self._jobs.waiting_s)
        if not waiting:  # and meanwhile all attempts may have ended
            return
        counts = Counter(attempt.begun.client for attempt in self._attempts)
        share = max(1, self._workers.size // len({*counts, *waiting}))
        above = [attempt for attempt in self._attempts if counts[attempt.begun.client] > share]
        above = [attempt for attempt in above if not attempt.work.done()]
        if above and max(waiting.values()) >= _LONG_S:
            newest = max(above, key=lambda attempt: (counts[attempt.begun.client], attempt.began_s))
            newest.yielded = True
            newest.work.cancel()

    def queued(self, job: str) -> None:
        """Announce a new job."""
        self.changed(job)
        self._observer.job_queued(job)
        self.wake(job)

    def wake(self, job: str) -> None:  # noqa: ARG002 - whichever comes next is taken up
        """Look for waiting jobs."""
        self._wake.set()

    @contextlib.contextmanager
    def watching(self, job: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever a job changes."""
        event = asyncio.Event()
        self._watchers.setdefault(job, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[job].discard(event)
            if not self._watchers[job]:
                del self._watchers[job]

    @contextlib.contextmanager
    def watching_all(self) -> Iterator[ListWatch]:
        """What is told of the change of any job."""
        watch = ListWatch()
        self._list_watchers.add(watch)
        try:
            yield watch
        finally:
            self._list_watchers.discard(watch)

    def changed(self, job: str) -> None:
        """Notify watchers now."""
        for watch in self._list_watchers:
            watch.tell(job)
        if timer := self._telling.pop(job, None):
            timer.cancel()
        for event in self._watchers.get(job, ()):
            event.set()

    def _changes(self, job: str) -> None:
        """Notify watchers soon, of several changes at once."""
        if self._catalog.is_shared:
            self._unsaved.add(job)
        if (job in self._watchers or self._list_watchers) and job not in self._telling:
            self._telling[job] = asyncio.get_running_loop().call_later(_TOGETHER_S, self.changed, job)

    async def cancel(self, job: str) -> None:
        """Cancel a waiting or running job. Returns when it has ended."""
        while True:
            async with self._beginning:
                if await self._apart(self._jobs.cancel_waiting, job):
                    self._ended(job, CANCELLED)
                attempts = [attempt for attempt in self._attempts if attempt.begun.id == job]
            if not attempts:
                await self._remove(f"ranks/{job}")
                return  # the job is final
            for attempt in attempts:
                attempt.cancelled = True
                attempt.work.cancel()
            wholes = [attempt.whole for attempt in attempts if attempt.whole]
            await asyncio.wait(wholes)  # then check again: the job may be back in the queue

    def cancel_soon(self, job: str) -> None:
        """Cancel a job, if it has not ended, without waiting for its end."""
        task = asyncio.get_running_loop().create_task(self.cancel(job))
        self._cancelling.add(task)  # the event loop holds only weak references to tasks
        task.add_done_callback(self._cancelling.discard)

    async def _run(self, attempt: _Attempt) -> None:
        """Handle the outcome of an attempt."""
        job = attempt.begun.id
        work_for(attempt.begun.client)
        if attempt.begun.first:
            self._observer.job_started(job, attempt.begun.queued_s)
        self._changes(job)
        try:
            await self._conclude(attempt)
        except Exception as error:
            self._observer.log(logging.ERROR, f"the end of the job cannot be recorded: {error!r}", job_id=job)
            try:
                await self._end(attempt.begun, FAILED, refusal_of(error, attempt.begun.file_name))
            except Exception as again:
                text = f"nor that it failed; it will run again after a restart: {again!r}"
                self._observer.log(logging.ERROR, text, job_id=job)
        self._attempts.discard(attempt)
        self._ended_s = time.monotonic()
        if attempt.worker:
            self._spend(attempt.begun.client, attempt.worker.spent_s)
            if self._telling_spent is None or self._telling_spent.done():
                self._telling_spent = asyncio.create_task(self._tell_spent(_SPENT_S))
        if self._catalog.is_shared and not any(other.begun.id == job for other in self._attempts):
            with contextlib.suppress(Refusal):
                await self._apart(self._jobs.save_progress, job)
            self._began_s.pop(job, None)
            self._jobs.forget(job)  # from now on another server may know more
        self._wake.set()

    async def _conclude(self, attempt: _Attempt) -> None:
        begun = attempt.begun
        job, name = begun.id, begun.file_name
        try:
            try:
                made = await attempt.work
                made = await self._apart(self._publish, attempt, made)
                if begun.is_of_a_trace:
                    await self._apart(self._jobs.expect_stored, begun, made)
            finally:
                if attempt.worker:
                    await self._workers.give_back(attempt.worker)
        except asyncio.CancelledError:
            if attempt.cancelled:
                await self._end(begun, CANCELLED)
            else:
                await self._queue_again(begun, yielded=attempt.yielded)
        except WorkerDied as death:
            await self._after_death(attempt, str(death))
        except Exception as error:
            if not isinstance(error, Refusal):
                if not disk_is_full(error):  # that is no fault of the server, and the job's end tells it
                    self._observer.log(logging.ERROR, "".join(traceback.format_exception(error)), job_id=job)
                error = refusal_of(error, name)
            if error.reason == AWAY:
                await self._queue_again(begun, yielded=True)
                return
            if error.reason == "STORAGE_FULL" and begun.step:
                await self._end_whole(attempt)  # waiting with all that it takes, it would keep others from their room
                return
            if error.reason == "STORAGE_FULL" and begun.attempts < self._limits.max_job_attempts:
                await asyncio.sleep(_PAUSE_S)  # until then other data may be removed
                await self._queue_again(begun)
                return
            if error.reason == "STORE_UNAVAILABLE":
                self._observer.log(logging.WARNING, f"the store of bytes: {error.__cause__ or error}", job_id=job)
                since = self._without_store.setdefault(job, time.monotonic())
                if time.monotonic() - since < self._limits.job_deadline_s:
                    await asyncio.sleep(_STORE_PAUSE_S)
                    await self._queue_again(begun, yielded=True)  # no attempt: nothing is wrong with the job
                    return
            await self._end(begun, FAILED, error)
        else:
            await self._end(begun, SUCCEEDED, None, made)

    async def _work(self, attempt: _Attempt) -> Outputs:
        begun = attempt.begun
        work_for(begun.client)
        if begun.attempts > self._limits.max_job_attempts:
            tried = f"{begun.file_name}: abandoned after {begun.attempts - 1} attempts, each ended with the server"
            raise Refusal("WORKER_DIED", tried, {"attempt_count": str(begun.attempts - 1)})
        self._began_s[begun.id] = time.monotonic() - begun.running_s
        progress = (
            TraceProgress(begun.id, self._observer)
            if begun.is_of_a_trace
            else JobProgress(begun, self._jobs, self._observer)
        )

        def stage(said: Said) -> None:
            progress.next(said)
            self._changes(begun.id)

        reserve = await self._apart(self._jobs.reserve, begun) if begun.step else 0
        attempt.deadline_s = min(begun.deadline_s or self._limits.job_deadline_s, self._limits.job_deadline_s)
        worker = attempt.worker = await self._workers.take(begun.client)
        attempt.folder = worker.folder / new_id()
        try:
            attempt.order = await self._apart(self._orders.order, begun, attempt.folder, worker.given)
            work = worker.do(attempt.order, stage)
            attempt.ends_s = time.monotonic() + attempt.deadline_s
            said = await asyncio.wait_for(self._with_room(work, begun, reserve), attempt.deadline_s)
        except asyncio.TimeoutError as error:
            raise attempt.late() from error
        except TookTooMuch as error:
            most = f"{self._limits.job_memory_bytes() >> 20} MiB"
            raise Refusal("JOB_MEMORY", f"{begun.file_name}: exceeded the memory limit of a job, {most}") from error
        await worker.stand_still()  # nothing changes what it made while that is published
        progress.end()
        if said.made is None or said.failed:
            if said.traceback:
                self._observer.log(logging.ERROR, said.traceback, job_id=begun.id)
            assert said.failed
            raise Refusal(*said.failed)
        files = tuple(Made(name, 0, sha256) for name, sha256 in said.made)
        failures = tuple(Failure(*failure) for failure in said.failures)
        return Outputs(files, said.rank, said.world_size, failures, said.notes)

    async def _with_room(self, work: Coroutine[Any, Any, Said], begun: Begun, reserve: int) -> Said:
        """The result of ``work``, which ends when less than ``reserve`` bytes are free on the disk.

        Raises:
            Refusal: that was so.
        """
        if not reserve:
            return await work

        async def watch() -> None:
            while True:
                await asyncio.sleep(_WATCH_S)
                self._jobs.expect_free(begun, reserve)

        tasks = working, watching = asyncio.ensure_future(work), asyncio.ensure_future(watch())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await watching  # raises
            return await working
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _publish(self, attempt: _Attempt, made: Outputs) -> Outputs:
        """Publish the outputs as those of the job, or of one of its traces; returns them with their sizes. Blocks.

        Raises:
            OSError: an output is missing or no regular file; nothing is published.
            Refusal: the deadline is over; nothing is published.
        """
        begun, folder = attempt.begun, attempt.folder
        assert folder
        kind = "ranks" if begun.is_of_a_trace else "artifacts"
        key = f"{kind}/{begun.id}/{folder.name}"  # no other attempt has it
        names, known = [file.file_name for file in made.files], dict(handed_over(attempt.order))
        expect_outputs(attempt.order, names)
        source, most = (folder.parent, (folder.name, "out")), self._limits.max_stored_bytes
        sizes = self._store.publish(key, source, names, known, most, attempt.expect_time)
        if begun.spec.output_uri and kind == "artifacts":
            try:
                self._places.deliver(begun.spec.output_uri, self._store, key, names, attempt.expect_time)
            except BaseException:
                with contextlib.suppress(Refusal):  # then it is a stray
                    self._store.remove(key)
                raise
        files = tuple(replace(file, size=size) for file, size in zip(made.files, sizes, strict=True))
        return replace(made, files=files, folder=key)

    async def _after_death(self, attempt: _Attempt, how: str) -> None:
        begun = attempt.begun
        self.worker_deaths += 1
        self._observer.log(logging.WARNING, f"worker died: {how}", job_id=begun.id)
        if begun.deaths + 1 < MOST_DEATHS:
            await self._queue_again(begun, died=True)
            return
        kind, _, value = how.rpartition(" ")
        text = f"{begun.file_name}: its worker process died twice ({how}), perhaps for lack of memory"
        await self._end(begun, FAILED, Refusal("WORKER_DIED", text, {kind.replace(" ", "_"): value}))

    async def _end(self, begun: Begun, state: int, error: Refusal | None = None, made: Outputs = NOTHING) -> None:
        job, reason = begun.id, error.reason if error else ""
        if begun.is_of_a_trace:
            await self._end_step(begun, error, made)
        elif await self._recorded(job, partial(self._jobs.end, job, state, error, made, attempt=begun.attempt)):
            if state != SUCCEEDED:  # published, but not recorded
                await self._remove(f"artifacts/{job}")
            if begun.step:
                await self._remove(f"ranks/{job}")
            self._ended(job, state, reason)
        elif state == SUCCEEDED:
            self._observer.log(logging.INFO, _NO_MORE, job_id=job)
            await self._remove(made.folder)

    async def _end_whole(self, attempt: _Attempt) -> None:
        """End a whole job for which there is no room, with all of its steps."""
        job, error = attempt.begun.id, await self._apart(self._jobs.no_room, attempt.begun)
        for other in self._attempts:
            if other.begun.id == job and other is not attempt:
                other.cancelled = True
                other.work.cancel()
        if await self._recorded(job, lambda: self._jobs.end_without_room(job, error)):
            self._ended(job, FAILED, error.reason)
        await self._remove(f"ranks/{job}")

    async def _end_step(self, begun: Begun, error: Refusal | None, made: Outputs) -> None:
        job = begun.id
        ended, failed = await self._recorded(job, lambda: self._jobs.end_step(begun, error, made))
        if failed:
            self._ended(job, FAILED, error.reason if error else "")
            await self._remove(f"ranks/{job}")
        elif ended is None and made.folder:  # the job has ended, or another attempt was begun
            await self._remove(made.folder)
        elif ended is not None:
            self._changes(job)

    async def _remove(self, key: str) -> None:
        """Remove what is stored under a key; where the store does not answer, that is done later, as of strays."""
        try:
            await self._apart(self._store.remove, key)
        except Refusal as refusal:
            self._observer.log(logging.WARNING, f"{key} is removed later: {refusal.__cause__ or refusal}")

    def _ended(self, job: str, state: int, reason: str = "") -> None:
        self._without_store.pop(job, None)
        now = time.monotonic()
        self._observer.job_finished(job, state_name(state), now - self._began_s.pop(job, now), reason)
        self.changed(job)

    async def _queue_again(self, begun: Begun, *, died: bool = False, yielded: bool = False) -> None:
        await self._recorded(begun.id, lambda: self._jobs.queue_again(begun, died=died, yielded=yielded))
        if begun.step is None:
            self._observer.job_queued(begun.id)
        self.changed(begun.id)

    async def _recorded(self, job: str, change: Callable[[], T]) -> T:
        """Make a change in the catalog; wait while the disk is full, or while the catalog cannot be reached."""
        is_told = False
        while True:
            try:
                return await self._apart(change)
            except Exception as error:
                is_away = isinstance(error, Refusal) and error.reason == AWAY
                if not (is_away or disk_is_full(error)) or self._stopping:
                    raise
            if not is_told:
                what = "the catalog cannot be reached" if is_away else "the disk is full"
                text = f"{what}: the end of the job is recorded later"
                self._observer.log(logging.ERROR, text, job_id=job)
            is_told = True
            await asyncio.sleep(_PAUSE_S)

    def _spend(self, client: str, seconds: float) -> None:
        self._spent[client] = self._spent.get(client, 0.0) + seconds

    async def _tell_spent(self, after_s: float = 0.0) -> None:
        """Add what the jobs of each client took to its account, of several at once; what cannot be told stays."""
        await asyncio.sleep(after_s)
        spent, self._spent = self._spent, {}
        try:
            await self._apart(self._jobs.spend, spent)
        except Exception as error:
            for client, seconds in spent.items():
                self._spend(client, seconds)
            self._observer.log(logging.WARNING, f"what jobs took is counted later: {error!r}")

    async def drain(self, grace_s: float) -> None:
        """Start nothing more. Running jobs may end within ``grace_s``; then they return to the queue."""
        async with self._beginning:
            self._stopping = True
        wholes = [attempt.whole for attempt in self._attempts if attempt.whole]
        if wholes:
            _, late = await asyncio.wait(wholes, timeout=grace_s)
            for attempt in self._attempts:
                attempt.work.cancel()
            if late:
                await asyncio.wait(late)
        self.released = True
        for events in self._watchers.values():
            for event in events:
                event.set()
        for watch in self._list_watchers:
            watch.tell("")

    async def close(self) -> None:
        """Stop."""
        await self.drain(0)
        if self._telling_spent:
            self._telling_spent.cancel()
            await self._tell_spent()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._workers.close()


_STAGES = (CONVERTING, "reading", "analysing", "writing", "comparing", "drawing", "merging", "diagnosing")
_OF_DIFF = ("reading the control", "reading the test")


def known_stages() -> frozenset[str]:
    """The stages that workers tell of; one that is run by a stranger may tell of others."""
    package = importlib.util.find_spec("augment.analyses")  # not loaded: an analysis has the name of its module
    assert package
    analyses = (module.name for module in pkgutil.iter_modules(package.submodule_search_locations))
    return frozenset((*_STAGES, *_OF_DIFF, *analyses))


class JobProgress:
    """The progress of a job, or of a whole job's last step, from its worker's messages; the durations of its stages.

    The first stage of a whole job is the conversion of its traces, each of which counts.
    """

    def __init__(self, begun: Begun, jobs: Jobs, observer: Observer) -> None:
        self._job, self._jobs, self._observer = begun.id, jobs, observer
        self._now = v1.Progress()
        self._since = time.monotonic() - begun.running_s
        self._traces = begun.step.of - 1 if begun.step else 0
        self._ended = 0  # stages but that of the traces
        if begun.step:
            before = v1.Progress.FromString(begun.progress or b"")
            if before.stage == CONVERTING:
                self._now = before
                self._jobs.tell(self._job, self._now)
            else:  # of an attempt at this step
                self._now.stages.extend(each for each in before.stages if each.stage == CONVERTING)

    def next(self, said: Said) -> None:
        """Begin the next stage."""
        self.end()
        assert said.stage
        self._now.stage, self._now.done_count = said.stage, said.done + self._traces
        self._now.total_count = said.of + self._traces
        self._jobs.tell(self._job, self._now)

    def end(self) -> None:
        """End the current stage, if there is one."""
        now = time.monotonic()
        if self._now.stage:
            seconds = now - self._since
            self._now.stages.add(stage=self._now.stage).duration.FromMicroseconds(round(seconds * 1e6))
            self._ended += self._now.stage != CONVERTING
            self._now.done_count = self._traces + self._ended
            self._observer.job_stage(self._job, self._now.stage, seconds)
            self._now.stage = ""
        self._since = now


class TraceProgress:
    """The stages of converting one trace of a whole job: for observers of the server, not for clients."""

    def __init__(self, job: str, observer: Observer) -> None:
        self._job, self._observer = job, observer
        self._stage, self._since = "", time.monotonic()

    def next(self, said: Said) -> None:
        """Begin the next stage."""
        self.end()
        self._stage = said.stage or ""

    def end(self) -> None:
        """End the current stage, if there is one."""
        now = time.monotonic()
        if self._stage:
            self._observer.job_stage(self._job, self._stage, now - self._since)
        self._stage, self._since = "", now
