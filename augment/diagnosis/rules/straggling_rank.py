"""Does the rank wait for a late rank of its job, or is it the late one?

One trace cannot tell: a collective takes long on all ranks if one of them is late. The traces of all ranks together
tell which, and why ([jobs](jobs.md)): in a merged timeline, and in the diagnosis of a folder, a rank that waits says
for whom. What it waits is no fault of its own communication, and `exposed_communication` then speaks of transfers
alone. The prediction is that of the job: what its replay gains if the late rank were like the median of its peers.

**What to do**: ``augment diagnose FOLDER`` with the traces of all ranks; fix the rank that is late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment import arrays, facts
from augment.core import LateRank, RankInJob, Trace, text
from augment.diagnosis import late_ranks, rule, wording

NAME = "straggling_rank"


class StragglingRank(rule.Seen, frozen=True):
    """Waiting for late ranks, or being late."""

    wait_ns: int  #: of this rank for others, per step
    waits_for: str = ""  #: the rank that most of the wait is for; empty if that is no single one
    most_ratio: float = 0.0  #: the share of that
    late: LateRank | None = None  #: the rank to change; this one, if it ``is_own``
    hosts_alike: bool = False  #: whether the hosts of all ranks are slow, and that is what to change
    is_told: bool = True  #: whether the job can tell who is late

    def title(self, words: text.Words) -> str:
        late, share = self.late, text.percent(words.ratio(self.wait_ns))
        if late is not None and late.is_own:
            longer = f"its own work takes {text.three_digits(late.charged_ns)} {words.per_step} longer than its peers'"
            return f"Other ranks wait for this one: {longer} ({late.reason.text()})"
        waits = f"{text.time(self.wait_ns)} {words.per_step} ({share})"
        mostly = f", {text.percent(self.most_ratio)} of it for {self.waits_for}" if self.waits_for else ""
        title = f"The {words.gpu} {words.waiting}does nothing and only waits for other ranks for {waits}{mostly}"
        if not self.is_told:
            return f"{title}; which of them are late cannot be told"
        if late is None:
            return title + "; the hosts of all ranks are slow: speed them up first" * self.hosts_alike
        delays = "" if late.name == self.waits_for else f"; {late.name} delays the job"
        return f"{title}{delays} ({late.reason.text()})"

    def cure(self, words: text.Words) -> str:
        late = self.late
        if late is not None and late.reason.more_work:
            return "balancing the work"
        return "fixing that" if late is None else f"making {'it' if late.is_own else late.name} like the median"

    @property
    def at_least(self) -> bool:
        return self.late is not None and self.late.reason.more_work > 0  # its messages may be larger, too

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"punctual ranks would save {words.share(self.wait_ns, 'at most ')}"

    def advice(self, words: text.Words) -> str:
        if self.hosts_alike:
            return "The hosts of all ranks are slow alike: see what this rank's own findings say of its host"
        if not self.is_told:
            return "See what the devices of the other ranks do meanwhile: augment open FOLDER; record more steps"
        if self.late is None:
            return late_ranks.nobody_late(self.waits_for)
        if self.late.is_own:
            return f"This rank delays the job: {late_ranks.way_to_fix(self.late)}"
        return late_ranks.fix_rank(self.late, self.wait_ns)

    def evidence(self, words: text.Words) -> Sequence[str]:
        is_own = self.late is not None and self.late.is_own
        return [f"it waits for others, too, for {words.share(self.wait_ns)}"] if is_own else []


def check(trace: Trace) -> rule.Answer:
    """Say for whom the rank waits, or what it would take to know."""
    if not len(facts.collectives.kernels(trace)):
        return rule.NotApplicable("this rank communicates with no other")
    job = trace.context.attached(RankInJob)
    if job is None and (why := of_one_file(trace)):
        return rule.NoData(why, "")
    if job is None:
        return rule.NoData(
            "no single trace shows which rank comes late to collectives",
            "run augment diagnose FOLDER with the traces of all ranks",
        )
    return of_job(job, wording.words(trace))


def of_one_file(trace: Trace) -> str:
    """Which device is waited for most, where several that communicate are in one file: equally many collectives of a
    kind on each are taken for the same, in their order, and the one that enters last stays the shortest."""
    every, devices = facts.collectives.kernels(trace), facts.gpu.work(trace).devices
    place = np.searchsorted([each.start for each in devices], every.place, side="right") - 1
    if len(arrays.distinct(place)) < 2:
        return ""
    waits = np.zeros(len(devices), np.int64)
    for code in arrays.distinct(every.kind.codes).tolist():  # a loop over kinds, which are few
        rows = [every.dur[(every.kind.codes == code) & (place == at)] for at in arrays.distinct(place).tolist()]
        if len({len(each) for each in rows}) == 1:
            dur = np.stack(rows)
            np.add.at(waits, arrays.distinct(place)[dur.argmin(0)], dur.max(0) - dur.min(0))
    judged = "several ranks are in this file, and rules judge them together"
    if 2 * waits.max() <= waits.sum() or not waits.any():
        return f"{judged}: by the durations of their collectives, no single one is late for most of the time"
    late = devices[int(waits.argmax())].device
    return f"{judged}: by the durations of equal collectives, others wait {text.time(waits.max())} for {{gpu}} {late}"


def of_job(job: RankInJob, words: text.Words) -> rule.Answer:
    """For whom a rank waits, or that others wait for it, as its job tells."""
    if job.itself is not None:
        gain = job.itself.gain_ns
        saved = gain if gain is not None and gain > 0 else None
        seen, limited = StragglingRank(job.wait_ns, late=job.itself), job.itself.at_most
        return rule.Found(seen, rule.NOWHERE, job.itself.confidence, saved, at_most=limited)
    if words.ratio(job.wait_ns) < rule.LEAST_RATIO:
        return rule.Fine(StragglingRank(job.wait_ns))
    named = job.waits_for
    late = next((each for each in job.late_ranks if each.name == named), next(iter(job.late_ranks), None))
    late = None if late is not None and late.gain_ns is not None and late.gain_ns <= 0 else late  # fixing it is no cure
    saved = None if late is None or late.gain_ns is None else max(min(late.gain_ns, job.wait_ns + job.transfer_ns), 0)
    alike = job.shared is not None and late is None
    seen = StragglingRank(job.wait_ns, named, job.most_ratio, late, alike, job.is_told)
    limited = late is not None and late.at_most
    return rule.Found(seen, rule.NOWHERE, "medium" if late is None else late.confidence, saved, at_most=limited)
