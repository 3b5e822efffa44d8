"""Creation of jobs: requests are checked, then accepted."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Sequence
from typing import Any

from augment.v1 import resources_pb2 as v1
from augment_server import catalog
from augment_server.cards import card_of
from augment_server.errors import Refusal
from augment_server.inputs import inputs_of
from augment_server.jobs import Jobs, Wanted
from augment_server.limits import Limits
from augment_server.names import id_of, safe_file_name
from augment_server.requests import expect_id
from augment_server.roots import open_below, path_of, resolve
from augment_server.scheduler import Scheduler
from augment_server.threads import Apart
from augment_server.uploads import Caller

MOST_TOGETHER = 1000  #: maximum number of jobs in one call
MOST_SPEC_BYTES = 64 << 10  #: maximum size of a spec: it is stored, and returned with each job
MOST_JOB_SPEC_BYTES = 256 << 10  #: the same for jobs with many traces


class Creating:
    """Accepts jobs, and wakes the scheduler."""

    def __init__(self, jobs: Jobs, scheduler: Scheduler, limits: Limits, roots: Sequence[str], apart: Apart) -> None:
        self._jobs, self._scheduler, self._limits, self._roots, self._apart = jobs, scheduler, limits, roots, apart
        self.draining = False  #: whether new jobs are refused

    async def answer(self, caller: Caller, requests: Sequence[Any]) -> list[v1.Job]:
        """Accept all jobs or none, or only validate them; returns the jobs.

        Raises:
            Refusal: a job cannot be accepted, or not now.
        """
        trials = {request.validate_only for request in requests}
        if trials == {True, False}:
            raise Refusal("INVALID_REQUEST", "validate_only: must be set for all requests of a batch, or for none")
        if True in trials:
            self._expect_requests(requests)
            return await self._apart(lambda: self._jobs.expect(caller, self._wanted(requests)))
        jobs = [self._jobs.get(caller, job) for job in await self.create(caller, requests)]
        await self._apart(self._jobs.place, jobs)
        return jobs

    def _wanted(self, requests: Sequence[Any]) -> list[Wanted]:
        """The requested jobs, after the checks that need no database."""
        for request in requests:
            catalog.check_spec(request.spec)
        return [
            Wanted(request.spec, request.request_id, self._file_names(request.spec), card_of(request, self._limits))
            for request in requests
        ]

    def _expect_requests(self, requests: Sequence[Any]) -> None:
        if self.draining:
            raise Refusal("DRAINING", "this server is stopping and accepts no new jobs; try again", retry_s=5)
        for request in requests:
            _expect_request(request)

    async def create(self, caller: Caller, requests: Sequence[Any]) -> list[str]:
        """Accept all jobs or none; returns their ids.

        Raises:
            Refusal: a job cannot be accepted, or not now.
        """
        self._expect_requests(requests)
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()  # contains the call's span

        def create() -> list[str]:
            jobs = self._jobs.create(caller, self._wanted(requests))
            for job, new in jobs:
                # called here and not by the waiting coroutine, which a disconnecting caller cancels
                wake = self._scheduler.queued if new else self._scheduler.wake
                loop.call_soon_threadsafe(wake, job, context=context)
            return [job for job, _ in jobs]

        return await self._apart(create)

    def _file_names(self, spec: v1.JobSpec) -> list[str]:
        """The file name of each input that is a file on the server, which must exist; of other inputs an empty name."""
        inputs = inputs_of(spec)
        if len(inputs) > self._limits.max_job_inputs:
            raise Refusal("INVALID_REQUEST", f"inputs: at most {self._limits.max_job_inputs}")
        return [self._expect_input(given) for given in inputs]

    def _expect_input(self, given: v1.Input) -> str:
        """Check an input; returns its file name if it is a file on the server, else an empty name."""
        kind = given.WhichOneof("source")
        if kind in ("upload", "job"):
            id_of(given.upload or given.job, f"{kind}s")
            return ""
        if kind != "uri":
            raise Refusal("INVALID_REQUEST", "input: must be an upload, a uri or an earlier job")
        file_name = safe_file_name(path_of(given.uri))
        os.close(open_below(*resolve(given.uri, self._roots)))
        return file_name


def _expect_request(request: Any) -> None:
    kind = request.spec.WhichOneof("kind")
    if kind is None:
        raise Refusal("INVALID_REQUEST", "spec: is empty; set one of its fields, such as spec.augment or spec.diff")
    most = MOST_JOB_SPEC_BYTES if kind in ("job", "diagnose") else MOST_SPEC_BYTES
    if request.spec.ByteSize() > most:
        raise Refusal("INVALID_REQUEST", f"spec: at most {most >> 10} KiB")
    expect_id(request.request_id)
