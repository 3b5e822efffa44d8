"""The client: sends traces to a server and writes the outputs that come back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from augment.client import connection, session, transfers
from augment.compare.gate import GateLimits, Limit, Line, line_of
from augment.core import attachment_kinds, output_files
from augment.errors import AugmentError, ServiceError, UsageError
from augment.pipeline.request import Request, spec_of
from augment.v1 import resources_pb2, service_pb2
from augment.writers.seams import SUFFIX as SEAMS_SUFFIX

_Job = resources_pb2.Job
CUT_FORMATS = {".json.gz": "chrome", ".pftrace": "perfetto"}  #: of the new file, by the ending of its name


_ANY = ""  #: the key of the STEM here of whatever the server names after a trace of an earlier job


class Client(session.Session):
    """A client of one server. Several threads may share it. Close it, or use it in a ``with`` statement.

    Args:
        address: ``HOST:PORT``.
        token: a bearer token, if the server requires one.
        tls: True for TLS with the system's certificate authorities, or a :class:`Tls`.
        patience_s: how long to retry while the server is full or busy, or no longer answers (it may be restarting).
        waiting: called before each pause with the reason for it.
        forget: remove each trace from the server once its job is created; otherwise the server keeps it for a while.
        project: the project whose the uploads and jobs are, in which the token has the role of a writer; the jobs stay
            for its members.

    Raises:
        UsageError: a file of ``tls`` cannot be used, or ``token`` cannot be sent.
    """

    def augment(
        self,
        path: str | os.PathLike[str],
        request: Request | None = None,
        *,
        summaries: bool = False,
        metrics_only: bool = False,
        out: str | os.PathLike[str] | None = None,
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Augmented:
        """Augment a trace on the server and write the outputs: the same files as ``augment run`` writes.

        Interrupted transfers resume where they stopped; the client waits for a server that is busy or restarting. On
        any exception, including an interrupt, it cancels the job. Once all outputs are here, it removes the job.

        Args:
            path: the trace; or its URL in a bucket, if the server reads there (``input_prefixes`` of its info).
            request: the analyses and formats; None means all analyses and Perfetto's native format.
            summaries: also write the summary for the stages of a job (``STEM.ranks.summary``), and return the seams of
                the outputs.
            metrics_only: write no augmented trace.
            out: the output folder; by default that of the trace, or the current one if that is a URL.
            progress: called with ``"sending"`` and ``"fetching"``, counting bytes, and with the stages of the work.
            timeout_s: limit for the whole call.
            fields: fields of :class:`augment.pipeline.request.Request`, as for ``augment.augment``:
                ``formats=["perfetto"]``; and ``evidence``, an ``Evidence`` of
                :mod:`augment.readers.attachments`: files recorded beside the trace, without ``{rank}``.

        Raises:
            InputError: the trace cannot be read, here or there.
            UsageError: an analysis, option or format that the server does not know.
            OutputError: a file cannot be written.
            ServiceError: the server cannot be reached, denies access, or failed.
        """
        name = os.fspath(path)
        tell = progress or (lambda _stage, _done, _of: None)
        deadline = connection.Deadline(timeout_s, name)
        request = Request.of(request, fields)
        self._expect_taken(
            request.tables or request.peaks or request.region, attachment_kinds.TABLES, "attachment_kinds"
        )
        spec = spec_of(request, summaries=summaries)
        spec.metrics_only = metrics_only
        beside = [*session.beside_all(request), *session.attached(request.evidence.of_traces.get(name, {}))]

        def wanted() -> resources_pb2.JobSpec:
            spec.input.CopyFrom(session.as_input(self._upload(name, deadline, tell)))
            del spec.attachments[:]
            spec.attachments.extend(self._attachments(beside, deadline, tell))
            return resources_pb2.JobSpec(augment=spec)

        return self._done(wanted, name, out, deadline, tell)

    def diff(
        self,
        control: str | os.PathLike[str] | Sequence[str],
        test: str | os.PathLike[str] | Sequence[str],
        *,
        name: str = "",
        control_rank: int | None = None,
        test_rank: int | None = None,
        step: int | tuple[int, int] | None = None,
        region: str | None = None,
        short_names: bool = False,
        functions: bool = False,
        formats: Sequence[str] = (),
        overlay: bool = False,
        label: str = "",
        min_delta_us: int | None = None,
        arrow_count: int | None = None,
        tables: Sequence[str] = (),
        peaks: Sequence[str] = (),
        captures: tuple[str | Mapping[str, str] | None, str | Mapping[str, str] | None] = (None, None),
        out: str | os.PathLike[str] | None = None,
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
    ) -> Augmented:
        """Compare two runs on the server and write the outputs: the same files as ``augment diff`` writes.

        Args:
            control: the trace before the change, or the traces of its ranks; or a job of the server, as is the test.
            test: the trace after the change, or the traces of its ranks.
            name: the name of the test's folder; outputs are named after it if the test has several traces. Those of a
                job of the server, ``jobs/ID``, are named ID.
            control_rank: compare only this rank of the control.
            test_rank: compare only this rank of the test.
            step: as in ``augment.diff``.
            region: the annotation whose occurrences are the steps, or a pattern with ``*`` and ``?``.
            short_names: use HTA's short names of operators and kernels.
            functions: also match Python functions.
            formats: names of writers; empty means Perfetto's native format.
            overlay: also write both traces into one file.
            label: the name of the control on the timeline; empty means its STEM.
            min_delta_us: draw only differences of at least this many microseconds; by default of 1 % of a step.
            arrow_count: the maximum number of arrows in an overlay.
            tables: the user's own, for both sides.
            peaks: as in :func:`augment.with_tables`.
            captures: traces of the capture of the CUDA graphs, of the control and of the test; of several traces that
                of each, by its path.
            out: the output folder; by default that of the test.
            progress: as in :meth:`augment`.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`augment`.
        """
        controls, tests = _paths(control), _paths(test)
        paths = [tests[0], controls[0], *tests[1:], *controls[1:]]
        tell = progress or (lambda _stage, _done, _of: None)
        deadline = connection.Deadline(timeout_s, paths[0])
        steps = (step, step) if isinstance(step, int) else step
        spec = resources_pb2.DiffSpec(
            steps=resources_pb2.StepPair(control=steps[0], test=steps[1]) if steps else None,
            region=region or "",
            short_names=short_names,
            functions=functions,
            formats=formats,
            overlay=overlay,
            label=label or (output_files.stem(controls[0]) if len(controls) == 1 else ""),
            name=transfers.sent_name(name),
            control_rank=control_rank,
            test_rank=test_rank,
            min_delta_us=min_delta_us,
            arrow_count=arrow_count,
            peaks=peaks,
        )
        beside = [session.Attached(attachment_kinds.TABLES, table, None) for table in tables]
        controls_at = [1, *range(len(tests) + 1, len(paths))]
        tests_at = [0, *range(2, len(tests) + 1)]
        for capture, places in zip(captures, (controls_at, tests_at), strict=True):
            named = capture if isinstance(capture, Mapping) else {paths[places[0]]: capture}
            for place in places:
                beside += session.attached({"graph_capture": path} if (path := named.get(paths[place])) else {}, place)
        self._expect_taken(beside or peaks, "diff", "attachment_jobs")

        def wanted() -> resources_pb2.JobSpec:
            sent = [session.as_input(self._upload(path, deadline, tell)) for path in paths]
            spec.test.CopyFrom(sent[0])
            spec.control.CopyFrom(sent[1])
            del spec.tests[:], spec.controls[:]
            spec.tests.extend(sent[2 : len(tests) + 1])
            spec.controls.extend(sent[len(tests) + 1 :])
            del spec.attachments[:]
            spec.attachments.extend(self._attachments(beside, deadline, tell))
            return resources_pb2.JobSpec(diff=spec)

        stems = {
            output_files.stem(transfers.sent_name(path)): output_files.stem(path)
            for path in tests
            if not output_files.SERVER_JOB.fullmatch(path)
        }
        if len(tests) > 1:
            stems[spec.name or "job"] = name or "job"
        elif not stems:
            stems[_ANY] = output_files.stem(tests[0])
        return self._done(wanted, paths[0], out, deadline, tell, control=controls[0], stems=stems, inputs=paths)

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
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> AugmentedJob:
        """Augment the traces of a job on the server, compare its ranks, and write what ``augment run DIR`` writes.

        If a trace cannot be read, the others are still augmented.

        Args:
            traces: maps names relative to the job's folder (``rank0/trace.json``) to paths; or a sequence of paths with
                different base names.
            request: as in :meth:`augment`.
            name: the name of the job's folder.
            merge: also write one timeline of all ranks.
            metrics_only: write no augmented traces.
            summaries: as in :meth:`augment`.
            out: the output folder.
            progress: as in :meth:`augment`; ``"converting"`` counts traces.
            timeout_s: limit for the whole call.
            fields: as in :meth:`augment`; files beside single traces are in ``of_traces`` of the evidence.

        Raises:
            AugmentError: as in :meth:`augment`, except for traces that cannot be read.
        """
        named = traces if isinstance(traces, Mapping) else {os.path.basename(path): path for path in traces}
        if len(named) < len(traces):
            raise UsageError("traces of equal names: give each a name, such as rank0/trace.json")
        paths = {called: os.fspath(path) for called, path in named.items()}
        tell = progress or (lambda _stage, _done, _of: None)
        title = name or "job"
        deadline, names = (
            connection.Deadline(timeout_s, title),
            transfers.JobNames(paths, Path(out), self.address, name),
        )
        request = Request.of(request, fields)
        self._expect_taken(
            request.tables or request.peaks or request.region, attachment_kinds.TABLES, "attachment_kinds"
        )
        spec = resources_pb2.WholeJobSpec(
            augment=spec_of(request, summaries=summaries),
            name=names.title,
            parallelism=dict(request.parallelism),
            trust_clocks=request.trust_clocks,
            merge=resources_pb2.MergeSpec() if merge else None,
        )
        spec.augment.metrics_only = metrics_only
        sent = session.Sent()

        def wanted() -> resources_pb2.JobSpec:
            sent.all(self._send_all(paths, deadline, tell))
            uploads = sent.uploads.items()
            inputs = [session.as_input(upload, names.there[n]) for n, upload in uploads]
            del spec.inputs[:], spec.augment.attachments[:]
            spec.inputs.extend(inputs)
            beside = session.beside_all(request)
            for at, called in enumerate(sent.uploads):
                beside += session.attached(request.evidence.of_traces.get(paths[called], {}), at)
            spec.augment.attachments.extend(self._attachments(beside, deadline, tell))
            return resources_pb2.JobSpec(job=spec)

        try:
            job = self._created(wanted, deadline, title)
        except session.NothingSent:
            return AugmentedJob(sent.unread, ())
        answers: dict[str, Augmented | AugmentError] = {**sent.unread}
        with self._cancelling(job.name):
            self._forget_uploads(job.spec, deadline, title)
            done = self._ended(job, deadline, tell, title)
            called = list(sent.uploads)
            for failure in done.failures:
                path_index = called[failure.index]
                answers[path_index] = connection.job_failure(failure.error).error(self.address, paths[path_index])
            if done.state != _Job.STATE_FAILED or len(done.failures) < len(sent.uploads):
                self._expect_success(done, title)
            made = self._fetch_all(done, names, paths, deadline, tell)
        self._forget(job.name)
        return AugmentedJob({**made.traces, **answers}, made.files, tuple(done.notes))

    def diagnose(
        self,
        paths: Sequence[str | os.PathLike[str]],
        request: Request | None = None,
        *,
        name: str = "",
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
    ) -> Diagnosis:
        """Diagnose the traces of one folder on the server, as ``augment diagnose`` does.

        Args:
            paths: the traces, with different base names.
            request: its tables, peaks, region and evidence are used.
            name: the name of the folder; a job of several ranks is named after it.
            progress: as in :meth:`augment`.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`augment_job`; for a single trace, also if it cannot be read.
        """
        named = {os.path.basename(path): os.fspath(path) for path in paths}
        tell = progress or (lambda _stage, _done, _of: None)
        title = next(iter(named.values())) if len(named) == 1 else name or "job"
        deadline, request = connection.Deadline(timeout_s, title), request or Request()
        sent, beside = session.Sent(), session.beside_all(request)
        self._expect_taken(beside or request.peaks or request.region, "diagnose", "attachment_jobs")
        spec = resources_pb2.DiagnoseSpec(name=transfers.sent_name(name), peaks=request.peaks, region=request.region)

        def wanted() -> resources_pb2.JobSpec:
            sent.all(self._send_all(named, deadline, tell))
            del spec.inputs[:], spec.attachments[:]
            spec.inputs.extend(session.as_input(upload) for upload in sent.uploads.values())
            spec.attachments.extend(self._attachments(beside, deadline, tell))
            return resources_pb2.JobSpec(diagnose=spec)

        try:
            with self._ran(wanted, deadline, tell, title) as done:
                lines = transfers.Download(done.artifacts[-1], Path(), self._connection).content(self._stub, deadline)
        except session.NothingSent:
            return Diagnosis((), {named[called]: error for called, error in sent.unread.items()})
        failed: dict[str, AugmentError] = {named[called]: error for called, error in sent.unread.items()}
        for failure in done.failures:
            path = named[list(sent.uploads)[failure.index]]
            failed[path] = connection.job_failure(failure.error).error(self.address, path)
        paths_here = {transfers.sent_name(called): path for called, path in named.items()}
        reports = [msgspec.json.decode(line) for line in lines.splitlines()]
        return Diagnosis(tuple({**row, "input": paths_here.get(row["input"], row["input"])} for row in reports), failed)

    def check(
        self,
        tests: Sequence[str],
        baselines: Sequence[str] = (),
        *,
        labels: Mapping[str, str] | None = None,
        limits: GateLimits | None = None,
        region: str = "",
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
    ) -> CheckResult:
        """Judge a run against a baseline on the server, as ``augment check`` does.

        Args:
            tests: the metrics or traces of all ranks of the run; or the name of a job of the server.
            baselines: likewise of the run to compare it with.
            labels: in their place: the jobs of the server that have these labels are the baseline.
            limits: of the gate.
            region: as in :meth:`diff`.
            progress: as in :meth:`augment`.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`augment`; also if this server does no checks.
        """
        limits, tell = limits or GateLimits(), progress or (lambda _stage, _done, _of: None)
        deadline = connection.Deadline(timeout_s, tests[0])

        def wanted() -> resources_pb2.JobSpec:
            sent = [session.as_input(self._upload(path, deadline, tell)) for path in (*tests, *baselines)]
            spec = resources_pb2.CheckSpec(
                tests=sent[: len(tests)],
                baselines=sent[len(tests) :],
                history=None if baselines else resources_pb2.HistorySpec(labels=labels or {}),
                max_regress=_limit_text(limits.max_regress),
                metrics={name: _limit_text(limit) for name, limit in limits.figures.items()},
                parts=limits.parts,
                region=region,
                alpha=limits.alpha,
            )
            return resources_pb2.JobSpec(check=spec)

        content = self._told(wanted, deadline, tell, tests[0])
        return CheckResult([line_of(row) for row in content["figures"]], content["baseline"], content["notes"])

    def history(
        self, labels: Mapping[str, str], *, limit: int = 0, timeout_s: float | None = None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The figures of the jobs of the server that have these labels, the oldest first, and where they changed.

        Args:
            labels: at least one.
            limit: maximum number of jobs, the newest; 0: 100.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`check`.
        """
        spec = resources_pb2.HistorySpec(labels=labels, limit=limit)
        deadline = connection.Deadline(timeout_s, self.address)
        content = self._told(lambda: resources_pb2.JobSpec(history=spec), deadline, lambda *_: None, self.address)
        return content["runs"], content["changes"]

    def watch(
        self, matching: str = "", *, resume_token: str = "", whole: bool = False, timeout_s: float | None = None
    ) -> session.JobWatch:
        """The jobs of the server that match, first as they are and then after each change, until it is closed.

        Each is a message ``Job`` of ``augment.v1.resources_pb2``. Interruptions, also by a restart of the server, are
        passed over: nothing is lost, a job may come twice, and one that is removed does not come.

        Args:
            matching: a filter as ``ListJobs`` takes it, such as ``labels.suite = nightly``; empty: all jobs.
            resume_token: that of an earlier watch with the same filter: only what has changed since comes.
            whole: jobs come with their specs and artifacts, too.
            timeout_s: limit for the whole watch.

        Raises:
            ServiceError: as in :meth:`check`; on iteration.
        """
        deadline = connection.Deadline(timeout_s, self.address)
        view = service_pb2.JOB_VIEW_FULL if whole else service_pb2.JOB_VIEW_BASIC

        def stream(token: str) -> Any:
            request = service_pb2.WatchJobsRequest(filter=matching, resume_token=token, view=view, parent=self._parent)
            return self._stub.WatchJobs(request, timeout=deadline.left_s(), metadata=self._connection.metadata)

        return session.JobWatch(stream, self._connection, deadline, resume_token)

    def cut(
        self,
        path: str,
        out: str | os.PathLike[str],
        *,
        steps: tuple[int, int] | None = None,
        period_ms: tuple[float, float] | None = None,
        drop: Sequence[str] = (),
        ranks: Sequence[range] = (),
        part: bool = False,
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
    ) -> list[Path]:
        """Make a smaller trace on the server, as ``augment cut`` does.

        Args:
            path: the trace; or the name of a job of the server, each of whose traces is cut.
            out: the new file, ``.json.gz`` or ``.pftrace``; of a job of several traces, the folder for the new files.
            steps: keep these, both included.
            period_ms: keep this period, since the first event.
            drop: leave out events of these categories.
            ranks: of a job only the traces of these ranks, of a job's timeline these ranks; empty: all.
            part: write each rank of a file with several, as other tools merge them, into the folder ``out``.
            progress: as in :meth:`augment`.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`check`.
        """
        target, tell, deadline = (
            Path(out),
            progress or (lambda _stage, _done, _of: None),
            connection.Deadline(timeout_s, path),
        )
        formats = {ending: name for ending, name in CUT_FORMATS.items() if target.name.endswith(ending)}
        formats = {} if part else formats
        spec = resources_pb2.CutSpec(
            drop=drop, format=next(iter(formats.values()), ""), ranks=_rank_ranges(ranks), part=part
        )
        self._expect_taken(part or ranks, "cut", "rank_jobs")
        if steps:
            spec.steps.first, spec.steps.last = steps
        for moment, ms in zip((spec.period.start, spec.period.end) if period_ms else (), period_ms or (), strict=True):
            moment.FromNanoseconds(round(1e6 * ms))

        def wanted() -> resources_pb2.JobSpec:
            spec.input.CopyFrom(session.as_input(self._upload(path, deadline, tell)))
            return resources_pb2.JobSpec(cut=spec)

        with self._ran(wanted, deadline, tell, path) as done:
            if formats and len(done.artifacts) > 1:
                raise UsageError(f"{path}: has {len(done.artifacts)} traces; name a folder for their parts")
            names = [artifact.file_name for artifact in done.artifacts]
            if not all(
                re.fullmatch(r"(?:(?!\.\.?/)[^/\\]+/)*[^/\\]+\.cut\.(?:json\.gz|pftrace)", name) for name in names
            ):
                raise ServiceError(f"{path}: {self.address}: the server made files that are no parts of it", "", "")
            kept = [name.replace(".cut.", ".") for name in names] if part else names
            targets = [target] if formats else [target / name for name in kept]
            transfers.expect_apart(targets, [path])
            self._receive(done.artifacts, targets, path, deadline, tell)
            return targets

    def merge(
        self,
        traces: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]],
        out: str | os.PathLike[str],
        request: Request | None = None,
        *,
        name: str = "",
        align: bool = True,
        everything: bool = False,
        ranks: Sequence[range] = (),
        progress: session.Progress | None = None,
        timeout_s: float | None = None,
    ) -> tuple[str, ...]:
        """Write one timeline of all ranks of a job to ``out``, as ``augment run --merge -o OUT`` does; notes on it.

        Args:
            traces: as in :meth:`augment_job`; also names of jobs of the server, which stand for their traces.
            out: the new file, ``.pftrace``.
            request: the analyses whose tracks are drawn.
            name: as in :meth:`augment_job`.
            align: whether clocks are aligned.
            everything: whether nothing is left out.
            ranks: only these; empty: all.
            progress: as in :meth:`augment`.
            timeout_s: limit for the whole call.

        Raises:
            AugmentError: as in :meth:`check`.
        """
        named = traces if isinstance(traces, Mapping) else {os.path.basename(path): path for path in traces}
        paths, title = {called: os.fspath(path) for called, path in named.items()}, name or "job"
        request, deadline = request or Request(), connection.Deadline(timeout_s, title)
        tell = progress or (lambda _stage, _done, _of: None)
        self._expect_taken(
            request.tables or request.peaks or request.region, attachment_kinds.TABLES, "attachment_kinds"
        )
        self._expect_taken(ranks, "job", "rank_jobs")
        merge = resources_pb2.MergeSpec(no_align=not align, everything=everything, only=True, ranks=_rank_ranges(ranks))

        def wanted() -> resources_pb2.JobSpec:
            sent = self._send_all(paths, deadline, tell)
            if unread := next((answer for answer in sent.values() if not isinstance(answer, str)), None):
                raise unread
            inputs = [
                session.as_input(str(upload), "" if upload == paths[called] else transfers.sent_path(called))
                for called, upload in sent.items()
            ]
            spec = resources_pb2.WholeJobSpec(
                inputs=inputs,
                augment=spec_of(request, summaries=False),
                name=transfers.sent_path(name),
                parallelism=dict(request.parallelism),
                trust_clocks=request.trust_clocks,
                merge=merge,
            )
            spec.augment.attachments.extend(self._attachments(session.beside_all(request), deadline, tell))
            return resources_pb2.JobSpec(job=spec)

        with self._ran(wanted, deadline, tell, title) as done:
            if len(done.artifacts) != 1:
                raise ServiceError(f"{title}: {self.address}: the server made {len(done.artifacts)} timelines", "", "")
            transfers.expect_apart([Path(out)], paths.values())
            self._receive(done.artifacts, [Path(out)], title, deadline, tell)
            return tuple(done.notes)

    def _told(
        self, wanted: session.Wanted, deadline: connection.Deadline, tell: session.Progress, path: str
    ) -> dict[str, Any]:
        """What the last artifact of a job tells, in JSON."""
        with self._ran(wanted, deadline, tell, path) as done:
            text = transfers.Download(done.artifacts[-1], Path(), self._connection).content(self._stub, deadline)
        content: dict[str, Any] = msgspec.json.decode(text)
        return content

    def _receive(
        self,
        artifacts: Sequence[resources_pb2.Artifact],
        targets: Sequence[Path],
        path: str,
        deadline: connection.Deadline,
        tell: session.Progress,
    ) -> None:
        for artifact, target in zip(artifacts, targets, strict=True):
            download = transfers.Download(artifact, target, self._connection)
            download.receive(self._stub, deadline, path, lambda done, of: tell("fetching", done, of))

    def _fetch_all(
        self,
        job: _Job,
        names: transfers.JobNames,
        paths: Mapping[str, str],
        deadline: connection.Deadline,
        tell: session.Progress,
    ) -> AugmentedJob:
        """Fetch the artifacts of a whole job, the files of seams only into memory."""
        places = [names.place(artifact.file_name) for artifact in job.artifacts]
        transfers.expect_apart([target for _, target in places], paths.values())

        def fetch(at: int, moved: transfers.Moved) -> bytes:
            (trace, target), artifact = places[at], job.artifacts[at]
            download = transfers.Download(artifact, target, self._connection)
            if target.name.endswith(SEAMS_SUFFIX):
                return download.content(self._stub, deadline)
            download.receive(self._stub, deadline, paths[trace] if trace else None, moved)
            return b""

        sizes = [artifact.size_bytes for artifact in job.artifacts]
        contents = transfers.all_of(range(len(places)), sizes, fetch, lambda done, of: tell("fetching", done, of))
        made: dict[str, Augmented | AugmentError] = {}
        for name in dict.fromkeys(trace for trace, _ in places if trace):
            seams = b"".join(content for (trace, _), content in zip(places, contents, strict=True) if trace == name)
            files = [path for trace, path in places if trace == name and not path.name.endswith(SEAMS_SUFFIX)]
            summaries = tuple(path for path in files if path.name.endswith(output_files.SUMMARY_SUFFIX))
            made[name] = Augmented(tuple(path for path in files if path not in summaries), summaries, seams)
        return AugmentedJob(made, tuple(path for trace, path in places if not trace))

    def _done(
        self,
        wanted: session.Wanted,
        path: str,
        out: str | os.PathLike[str] | None,
        deadline: connection.Deadline,
        tell: session.Progress,
        control: str = "",
        stems: Mapping[str, str] | None = None,
        inputs: Sequence[str] = (),
    ) -> Augmented:
        """Run a job; its outputs are named after the trace ``path``, or it is one of several ``inputs``.

        ``stems`` are the STEMs of the outputs on the server and here, if they are not that of ``path``.
        """
        stems = stems or {output_files.stem(transfers.sent_name(path)): output_files.stem(path)}
        with self._ran(wanted, deadline, tell, path, control) as done:
            is_there = "://" in path or output_files.SERVER_JOB.fullmatch(path)
            folder = Path(out if out is not None else "." if is_there else os.path.dirname(path))
            return self._fetch(done, path, stems, folder, deadline, tell, inputs or [path])

    def _fetch(
        self,
        job: _Job,
        path: str,
        stems: Mapping[str, str],
        out: Path,
        deadline: connection.Deadline,
        tell: session.Progress,
        paths: Sequence[str],
    ) -> Augmented:
        endings = output_files.OF_DIFF if job.spec.WhichOneof("kind") == "diff" else output_files.OF_TRACE
        downloads = [
            transfers.Download(
                artifact, out / _local_name(artifact.file_name, stems, endings, path, self.address), self._connection
            )
            for artifact in job.artifacts
        ]
        transfers.expect_apart([download.target for download in downloads], paths)
        if not downloads or not downloads[-1].target.name.endswith(output_files.METRICS_SUFFIX):
            raise ServiceError(
                f"{path}: {self.address}: the server made no metrics; it may be of another version", "", ""
            )
        seams, files = b"", []
        for download in downloads:
            if download.target.name.endswith(SEAMS_SUFFIX):
                seams = download.content(self._stub, deadline)
            else:
                download.receive(self._stub, deadline, path, lambda done, of: tell("fetching", done, of))
                files.append(download.target)
        summaries = tuple(file for file in files if file.name.endswith(output_files.SUMMARY_SUFFIX))
        return Augmented(tuple(file for file in files if file not in summaries), summaries, seams)


def _rank_ranges(ranks: Sequence[range]) -> list[resources_pb2.RankRange]:
    most = 2**31 - 1  # of a field
    return [resources_pb2.RankRange(first=min(some[0], most), last=min(some[-1], most)) for some in ranks]


def _paths(side: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    return [os.fspath(side)] if isinstance(side, str | os.PathLike) else list(side)


def _local_name(file_name: str, stems: Mapping[str, str], endings: Sequence[str], path: str, address: str) -> str:
    """The local name of an artifact: derived from the local file, even if that name could not be sent unchanged.

    Raises:
        ServiceError: it is no output of the trace, a STEM with one of the ``endings``.
    """
    for ending in endings:
        sent = file_name.removesuffix(ending)
        if sent != file_name and (local := stems.get(sent, stems.get(_ANY))):
            return local + ending
    what = f"the server made a file called {file_name!r}, which is no output of this trace"
    raise ServiceError(f"{path}: {address}: {what}", "", "")


def _limit_text(limit: Limit | None) -> str:
    """The limit as a server takes it."""
    if limit is None:
        return "off"
    return f"{limit.bound!r}" if limit.bound is not None else f"{100 * (limit.share or 0):.15g}%"


class CheckResult(Struct, frozen=True):
    """The outcome of a check: a line for each figure, the name of the baseline, and notes for people."""

    lines: Sequence[Line]
    baseline: str
    notes: list[str]


class Augmented(Struct, frozen=True):
    """The result for a trace: the files written, the sidecar last, and, on request, the summaries for its job.

    With summaries, ``seams`` holds the seams of the files (:mod:`augment.writers.seams`); it is empty if the server's
    version does not send them.
    """

    files: tuple[Path, ...]
    summaries: tuple[Path, ...] = ()
    seams: bytes = b""

    @property
    def metrics(self) -> dict[str, Any]:
        """The sidecar's content."""
        return msgspec.json.decode(self.files[-1].read_bytes(), type=dict[str, Any])


class AugmentedJob(Struct, frozen=True):
    """The result for a whole job: for each trace, by its name in the job, its result or the error.

    ``files`` belong to the job: timelines, then the job's metrics; empty with fewer than two readable traces.
    ``notes`` are for people; each begins with a file's name.
    """

    traces: Mapping[str, Augmented | AugmentError]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``job.metrics.json``."""
        return msgspec.json.decode(self.files[-1].read_bytes(), type=dict[str, Any])


class Diagnosis(Struct, frozen=True):
    """The diagnosis of traces: a report on their job, if they are its ranks, and on each readable trace.

    Each of ``reports`` has ``input`` (the path of a trace), ``verdict`` and ``rows``, of a rank also ``rank``.
    ``failed`` are the other traces.
    """

    reports: tuple[dict[str, Any], ...]
    failed: Mapping[str, AugmentError]
