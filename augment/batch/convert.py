"""Conversion of one file: read, augment, write. The outcome is always a result."""

from __future__ import annotations

import hashlib
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from augment.batch import locations
from augment.batch import memory_limit as memory
from augment.batch.inputs import Input
from augment.batch.run_plan import File, Progress, Result, RunPlan
from augment.errors import AugmentError, UnknownFormat

if TYPE_CHECKING:
    from augment.core import Annotation, AugmentedTrace, Trace
    from augment.writers.seams import Described


def convert(item: Input, plan: RunPlan, progress: Progress) -> Result:
    """Convert ``item`` and return the result. An error is a result, too; only an interrupt raises."""
    named = replace(progress, stage=lambda what: progress.stage(f"{item.basename}: {what}"))
    return result_of(item, lambda: convert_or_raise(item, plan, named))


def convert_or_raise(item: Input, plan: RunPlan, progress: Progress) -> Result:
    """Convert ``item``; errors propagate."""
    locations.expect_writable(item.folder)
    from augment.core import Skipped
    from augment.job.rank_answers import with_its_ranks
    from augment.pipeline import THREADS_FROM, augment
    from augment.readers import read
    from augment.readers.assembly import distributed
    from augment.readers.limits import UNLIMITED
    from augment.writers import write_seamed
    from augment.writers.files import output_path, replacing

    progress.stage("reading")
    memory_bound = memory.bound_for([item], plan.memory)
    with (
        locations.at_hand(item.path, item.folder, item.size) as (path, folder),
        memory.bounded(memory_bound, folder) as expect_room,
    ):

        def begin(name: str, _done: int = 0, _of: int = 0) -> None:
            expect_room()
            progress.stage(name)

        threads = plan.threads if memory_bound is None else 1
        trace = read(path, limits=plan.limits or UNLIMITED, threads=threads)
        world_size = distributed(trace.source.metadata, "world_size")
        evidence = plan.request.evidence.near(item.path, trace.rank, world_size)
        evidence_state = evidence.state(trace.rank)
        trace = with_its_ranks(evidence.added_to(trace, plan.limits))
        later: Literal["summary", "writing"] = "summary" if plan.question else "writing"
        augmented = augment(trace, plan.request, progress=begin, threads=threads, later=later)
        for why in (*evidence.unused(augmented), *_several_ranks(trace)):
            progress.announce(why)
        begin("writing")
        summaries, under = [], set[int]()
        if plan.question:
            summaries.append(output_path(item.output_name, folder, plan.question.suffix))
            with replacing(summaries[0]) as file:
                file.write(plan.question.summarize(augmented))
            under.update(plan.question.under(augmented) if plan.question.under else ())
        if plan.kept:
            keep_tracks(plan.kept, item, augmented)
        if len(trace.events) >= THREADS_FROM:
            trace.context.begin("writing")
        formats = None if plan.metrics_only else plan.request.formats
        written = dict(write_seamed(augmented, folder, formats, sorted(under), item.output_name))
        files = delivered([*summaries, *written], item, [None] * len(summaries) + [*written.values()])
    count = len(summaries)
    failed = {
        name: outcome
        for name, outcome in augmented.outcomes.items()
        if isinstance(outcome, Skipped) and outcome.traceback
    }
    partial = [trace.partial, *(f"{name}: {outcome.reason}" for name, outcome in failed.items())]
    return Result(
        item.path,
        "augmented",
        files[count:],
        sha256=trace.source.sha256,
        rank=trace.rank,
        world_size=world_size,
        summaries=files[:count],
        evidence_state=evidence_state,
        partial="; ".join(filter(None, partial)),
        traceback="".join(outcome.traceback for outcome in failed.values()),
    )


def _several_ranks(trace: Trace) -> Iterator[str]:
    """A warning, if the file holds several ranks, whose figures would be those of one."""
    from augment.facts.source.several_ranks import may_be_merged, rank_of_track

    ranks = len({rank for rank in rank_of_track(trace).tolist() if rank >= 0}) if may_be_merged(trace) else 0
    if ranks:
        name = trace.source.label
        yield f"{name}: holds {ranks} ranks, taken as one; augment cut {name} -o DIR --part writes a trace of each"


def keep_tracks(folder: str, item: Input, augmented: AugmentedTrace) -> None:
    """Keep the tracks of a rank for the timeline of its job, if its folder is on this machine."""
    if os.path.isdir(folder):
        with open(_kept(folder, item), "wb") as file:
            pickle.dump(augmented.annotations, file, pickle.HIGHEST_PROTOCOL)


def kept_tracks(folder: str, item: Input) -> list[Annotation] | None:
    """The tracks of a rank that this run has kept."""
    try:
        with open(_kept(folder, item), "rb") as file:
            tracks: list[Annotation] = pickle.load(file)  # noqa: S301 - by a process of this run, in a folder of its own
        return tracks
    except OSError:
        return None


def _kept(folder: str, item: Input) -> str:
    return os.path.join(folder, hashlib.sha256(os.fsencode(item.path)).hexdigest())


def delivered(written: Sequence[Path], item: Input, seams: Sequence[Described | None] = ()) -> tuple[File, ...]:
    """The output files of ``item``, uploaded if its folder is a URL."""
    sizes = [os.path.getsize(path) for path in written]
    digests = [sha256_of(path) if item.root else "" for path in written]
    seams = seams or [None] * len(written)
    undrawn = [digest if seam else "" for digest, seam in zip(digests, seams, strict=True)]
    return tuple(map(File, locations.deliver(written, item.folder), sizes, digests, seams, undrawn))


def result_of(item: Input, work: Callable[[], Result]) -> Result:
    """The result of ``work``, which writes the outputs of ``item``; an error becomes a result."""
    try:
        return work()
    except UnknownFormat as error:
        return failure(item.path, error) if item.named else Result(item.path, "passed_over", message=str(error))
    except Exception as error:  # a bad file never stops the batch
        return failure(item.path, error)


def failure(path: str, error: Exception) -> Result:
    """The result of an input that ended with ``error``."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, AugmentError):
        return Result(path, "failed", message=str(error), exit_code=error.exit_code, traceback=lines)
    if isinstance(error, OSError):
        what = f"{error.filename or path}: {(error.strerror or str(error)).lower()}"
    elif isinstance(error, MemoryError):
        what = f"{path}: not enough memory; try fewer --jobs"
    else:
        what = f"{path}: internal error, {type(error).__name__}: {error}; please report what --debug shows"
    return Result(path, "failed", message=what, exit_code=1, traceback=lines)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 18):
            digest.update(chunk)
    return digest.hexdigest()
