"""Does the host get no CPU?

A thread that launches may want to run, and not be let: more threads than cores, a limit of the container, other jobs
on the machine. It then stands still for milliseconds in whatever it happens to do. The rule looks for stretches of 2
ms and more, while devices idle, in calls and operators that usually take less than 0.1 ms. It wants four of them, over
half of the recording, in three operators and more, where nothing else could take long: launches, operators that launch,
and views; first calls, and first launches that load kernels, are left out. If these are a third of all such stretches,
those in other operators and between them count, too. The prediction takes these stretches out of the steps. A trace
does not record whether a thread runs, so the cause is inferred.

**What to do**: compare the cores that the job may use (``nproc``, ``taskset -p``, the cgroup's ``cpu.max`` and
``cpu.stat``) with ranks, loader workers and threads (``OMP_NUM_THREADS``); pin each rank to cores of its own; look
for other jobs on the machine. ``perf sched`` shows who runs instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import host_causes, judging, rule, standstills

NAME = "starved_host"


class StarvedHost(rule.Seen, frozen=True):
    """Standstills of threads that launch."""

    standstill_count: float
    still_ns: int  #: per step
    longest_ns: int
    slices: list[str]  #: what they are in, with most of the time first; empty: between operators
    CURE = "letting it run"
    ADVICE = (
        "Compare the cores that the job may use (nproc, the cgroup's cpu.max) with its ranks, loader workers and "
        "threads (OMP_NUM_THREADS); pin each rank to cores of its own; look for other jobs on the machine"
    )

    def title(self, words: text.Words) -> str:
        where = text.listed([name or "between operators" for name in self.slices])
        often = words.often(self.standstill_count, "time")
        return (
            f"The host stands still {often}, for up to {text.time(self.longest_ns)}, in what usually takes "
            f"microseconds ({where}): its thread probably gets no CPU"
        )

    def evidence(self, words: text.Words) -> Sequence[str]:
        return [f"{text.time(self.still_ns)} {words.per_step} in all; perf sched would show who runs instead"]


def check(trace: Trace) -> rule.Answer:
    """Predict steps without standstills."""
    if not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded that the host could hold up")
    cause = host_causes.starving(trace)
    if cause is None:
        return rule.NotApplicable("the host does not stand still in what usually takes microseconds")
    which, parts = judging.within_steps(trace, cause.spans.start, cause.spans.end)
    took = parts.end - parts.start
    seen = StarvedHost(
        standstill_count=len(cause.spans) / judging.measure(trace).count,
        still_ns=int(took.sum()) // judging.measure(trace).count,
        longest_ns=int(took.max()),
        slices=standstills.names_of(trace, cause.spans.row[which], took),
    )
    return judging.judged(trace, seen, cause.saved_ns, spans=cause.spans, confidence="medium", cut=cause.cut)
