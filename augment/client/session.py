"""A connection to a server, and its jobs from the upload of the traces to the final state."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from augment.client.connection import Connection, Deadline, Patience, Tls, channel_to, job_failure
from augment.client.transfers import Moved, Upload, all_of, sent_name
from augment.core.attachment_kinds import KINDS, RANK, TABLES
from augment.core.output_files import SERVER_JOB
from augment.errors import InputError, ServiceError, UsageError
from augment.pipeline.request import Request
from augment.readers.attachments import files_at
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[str, int, int], None]  #: called with the stage, how much of it is done, and the total

_Job = resources_pb2.Job
Wanted = Callable[[], resources_pb2.JobSpec]  #: uploads the inputs of a job and returns its spec
PATIENCE_S, _FIRST_PATIENCE_S = 600.0, 10.0
_MOST_SENT = 5  #: attempts to create a job whose uploads disappear before it is created
#: what an earlier server does not take, by the field of its info that would list the kind
_NOT_TAKEN = {
    "attachment_kinds": "tables, peaks and regions; update it, or convert the trace here",
    "attachment_jobs": "tables, captures, peaks and regions to {}; update it, or do it here",
    "rank_jobs": "--ranks and --part there; update it",
}


class NothingSent(Exception):
    """No trace of a job could be read."""


class Sent:
    """The uploads of a job's traces, and the errors of unreadable traces, by name."""

    def __init__(self) -> None:
        self.unread: dict[str, InputError] = {}
        self.uploads: dict[str, str] = {}

    def all(self, answers: Mapping[str, str | InputError]) -> None:
        """Replace all by the outcome of the latest attempt to send.

        Raises:
            NothingSent: no trace could be read.
        """
        self.unread = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
        self.uploads = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        if not self.uploads:
            raise NothingSent


def as_input(sent: str, file_name: str = "") -> resources_pb2.Input:
    """The input of a job: an upload, an earlier job, or a trace that the server reads itself."""
    if SERVER_JOB.fullmatch(sent):
        return resources_pb2.Input(job=sent, file_name=file_name)
    if "://" in sent:
        return resources_pb2.Input(uri=sent, file_name=file_name)
    return resources_pb2.Input(upload=sent, file_name=file_name)


class Attached(NamedTuple):
    """A file recorded beside a trace: its kind and path; ``trace_index``: of the only trace that it belongs to."""

    kind: str
    path: str
    trace_index: int | None


def attached(paths: Mapping[str, str], trace_index: int | None = None) -> list[Attached]:
    """The files at ``paths`` by kind, which may be globs.

    Raises:
        UsageError: a file is not there, or a path has ``{rank}``, which only a trace on this machine tells.
    """
    for kind, path in paths.items():
        if RANK in path or not files_at(path):
            why = "no such file" if RANK not in path else f"name the file itself, without {RANK}"
            raise UsageError(f"{kind} {path}: {why}")
    return [Attached(kind, file, trace_index) for kind, path in paths.items() for file in files_at(path)]


def beside_all(request: Request) -> list[Attached]:
    """The files that all traces of a request share; the errors are those of :func:`attached`."""
    tables = [Attached(TABLES, path, None) for path in request.tables]
    return [*attached(request.evidence.paths), *tables]


class JobWatch:
    """The jobs of a list, as :meth:`Client.watch` gives them; any thread may ``close`` it, which ends the iteration.

    ``resume_token``: with it another watch of the same filter goes on; empty before the first jobs have all come.
    """

    def __init__(
        self, open_stream: Callable[[str], Any], connection: Connection, deadline: Deadline, resume_token: str
    ) -> None:
        self._open, self._connection, self._deadline = open_stream, connection, deadline
        self.resume_token, self._is_closed = resume_token, False
        self._stream: Any = None

    def __iter__(self) -> Iterator[_Job]:
        """Each job as it is now, or was after a change; the watch goes on after interruptions."""
        while not self._is_closed:
            message = self._connection.persist(self._message, self._deadline)
            self.resume_token = message.resume_token or self.resume_token
            if message.HasField("job"):
                yield message.job

    def _message(self, patience: Patience) -> service_pb2.WatchJobsResponse:
        """The next message; an empty one where a stream has ended."""
        self._deadline.left_s()
        try:
            self._stream = self._stream or self._open(self.resume_token)
            message: service_pb2.WatchJobsResponse = next(self._stream)
        except (grpc.RpcError, StopIteration) as end:
            self._stream = None
            if isinstance(end, grpc.RpcError) and not self._is_closed:
                raise
            return service_pb2.WatchJobsResponse()
        patience.heard()
        return message

    def close(self) -> None:
        """End the watch."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()


class Session:
    """The steps that all calls of a client share. The arguments are those of :class:`augment.client.Client`."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: bool | Tls = False,
        patience_s: float = PATIENCE_S,
        waiting: Callable[[str], object] = lambda _: None,
        forget: bool = False,
        project: str = "",
    ) -> None:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit()):
            raise UsageError(f"{address}: must be HOST:PORT, such as 127.0.0.1:50051")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise UsageError("a token must consist of printable ASCII characters, and must not be empty")
        self.address, self._forgets, self._parent = address, forget, f"projects/{project}" if project else ""
        self.kept: list[str] = []  #: names of the jobs that were left to the members of a project
        self._channel = channel_to(address, (tls if isinstance(tls, Tls) else Tls()) if tls else None)
        self._stub = service_pb2_grpc.AugmentServiceStub(self._channel)
        self._connection = Connection(address, token, patience_s, min(patience_s, _FIRST_PATIENCE_S), waiting)

    def close(self) -> None:
        """Close the connection and end calls under way."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _created(self, wanted: Wanted, deadline: Deadline, path: str) -> _Job:
        """Create the job of the spec that ``wanted`` returns; send again if an upload disappeared meanwhile.

        Another client with the same trace and ``forget`` may have removed the upload.
        """
        for again in range(_MOST_SENT):
            request = service_pb2.CreateJobRequest(spec=wanted(), request_id=str(uuid.uuid4()), parent=self._parent)
            try:
                return self._connection.ask(self._stub.CreateJob, request, deadline, path).job
            except ServiceError as error:
                if error.code != "NOT_FOUND" or again + 1 == _MOST_SENT:
                    raise
        raise AssertionError("the last attempt raises")

    def reads(self, url: str) -> bool:
        """Whether the server itself reads a trace at this URL of a bucket; all other traces are sent."""
        return url.startswith(tuple(self._info.input_prefixes))

    @functools.cached_property
    def _info(self) -> resources_pb2.ServerInfo:
        request = service_pb2.GetServerInfoRequest()
        return self._connection.ask(self._stub.GetServerInfo, request, Deadline(None, self.address)).info

    def _expect_taken(self, given: object, kind: str, listed: str) -> None:
        """Refuse what is ``given`` if an earlier server would leave it out without a word: its info has not ``listed``
        the ``kind`` of attachment or job.

        Raises:
            UsageError: it takes none.
        """
        if given and kind not in getattr(self._info, listed):
            raise UsageError(f"{self.address}: this server takes no {_NOT_TAKEN[listed].format(kind)}")

    def _upload(self, path: str, deadline: Deadline, tell: Progress) -> str:
        """Send a trace: the name of its upload, or ``path`` itself if the server has or reads that."""
        if SERVER_JOB.fullmatch(path) or ("://" in path and self.reads(path)):
            return path
        try:
            upload = Upload(path, sent_name(path), self._connection, self._parent)
        except OSError as error:
            raise InputError(path, (error.strerror or str(error)).lower()) from error
        return upload.send(self._stub, deadline, lambda done, of: tell("sending", done, of))

    def _attachments(
        self, files: Sequence[Attached], deadline: Deadline, tell: Progress
    ) -> list[resources_pb2.Attachment]:
        """Send what was recorded beside traces.

        Raises:
            InputError: a file cannot be read.
        """
        uploads = self._send_all({file.path: file.path for file in files}, deadline, tell)
        messages = []
        for kind, path, trace_index in files:
            upload = uploads[path]
            if isinstance(upload, InputError):
                raise upload
            in_folder = any(each.inside for each in KINDS if each.name == kind)
            folder = f"{os.path.basename(os.path.dirname(path))}." if in_folder else ""
            given = as_input(upload, sent_name(folder + os.path.basename(path)))
            messages.append(resources_pb2.Attachment(kind=kind, input=given, trace_index=trace_index))
        return messages

    def _expect_success(self, job: _Job, path: str, control: str = "") -> None:
        if job.state == _Job.STATE_FAILED:
            failure = job_failure(job.error)
            raise failure.error(self.address, control if failure.metadata.get("side") == "control" else path)
        if job.state == _Job.STATE_CANCELLED:
            raise ServiceError(f"{path}: {self.address}: the job was cancelled", "CANCELLED", "CANCELLED")

    def _ended(self, job: _Job, deadline: Deadline, tell: Progress, path: str) -> _Job:
        """Wait until the job has ended; meanwhile only what does not grow with its inputs is sent."""

        def attempt(patience: Patience) -> _Job:
            latest = job
            request = service_pb2.WatchJobRequest(name=job.name, view=service_pb2.JOB_VIEW_BASIC)
            for answer in self._stub.WatchJob(request, timeout=deadline.left_s(), metadata=self._connection.metadata):
                patience.heard()
                latest = answer.job
                if latest.state == _Job.STATE_QUEUED:
                    tell("queued", 0, 1)
                elif latest.HasField("progress"):
                    tell(latest.progress.stage, latest.progress.done_count, latest.progress.total_count)
            return latest

        final = (_Job.STATE_SUCCEEDED, _Job.STATE_FAILED, _Job.STATE_CANCELLED)
        while (latest := self._connection.persist(attempt, deadline, path)).state not in final:
            deadline.left_s()
        if not latest.HasField("spec"):  # an earlier server sends all each time
            request = service_pb2.GetJobRequest(name=job.name)
            latest = self._connection.ask(self._stub.GetJob, request, deadline, path).job
        return latest

    @contextlib.contextmanager
    def _cancelling(self, job: str) -> Iterator[None]:
        """Cancel the job if the block raises."""
        try:
            yield
        except BaseException:
            self._try(self._stub.CancelJob, service_pb2.CancelJobRequest(name=job))
            raise

    @contextlib.contextmanager
    def _ran(self, wanted: Wanted, deadline: Deadline, tell: Progress, path: str, control: str = "") -> Iterator[_Job]:
        """A job once it has succeeded. It is cancelled if the block raises, and removed after it."""
        job = self._created(wanted, deadline, path)
        with self._cancelling(job.name):
            self._forget_uploads(job.spec, deadline, path)
            latest = self._ended(job, deadline, tell, path)
            self._expect_success(latest, path, control)
            yield latest
        self._forget(job.name)

    def _forget_uploads(self, spec: resources_pb2.JobSpec, deadline: Deadline, path: str) -> None:
        """Remove the job's uploads if ``forget`` is set; the job continues."""
        inputs = (spec.augment.input, spec.diff.control, spec.diff.test, *spec.job.inputs)
        each_kind = (spec.augment, spec.job.augment, spec.diff, spec.diagnose)
        beside = (each.input for kind in each_kind for each in kind.attachments)
        inputs = (*inputs, *spec.diagnose.inputs, *spec.diff.tests, *spec.diff.controls, *beside, spec.cut.input)
        inputs = (*inputs, *spec.check.tests, *spec.check.baselines)
        inputs = inputs if self._forgets else ()
        for name in {source.upload for source in inputs if source.upload}:
            request = service_pb2.DeleteUploadRequest(name=name)
            try:
                self._connection.ask(self._stub.DeleteUpload, request, deadline, path)
            except ServiceError as error:
                if error.code != "NOT_FOUND":
                    raise

    def _forget(self, job: str) -> None:
        """Remove the job and its artifacts from the server; if that fails, the server's retention removes them.

        The members of a project keep it.
        """
        if self._parent:
            self.kept.append(job)
        else:
            self._try(self._stub.DeleteJob, service_pb2.DeleteJobRequest(name=job))

    def links(self) -> list[str]:
        """Where members of the project open the jobs that were left there, if the server offers HTTP."""
        url = self._info.http_url if self.kept else ""
        return [f"{url}/v1/{job}" for job in self.kept if url.startswith(("http://", "https://"))]

    def _try(self, method: Callable[..., object], request: object) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel is closed
            method(request, timeout=5, metadata=self._connection.metadata)

    def _send_all(self, paths: Mapping[str, str], deadline: Deadline, tell: Progress) -> dict[str, str | InputError]:
        """Send traces; returns for each its upload, or the error if it cannot be read."""

        def send(name: str, moved: Moved) -> str | InputError:
            try:
                return self._upload(paths[name], deadline, lambda _stage, done, of: moved(done, of))
            except InputError as error:
                return error

        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths.values()]
        sent = all_of(list(paths), sizes, send, lambda done, of: tell("sending", done, of))
        return dict(zip(paths, sent, strict=True))

    def most_job_inputs(self) -> int:
        """The maximum number of traces of a job on this server; 0 if its version has no jobs of several traces."""
        try:
            return self._info.limits.max_job_inputs
        except ServiceError as error:
            if error.code == "UNIMPLEMENTED":
                return 0
            raise
