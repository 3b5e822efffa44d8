"""Creation of jobs: requests are checked, then accepted."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import Any

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal, invalid, within
from augment_server.base.limits import Limits
from augment_server.base.names import id_of
from augment_server.base.people import Caller
from augment_server.base.threads import Apart
from augment_server.jobs import catalog
from augment_server.jobs.job_metadata import card_of
from augment_server.jobs.jobs import Jobs, Wanted
from augment_server.jobs.scheduler import Scheduler
from augment_server.storage.inputs import files_of, list_path, paths_of
from augment_server.storage.places import Places
from augment_server.storage.requests import expect_id

MOST_TOGETHER = 1000  #: maximum number of jobs in one call
MOST_SPEC_BYTES = 64 << 10  #: maximum size of a spec: it is stored, and returned with each job
MOST_JOB_SPEC_BYTES = 256 << 10  #: the same for jobs with many traces


class Creating:
    """Accepts jobs, and wakes the scheduler."""

    def __init__(self, jobs: Jobs, scheduler: Scheduler, limits: Limits, places: Places, apart: Apart) -> None:
        self._jobs, self._scheduler, self._limits, self._places, self._apart = jobs, scheduler, limits, places, apart
        self.draining = False  #: whether new jobs are refused

    async def answer(self, caller: Caller, requests: Mapping[str, Any]) -> list[v1.Job]:
        """Accept all jobs or none, or only validate them; returns the jobs.

        Args:
            caller: who calls.
            requests: the requests by their paths in the message, such as ``requests[3]``; empty for the message itself.

        Raises:
            Refusal: a job cannot be accepted, or not now.
        """
        trials = [request.validate_only for request in requests.values()]
        for path, trial in zip(requests, trials, strict=True):
            with within(path):
                if trial != trials[0]:
                    raise invalid("validate_only", "must be set for all requests of a batch, or for none")
        if trials[0]:
            self._expect_requests(requests)
            return await self._apart(lambda: self._jobs.expect(caller, self._wanted(requests)))
        created = await self.create(caller, requests)

        return await self._apart(lambda: [self._jobs.get(caller, job, placed=True) for job in created])

    def _wanted(self, requests: Mapping[str, Any]) -> list[Wanted]:
        """The requested jobs, after the checks that need no database."""
        wanted = []
        for path, request in requests.items():
            with within(path):
                catalog.check_spec(request.spec)
                names, card = self._file_names(request.spec), card_of(request, self._limits)
            wanted.append(Wanted(request.spec, request.request_id, names, card, path))
        return wanted

    def _expect_requests(self, requests: Mapping[str, Any]) -> None:
        if self.draining:
            raise Refusal("DRAINING", "this server is stopping and accepts no new jobs; try again", retry_s=5)
        known: set[str] = set()
        for path, request in requests.items():
            with within(path):
                _expect_request(request)
                if request.request_id in known:  # each would be answered with the whole job
                    raise invalid("request_id", "is that of an earlier request of this batch")
                known |= {request.request_id} - {""}

    async def create(self, caller: Caller, requests: Mapping[str, Any]) -> list[str]:
        """Accept all jobs or none; returns their ids. The arguments are those of :meth:`answer`.

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
        files = files_of(spec)
        if len(files) > self._limits.max_job_inputs:
            raise invalid(list_path(spec), f"at most {self._limits.max_job_inputs}")
        with within("spec"):
            self._places.expect_output(spec.output_uri)
        return self._places.each(self._expect_input, zip(paths_of(spec), files, strict=True))

    def _expect_input(self, of: tuple[str, v1.Input]) -> str:
        """Check an input; returns its file name if it is a file on the server, else an empty name."""
        path, given = of
        kind = given.WhichOneof("source")
        if kind is None:
            raise invalid(path, "must be an upload, a uri or an earlier job")
        with within(path):
            if kind != "uri":
                id_of(given.upload or given.job, f"{kind}s", kind)
                return ""
            return self._places.expect_file(given.uri)


def _expect_request(request: Any) -> None:
    kind = request.spec.WhichOneof("kind")
    if kind is None:
        raise invalid("spec", "is empty; set one of its fields, such as spec.augment or spec.diff")
    most = MOST_JOB_SPEC_BYTES if kind in ("job", "diagnose", "check") else MOST_SPEC_BYTES
    if request.spec.ByteSize() > most:
        raise invalid("spec", f"at most {most >> 10} KiB")
    expect_id(request.request_id)
