"""One run: what is asked, how it is done and within which limits, whom it tells how far it is, and what comes of it.

A file is converted here: read, augment, write. The outcome is always a result.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import locations
from augment.batch import memory_limit as memory
from augment.batch.inputs import Input
from augment.core.output_files import METRICS_SUFFIX, RANKS_SUFFIX
from augment.core.threads import MOST_THREADS, processors
from augment.errors import AugmentError, UnknownFormat
from augment.pipeline.request import Request

if TYPE_CHECKING:
    from augment.client import Client
    from augment.core import Annotation, Trace
    from augment.readers.limits import Limits
    from augment.writers.seams import Addable, Described

#: bytes of Kineto's text that fit into the 4 GB of Perfetto's 32-bit engine, which most browsers run; measured with
#: engine v52: 2.3 bytes of memory per byte of text, and a sixth more for what augment adds
BROWSER_TEXT_BYTES = 1_600_000_000

Report = Callable[[str], None]  #: called with one line of text for the user


T = TypeVar("T")
Tracks = Callable[[], Sequence["Addable"]]
#: the ranks of a job whose traces are written: those that tell most ("auto"), or with these numbers
Outputs = Literal["all", "auto", "none"] | tuple[range, ...]


class RunPlan(Struct, frozen=True):
    """One run over some inputs. Outputs depend on what is asked alone."""

    request: Request = Request()
    compares: bool = False  #: the ranks of jobs, for which each leaves a summary
    metrics_only: bool = False  #: write no traces
    outputs: Outputs = "all"  #: of a job, whose traces to write; metrics are written of all ranks
    merge: bool = False  #: write the timeline of each job, too
    align: bool = True  #: in it, correct clocks as far as collectives determine them
    fixed_ranks: bool = False  #: leave none of its ranks out, because the user chose them
    timeline_bytes: int | None = BROWSER_TEXT_BYTES  #: most text in it, unless the request has steps; None: all
    kept: str = ""  #: a folder where processes of this machine keep the tracks of each rank for it

    jobs: int = 1  #: inputs converted at once, by as many processes or by the server
    scheduler: str | None = None  #: convert on this Dask or Ray cluster instead
    client: Client | None = None  #: convert through its server instead
    force: bool = False  #: convert inputs again that are done
    shard: str = ""  #: distinguishes processes that share an output folder

    threads: int = 1  #: for each input
    memory: int | None = None  #: most bytes of a process, if arrays can be kept on the disk of its output
    limits: Limits | None = None  #: of the readers

    def divided(self, inputs: int) -> RunPlan:
        """The plan with the threads and memory for each of so many inputs, of those for all: the processes of this
        machine share them. Without ``threads`` (0), all CPUs are shared, but at most 4 are for one input.

        Raises:
            UsageError: that is too little memory.
        """
        from augment.batch.memory_limit import expect_possible

        processes = 1 if self.scheduler else max(min(self.jobs, inputs), 1)
        if self.scheduler or self.threads:
            threads = self.threads // processes
        else:
            threads = min(processors() // processes, MOST_THREADS)
        memory = None if self.memory is None else self.memory // processes
        expect_possible(memory)
        return replace(self, threads=max(threads, 1), memory=memory)


class Progress(Struct):
    """Callbacks of a run."""

    begun: Callable[[Sequence[Input]], None] = lambda _inputs: None  #: with the inputs that are to be converted
    finished: Callable[[Input, Result], None] = lambda _input, _result: None  #: with each of them, in any order
    announce: Report = lambda _text: None  #: with a warning for the user
    stage: Report = lambda _what: None  #: with the current activity


class File(Struct, frozen=True):
    """A file that was written; hashes are set only for files that a manifest records.

    An output with a ``seam`` can get tracks later; ``undrawn_sha256`` is its hash without them.
    """

    path: str
    size: int
    sha256: str = ""
    seam: Described | None = None
    undrawn_sha256: str = ""


class Result(Struct, frozen=True):
    """The result of an input: the files written, the sidecar last, or the reason why there are none.

    ``done_before``: the manifest lists the input as done, and it was skipped. ``sha256``, ``rank`` and ``world_size``
    are those of the input; ``summaries`` are files for the job's stages. ``drawn`` identifies the job results drawn
    into the outputs; empty when none are. ``evidence_state`` changes with the files recorded with the trace; empty
    without such files. ``partial`` says why the trace is incomplete; empty if it is whole.
    """

    path: str
    status: Literal["augmented", "done_before", "passed_over", "failed"]
    files: tuple[File, ...] = ()
    message: str = ""  #: begins with the path
    exit_code: int = 0
    traceback: str = ""
    sha256: str = ""
    rank: int | None = None
    world_size: int | None = None
    summaries: tuple[File, ...] = ()
    drawn: str = ""
    evidence_state: str = ""
    partial: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The paths of the files written, the sidecar last."""
        return tuple(file.path for file in self.files)

    @property
    def traces(self) -> tuple[str, ...]:
        """The paths of augmented traces."""
        return tuple(path for path in self.outputs if not path.endswith(METRICS_SUFFIX))


class Executor(Protocol):
    """Does parts of a conclusion, perhaps several at once in other processes."""

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
        """The results in the order of ``tasks``, which can be pickled. Close it where they are not all wanted."""


def convert(item: Input, plan: RunPlan, progress: Progress) -> Result:
    """Convert ``item`` and return the result. An error is a result, too; only an interrupt raises."""
    named = replace(progress, stage=lambda what: progress.stage(f"{item.basename}: {what}"))
    return result_of(item, lambda: convert_or_raise(item, plan, named))


def convert_or_raise(item: Input, plan: RunPlan, progress: Progress) -> Result:
    """Convert ``item``; errors propagate."""
    locations.expect_writable(item.folder)
    from augment.core import Skipped
    from augment.core.output_files import output_path, replacing
    from augment.facts.source.several_ranks import may_be_merged
    from augment.pipeline import THREADS_FROM, augment
    from augment.readers import read
    from augment.readers.limits import UNLIMITED
    from augment.writers import write_seamed

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
        evidence = plan.request.evidence.near(item.path, trace.rank, trace.source.world_size)
        evidence_state = evidence.state(trace.rank)
        trace = evidence.added_to(trace, plan.limits)
        if may_be_merged(trace):  # else nothing of jobs is loaded, which takes as long as a third of a small file
            from augment.job.rank_answers import with_its_ranks

            trace = with_its_ranks(trace)
        later: Literal["summary", "writing"] = "summary" if plan.compares else "writing"
        augmented = augment(trace, plan.request, progress=begin, threads=threads, later=later)
        for why in (*evidence.unused(augmented), *_several_ranks(trace)):
            progress.announce(why)
        begin("writing")
        summaries, under = [], list[int]()
        if plan.compares and len(trace.events):  # a log or dump alone is no rank of a job
            from augment.job.ranks import drawn_under, summarize

            summaries.append(output_path(item.output_name, folder, RANKS_SUFFIX))
            with replacing(summaries[0]) as file:
                file.write(summarize(augmented))
            under = drawn_under(augmented)
        if os.path.isdir(plan.kept):  # on this machine: for the timeline of the job
            with open(_kept(plan.kept, item), "wb") as file:
                pickle.dump(augmented.annotations, file, pickle.HIGHEST_PROTOCOL)
        if len(trace.events) >= THREADS_FROM:
            trace.context.begin("writing")
        formats = None if plan.metrics_only else plan.request.formats
        written = dict(write_seamed(augmented, folder, formats, under, item.output_name))
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
        world_size=trace.source.world_size,
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
