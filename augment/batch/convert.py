"""Conversion of one file: read, augment, write. The outcome is always a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from augment.batch import locations
from augment.batch import memory_limit as memory
from augment.batch.inputs import Input
from augment.batch.results import File, Result, result_of, sha256_of
from augment.pipeline.request import Request

if TYPE_CHECKING:
    from augment.batch.stage import Stage
    from augment.core.trace import Trace
    from augment.readers.limits import Limits
    from augment.writers.seams import Described

Report = Callable[[str], None]  #: called with one line of text for the user


class Settings(Struct, frozen=True):
    """How to convert every input: the user's request, the stages of whole jobs, the limits of readers, the threads for
    each input and the most memory of its process, on which outputs do not depend, and whether no trace is written."""

    request: Request = Request()
    stages: tuple[Stage, ...] = ()
    limits: Limits | None = None
    threads: int = 1
    memory: int | None = None
    metrics_only: bool = False


def convert(item: Input, settings: Settings, announce: Report, stage: Report = lambda _: None) -> Result:
    """Convert ``item`` and return the result. An error is a result, too; only an interrupt raises.

    Args:
        announce: called with a warning for the user.
        stage: called with the current activity.
    """
    return result_of(item, lambda: convert_or_raise(item, settings, announce, stage))


def convert_or_raise(item: Input, settings: Settings, announce: Report, stage: Report) -> Result:
    """Convert ``item``; errors propagate."""
    locations.expect_writable(item.folder)
    from augment.pipeline import THREADS_FROM, augment
    from augment.readers import read
    from augment.readers.limits import UNLIMITED
    from augment.writers import write_seamed

    stage("reading")
    memory_bound = memory.bound_for([item], settings.memory)
    with (
        locations.at_hand(item.path, item.folder, item.size) as (path, folder),
        memory.bounded(memory_bound, folder) as expect_room,
    ):

        def begin(name: str, _done: int = 0, _of: int = 0) -> None:
            expect_room()
            stage(name)

        threads = settings.threads if memory_bound is None else 1
        trace = read(path, limits=settings.limits or UNLIMITED, threads=threads)
        evidence = settings.request.evidence
        evidence_state = evidence.state(trace.rank)
        trace = evidence.added_to(trace)
        augmented = augment(
            trace,
            settings.request,
            progress=begin,
            threads=threads,
            later="summary" if settings.stages else "writing",
        )
        for why in (*evidence.unused(augmented), *_several_ranks(trace)):
            announce(why)
        begin("writing")
        summaries = [_summarize(each, augmented, folder) for each in settings.stages]
        under = {track for each in settings.stages if each.under for track in each.under(augmented)}
        if len(trace.events) >= THREADS_FROM:
            trace.context.begin("writing")
        formats = None if settings.metrics_only else settings.request.formats
        written = dict(write_seamed(augmented, folder, formats, sorted(under)))
        files = delivered([*summaries, *written], item, [None] * len(summaries) + [*written.values()])
    count = len(summaries)
    rank, world_size = trace.rank, _world_size(trace)
    return Result(
        item.path,
        "augmented",
        files[count:],
        sha256=trace.source.sha256,
        rank=rank,
        world_size=world_size,
        summaries=files[:count],
        evidence_state=evidence_state,
        partial=trace.partial or "",
    )


def _several_ranks(trace: Trace) -> Iterator[str]:
    """A warning, if the file holds several ranks, whose figures would be those of one."""
    from augment.facts.source.several_ranks import may_be_merged, rank_of_track

    ranks = len({rank for rank in rank_of_track(trace).tolist() if rank >= 0}) if may_be_merged(trace) else 0
    if ranks:
        name = trace.source.label
        yield f"{name}: holds {ranks} ranks, taken as one; augment cut {name} -o DIR --part writes a trace of each"


def _summarize(stage: Stage, augmented: Any, folder: Path) -> Path:
    from augment.writers.files import output_path, replacing

    path = output_path(augmented.trace.source.name, folder, stage.suffix)
    with replacing(path) as file:
        file.write(stage.summarize(augmented))
    return path


def delivered(written: Sequence[Path], item: Input, seams: Sequence[Described | None] = ()) -> tuple[File, ...]:
    """The output files of ``item``, uploaded if its folder is a URL."""
    sizes = [os.path.getsize(path) for path in written]
    digests = [sha256_of(path) if item.root else "" for path in written]
    seams = seams or [None] * len(written)
    undrawn = [digest if seam else "" for digest, seam in zip(digests, seams, strict=True)]
    return tuple(map(File, locations.deliver(written, item.folder), sizes, digests, seams, undrawn))


def _world_size(trace: Trace) -> int | None:
    from augment.readers.assembly import distributed

    return distributed(trace.source.metadata, "world_size")
