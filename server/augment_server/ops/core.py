"""Assembles the parts of a server, except its ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment_server.api.service import Service
from augment_server.base.limits import Limits
from augment_server.base.observer import Observer
from augment_server.base.people import Person
from augment_server.base.threads import Apart
from augment_server.jobs.jobs import Jobs
from augment_server.jobs.retention import Retention
from augment_server.jobs.scheduler import Scheduler
from augment_server.storage.places import Places
from augment_server.storage.storage import Storage
from augment_server.storage.uploads import Uploads

_SWEEPS_S = 60.0
_BURY_S = 1.0


@dataclass(frozen=True)
class Figures:
    """Figures of a server."""

    jobs: Mapping[str, int]  #: kept jobs, by state
    stored_bytes: Mapping[str, int]  #: bytes of uploads and artifacts, by client
    unfinished: Mapping[tuple[str, str], int]  #: waiting and running jobs, by client and state
    spent: Mapping[str, tuple[int, float]]  #: within a day, by client: ended jobs, and their CPU time in seconds
    free_bytes: int  #: bytes that may still be stored, by limit and disk
    open_uploads: int
    removed: Mapping[tuple[str, str], int]  #: removed since the start, by kind (job, upload) and reason
    worker_deaths: int  #: since the start
    worker_bytes: int  #: memory of the workers


class Core:
    """The service without its port. All methods except the constructor and :meth:`figures` run in one event loop.

    Args:
        state: the state directory.
        roots: folders whose files clients may name.
        repair: move an unusable database aside, with all its files.
        network: whether the state directory may lie on a network's file system.
        catalog: the URL of the database that several servers share; empty: one in the state directory.
        store: where the bytes of uploads and outputs are, as ``s3://bucket/prefix``; empty: in the state directory.
        prefixes: URLs of buckets below which clients may name objects.
        outputs: URLs of buckets below which clients may have outputs written.
        role: ``both``; ``front``, which begins no jobs; or ``work``, which leaves old data to the others.
        person_of: returns a context's caller, with the roles that it has.

    Raises:
        AugmentError: another server works in the directory, or it cannot be written to.
    """

    def __init__(
        self,
        state: Path,
        limits: Limits,
        roots: Sequence[Path],
        observer: Observer,
        person_of: Callable[[Any], Person],
        *,
        repair: bool = False,
        network: bool = False,
        catalog: str = "",
        store: str = "",
        prefixes: Sequence[str] = (),
        outputs: Sequence[str] = (),
        role: str = "both",
    ) -> None:
        self._role, self._observer, self._max_stored = role, observer, limits.max_stored_bytes
        self._places = Places(roots, prefixes, outputs, min(limits.max_upload_bytes, limits.max_stored_bytes), store)
        self._apart = Apart()
        self._storage = Storage(state, repair=repair, network=network, catalog=catalog)
        try:
            self._storage.use_store(store)
        except BaseException:
            self._storage.close()
            raise
        self.lost = asyncio.Event()  #: set once another server has taken over the state directory
        self._jobs = Jobs(self._storage, limits)
        self._uploads = Uploads(self._storage, limits)
        self._retention = Retention(self._storage, limits, self._uploads)
        self._scheduler = Scheduler(self._storage, self._jobs, limits, self._places, observer, self._apart)
        self.servicer = Service(
            self._storage,
            self._uploads,
            self._jobs,
            self._retention,
            self._scheduler,
            limits,
            self._places,
            observer,
            person_of,
            self._apart,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Resume the unfinished work of an earlier server, and start."""
        if backup := self._storage.catalog.backup:
            what = f"the database was of an earlier version and is up to date now; {backup.name} is a copy from before"
            self._observer.log(logging.INFO, what)
        loop = asyncio.get_running_loop()

        def lost() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server is ending anyway
                loop.call_soon_threadsafe(self.lost.set)

        if self._storage.lease:
            self._storage.lease.when_lost(lost)
        await self._recover()
        await self._scheduler.start(works=self._role != "front")
        if self._role != "work":  # its limits of ages and room are not those of the others
            self._tasks.append(asyncio.create_task(self._sweep()))
        if self._storage.catalog.is_shared:
            self._tasks.append(asyncio.create_task(self._bury()))

    async def _recover(self) -> None:
        for job in await self._apart(self._retention.recover, lambda text: self._observer.log(logging.ERROR, text)):
            self._scheduler.queued(job)

    async def _bury(self) -> None:
        """Take over what servers that have ended without a word have left."""
        while True:
            try:
                if self._storage.catalog.is_steady() and await self._apart(self._drop_dead):
                    await self._recover()
                await self._apart(self._uploads.keep_busy)
            except Exception as error:
                self._observer.log(logging.WARNING, f"what other servers have left is looked for later: {error!r}")
            await asyncio.sleep(_BURY_S)

    def _drop_dead(self) -> bool:
        with self._storage.writing() as db:
            return self._storage.catalog.drop_dead(db)

    async def _sweep(self) -> None:
        while True:
            try:
                await self._apart(self._retention.sweep)
            except Exception as error:
                self._observer.log(logging.ERROR, f"the removal of old data failed: {error!r}")
            await asyncio.sleep(_SWEEPS_S)

    async def idle(self, most_s: float) -> None:
        """Wait until there was no job here for this long."""
        while (left := most_s - self._scheduler.idle_s()) > 0:
            await asyncio.sleep(min(left, _SWEEPS_S))

    def refuse(self) -> None:
        """Accept no more jobs; everything else continues."""
        self.servicer.refuse()

    async def drain(self, grace_s: float) -> None:
        """Accept and start nothing more. Running jobs may end within ``grace_s``; the others wait for the next start.

        Calls that watch an unfinished job are ended.
        """
        self.refuse()
        await self._scheduler.drain(grace_s)

    async def close(self) -> None:
        """Stop, and release the directory."""
        self._retention.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._scheduler.close()
        self._apart.close()
        self._places.close()
        self._storage.close()

    def figures(self) -> Figures:
        """The server's figures. May be called from any thread; reads the database."""
        stored = self._retention.used()
        return Figures(
            jobs=self._jobs.by_state(),
            stored_bytes=stored,
            unfinished=self._jobs.unfinished(),
            spent=self._jobs.spent(),
            free_bytes=max(0, min(self._max_stored - sum(stored.values()), self._storage.store.free_bytes())),
            open_uploads=self._uploads.count_open(),
            removed=dict(self._retention.removed),
            worker_deaths=self._scheduler.worker_deaths,
            worker_bytes=self._scheduler.worker_bytes(),
        )
