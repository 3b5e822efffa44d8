"""Converts the traces of a folder as one job of a server, which also compares the ranks and draws the job's tracks."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import cross_rank, locations
from augment.batch.convert import Report, Settings, delivered
from augment.batch.inputs import Input
from augment.batch.job_tracks import job_digest
from augment.batch.jobs import folder_title, jobs_of
from augment.batch.merged_timeline import default_output
from augment.batch.peek import identify
from augment.batch.remote import progress_text
from augment.batch.results import File, Result, result_of
from augment.batch.stages import Concluded
from augment.errors import AugmentError, InputError
from augment.writers.files import METRICS_SUFFIX

if TYPE_CHECKING:
    from augment.client import Augmented, AugmentedJob, Client
    from augment.pipeline.request import Request


class Folder(Struct, frozen=True):
    """The inputs of one folder: its path, that of the outputs, and its name for the job."""

    top: str
    out: str
    name: str
    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, inputs: Sequence[Input]) -> Folder | None:
        """The folder of several local inputs; None if they are of none, or of several."""
        roots = {item.root for item in inputs}
        if len(inputs) < 2 or len(roots) > 1 or any(map(locations.protocol, (item.path for item in inputs))):
            return None
        (out,) = roots
        tops = {os.path.abspath(item.path).removesuffix(os.sep + item.key) for item in inputs}
        if out is None or locations.protocol(out) or len(tops) > 1:
            return None
        (top,) = tops
        whole = all(os.path.join(top, item.key) == os.path.abspath(item.path) for item in inputs)
        return cls(top, out, folder_title(top), tuple(inputs)) if whole else None


class RemoteJob(Struct, frozen=True):
    """What a server has made of a folder: results as of a batch, and what it has concluded."""

    results: Sequence[Result]
    concluded: Sequence[Concluded]
    timelines: Sequence[str]
    notes: Sequence[str]


def convert_folder(folder: Folder, settings: Settings, client: Client, *, merge: bool, stage: Report) -> RemoteJob:
    """Convert the traces of a folder, and all that is about their job.

    Raises:
        AugmentError: the server cannot do it, or an output cannot be written; but not because of a single trace.
    """
    locations.expect_writable(folder.out)
    augmented = client.augment_job(
        {item.key: item.path for item in folder.inputs},
        settings.request,
        name=folder.name,
        merge=merge,
        summaries=True,
        out=folder.out,
        progress=lambda what, done, of: stage(_progress_text(what, done, of)),
    )
    results = [_result(item, augmented.traces.get(item.key)) for item in folder.inputs]
    by_path = _with_drawn(folder.inputs, {result.path: result for result in results}, settings.request)
    concluded, timelines = _concluded(folder, by_path, augmented)
    notes = [locations.join(folder.out, note) for note in augmented.notes]
    return RemoteJob([by_path[item.path] for item in folder.inputs], concluded, timelines, notes)


def _result(item: Input, made: Augmented | AugmentError | None) -> Result:
    """What became of an input. An error is a result, too."""

    def work() -> Result:
        from augment.writers.seams import seams_of_files

        if made is None:
            raise InputError(item.path, "the server tells nothing of it; it is of another version")
        if isinstance(made, AugmentError):
            raise made
        source = made.metrics["source"]
        count = len(made.summaries)
        seams = [None] * count + seams_of_files(made.seams, made.files)
        files = [_undrawn(file) for file in delivered([*made.summaries, *made.files], item, seams)]
        return Result(
            item.path,
            "augmented",
            tuple(files[count:]),
            sha256=source["sha256"],
            rank=source["ranks"][0] if source["ranks"] else None,
            world_size=identify(item.path).world_size,
            summaries=tuple(files[:count]),
            partial=source["partial"] or "",
        )

    return result_of(item, work)


def _undrawn(file: File) -> File:
    """The same, with the hash that it had before the job's tracks were drawn into it."""
    if file.seam is None:
        return file
    from augment.writers.seams import add_tracks

    with tempfile.TemporaryDirectory(prefix="augment-") as scratch:
        bare = Path(scratch, "bare")
        add_tracks(Path(file.path), bare, file.seam, ())
        return replace(file, undrawn_sha256=hashlib.sha256(bare.read_bytes()).hexdigest())


def _with_drawn(inputs: Sequence[Input], results: Mapping[str, Result], request: Request) -> dict[str, Result]:
    """The results, with what identifies the job whose tracks their outputs show."""
    results_by_path = dict(results)
    for job in jobs_of(inputs, results):
        members = [results[member.input.path] for member in job.members]
        contents = [_summary(result) for result in members]
        if len(contents) < 2:
            continue
        drawn = job_digest((hashlib.sha256(content).digest() for content in contents), request)
        for result in members:
            if any(file.undrawn_sha256 and file.undrawn_sha256 != file.sha256 for file in result.files):
                results_by_path[result.path] = replace(result, drawn=drawn)
    return results_by_path


def _summary(result: Result) -> bytes:
    (path,) = [file.path for file in result.summaries if file.path.endswith(cross_rank.SUFFIX)]
    return locations.read(path)


def _concluded(
    folder: Folder, results: Mapping[str, Result], augmented: AugmentedJob
) -> tuple[list[Concluded], list[str]]:
    """What the files about jobs tell, as if they had been made here; and the timelines."""
    import msgspec

    there = {os.path.realpath(path) for path in augmented.files}
    concluded, timelines = [], []
    for job in jobs_of(folder.inputs, results):
        metrics, timeline = locations.join(job.folder, job.stem + METRICS_SUFFIX), default_output(job)
        if os.path.realpath(metrics) in there:
            verdict = msgspec.json.decode(locations.read(metrics))["verdict"]
            concluded.append(Concluded(job, [metrics], (), 0, verdict["text"], verdict.get("joined", True)))
        if os.path.realpath(timeline) in there:
            timelines.append(timeline)
    return concluded, timelines


def _progress_text(what: str, done: int, of: int) -> str:
    return f"{what}, {done} of {of}" if what == "converting" else progress_text(what, done, of)
