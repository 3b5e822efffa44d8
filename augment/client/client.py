"""The client: one trace there, its outputs back."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from augment.client.connection import Connection, Deadline, Patience, Tls, channel_to
from augment.client.failures import job_failure
from augment.client.results import Augmented, AugmentedJob
from augment.client.transfers import Download, Moved, Upload, sent_name
from augment.client.whole import Names, all_of
from augment.errors import AugmentError, InputError, ServiceError, UsageError
from augment.messages import spec_of
from augment.request import Request
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc
from augment.writers.files import METRICS_SUFFIX, SUMMARY_SUFFIX, stem
from augment.writers.seams import SUFFIX as SEAMS_SUFFIX

Progress = Callable[[str, int, int], None]  #: called with what is being done, how much of it is done, and of how much

_Job = resources_pb2.Job
Wanted = Callable[[], resources_pb2.JobSpec]  #: sends what a job is made of, and says what is wanted
PATIENCE_S, _FIRST_PATIENCE_S = 600.0, 10.0
_MOST_SENT = 5  #: times that a trace is sent which is gone again before there is a job


class _NothingSent(Exception):
    """No trace of a job could be read."""


class Client:
    """Talks to one server; may be used by several threads; to be closed, or used in a ``with``.

    Args:
        address: ``HOST:PORT``.
        token: a bearer token, if the server wants one.
        tls: True to speak TLS with the system's authorities, or a :class:`Tls`.
        patience_s: for how long to try again when a server that has answered before does not (it may be restarting),
            or says that it is full or busy.
        waiting: called before each pause with what is waited for.
        forget: remove each trace from the server as soon as its job has it; else the server keeps it for a while.

    Raises:
        UsageError: a file of ``tls`` cannot be used, or ``token`` cannot be sent.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: bool | Tls = False, patience_s: float = PATIENCE_S,
        waiting: Callable[[str], object] = lambda _: None, forget: bool = False,
    ) -> None:  # fmt: skip
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit()):
            raise UsageError(f"{address}: a server is named HOST:PORT, such as 127.0.0.1:50051")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise UsageError("a token is of printable ASCII characters, and not empty")
        self.address, self._forgets = address, forget
        self._channel = channel_to(address, (tls if isinstance(tls, Tls) else Tls()) if tls else None)
        self._stub = service_pb2_grpc.AugmentServiceStub(self._channel)
        self._connection = Connection(address, token, patience_s, min(patience_s, _FIRST_PATIENCE_S), waiting)

    def close(self) -> None:
        """Close the connection; calls under way end."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def augment(
        self,
        path: str | os.PathLike[str],
        request: Request | None = None,
        *,
        summaries: bool = False,
        out: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Augmented:
        """Send a trace, have it augmented, and write what comes back: the same files as ``augment run`` writes.

        What is cut goes on where it was, a server that is busy or restarting is waited for. On an exception, an
        interrupt too, the job is cancelled. When all is fetched, it is removed from the server.

        Args:
            path: of the trace.
            request: what is asked for; None means all analyses and Perfetto's own format.
            summaries: write what the figures of a whole job are made of, too (``STEM.ranks.summary``), and have told
                where its tracks can be added to the files.
            out: the folder to write into; the trace's own if it is not given.
            progress: called with ``"sending"`` and ``"fetching"``, counting bytes, and with the stages of the work.
            timeout_s: for all of it.
            fields: of :class:`augment.request.Request`, as of ``augment.augment``: ``formats=["perfetto"]``.

        Raises:
            InputError: the trace cannot be read, here or there.
            UsageError: an analysis, option or format that the server does not know.
            OutputError: a file cannot be written.
            ServiceError: the server cannot be reached, does not let us in, or failed.
        """
        name = os.fspath(path)
        tell = progress or (lambda _stage, _done, _of: None)
        deadline = Deadline(timeout_s, name)
        spec = spec_of(Request.of(request, fields), summaries=summaries)

        def wanted() -> resources_pb2.JobSpec:
            spec.input.upload = self._upload(name, deadline, tell)
            return resources_pb2.JobSpec(augment=spec)

        return self._done(wanted, name, out, deadline, tell)

    def diff(
        self,
        control: str | os.PathLike[str],
        test: str | os.PathLike[str],
        *,
        step: int | tuple[int, int] | None = None,
        region: str | None = None,
        short_names: bool = False,
        functions: bool = False,
        formats: Sequence[str] = (),
        overlay: bool = False,
        label: str = "",
        min_delta_us: int | None = None,
        arrow_count: int | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Augmented:
        """Send two traces, have them compared, and write what comes back: the same files as ``augment diff`` writes.

        Args:
            control: the trace of what it was before.
            test: the trace of what it is now.
            step: as of ``augment.diff``, as ``region``, ``short_names`` and ``functions`` are.
            region: the annotation whose occurrences are the steps, or a pattern with ``*`` and ``?``.
            short_names: call operators and kernels by HTA's short names.
            functions: match Python functions, too.
            formats: names of writers; empty means Perfetto's own.
            overlay: write both traces into one file, too.
            label: what to call the control on the timeline; empty means its STEM.
            min_delta_us: differences of fewer microseconds are not drawn; if not given, what makes up 1 % of a step is.
            arrow_count: how many arrows an overlay has at most.
            out: the folder to write into; the test's own if it is not given.
            progress: as of :meth:`augment`, and ``timeout_s``, too.
            timeout_s: for all of it.

        Raises:
            AugmentError: as :meth:`augment`.
        """
        names = os.fspath(control), os.fspath(test)
        tell = progress or (lambda _stage, _done, _of: None)
        deadline = Deadline(timeout_s, names[1])
        steps = (step, step) if isinstance(step, int) else step
        spec = resources_pb2.DiffSpec(
            steps=resources_pb2.StepPair(control=steps[0], test=steps[1]) if steps else None, region=region or "",
            short_names=short_names, functions=functions, formats=formats, overlay=overlay,
            label=label or stem(names[0]), min_delta_us=min_delta_us, arrow_count=arrow_count,
        )  # fmt: skip

        def wanted() -> resources_pb2.JobSpec:
            spec.control.upload, spec.test.upload = (self._upload(name, deadline, tell) for name in names)
            return resources_pb2.JobSpec(diff=spec)

        return self._done(wanted, names[1], out, deadline, tell, control=names[0])

    def augment_job(
        self,
        traces: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]],
        request: Request | None = None,
        *,
        name: str = "",
        merge: bool = False,
        metrics_only: bool = False,
        summaries: bool = False,
        out: str | os.PathLike[str] = ".",
        progress: Progress | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> AugmentedJob:
        """Send the traces of a job, have all augmented and compared, and write what ``augment run DIR`` writes.

        A trace that cannot be read does not keep the others from being augmented.

        Args:
            traces: the paths, by what the traces are called below the folder of the job (``rank0/trace.json``); or the
                paths alone, of different base names.
            request: as of :meth:`augment`.
            name: what the folder of the job is called.
            merge: write all ranks into one timeline, too.
            metrics_only: write no augmented traces.
            summaries: as of :meth:`augment`.
            out: the folder to write into.
            progress: as of :meth:`augment`; ``"converting"`` counts traces.
            timeout_s: for all of it.
            fields: as of :meth:`augment`.

        Raises:
            AugmentError: as :meth:`augment`, but for traces that cannot be read.
        """
        named = traces if isinstance(traces, Mapping) else {os.path.basename(path): path for path in traces}
        if len(named) < len(traces):
            raise UsageError("traces of equal names: give each a name, such as rank0/trace.json")
        paths = {called: os.fspath(path) for called, path in named.items()}
        tell = progress or (lambda _stage, _done, _of: None)
        title = name or "job"
        deadline, names = Deadline(timeout_s, title), Names(paths, Path(out), self.address)
        request = Request.of(request, fields)
        spec = resources_pb2.WholeJobSpec(
            augment=spec_of(request, summaries=summaries), name=name,
            parallelism=dict(request.parallelism), trust_clocks=request.trust_clocks,
            merge=resources_pb2.MergeSpec() if merge else None,
        )  # fmt: skip
        spec.augment.metrics_only = metrics_only
        answers: dict[str, Augmented | AugmentError] = {}
        uploads: dict[str, str] = {}

        def wanted() -> resources_pb2.JobSpec:
            failed, sent = self._send_all(paths, deadline, tell)
            answers.clear()
            uploads.clear()
            answers.update(failed)
            uploads.update(sent)
            del spec.inputs[:]
            for called, upload in uploads.items():
                spec.inputs.add(upload=upload, file_name=names.there[called])
            if not uploads:
                raise _NothingSent
            return resources_pb2.JobSpec(job=spec)

        try:
            job = self._created(wanted, deadline, title)
        except _NothingSent:
            return AugmentedJob(answers, ())
        with self._cancelling(job.name):
            self._forget_uploads(job.spec, deadline, title)
            done = self._ended(job, deadline, tell, title)
            called = list(uploads)
            for failure in done.failures:
                one = called[failure.index]
                answers[one] = job_failure(failure.error).error(self.address, paths[one])
            if done.state != _Job.STATE_FAILED or len(done.failures) < len(uploads):
                self._expect_success(done, title)
            made = self._fetch_all(done, names, paths, deadline, tell)
        self._forget(job.name)
        return AugmentedJob({**made.traces, **answers}, made.files, tuple(done.notes))

    def _send_all(
        self, paths: Mapping[str, str], deadline: Deadline, tell: Progress
    ) -> tuple[dict[str, Augmented | AugmentError], dict[str, str]]:
        """Send traces: why some cannot be read, and the uploads of the others."""

        def send(name: str, moved: Moved) -> str | InputError:
            try:
                return self._upload(paths[name], deadline, lambda _stage, done, of: moved(done, of))
            except InputError as error:
                return error

        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths.values()]
        sent = all_of(list(paths), sizes, send, lambda done, of: tell("sending", done, of))
        told = dict(zip(paths, sent, strict=True))
        failed: dict[str, Augmented | AugmentError] = {n: one for n, one in told.items() if not isinstance(one, str)}
        return failed, {n: one for n, one in told.items() if isinstance(one, str)}

    def _fetch_all(
        self, job: _Job, names: Names, paths: Mapping[str, str], deadline: Deadline, tell: Progress
    ) -> AugmentedJob:
        """Fetch what a whole job has made, but for summaries of seams into files."""
        places = [names.place(artifact.file_name) for artifact in job.artifacts]

        def fetch(at: int, moved: Moved) -> bytes:
            (trace, target), artifact = places[at], job.artifacts[at]
            download = Download(artifact, target, self._connection)
            if target.name.endswith(SEAMS_SUFFIX):
                return download.content(self._stub, deadline)
            download.receive(self._stub, deadline, paths[trace] if trace else None, moved)
            return b""

        sizes = [artifact.size_bytes for artifact in job.artifacts]
        contents = all_of(range(len(places)), sizes, fetch, lambda done, of: tell("fetching", done, of))
        made: dict[str, Augmented | AugmentError] = {}
        for name in dict.fromkeys(trace for trace, _ in places if trace):
            seams = b"".join(content for (trace, _), content in zip(places, contents, strict=True) if trace == name)
            files = [path for trace, path in places if trace == name and not path.name.endswith(SEAMS_SUFFIX)]
            summaries = tuple(path for path in files if path.name.endswith(SUMMARY_SUFFIX))
            made[name] = Augmented(tuple(path for path in files if path not in summaries), summaries, seams)
        return AugmentedJob(made, tuple(path for trace, path in places if not trace))

    def most_job_inputs(self) -> int:
        """How many traces the server takes for one job; 0 if it is of a version that takes none."""
        request = service_pb2.GetServerInfoRequest()
        try:
            info = self._connection.ask(self._stub.GetServerInfo, request, Deadline(None, self.address)).info
        except ServiceError as error:
            if error.code == "UNIMPLEMENTED":
                return 0
            raise
        return info.limits.max_job_inputs

    def _created(self, wanted: Wanted, deadline: Deadline, path: str) -> _Job:
        """The job that ``wanted`` makes of what it sends: again, if that has gone before the job could be created.

        Somebody else who had the same trace augmented, and wanted it to be forgotten, may have removed it.
        """
        for again in range(_MOST_SENT):
            request = service_pb2.CreateJobRequest(spec=wanted(), request_id=str(uuid.uuid4()))
            try:
                return self._connection.ask(self._stub.CreateJob, request, deadline, path).job
            except ServiceError as error:
                if error.code != "NOT_FOUND" or again + 1 == _MOST_SENT:
                    raise
        raise AssertionError("the last attempt raises")

    def _done(
        self, wanted: Wanted, path: str, out: str | os.PathLike[str] | None, deadline: Deadline,
        tell: Progress, control: str = "",
    ) -> Augmented:  # fmt: skip
        """Have a job done, of which ``path`` is the trace that the outputs are called after."""
        job = self._created(wanted, deadline, path)
        with self._cancelling(job.name):
            self._forget_uploads(job.spec, deadline, path)
            done = self._follow(job, deadline, tell, path, control)
            made = self._fetch(done, path, Path(out) if out is not None else Path(path).parent, deadline, tell)
        self._forget(job.name)
        return made

    def _upload(self, path: str, deadline: Deadline, tell: Progress) -> str:
        try:
            upload = Upload(path, sent_name(path), self._connection)
        except OSError as error:
            raise InputError(path, (error.strerror or str(error)).lower()) from error
        return upload.send(self._stub, deadline, lambda done, of: tell("sending", done, of))

    def _follow(self, job: _Job, deadline: Deadline, tell: Progress, path: str, control: str) -> _Job:
        """The job when it has succeeded."""
        latest = self._ended(job, deadline, tell, path)
        self._expect_success(latest, path, control)
        return latest

    def _expect_success(self, job: _Job, path: str, control: str = "") -> None:
        if job.state == _Job.STATE_FAILED:
            failure = job_failure(job.error)
            raise failure.error(self.address, control if failure.metadata.get("side") == "control" else path)
        if job.state == _Job.STATE_CANCELLED:
            raise ServiceError(f"{path}: {self.address}: somebody cancelled the job", "CANCELLED", "CANCELLED")

    def _ended(self, job: _Job, deadline: Deadline, tell: Progress, path: str) -> _Job:
        """The job when it has ended."""

        def attempt(patience: Patience) -> _Job:
            latest = job
            request = service_pb2.WatchJobRequest(name=job.name)
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
        return latest

    def _fetch(self, job: _Job, path: str, out: Path, deadline: Deadline, tell: Progress) -> Augmented:
        sent = stem(sent_name(path))
        downloads = [
            Download(artifact, out / _local_name(artifact.file_name, sent, path, self.address), self._connection)
            for artifact in job.artifacts
        ]
        if not downloads or not downloads[-1].target.name.endswith(METRICS_SUFFIX):
            raise ServiceError(f"{path}: {self.address}: the server made no metrics; it is of another version", "", "")
        seams, paths = b"", []
        for download in downloads:
            if download.target.name.endswith(SEAMS_SUFFIX):
                seams = download.content(self._stub, deadline)
            else:
                download.receive(self._stub, deadline, path, lambda done, of: tell("fetching", done, of))
                paths.append(download.target)
        summaries = tuple(path for path in paths if path.name.endswith(SUMMARY_SUFFIX))
        return Augmented(tuple(path for path in paths if path not in summaries), summaries, seams)

    @contextlib.contextmanager
    def _cancelling(self, job: str) -> Iterator[None]:
        """Cancel the job if what is done within does not end well."""
        try:
            yield
        except BaseException:
            self._try(self._stub.CancelJob, service_pb2.CancelJobRequest(name=job))
            raise

    def _forget_uploads(self, spec: resources_pb2.JobSpec, deadline: Deadline, path: str) -> None:
        """Remove what the job was made of, if that is wanted; the job goes on."""
        inputs = (spec.augment.input, spec.diff.control, spec.diff.test, *spec.job.inputs) if self._forgets else ()
        for name in {source.upload for source in inputs if source.upload}:
            request = service_pb2.DeleteUploadRequest(name=name)
            try:
                self._connection.ask(self._stub.DeleteUpload, request, deadline, path)
            except ServiceError as error:
                if error.code != "NOT_FOUND":
                    raise

    def _forget(self, job: str) -> None:
        """Remove the job and its artifacts, which are here now; the server's retention does it if this fails."""
        self._try(self._stub.DeleteJob, service_pb2.DeleteJobRequest(name=job))

    def _try(self, method: Callable[..., object], request: object) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel is closed
            method(request, timeout=5, metadata=self._connection.metadata)


def _local_name(file_name: str, sent: str, path: str, address: str) -> str:
    """What the artifact is called here: after the local file, whatever of its name could not be sent.

    Raises:
        ServiceError: the server means another file, perhaps outside of the folder.
    """
    suffix = file_name.removeprefix(sent)
    if not file_name.startswith(sent) or not suffix.startswith(".") or "/" in suffix or "\\" in suffix:
        what = f"the server made a file called {file_name!r}, which is not of this trace"
        raise ServiceError(f"{path}: {address}: {what}", "", "")
    return stem(path) + suffix
