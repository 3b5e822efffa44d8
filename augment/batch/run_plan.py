"""One run: what is asked, how it is done and within which limits, whom it tells how far it is, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from augment.core.threads import MOST_THREADS, processors
from augment.pipeline.request import Request
from augment.writers.files import METRICS_SUFFIX

if TYPE_CHECKING:
    from augment.batch.inputs import Input
    from augment.batch.jobs import Job, Member
    from augment.client import Client
    from augment.core import AugmentedTrace
    from augment.job.answer import Answer
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
    question: Question | None = None  #: to whole jobs, for which each rank leaves a summary; None: no jobs
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


class Conclusion(Struct, frozen=True):
    """The answer for one job.

    ``files``: contents by the suffix that follows the job's stem in the file name (``.metrics.json``). ``tracks``: for
    each rank with a summary, a function that makes its tracks, or None. ``verdict``: sentences about the job, which is
    one if its traces are ``joined``. ``notes``: what the user stated, and the traces
    contradict. ``digest`` identifies the tracks of all ranks: it changes with the summaries. ``telling`` are the places
    of the ranks whose timelines tell most.
    """

    files: Mapping[str, bytes]
    tracks: Sequence[Tracks | None] = ()
    verdict: Sequence[str] = ()
    digest: str = ""
    joined: bool = True
    notes: Sequence[str] = ()
    answer: Answer | None = None  #: from which all of it is
    telling: Sequence[int] = ()


class Question(Struct, frozen=True):
    """A question to a job.

    ``summarize`` makes the summary of a rank during its conversion, perhaps on another machine; it is a module-level
    function so that it can be pickled. ``STEM + suffix`` is the summary's file. ``conclude`` gets a job, the members
    that have a summary, sorted by rank, with its path, what the user asks, and who does parts of the work. ``under``
    names the tracks of a rank's source under which the job's tracks may be drawn in its outputs.
    """

    suffix: str
    summarize: Callable[[AugmentedTrace], bytes]
    conclude: Callable[[Job, Sequence[tuple[Member, str]], Request, Executor], Conclusion]
    under: Callable[[AugmentedTrace], Collection[int]] | None = None
