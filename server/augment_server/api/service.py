"""The calls of ``AugmentService``: decodes requests and makes responses. Other modules do the work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, BinaryIO, ParamSpec, TypeVar

from google.api.httpbody_pb2 import HttpBody
from google.protobuf.message import Message

from augment.core.output_files import METRICS_SUFFIX
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceServicer
from augment_server.api.receiving import Receiving
from augment_server.base.errors import (
    Refusal,
    database_is_damaged,
    disk_is_full,
    files_are_out,
    invalid,
    refuse,
    within,
)
from augment_server.base.interception import LARGE, concern
from augment_server.base.limits import Limits
from augment_server.base.loading import load
from augment_server.base.names import artifact_of, attachment, expect_plain, id_of
from augment_server.base.observer import Observer
from augment_server.base.people import Caller, Person, caller_of, prefix_of
from augment_server.base.threads import Apart, Together
from augment_server.jobs import catalog
from augment_server.jobs.creating import MOST_TOGETHER, Creating
from augment_server.jobs.job_metadata import CHANGEABLE, changed_card
from augment_server.jobs.jobs import CANCELLED, FAILED, FINAL, MOST_READ, QUEUED, SUCCEEDED, Jobs
from augment_server.jobs.retention import Retention
from augment_server.jobs.scheduler import Scheduler
from augment_server.storage.pages import Asked, Tokens
from augment_server.storage.places import Places
from augment_server.storage.requests import Requests, expect_id
from augment_server.storage.storage import Storage
from augment_server.storage.uploads import Uploads

P = ParamSpec("P")
T = TypeVar("T")
_MOST_LINK = timedelta(hours=1)
_LAST_NUMBER = (1 << 63) - 1  #: after all jobs of a version
_TOGETHER_S = 0.1  #: changes of several jobs within this time are looked for together
_MOST_NAMED = 10  #: of a call, in its line of the log
CHUNK = 128 << 10  #: bytes of an artifact in one message
HEARTBEAT_S = 15.0  #: a job that is watched is sent so often at least: proxies end streams that are silent for a minute


def answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with refusals turned into gRPC statuses. Other exceptions become ``INTERNAL``, without details."""

    async def fail(self: Service, context: Any, error: Exception) -> None:
        refusal = error if isinstance(error, Refusal) else _unexpected(error)
        if refusal is not error and refusal.reason != "STORAGE_FULL":
            self.observer.log(logging.ERROR, "".join(traceback.format_exception(error)), call=method.__name__)
        error.__traceback__ = None  # it refers to frames, and these to it: large requests would stay
        await refuse(context, refusal)

    async def check(self: Service, request: Any) -> None:
        if isinstance(request, Message):
            if request.ByteSize() > LARGE:  # looked through in a thread
                await self._apart(expect_plain, request)
            else:
                expect_plain(request)

    @functools.wraps(method)
    async def single(self: Service, request: Any, context: Any) -> Any:
        try:
            await check(self, request)
            answered = await method(self, request, context)
            concern(*_names_in(answered))
            return answered
        except Exception as error:
            failure = error
        return await fail(self, context, failure)

    @functools.wraps(method)
    async def many(self: Service, request: Any, context: Any) -> AsyncIterator[Any]:
        failure: Exception | None = None
        try:
            await check(self, request)
            async with contextlib.aclosing(method(self, request, context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            failure = error
        if failure:
            await fail(self, context, failure)

    return many if inspect.isasyncgenfunction(method) else single


class Service(AugmentServiceServicer):
    """See ``proto/augment/v1/service.proto``."""

    def __init__(
        self,
        storage: Storage,
        uploads: Uploads,
        jobs: Jobs,
        retention: Retention,
        scheduler: Scheduler,
        limits: Limits,
        places: Places,
        observer: Observer,
        person_of: Callable[[Any], Person],
        apart: Apart,
    ) -> None:
        self._storage, self._uploads, self._jobs, self._retention = storage, uploads, jobs, retention
        self._scheduler, self._limits, self._places = scheduler, limits, places
        self.observer, self._person_of, self._apart = observer, person_of, apart
        self.http_url = ""  #: where people reach this server over HTTP; empty: nowhere
        self._requests = Requests(storage)
        self._receiving = Receiving(uploads, retention, limits, apart, self._requests)
        self._creating = Creating(jobs, scheduler, limits, places, apart)
        self._placed_jobs = Together(apart, jobs.placed, MOST_READ)

    def refuse(self) -> None:
        """Accept no more jobs."""
        self._creating.draining = True

    @answering
    async def StartUpload(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's names
        """Announce an upload."""
        caller = self._caller(context, request)
        if request.validate_only:
            return calls.StartUploadResponse(upload=self._receiving.expect(request))
        return calls.StartUploadResponse(upload=await self._receiving.start(caller, request))

    @answering
    async def BatchStartUploads(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Announce several uploads."""
        if not 0 < len(request.requests) <= MOST_TOGETHER:
            raise invalid("requests", f"between 1 and {MOST_TOGETHER}")
        caller, expected = self._caller(context, request), []
        for at, each in enumerate(request.requests):
            with within(f"requests[{at}]"):
                _expect_parent(request, each)
                if each.validate_only != request.requests[0].validate_only:
                    raise invalid("validate_only", "must be set for all requests of a batch, or for none")
                expected.append(self._receiving.expect(each))
        if request.requests[0].validate_only:
            return calls.BatchStartUploadsResponse(uploads=expected)
        uploads = []
        for at, each in enumerate(request.requests):
            with within(f"requests[{at}]"):
                uploads.append(await self._receiving.start(caller, each))
        return calls.BatchStartUploadsResponse(uploads=uploads)

    @answering
    async def GetUpload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return an upload, with the number of received bytes."""
        upload = await self._look(self._uploads.get, self._caller(context, request), id_of(request.name, "uploads"))
        return calls.GetUploadResponse(upload=upload)

    @answering
    async def UploadTrace(self, request: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        """Receive a trace in chunks."""
        first = await self._receiving.next(request)
        kind = first.WhichOneof("part") if first else None
        if kind not in ("start", "resume"):
            raise Refusal("INVALID_REQUEST", "the first message must be start or resume, which name the upload")
        with within(kind):
            caller = self._caller(context, first, first.resume.name, first.start.parent)
            if kind == "start":
                upload, offset = id_of((await self._receiving.start(caller, first.start)).name, "uploads"), 0
            else:
                upload, offset = id_of(first.resume.name, "uploads"), first.resume.offset
            await self._receiving.receive(caller, upload, offset, self._receiving.chunks(first.finish, request))
        return calls.UploadTraceResponse(upload=await self._look(self._uploads.get, caller, upload))

    @answering
    async def UploadBytes(self, request: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        """Receive a trace as plain bytes."""
        first = await self._receiving.next(request)
        if first is None:
            raise Refusal("INVALID_REQUEST", "the first message must name the upload")
        caller = self._caller(context, first)
        name = first.name or (await self._receiving.start(caller, first)).name
        upload = id_of(name, "uploads")
        pieces = self._receiving.contents(first, request)
        await self._receiving.receive(caller, upload, first.offset if first.name else 0, pieces)
        return calls.UploadBytesResponse(upload=await self._look(self._uploads.get, caller, upload))

    @answering
    async def ListUploads(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return a page of uploads."""
        uploads, more = await self._apart(self._uploads.page, self._caller(context, request), Asked.of(request))
        return calls.ListUploadsResponse(uploads=uploads, next_page_token=more)

    @answering
    async def DeleteUpload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Remove an upload."""
        caller, upload = self._caller(context, request), id_of(request.name, "uploads")

        def remove() -> None:
            if self._requests.is_removed(caller, "DeleteUpload", request):
                return
            self._uploads.get(caller, upload)
            if not request.validate_only:
                self._retention.remove_upload(upload)
                answered = (caller, "DeleteUpload", request.request_id, b"", request.name)
                self._storage.freeing(lambda: self._requests.remember(*answered))

        await self._apart(remove)
        return calls.DeleteUploadResponse()

    @answering
    async def CreateJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Accept a job."""
        (job,) = await self._creating.answer(self._caller(context, request), {"": request})
        return calls.CreateJobResponse(job=job)

    @answering
    async def BatchCreateJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Accept several jobs."""
        if not 0 < len(request.requests) <= MOST_TOGETHER:
            raise invalid("requests", f"between 1 and {MOST_TOGETHER}")
        requests = {f"requests[{at}]": each for at, each in enumerate(request.requests)}
        for path, each in requests.items():
            with within(path):
                _expect_parent(request, each)
        caller = self._caller(context, request)
        return calls.BatchCreateJobsResponse(jobs=await self._creating.answer(caller, requests))

    @answering
    async def GetJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return a job."""
        asked = self._caller(context, request), id_of(request.name, "jobs")
        return calls.GetJobResponse(job=await self._placed(*asked, basic=_is_basic(request)))

    @answering
    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return a page of jobs."""
        asked = Asked.of(request), request.states, _is_basic(request)
        jobs, more = await self._apart(self._jobs.page, self._caller(context, request), *asked)
        return calls.ListJobsResponse(jobs=jobs, next_page_token=more)

    @answering
    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Return a job after each of its changes."""
        caller, job_id = self._caller(context, request), id_of(request.name, "jobs")
        async for job in self._follow(caller, job_id, basic=_is_basic(request)):
            yield calls.WatchJobResponse(job=job)

    @answering
    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Return the jobs of a list, and each again after each of its changes."""
        caller, basic = self._caller(context, request, "", request.parent), _is_basic(request)
        tokens = Tokens(self._storage.secret, f"watch {caller.realm} {request.filter}".encode())
        since = tokens.read(request.resume_token, {1}, "resume_token")[0] if request.resume_token else 0
        if since > await self._apart(self._storage.catalog.mark):
            raise invalid("resume_token", "is of later than what this server knows: it was restored; begin without it")
        sent: dict[str, int] = {}
        with self._scheduler.watching_all() as watch:
            while True:
                running = watch.taken()
                mark, place, count = await self._apart(self._storage.catalog.mark), (since - 1, _LAST_NUMBER), 0
                while changed := await self._apart(self._jobs.changed_since, caller, place, request.filter, basic):
                    for version, number, job in changed:
                        place = (version, number)
                        if sent.get(job.name) != version:
                            count += 1
                            yield calls.WatchJobsResponse(job=job)
                        sent[job.name] = version
                for job in await self._apart(self._jobs.running_among, caller, running, request.filter, basic):
                    count += 1
                    yield calls.WatchJobsResponse(job=job)
                since, sent = mark, {name: version for name, version in sent.items() if version >= mark}
                if count:  # all before it have come
                    yield calls.WatchJobsResponse(resume_token=tokens.made([since]))
                if self._scheduler.released:
                    raise Refusal("DRAINING", "this server is stopping; go on with the resume_token", retry_s=5)
                try:
                    await asyncio.wait_for(watch.event.wait(), HEARTBEAT_S)
                    await asyncio.sleep(_TOGETHER_S)
                except asyncio.TimeoutError:
                    yield calls.WatchJobsResponse(resume_token=tokens.made([since]))

    @answering
    async def UpdateJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Change what a job is called, its labels or its priority."""
        caller, job = self._caller(context, request), id_of(request.name, "jobs")
        names = set(request.update_mask.paths) or {field.name for field, _ in request.ListFields()} & CHANGEABLE
        names = set(CHANGEABLE) if names == {"*"} else names
        if unknown := sorted(names - CHANGEABLE):
            known = ", ".join(sorted(CHANGEABLE))
            raise invalid("update_mask", f"{unknown[0][:80]!r} cannot be changed, only {known}")
        values = {name: getattr(changed_card(request), name) for name in names}
        changed = await self._apart(self._jobs.update, caller, job, values, request.validate_only)
        if not request.validate_only:
            self._scheduler.changed(job)
        return calls.UpdateJobResponse(job=changed)

    @answering
    async def CancelJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Cancel a job."""
        caller = self._caller(context, request)
        await self._look(self._job, caller, request.name)
        expect_id(request.request_id)  # cancelling twice changes nothing
        if not request.validate_only:
            await self._scheduler.cancel(id_of(request.name, "jobs"))
        return calls.CancelJobResponse(job=await self._look(self._job, caller, request.name))

    @answering
    async def DeleteJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Remove a job."""
        caller = self._caller(context, request)

        def remove() -> None:
            if self._requests.is_removed(caller, "DeleteJob", request):
                return
            job = self._job(caller, request.name)
            if not caller.is_admin and job.creator != caller.creator:
                what = f"{job.name}: is of {job.creator}; only an admin of its project removes jobs of others"
                raise Refusal("NOT_PERMITTED", what)
            if job.state not in FINAL:
                raise Refusal("JOB_NOT_DONE", f"{job.name}: is waiting or running; cancel it first")
            if not request.validate_only:
                self._retention.remove_job(id_of(job.name, "jobs"))
                answered = (caller, "DeleteJob", request.request_id, b"", request.name)
                self._storage.freeing(lambda: self._requests.remember(*answered))

        await self._apart(remove)
        return calls.DeleteJobResponse()

    @answering
    async def ListArtifacts(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the artifacts of a job."""
        job = id_of(request.parent, "jobs", "parent")
        caller = self._caller(context, request, request.parent)
        asked = Asked(request.page_size, request.page_token)
        artifacts, more = await self._apart(self._jobs.artifacts_page, caller, job, asked)
        return calls.ListArtifactsResponse(artifacts=artifacts, next_page_token=more)

    @answering
    async def GetArtifact(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return an artifact's size, digest and media type."""
        artifact = await self._look(self._artifact, self._caller(context, request), request.name)
        if not request.HasField("link_life"):
            return calls.GetArtifactResponse(artifact=artifact)
        life = request.link_life.ToTimedelta()
        if life < timedelta(seconds=1):
            raise invalid("link_life", "at least one second")
        job, file_name = artifact_of(artifact.name)

        def link() -> str:
            return self._storage.store.link(f"{self._jobs.folder(job)}/{file_name}", min(life, _MOST_LINK))

        return calls.GetArtifactResponse(artifact=artifact, link=await self._apart(link))

    @answering
    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Return an artifact's bytes."""
        artifact = await self._look(self._artifact, self._caller(context, request), request.name, request.offset)
        if request.limit < 0:
            raise invalid("limit", "must not be negative")
        yield calls.ReadArtifactResponse(artifact=artifact)
        left = artifact.size_bytes - request.offset
        async for chunk in self._read(artifact, request.offset, min(left, request.limit or left)):
            yield calls.ReadArtifactResponse(chunk=chunk)

    @answering
    async def DownloadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Return an artifact as a file."""
        artifact = await self._look(self._artifact, self._caller(context, request), request.name, request.offset)
        at, count = request.offset, artifact.size_bytes - request.offset
        if hasattr(context, "part"):  # over HTTP
            skipped, count = context.part(count, artifact.sha256)
            at += skipped
        async with contextlib.aclosing(self._read(artifact, at, count)) as chunks:
            first = await anext(chunks, b"")  # before the headers: the file may have been removed
            await context.send_initial_metadata((("content-disposition", attachment(artifact.file_name)),))
            yield HttpBody(content_type=artifact.media_type, data=first)
            async for chunk in chunks:
                yield HttpBody(data=chunk)

    @answering
    async def GetMetrics(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Return a job's metrics."""
        job, sidecar = await self._look(self._metrics, self._caller(context, request), request)
        with contextlib.closing(await self._apart(lambda: catalog.MetricsFile(self._opened(sidecar)))) as file:
            for at, name in enumerate(request.analyses):
                _expect_analysis(job, file, name, f"analyses[{at}]")
            verdict = file.verdict
            for name in dict.fromkeys(request.analyses) or file.names:
                messages = file.messages(name)
                while metrics := await self._apart(next, messages, None):
                    yield calls.GetMetricsResponse(metrics=metrics, verdict=verdict)
                    verdict = []

    @answering
    async def QueryMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return a page of the rows of an analysis."""
        load()
        from augment_server.jobs.metrics_query import query

        job, sidecar = await self._look(self._metrics, self._caller(context, request), request)

        def answer() -> calls.QueryMetricsResponse:
            with contextlib.closing(catalog.MetricsFile(self._opened(sidecar))) as file:
                _expect_analysis(job, file, request.analysis, "analysis")
                return query(file, self._storage.secret, job.name, request)

        return await self._apart(answer)

    @answering
    async def ListAnalyses(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Return the analyses with their options."""
        return calls.ListAnalysesResponse(analyses=await self._apart(catalog.analyses))

    @answering
    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Return the server's version, formats and limits, and who the caller is."""
        info, person = await self._apart(catalog.server_info, self._limits, self._places), self._person_of(context)
        info.http_url = self.http_url
        roles = [
            calls.Role(project=f"projects/{project}" if project else "", role=role)
            for project, role in person.roles.items()
        ]
        return calls.GetServerInfoResponse(info=info, caller=person.client, roles=roles)

    @answering
    async def Augment(self, request: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Upload a trace, convert it, and return the artifacts, in one call."""
        first = await self._receiving.next(request)
        if first is None or first.WhichOneof("part") != "start":
            raise Refusal("INVALID_REQUEST", "the first message must be start, with the spec")
        caller = self._caller(context, first, "", first.start.file.parent)
        spec = v1.AugmentSpec()
        spec.CopyFrom(first.start.spec)
        spec.input.Clear()
        with within("start.spec"):
            await self._apart(catalog.check, spec)
        with within("start.file"):
            upload = (await self._receiving.start(caller, first.start.file)).name
        pieces = self._receiving.chunks(first.finish, request)
        await self._receiving.receive(caller, id_of(upload, "uploads"), 0, pieces)
        spec.input.upload = upload
        (job,) = await self._creating.create(caller, {"start": _of_augment(first.start, spec)})
        concern(f"{prefix_of(caller.realm)}jobs/{job}")
        context.add_done_callback(lambda _: self._scheduler.cancel_soon(job))
        state = v1.Job()
        async for state in self._follow(caller, job):
            yield calls.AugmentResponse(job=state)
        _expect_success(state)
        for artifact in state.artifacts:
            yield calls.AugmentResponse(artifact=artifact)
            async for chunk in self._read(artifact, 0, artifact.size_bytes):
                yield calls.AugmentResponse(chunk=chunk)

    def _caller(self, context: Any, request: Any, name: str | None = None, parent: str = "") -> Caller:
        """Who calls, and in which project: that of ``name`` or ``parent``, which by default are the request's.

        Raises:
            Refusal: the caller lacks the role that the method needs there.
        """
        if name is None:
            name, parent = getattr(request, "name", ""), getattr(request, "parent", "")
        person = self._person_of(context)
        concern(name or parent)
        return caller_of(person, request.DESCRIPTOR.name.removesuffix("Request"), name, parent)

    async def _look(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of a function that reads a few rows: cheaper here than in a thread, if they are here."""
        if self._storage.catalog.is_shared:
            return await self._apart(function, *args, **options)
        return function(*args, **options)

    def _job(self, caller: Caller, name: str, field: str = "name") -> v1.Job:
        """The current state of a job."""
        return self._jobs.get(caller, id_of(name, "jobs", field))

    async def _placed(self, caller: Caller, name: str, *, basic: bool = False) -> v1.Job:
        """A job as it stands, with its place in the queue if it waits."""
        if not self._storage.catalog.is_shared and (job := self._jobs.get(caller, name, basic=basic)).state != QUEUED:
            return job
        together = await self._placed_jobs((caller.realm, name, basic))
        if together is not None:
            return together
        return await self._apart(self._jobs.get, caller, name, basic=basic, placed=True)

    def _metrics(self, caller: Caller, request: Any) -> tuple[v1.Job, v1.Artifact]:
        """The job that a request names, and its metrics."""
        job = self._job(caller, request.name)
        if job.state != SUCCEEDED:
            raise Refusal("JOB_NOT_DONE", f"{job.name}: has no metrics, because it has not succeeded")
        return job, _metrics_of(job, request.artifact)

    def _artifact(self, caller: Caller, name: str, offset: int = 0) -> v1.Artifact:
        """The artifact of this name, which has at least ``offset`` bytes."""
        job, file_name = artifact_of(name)
        artifact = self._jobs.artifact(caller, job, file_name)
        if artifact is None:
            raise Refusal("NOT_FOUND", f"{name[:300]}: there is no such artifact")
        if not 0 <= offset <= artifact.size_bytes:
            what = f"{file_name}: has {artifact.size_bytes} bytes, not {offset}"
            raise Refusal("OFFSET_OUT_OF_RANGE", what, field_path="offset")
        return artifact

    async def _follow(self, caller: Caller, job: str, *, basic: bool = False) -> AsyncIterator[v1.Job]:
        """The job now, after each change, and when ``HEARTBEAT_S`` have passed; its final state comes last."""
        with self._scheduler.watching(job) as changed:
            before = None
            while True:
                changed.clear()
                now = await self._placed(caller, job, basic=basic)
                if now != before:
                    yield now
                if now.state in FINAL:
                    return
                if self._scheduler.released:
                    raise Refusal("DRAINING", "this server is stopping; the job is kept, try again", retry_s=5)
                before = now
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
                    continue
                before = None

    async def _read(self, artifact: v1.Artifact, offset: int, left: int) -> AsyncGenerator[bytes, None]:
        """``left`` bytes of an artifact, from ``offset`` on."""
        with await self._apart(self._opened, artifact) as file:
            if file.seek(0, os.SEEK_END) != artifact.size_bytes:
                raise Refusal(
                    "ARTIFACT_DAMAGED", f"{artifact.name}: is damaged on the server's disk; run the job again"
                )
            file.seek(offset)
            while left > 0 and (chunk := await self._apart(file.read, min(left, CHUNK))):
                left -= len(chunk)
                yield chunk

    def _opened(self, artifact: v1.Artifact) -> BinaryIO:
        """An artifact's file."""
        job, file_name = artifact_of(artifact.name)
        try:
            return self._storage.store.open(f"{self._jobs.folder(job)}/{file_name}")
        except OSError as error:
            raise Refusal("NOT_FOUND", f"{artifact.name}: has been removed") from error


def _names_in(answered: Any) -> Iterator[str]:
    """The names of the uploads or jobs in an answer."""
    for field in ("upload", "job"):
        yield getattr(getattr(answered, field, None), "name", "")
    for field in ("uploads", "jobs"):
        yield from (each.name for each in getattr(answered, field, ())[:_MOST_NAMED])


def _expect_parent(batch: Any, request: Any) -> None:
    if request.parent not in ("", batch.parent):
        raise invalid("parent", "must be that of the batch, or empty")


def _is_basic(request: Any) -> bool:
    """Whether only the small part of a job is asked for."""
    return bool(request.view == calls.JOB_VIEW_BASIC)


def _metrics_of(job: v1.Job, file_name: str) -> v1.Artifact:
    """The metrics artifact of this name; the last if the name is empty."""
    metrics = [artifact for artifact in job.artifacts if artifact.file_name.endswith(METRICS_SUFFIX)]
    wanted = [metric for metric in metrics if metric.file_name == file_name] if file_name else metrics
    if not wanted:
        what = f"no metrics called {file_name[:80]!r}" if file_name else "no metrics"
        raise Refusal("NOT_FOUND", f"{job.name}: has {what}", field_path="artifact" if file_name else "")
    return wanted[-1]


def _expect_analysis(job: v1.Job, file: catalog.MetricsFile, name: str, field: str) -> None:
    if name not in file.names:
        raise Refusal("NOT_FOUND", f"{job.name}: no analysis called {name[:80]!r} was run", field_path=field)


def _of_augment(start: Any, spec: v1.AugmentSpec) -> calls.CreateJobRequest:
    """The request for a job, from the first message of ``Augment``."""
    return calls.CreateJobRequest(
        spec=v1.JobSpec(augment=spec),
        display_name=start.display_name,
        labels=start.labels,
        priority=start.priority,
        deadline=start.deadline if start.HasField("deadline") else None,
        request_id=start.request_id,
    )


def _unexpected(error: Exception) -> Refusal:
    if disk_is_full(error):
        return Refusal("STORAGE_FULL", "the server's disk is full; tell its operator, or try again later", retry_s=60)
    if files_are_out(error):
        what = "the server cannot open more files now: too many connections and calls; try again"
        return Refusal("TOO_MANY_CONNECTIONS", what, retry_s=5)
    if database_is_damaged(error):
        what = "the server's database is damaged; tell its operator, who can restore a backup or start with --repair"
        return Refusal("STATE_DAMAGED", what)
    return Refusal("INTERNAL", "internal error; the server's log has more")


def _expect_success(job: v1.Job) -> None:
    """Raise the refusal of a job that failed or was cancelled."""
    if job.state == FAILED:
        raise Refusal(job.error.reason, job.error.message, dict(job.error.metadata))
    if job.state == CANCELLED:
        raise Refusal("CANCELLED", f"{job.name}: was cancelled")
