"""One run: what is asked, how it is done and within which limits; and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from augment.core.process import MOST_THREADS, processors
from augment.pipeline.request import Request

if TYPE_CHECKING:
    from augment.batch.convert import Result
    from augment.batch.inputs import Input
    from augment.batch.job_question import Question
    from augment.client import Client
    from augment.readers.limits import Limits

#: bytes of Kineto's text that fit into the 4 GB of Perfetto's 32-bit engine, which most browsers run; measured with
#: engine v52: 2.3 bytes of memory per byte of text, and a sixth more for what augment adds
BROWSER_TEXT_BYTES = 1_600_000_000

Report = Callable[[str], None]  #: called with one line of text for the user


class RunPlan(Struct, frozen=True):
    """One run over some inputs. Outputs depend on what is asked alone."""

    request: Request = Request()
    question: Question | None = None  #: to whole jobs, for which each rank leaves a summary; None: no jobs
    metrics_only: bool = False  #: write no traces
    merge: bool = False  #: write the timeline of each job, too
    align: bool = True  #: in it, correct clocks as far as collectives determine them
    fixed_ranks: bool = False  #: leave none of its ranks out, because the user chose them
    timeline_bytes: int | None = BROWSER_TEXT_BYTES  #: most text in it, unless the request has steps; None: all

    jobs: int = 1  #: inputs converted at once, by as many processes or by the server
    scheduler: str | None = None  #: convert on this Dask cluster instead
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
