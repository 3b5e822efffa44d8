"""Which job runs when, and what its end means. Lives in the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from augment.v1 import resources_pb2 as v1
from augment_server.errors import Refusal, refusal_of
from augment_server.jobs import CANCELLED, FAILED, SUCCEEDED, Begun, Jobs, Made, state_name
from augment_server.limits import Limits
from augment_server.names import new_id
from augment_server.observer import Observer
from augment_server.roots import resolve
from augment_server.storage import Storage, remove, sync_folder
from augment_server.threads import Apart
from augment_server.workers import Said, TookTooMuch, WorkerDied, Workers

MOST_DEATHS = 2  #: a job whose worker died is tried once more


class Scheduler:
    """Runs the jobs that wait."""

    def __init__(
        self, storage: Storage, jobs: Jobs, limits: Limits, roots: list[str], observer: Observer, apart: Apart
    ) -> None:
        self._storage, self._jobs, self._limits, self._roots = storage, jobs, limits, roots
        self._observer, self._apart = observer, apart
        self._workers = Workers(limits)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._working: dict[str, asyncio.Task[list[Made]]] = {}  # the part of it that may be broken off
        self._cancelled: set[str] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self.released = False  #: whoever watches shall go: nothing will change any more
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to run jobs."""
        await self._workers.prepare()
        self._loop_task = asyncio.create_task(self._loop())

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            while not self._stopping and len(self._running) < self._workers.size:
                begun = await self._apart(self._jobs.begin)
                if begun is None:
                    break
                attempt = self._storage.work(new_id())
                self._working[begun.id] = asyncio.create_task(self._work(begun, attempt))
                self._running[begun.id] = asyncio.create_task(self._run(begun, attempt))
            await self._wake.wait()

    def queued(self, job: str) -> None:
        """There is a new job."""
        self._observer.job_queued(job)
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

    def _changed(self, job: str) -> None:
        for event in self._watchers.get(job, ()):
            event.set()

    async def cancel(self, job: str) -> None:
        """End a job that waits or runs. Returns when it has ended."""
        if await self._apart(self._jobs.cancel_queued, job):
            self._ended(job, CANCELLED, 0.0)
        elif running := self._running.get(job):
            self._cancelled.add(job)
            self._working[job].cancel()
            await asyncio.wait((running,))

    def cancel_soon(self, job: str) -> None:
        """End a job, if it has not ended; nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self.cancel(job))
        self._cancelling.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._cancelling.discard)

    async def _run(self, begun: Begun, attempt: Path) -> None:
        """One attempt at a job: what becomes of its work."""
        job, started = begun.id, time.monotonic()
        self._observer.job_started(job, begun.queued_s)
        self._changed(job)
        end: Callable[[], Any]
        try:
            made = await self._working[job]
            await self._apart(self._publish, job, attempt)
            end = partial(self._end, job, started, SUCCEEDED, None, made)
        except asyncio.CancelledError:
            if job in self._cancelled:
                end = partial(self._end, job, started, CANCELLED)
            else:
                end = partial(self._queue_again, job)
        except WorkerDied as death:
            end = self._after_death(begun, started, str(death))
        except Refusal as refusal:
            end = partial(self._end, job, started, FAILED, refusal)
        except Exception as error:
            self._observer.log(logging.ERROR, "".join(traceback.format_exception(error)), job_id=job)
            end = partial(self._end, job, started, FAILED, refusal_of(error, begun.file_name))
        try:
            await end()
        finally:
            del self._running[job], self._working[job]
            self._cancelled.discard(job)
            await self._apart(remove, attempt)
            self._wake.set()

    async def _work(self, begun: Begun, attempt: Path) -> list[Made]:
        if begun.attempts > self._limits.max_job_attempts:
            tried = f"{begun.file_name}: given up after {begun.attempts - 1} attempts, during which the server ended"
            raise Refusal("WORKER_DIED", tried, {"attempt_count": str(begun.attempts - 1)})
        order = await self._apart(self._order, begun, attempt)
        progress = _Progress(begun.id, self._jobs, self._observer)

        def stage(said: Said) -> None:
            progress.next(said)
            self._changed(begun.id)

        worker = await self._workers.take()
        try:
            said: Said = await asyncio.wait_for(worker.do(order, stage), self._limits.job_deadline_s)
        except asyncio.TimeoutError as error:
            most = f"{self._limits.job_deadline_s:g} s"
            raise Refusal("JOB_DEADLINE", f"{begun.file_name}: took longer than the {most} that a job may") from error
        except TookTooMuch as error:
            most = f"{self._limits.job_memory_bytes() >> 20} MiB"
            raise Refusal(
                "JOB_MEMORY", f"{begun.file_name}: took more than the {most} of memory that a job may"
            ) from error
        finally:
            await self._workers.give_back(worker)
        progress.end()
        if "failed" in said:
            if said["traceback"]:
                self._observer.log(logging.ERROR, said["traceback"], job_id=begun.id)
            raise Refusal(*said["failed"])
        return [Made(*one) for one in said["made"]]

    def _order(self, begun: Begun, attempt: Path) -> dict[str, Any]:
        """What the worker is told; its folder is made. Blocks."""
        from augment.commands.options import option_values

        limits, spec = self._limits, begun.spec
        order: dict[str, Any] = {
            "file_name": begun.file_name,
            "folder": str(attempt),
            "formats": list(spec.formats) or ["chrome"],
            "only": list(spec.only),
            "skip": list(spec.skip),
            "options": option_values(list(spec.options)),
            "limits": {
                "text_bytes": limits.max_text_bytes,
                "text_ratio": limits.max_text_ratio,
                "events": limits.max_events,
                "name_bytes": limits.max_name_bytes,
            },
        }
        if begun.content:
            order["blob"] = str(self._storage.blob(begun.content))
        else:
            order["below"] = resolve(spec.input.uri, self._roots)
        os.mkdir(attempt, 0o700)
        return order

    def _publish(self, job: str, attempt: Path) -> None:
        """What was made becomes the job's. Blocks."""
        target = self._storage.artifacts(job)
        remove(target)  # of an attempt that was published, but not recorded, before the server was killed
        os.rename(attempt / "out", target)
        sync_folder(target)
        sync_folder(target.parent)

    def _after_death(self, begun: Begun, started: float, how: str) -> Callable[[], Any]:
        self._observer.log(logging.WARNING, f"worker died: {how}", job_id=begun.id)
        if begun.deaths + 1 < MOST_DEATHS:
            return partial(self._queue_again, begun.id, died=True)
        kind, _, value = how.rpartition(" ")
        metadata = {kind.replace(" ", "_"): value}
        text = (
            f"{begun.file_name}: the process that worked on it died, and died again ({how}), perhaps for lack of memory"
        )
        return partial(self._end, begun.id, started, FAILED, Refusal("WORKER_DIED", text, metadata))

    async def _end(
        self, job: str, started: float, state: int, error: Refusal | None = None, made: list[Made] | None = None
    ) -> None:
        await self._apart(self._jobs.end, job, state, error, made or ())
        self._ended(job, state, time.monotonic() - started, error.reason if error else "")

    def _ended(self, job: str, state: int, seconds: float, reason: str = "") -> None:
        self._observer.job_finished(job, state_name(state), seconds, reason)
        self._changed(job)

    async def _queue_again(self, job: str, *, died: bool = False) -> None:
        await self._apart(self._jobs.queue_again, job, died=died)
        self._observer.job_queued(job)
        self._changed(job)

    async def drain(self, grace_s: float) -> None:
        """Begin nothing more; what runs may end within ``grace_s``, then it goes back into the queue."""
        self._stopping = True
        running = list(self._running.values())
        if running:
            _, late = await asyncio.wait(running, timeout=grace_s)
            for task in list(self._working.values()):
                task.cancel()
            if late:
                await asyncio.wait(late)
        self.released = True
        for events in self._watchers.values():
            for event in events:
                event.set()

    async def close(self) -> None:
        """Stop."""
        await self.drain(0)
        if self._loop_task:
            self._loop_task.cancel()
        await self._workers.close()


class _Progress:
    """How far a job is, and how long its stages took."""

    def __init__(self, job: str, jobs: Jobs, observer: Observer) -> None:
        self._job, self._jobs, self._observer = job, jobs, observer
        self._now = v1.Progress()
        self._since = time.monotonic()

    def next(self, said: Said) -> None:
        """A stage begins."""
        self.end()
        self._now.stage, self._now.done_count, self._now.total_count = said["stage"], said["done"], said["of"]
        self._tell()

    def end(self) -> None:
        """The stage at hand, if there is one, has ended."""
        now = time.monotonic()
        if self._now.stage:
            seconds = now - self._since
            self._now.stages.add(stage=self._now.stage).duration.FromMicroseconds(round(seconds * 1e6))
            self._now.done_count = len(self._now.stages)
            self._observer.job_stage(self._job, self._now.stage, seconds)
            self._now.stage = ""
            self._tell()
        self._since = now

    def _tell(self) -> None:
        told = v1.Progress()
        told.CopyFrom(self._now)
        self._jobs.tell(self._job, told)
