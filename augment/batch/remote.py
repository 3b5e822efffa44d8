"""Converts files through a server: one by one, or those of a folder as one job, of which the server also compares the
ranks and draws the tracks. Results come in the order of the inputs, as in a local batch."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import locations
from augment.batch.conversion import File, Progress, Result, RunPlan, delivered, result_of
from augment.batch.inputs import Input, identify
from augment.batch.job_question import Concluded, drawn_at_first, job_digest, jobs_of, summary_of
from augment.batch.jobs import folder_title
from augment.batch.merged_timeline import default_output
from augment.core.attachment_kinds import RANK
from augment.core.output_files import METRICS_SUFFIX
from augment.core.text import job_lines
from augment.errors import AugmentError, InputError
from augment.readers.attachments import Evidence
from augment.writers.seams import add_tracks, seams_of_files

if TYPE_CHECKING:
    from augment.client import Augmented, Client
    from augment.writers.seams import Addable

_FAREWELL_S = 2.0


def convert_remotely(
    inputs: Sequence[Input], plan: RunPlan, progress: Progress, finished: Callable[[Input, Result], None]
) -> Iterator[Result]:
    """Convert ``inputs`` one by one, ``jobs`` at once. On an interrupt the conversions under way are cancelled.

    Args:
        inputs: the traces.
        plan: of the run, with a client.
        progress: ``stage`` is called in this thread with an input and the current activity, if only one conversion runs
            at once.
        finished: called in this thread with each result.
    """
    client = plan.client
    assert client is not None
    if min(plan.jobs, len(inputs)) > 1:
        results = _several(inputs, plan, client, progress)
    else:
        results = (_one(item, plan, client, progress) for item in inputs)
    for item, result in zip(inputs, results, strict=True):
        finished(item, result)
        yield result


def _one(item: Input, plan: RunPlan, client: Client, progress: Progress) -> Result:
    """Convert ``item`` on the server and return the result. An error is a result, too; only an interrupt raises."""

    def work() -> Result:
        locations.expect_writable(item.folder)
        there = bool(locations.protocol(item.path)) and client.reads(item.path)
        with locations.at_hand(item.path, item.folder, item.size, fetch=not there) as (path, folder):
            evidence = _beside(item, plan.request.evidence)
            augmented = client.augment(
                path,
                replace(plan.request, evidence=evidence),
                summaries=plan.compares,
                out=folder,
                progress=progress_of(lambda text: progress.stage(f"{item.basename}: {text}")),
            )
            result = _result(item, augmented, path)
            return _with_evidence(result, augmented, item, plan.request.evidence, progress)

    return result_of(item, work)


def _beside(item: Input, evidence: Evidence) -> Evidence:
    """The files of the trace itself, where those of ``evidence`` may be named by its rank or lie beside it."""
    identity = identify(item.path)
    return Evidence(evidence.near(item.path, identity.rank, identity.world_size).of(identity.rank))


def _with_evidence(result: Result, made: Augmented, item: Input, evidence: Evidence, progress: Progress) -> Result:
    """The result with the state of the files beside its trace; those that were not used are announced."""
    near = evidence.near(item.path, result.rank, result.world_size)
    analyses = made.metrics["analyses"].items()
    reasons = {name: each["reason"] for name, each in analyses if each["status"] in ("skipped", "failed")}
    for why in near.not_used(made.metrics["source"]["name"], result.rank, reasons):
        progress.announce(why)
    return replace(result, evidence_state=near.state(result.rank))


def _result(item: Input, made: Augmented, path: str) -> Result:
    """The result of ``item``, of which the server has made this; its trace lies at ``path``."""
    source = made.metrics["source"]
    count = len(made.summaries)
    seams = [None] * count + seams_of_files(made.seams, made.files)
    files = delivered([*made.summaries, *made.files], item, seams)
    return Result(
        item.path,
        "augmented",
        files[count:],
        sha256=source["sha256"],
        rank=source["ranks"][0] if source["ranks"] else None,
        world_size=identify(path).world_size,  # the sidecar does not contain it
        summaries=files[:count],
        partial=source["partial"] or "",
    )


def _several(inputs: Sequence[Input], plan: RunPlan, client: Client, progress: Progress) -> Iterator[Result]:
    ended = threading.Event()

    def go_on(_: str) -> None:
        if ended.is_set():
            raise _Ended

    waiting, running = deque(inputs), deque[Future[Result]]()
    with ThreadPoolExecutor(plan.jobs) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < plan.jobs:
                    running.append(pool.submit(_one, waiting.popleft(), plan, client, replace(progress, stage=go_on)))
                yield running.popleft().result()
        except BaseException:
            ended.set()  # each conversion cancels its job at its next progress report
            wait(running, _FAREWELL_S)
            client.close()  # ends calls that still wait
            raise


class _Ended(BaseException):
    """The batch was interrupted: its results are no longer needed."""


def progress_of(stage: Callable[[str], object]) -> Callable[[str, int, int], None]:
    """What tells ``stage`` of the progress of a client."""

    def progress(what: str, done: int, of: int) -> None:
        stage(progress_text(what, done, of))

    return progress


def progress_text(what: str, done: int, of: int) -> str:
    """A client's progress as text."""
    if what == "converting":
        return f"{what}, {done} of {of}"
    return f"{what}, {100 * done // of} %" if of and what in ("sending", "fetching") else what


class Folder(Struct, frozen=True):
    """The inputs of one folder: the path of the outputs, and its name for the job."""

    out: str
    name: str
    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, inputs: Sequence[Input], reads: Callable[[str], bool]) -> Folder | None:
        """The folder of several inputs; None if they are of none, or of several, or URLs that the server does not read
        itself."""
        roots, urls = {item.root for item in inputs}, [item.path for item in inputs if locations.protocol(item.path)]
        if len(inputs) < 2 or len(roots) > 1 or not all(map(reads, urls)):
            return None
        (out,) = roots
        paths = [locations.absolute(item.path) for item in inputs]
        tops = {path.removesuffix(f"/{item.key}") for path, item in zip(paths, inputs, strict=True)}
        if out is None or locations.protocol(out) or len(tops) > 1:
            return None
        (top,) = tops
        whole = all(f"{top}/{item.key}" == path for path, item in zip(paths, inputs, strict=True))
        return cls(out, folder_title(top), tuple(inputs)) if whole else None


class RemoteJob(Struct, frozen=True):
    """What a server has made of a folder: results as of a batch, what it has concluded, and timelines, with notes."""

    results: Sequence[Result]
    concluded: Sequence[Concluded]
    timelines: Sequence[str]
    notes: Sequence[str]


def convert_folder(folder: Folder, plan: RunPlan, progress: Progress) -> RemoteJob:
    """Convert the traces of a folder, and all that is about their job.

    Raises:
        AugmentError: the server cannot do it, or an output cannot be written; but not because of a single trace.
    """
    assert plan.client is not None
    locations.expect_writable(folder.out)
    given = plan.request.evidence
    shared = {kind: path for kind, path in given.paths.items() if RANK not in path}
    beside = {item.path: _beside(item, given) for item in folder.inputs}
    of_traces = {
        path: {kind: file for kind, file in files.paths.items() if kind not in shared} for path, files in beside.items()
    }
    augmented = plan.client.augment_job(
        {item.key: item.path for item in folder.inputs},
        replace(plan.request, evidence=Evidence(shared, of_traces)),
        name=folder.name,
        merge=plan.merge,
        summaries=True,
        out=folder.out,
        progress=progress_of(progress.stage),
    )
    results = [_result_in_job(item, augmented.traces.get(item.key), given, progress) for item in folder.inputs]
    by_path = {result.path: result for result in results}
    for job in jobs_of(folder.inputs, by_path):  # what identifies the job whose tracks their outputs show
        members = [by_path[member.input.path] for member in job.members]
        if len(members) < 2:
            continue
        paths = [path for result in members if (path := summary_of(result))]
        drawn = job_digest((hashlib.sha256(locations.read(path)).digest() for path in paths), plan.request)
        for result in members:
            if any(file.undrawn_sha256 and file.undrawn_sha256 != file.sha256 for file in result.files):
                by_path[result.path] = replace(result, drawn=drawn)
    # What the files about jobs tell, as if they had been made here; and the timelines
    import msgspec

    there = {os.path.realpath(path) for path in augmented.files}
    concluded, timelines = [], []
    for job in jobs_of(folder.inputs, by_path):
        metrics, timeline = locations.join(job.folder, job.stem + METRICS_SUFFIX), default_output(job)
        if os.path.realpath(metrics) in there:
            verdict = msgspec.json.decode(locations.read(metrics))["verdict"]
            said = job_lines(verdict["text"], verdict.get("cures", ()))
            concluded.append(Concluded(job, [metrics], (), 0, said, verdict.get("joined", True)))
        if os.path.realpath(timeline) in there:
            timelines.append(timeline)
    notes = [locations.join(folder.out, note) for note in augmented.notes]
    return RemoteJob([by_path[item.path] for item in folder.inputs], concluded, timelines, notes)


def _result_in_job(
    item: Input, made: Augmented | AugmentError | None, evidence: Evidence, progress: Progress
) -> Result:
    """What became of an input. An error is a result, too."""

    def work() -> Result:
        if made is None:
            raise InputError(item.path, "the server tells nothing of it; it is of another version")
        if isinstance(made, AugmentError):
            raise made
        result = _with_evidence(_result(item, made, item.path), made, item, evidence, progress)
        first = drawn_at_first(result.summaries)
        return replace(result, files=tuple(_undrawn(file, first) for file in result.files))

    return result_of(item, work)


def _undrawn(file: File, first: Sequence[Addable]) -> File:
    """The same, with the hash that it had before the job's tracks were drawn into it, in place of the ``first``."""
    if file.seam is None:
        return file
    with tempfile.TemporaryDirectory(prefix="augment-") as scratch:
        bare = Path(scratch, "bare")
        add_tracks(Path(file.path), bare, file.seam, first)
        return replace(file, undrawn_sha256=hashlib.sha256(bare.read_bytes()).hexdigest())
