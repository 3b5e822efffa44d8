"""Does the host get no CPU?

A thread that launches may want to run, and not be let: more threads than cores, a limit of the container, other jobs
on the machine. It then stands still for milliseconds in whatever it happens to do. The rule looks for stretches of 2
ms and more, while devices idle, in calls and operators that usually take less than 0.1 ms. It wants four of them, over
half of the recording, in three operators and more, where nothing else could take long: launches, operators that launch,
and views; first calls are left out. If these are a third of all such stretches, those in other operators and between
them count, too. The prediction takes these stretches out of the steps. A trace does not record whether a thread runs,
so the cause is inferred.

**What to do**: compare the cores that the job may use (``nproc``, ``taskset -p``, the cgroup's ``cpu.max`` and
``cpu.stat``) with ranks, loader workers and threads (``OMP_NUM_THREADS``); pin each rank to cores of its own; look
for other jobs on the machine. ``perf sched`` shows who runs instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from augment.core.text import Words, counted, listed, time
from augment.core.trace import Trace
from augment.diagnosis.host_causes import starving
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import measure, within_steps
from augment.diagnosis.rule import Answer, NotApplicable, Seen
from augment.diagnosis.standstills import names_of
from augment.facts.gpu.gpu_work import gpu_work

NAME = "starved_host"


class StarvedHost(Seen, frozen=True):
    """Standstills of threads that launch."""

    standstill_count: float
    still_ns: int  #: per step
    longest_ns: int
    slices: list[str]  #: what they are in, with most of the time first; empty: between operators

    def title(self, words: Words) -> str:
        where = listed([name or "between operators" for name in self.slices])
        often = f"{counted(self.standstill_count, 'time')} {words.per_step}"
        return (
            f"The host stands still {often}, for up to {time(self.longest_ns)}, in what usually takes microseconds "
            f"({where}): its thread probably gets no CPU"
        )

    def cure(self, words: Words) -> str:
        return "letting it run"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"{self.title(words)}; costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return (
            "Compare the cores that the job may use (nproc, the cgroup's cpu.max) with its ranks, loader workers and "
            "threads (OMP_NUM_THREADS); pin each rank to cores of its own; look for other jobs on the machine"
        )

    def evidence(self, words: Words) -> Sequence[str]:
        return [f"{time(self.still_ns)} {words.per_step} in all; perf sched would show who runs instead"]


def check(trace: Trace) -> Answer:
    """Predict steps without standstills."""
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = starving(trace)
    if cause is None:
        return NotApplicable("the host does not stand still in what usually takes microseconds")
    which, parts = within_steps(trace, cause.spans.start, cause.spans.end)
    took = parts.end - parts.start
    seen = StarvedHost(
        standstill_count=len(cause.spans) / measure(trace).count,
        still_ns=int(took.sum()) // measure(trace).count,
        longest_ns=int(took.max()),
        slices=names_of(trace, cause.spans.row[which], took),
    )
    return judged(trace, seen, cause.saved_ns, spans=cause.spans, confidence="medium", cut=cause.cut)
