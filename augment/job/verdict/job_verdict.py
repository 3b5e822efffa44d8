"""Who holds the job up, why, and what would be gained: the answer in a few sentences, and as rows.

A rank is named if its own work exceeds its peers' by more than chance and more than a hundredth of the job's time, and
if the job would gain as much were the rank like the median of its peers (``replay.py``). A process group is named if it
moves equal data for much longer than the other groups of its dimension, and the job would gain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from augment import arrays
from augment.core import Cause, Findings, Reason, SharedWait, Skipped, Verdict, Where
from augment.core.text import counted, percent
from augment.diagnosis.rule import LEAST_RATIO, WARNING_RATIO, Confidence, severity_of
from augment.diagnosis.wording import saves
from augment.facts.names import FETCH
from augment.job import path
from augment.job.matching import Clock, Matched
from augment.job.parallel import Dimensions, chains
from augment.job.ranks import UNKNOWN, WORLD, RankSummary, dimension_told, ranks_text
from augment.job.verdict import verdict_text
from augment.job.verdict.excess import FEWEST_STEPS, Excess, balanced, excess_of, main_cause, uneven
from augment.job.verdict.late_ranks import is_sparse
from augment.job.verdict.slow_groups import SlowGroup, slow_groups
from augment.job.verdict.verdict_text import Row, WhatIfRow

LEAST = verdict_text.LEAST
LEAST_ONCE = 0.05  #: the same, if less than that is left without the step with most of it
LEAST_SHARED = 0.05  #: the same, of what all ranks wait for alike, beyond what one rank would gain,
LEAST_SHARED_BY_ALL = 0.1  #: also where that is no single thing,
LEAST_OF_EACH = 0.02  #: and what each of half of the ranks waits for it
LEAST_OF_GROUPS = 0.03  #: the same, of groups that are late beside other groups
LEAST_LATE = 0.04  #: what a host waits for batches that come too late: taking one that is there took 1 % where recorded
LEAST_UNEVEN = 0.05  #: the same, of balance among ranks of which another is the slowest in each step
LEAST_TRANSFERS = 0.1  #: the same, of transfers that nothing hides
LEAST_LASTING = 0.03  #: the same, of stretches that are longer in most steps while others are shorter
ONCE = 0.6  #: share of one step that makes an excess a single event
ALIKE = 0.5  #: of the largest excess of some ranks: those with at least as much are late alike
EXPLAINED = 1.25  #: a gain of at most so many times a rank's excess is what the excess costs
CLEARLY = 4.0  #: noises by which an excess is beyond chance, for two ranks
PLAIN = 0.25  #: what a rank is charged with that no choice of process groups explains
MOST_NAMED, MOST_IN_LABEL = 8, 3
ONE_STEP = "Only one step was recorded, and what follows may be an effect of its beginning: record several."
FEW_STEPS = 3  #: in fewer, chance is hard to tell from a cause
MOST_ERROR = 0.01  #: of the replay of the unchanged job


class Judgement:
    """The verdict of a job, and what it rests on. With ``stage``, by member, ranks are compared with all of their
    pipeline stage, else with those in the same collectives."""

    def __init__(
        self,
        matched: Matched,
        clocks: Sequence[Clock],
        summaries: Sequence[RankSummary],
        dims: Dimensions,
        stage: arrays.Int64s | None = None,
    ) -> None:
        self._matched, self._clocks, self._summaries, self._dims = matched, clocks, summaries, dims
        self._stage = stage

    def of_groups(self) -> Judgement:
        """The judgement that names whole groups of ranks, which are late beside other groups alone, if this one names
        nothing and that does; else this one."""
        if not self.tells or self.step_count < FEWEST_STEPS or self._gain_unknown or self._rows:
            return self
        if len(np.unique(self._matched.group[~self._matched.is_pair()])) < 2:  # all are compared with each other
            return self
        stage = stages(self._summaries, self._matched)
        if stage is None:
            return self
        wide = Judgement(self._matched, self._clocks, self._summaries, self._dims, stage)
        wide._parts = self._parts
        least = LEAST_OF_GROUPS * self._time
        named = [row for row in wide._joint_rows if len(row.ranks) > 1 and (row.gain_ns or 0) >= least]
        return wide if named and named == wide._joint_rows else self

    @cached_property
    def verdict(self) -> Verdict:
        """The sentences and rows."""
        reason = self._why_not
        if not len(self._matched) and not self._stated:
            return Verdict((verdict_text.unrelated(len(self._summaries)),), (), joined=False)
        doubts = [*verdict_text.doubts(self._summaries, self._clocks, self._seen, self._matched)]
        if reason:
            return Verdict((f"Cannot tell which rank delays the job: {reason}.", *doubts), ())
        doubts += verdict_text.left_out(self.steps.numbers.tolist(), self.steps.left_out)
        doubts += self._apart
        unsure = [ONE_STEP] if self._apart and self.step_count == 1 else []
        rows = [replace(row, confidence="low") if unsure else row for row in self._rows or self._stage_rows]
        texts = [verdict_text.sentence(row, self._time, len(self._members), self._step_time) for row in rows]
        texts += self._together if rows else [self._nobody, *self._late_without_gain]
        gain, late = self.transfers
        if gain:
            rows_of = np.flatnonzero(~self._matched.is_pair()[self._matched.instance])  # messages wait by design
            of_kind = self._matched.kind[self._matched.instance[rows_of]]
            exposed = np.bincount(of_kind, self._matched.exposed_ns[rows_of])
            if exposed.any():
                share = f"{percent(exposed.max() / exposed.sum())} of them {self._matched.kinds[int(exposed.argmax())]}"
                whole = self._time, self._step_time, self._replay.progress.matched
                said = verdict_text.transfers(gain, share, *whole, [self._summaries[each].rank for each in late])
                texts.insert(0 if self.are_transfers_first else len(texts), said)
        if self.most_fixed:
            said = verdict_text.fixed(self.most_fixed, self._time, self._step_time)
            texts.insert(int(self.are_transfers_most), said)
        return Verdict((*unsure, *texts, *doubts), rows)

    @property
    def _rows(self) -> list[Row]:
        """What holds the job up but for uneven stages, which are told only where nothing else is."""
        return self._shared_rows + self._uneven_rows + self._joint_rows + self._group_rows

    @cached_property
    def _apart(self) -> list[str]:
        """A sentence on steps of ranks that are longer than those of the job, if they are."""
        begin = self._replay.progress.common_begin[self._members]
        last = self._summaries[int(self._members[int(begin.argmax())])].rank
        return [*verdict_text.own_steps(self._step_time, self._own_time // max(self.step_count, 1), begin, last)]

    @property
    def _confidence(self) -> Confidence:
        """In what is said of all ranks alike: they may wait for those of which there is no trace."""
        if self._apart and self.step_count == 1:
            return "low"
        is_known = self._matched.world == len(self._summaries) and not any(each.partial for each in self._summaries)
        return "high" if is_known else "medium"

    @property
    def label(self) -> str:
        """What a bar without room for the sentences says; empty where nothing is named."""
        gain, rows = self.transfers[0], self.verdict.rows
        labels = [label for row in rows[:MOST_IN_LABEL] for label in verdict_text.labels(row, self._time)]
        if gain:
            saved = saves(gain / self._time, self._confidence, at_most=True, at_least=False)
            with_it = f"with exposed communication fixed, too, up to {percent(gain / self._time)}"
            label = with_it if self.transfers[1] else f"Exposed communication{saved}"
            labels.insert(0 if self.are_transfers_first else len(labels), label)
        if self.most_fixed:
            labels.insert(int(self.are_transfers_most), verdict_text.fixed_label(self.most_fixed, self._time))
        return "; ".join([*labels[:1], *(each[:1].lower() + each[1:] for each in labels[1:])])

    @property
    def severity(self) -> tuple[str, str]:
        """The severity, by the share of the job's time that is saved (or charged, where that is unknown), and the
        confidence of what would save most; both empty where nothing is named, ``info`` where that cannot be told."""
        saved = {row.charged_ns if row.gain_ns is None else row.gain_ns: row.confidence for row in self.verdict.rows}
        saved |= {gain: self._confidence} if (gain := self.transfers[0]) else {}
        saved |= {row.all_hosts_ns: row.confidence for row in self.verdict.rows if row.all_hosts_ns}
        saved |= {self.most_fixed.gain_ns: self.most_fixed.confidence} if self.most_fixed else {}
        if not saved:
            return "" if self.tells else "info", ""
        return severity_of(max(saved) / self._time), saved[max(saved)]

    @property
    def _nobody(self) -> str:
        """That no rank stands out, and who comes closest."""
        total = self._excess.total_ns[self._members]
        largest = max(float(total.max(initial=0)) / max(self._replay.recorded_ns, 1), 0.0)
        why = ""
        if largest >= LEAST:
            rank = self._summaries[int(self._members[int(total.argmax())])].rank
            whom = "" if rank is None else f"of rank {rank}: "
            steps = self._step_time[1]
            more = f"; {counted(steps, 'step is', 'steps are')} few to tell" if 0 < steps < FEW_STEPS else ""
            why = f", {whom}no more than chance, or without gain{more}"
        return f"No rank stands out (largest excess {percent(largest)}{why})."

    @property
    def _late_without_gain(self) -> tuple[str, ...]:
        """A sentence on the latest rank where the job would not gain by its being in time."""
        if not len(self._candidates):
            return ()
        member = int(self._candidates[0])
        charged, causes = self._charged(member)
        cause = max(causes, key=lambda each: causes[each])
        gain, rank = self._gains[member] / self._time, self._summaries[member].rank
        return (verdict_text.late_without_gain(rank, charged, cause, causes[cause], gain, self.step_count),)

    @property
    def recorded_ns(self) -> int:
        """The job's time, from the last rank's begin to the last one's finish; 0 if no ranks are joined."""
        return self._found_replay.recorded_ns if self._found_replay else 0

    @property
    def what_if(self) -> Findings | Skipped:
        """The replayed scenarios, those with the largest gain first."""
        if not len(self._matched):
            return Skipped("no collective was found on two ranks")
        if self._found_replay is None:
            return Skipped("no collective joins two ranks with comparable clocks")
        why = "many collectives are not matched: ranks wait for each other in them, which the replay does not know"
        least = {LIKE_MEDIAN: self._least_ns, NO_HOST: self._paced_ns}
        rows = scenarios(self._replay, self._excess, self._summaries, self._promised, self._balanced_stages, least)
        return Findings(rows, partial=why if self._gain_unknown else None)

    @property
    def _promised(self) -> dict[str, int]:
        """What the job would gain as a whole, ns, by scenario: what the verdict says of several ranks together."""
        if self._gain_unknown or self._why_not:
            return {}
        several = len(self._candidates) > 1 and self._all_gain > 0
        late = ranks_text(self._summaries[member].rank for member in self._candidates.tolist())
        return {
            **({ALL_LIKE_MEDIAN.format(late): self._all_gain} if several else {}),
            **{ALIKE_ROWS[row.cause]: row.gain_ns for row in self._shared_rows + self._uneven_rows if row.gain_ns},
            **{FIXED.format(rule): gain * max(self.step_count, 1) for rule, gain in self.fixed_ns.items()},
        }

    @cached_property
    def _parts(self) -> tuple[path.WorkProgress, path.Replay | None, path.Stretches]:
        """The progress of the ranks, the replay, and the stretches."""
        progress = path.progress_of(self._matched, self._clocks, self._summaries)
        return progress, path.replay_of(progress), path.stretches(progress, self._summaries)

    @cached_property
    def _excess(self) -> Excess:
        progress, _, parts = self._parts
        return excess_of(progress, parts, len(self._summaries), self._stage)

    @property
    def _found_replay(self) -> path.Replay | None:
        return self._parts[1] if len(self._matched) else None

    @property
    def _replay(self) -> path.Replay:
        assert self._found_replay is not None
        return self._found_replay

    @property
    def excess(self) -> Excess | None:
        """By how much each rank's own work exceeds its peers'; None if nothing was matched."""
        return self._excess if len(self._matched) else None

    @cached_property
    def _unchanged(self) -> int:
        return self._replay.time_ns()

    @property
    def _time(self) -> int:
        return max(self._replay.recorded_ns, 1)

    @property
    def _members(self) -> arrays.Int64s:
        return self._replay.members

    @property
    def tells(self) -> bool:
        """Whether it is known who is late, be it nobody."""
        return bool(len(self._matched)) and not self._why_not

    @property
    def steps(self) -> path.CommonSteps:
        """The steps by which the job and its ranks are judged."""
        return self._replay.progress.steps

    @property
    def step_count(self) -> int:
        """Their number; 0 where none was recorded."""
        return self._step_time[1]

    @cached_property
    def late_ranks(self) -> list[tuple[int, Row, Reason]]:
        """The members that hold the job up, each with its row and the reason; none if that is not known, or where the
        hosts of all are slow alike and the verdict names no rank."""
        known = self.tells and (not self._shared or any(row.rank is not None for row in self.verdict.rows))
        rows = zip(self._named, self._rank_rows, strict=True) if known else ()
        return [(of, row, self._reason(of)) for of, row in rows]

    @cached_property
    def transfer_gain_ns(self) -> int | None:
        """By how much a step would be shorter if no communication took time, ns; None if the replay cannot tell."""
        if not self.tells or self._gain_unknown:
            return None
        return self._without_transfers([]) // (self.step_count or 1)

    def _without_transfers(self, late: Sequence[int]) -> int:
        """What the job would gain if no communication took time, and the ``late`` members were like the median, ns. The
        replay does not know that a device then waits for its host: no more than any other rank by its own trace."""
        still = np.zeros_like(self._replay.moving)
        gain = self._saved(self._replay.time_ns(shift=self._in_time(late), moving=still))
        of_ranks = (gain for member, (gain, *_) in self._alone.items() if member not in late)
        return int(min(max(gain, 0), self._time - self._least_ns(late), *of_ranks))

    @cached_property
    def transfers(self) -> tuple[int, list[int]]:
        """What the job would gain without transfers, ns, where the ranks' own rules were asked, if it is much, or worth
        a warning and more than what any row of the verdict would bring; else 0. Where late ranks limit that, and it is
        as much beyond what they cost, it is what the job would gain by both; then these members, else none."""
        per_step = self.transfer_gain_ns
        if per_step is None or not any(summary.diagnosis for summary in self._summaries):
            return 0, []
        gain, rows = per_step * max(self.step_count, 1), self._rows
        is_more = all(gain > (row.gain_ns or 0) for row in rows or self._stage_rows)
        if gain >= (WARNING_RATIO if is_more else LEAST_TRANSFERS) * self._time:
            return gain, []
        ranks = {rank for row in self._joint_rows for rank in (row.rank, *row.ranks)} - {None}
        late = [member for member, each in enumerate(self._summaries) if each.rank in ranks]
        if not late or rows != self._joint_rows:
            return 0, []
        gain, of_late = self._without_transfers(late), self._gain(np.array(late, np.int64))
        least = min(max(2 * of_late, WARNING_RATIO * self._time), of_late + LEAST_TRANSFERS * self._time)
        return (gain, late) if gain >= least else (0, [])

    @property
    def are_transfers_first(self) -> bool:
        """Whether they are more than what any row of the verdict would bring, and none of these is a part of them."""
        gain, late = self.transfers
        rows = self._rows or self._stage_rows if gain and not late else []
        return gain > 0 and not late and all(gain > (row.gain_ns or 0) and row.cause != "communication" for row in rows)

    @property
    def are_transfers_most(self) -> bool:
        """Whether they are also more than what a finding would bring that is fixed on all ranks."""
        fixed = self.most_fixed
        return self.are_transfers_first and (fixed is None or self.transfers[0] > fixed.gain_ns)

    @cached_property
    def _gain_unknown(self) -> bool:
        """Whether many collectives are not matched: their ranks wait for each other, and the replay does not know."""
        return verdict_text.much_missed(self._summaries, self._matched) > 0

    @cached_property
    def _step_time(self) -> tuple[float, int]:
        """The mean time of a step, ns, and the number of steps; 0 steps where none was recorded."""
        count = self._replay.progress.step_count
        return (self._time / count if count else 0.0), count

    @property
    def _own_time(self) -> arrays.Int64s:
        """The length of each rank's own steps together, ns."""
        return (self._replay.progress.finish - self._replay.progress.begin)[self._members]

    @cached_property
    def _seen(self) -> tuple[int, int]:
        """The ranks with traces, and the ranks of the job (as many, if unknown)."""
        return len(self._summaries), max(self._matched.world, len(self._summaries))

    @property
    def _stated(self) -> bool:
        """Whether the traces say themselves that they are ranks of one job: distinct ones of equally many."""
        ranks = [summary.rank for summary in self._summaries]
        worlds = {summary.world for summary in self._summaries}
        return None not in ranks and len(set(ranks)) == len(ranks) and len(worlds) == 1 and worlds != {arrays.NO_VALUE}

    @cached_property
    def _why_not(self) -> str:
        """Why there is no verdict; empty if there is one."""
        if not len(self._matched):
            on_hosts = not any(each.states.ts or each.streams for each in self._summaries)
            known = " (without GPU work those of gloo, MPI and operators such as shm_allreduce are known)"
            return f"no collective was found on two ranks{known if on_hosts else ''}"
        if is_sparse(self._matched).mean() > 0.5:
            return "most collectives have traces of at most half of their ranks (record all ranks of a process group)"
        if self._found_replay is None:
            return next((clock.refused for clock in self._clocks if clock.refused and not clock.comparable), "") or (
                "no collective joins two ranks with comparable clocks"
            )
        if (error := abs(self._replay.time_ns(is_steady=False) - self._time) / self._time) > MOST_ERROR:
            return f"the replay of the job misses its time by {percent(error)}"
        return ""

    @cached_property
    def fixed_ns(self) -> dict[str, int]:
        """By how much a step would be shorter, ns, by rule, if a finding about the devices of all ranks were fixed
        on all of them; none where the replay cannot tell, or a rank has no trace."""
        if not self.tells or self._gain_unknown or self._seen[0] < self._seen[1]:
            return {}
        of_rule: dict[str, list[int]] = {}
        for member in self._members.tolist():
            for rule in {name.split(" ")[0] for name in self._summaries[member].tables.get("earlier", ())}:
                of_rule.setdefault(rule, []).append(member)
        shifts = {
            rule: path.Fixed(self._summaries, dict.fromkeys(of, rule))
            for rule, of in sorted(of_rule.items())
            if len(of) == len(self._summaries)  # a rank of which it is not known would decide as it is
        }
        steps, play = max(self.step_count, 1), self._replay.time_ns
        return {rule: max(self._saved(play(shift=shift)), 0) // steps for rule, shift in shifts.items()}

    @cached_property
    def most_fixed(self) -> verdict_text.FixedOnAll | None:
        """What brings most if all ranks fix it, as sure as the rank that is least sure of it. None if that is little,
        or no more than what any row of the verdict would bring."""
        if not self.fixed_ns:
            return None
        rule = max(self.fixed_ns, key=lambda rule: self.fixed_ns[rule])
        gain = self.fixed_ns[rule] * max(self.step_count, 1)
        costs = (row.charged_ns if row.gain_ns is None else row.gain_ns for row in self._rows or self._stage_rows)
        if gain < LEAST_RATIO * self._time or gain <= max(costs, default=0):
            return None
        known = (summary.own_diagnosis for summary in self._summaries)
        of = [
            row for alone in known for row in (alone.rows if alone else ()) if row["rule"] == rule and row["confidence"]
        ]
        surest: tuple[Confidence, ...] = "high", "medium", "low"
        least = max((self._confidence, *(row["confidence"] for row in of)), key=surest.index)
        at_most = any(row["at_most"] for row in of)
        return verdict_text.FixedOnAll(rule, gain, least, at_most, not at_most and any(row["at_least"] for row in of))

    def _saved(self, time_ns: int) -> int:
        """By how much a job that the replay ends after so long is shorter, ns."""
        return saved_of(self._unchanged - time_ns, self._unchanged, self._time)

    def _gain(self, members: arrays.MemberIndexes) -> int:
        most = max(self._time - self._least_ns(members.tolist()), 0)
        return min(self._saved(self._replay.time_ns(shift=self._in_time(members.tolist()))), most)

    def _in_time(self, late: Sequence[int]) -> path.Shift:
        """The change by which some members are like the median of their peers."""
        by = np.where(np.isin(self._excess.stretches.member, late), -self._excess.by_stretch, 0)
        return path.Shift(self._excess.stretches, by, self._excess.by_parts, self._summaries)

    def _least_ns(self, members: Sequence[int]) -> int:
        """What the job takes at least if these members are like the median of their peers."""
        return max(self._paced_ns(members), self._own_hosts_ns(members))

    def _paced_ns(self, members: Sequence[int], *, alone: bool = True) -> int:
        """How long the workers of other ranks' loaders need for their batches, and how long other ranks take by their
        own traces ``alone``, if they wait for nobody: no cure of these members makes it shorter."""
        others = set(self._members.tolist()).difference(members)
        paces = [self._batches[member] for member in others]
        paces += [self._alone[member][1] for member in others.intersection(self._alone) if alone]
        return max(paces, default=0)

    @cached_property
    def _batches(self) -> list[int]:
        """How long the workers of each member's loader need for its batches, ns."""
        return [self._spent(member, "data_loading", "pace_ns") for member in range(len(self._summaries))]

    def _own_hosts_ns(self, members: Sequence[int]) -> int:
        """How long the hosts of those members take whose devices are to be faster: that makes no host faster."""
        causes = {name: ns[members].tolist() for name, ns in self._excess.causes.items()}
        total = self._excess.total_ns[members].tolist()
        main = [main_cause({name: ns[place] for name, ns in causes.items()}, of) for place, of in enumerate(total)]
        of_device = (each for each, cause in zip(members, main, strict=True) if cause in ("compute", "copies"))
        return max((self._alone[member][2] for member in of_device if member in self._alone), default=0)

    @cached_property
    def _alone(self) -> dict[int, tuple[int, int, int]]:
        """What members would gain by their own traces if no communication took time; what they take then at least, and
        what their hosts do however fast their devices are, ns: no more than 0 where that is unknown of the steps that
        are judged. A host whose steps differ may be faster than in these few, by the standard error, unless the devices
        of all wait for their hosts."""
        alone, steps, errors = {}, max(self.step_count, 1), self._shared is None
        sends = bool(self._matched.is_pair().any())  # a rank's own trace does not say what it gains by messages
        for member, summary in enumerate(self._summaries):
            for row in known.rows if (known := summary.own_diagnosis) else ():
                if row["rule"] == "exposed_communication" and row["status"] != "not_applicable":
                    judged, seen = summary.step_column("number")[summary.step_column("steady") != 0], row["figures"]
                    is_same = not self.step_count or np.array_equal(judged, self.steps.numbers)
                    is_same &= not (summary.step_column("requests") >= 0).any()  # an engine's host may wait unrecorded
                    gain = seen["gain_ns"] * steps if seen else int(LEAST_RATIO * self._time)
                    error = seen["host_error_ns"] * steps * errors if seen and is_same else self._time
                    pace = 0 if sends else self._time - gain - error
                    alone[member] = gain, pace, seen.get("host_ns", 0) * steps - error
        return alone

    @cached_property
    def _candidates(self) -> arrays.MemberIndexes:
        """The members whose excess is beyond chance and large, the largest first."""
        total, noise = self._excess.total_ns, self._excess.noise_ns
        rest = total - self._excess.worst_ns  # without the step with most of it
        is_once = (rest < LEAST * self._time) & (self._step_time[1] > 2)
        least = np.where(is_once, LEAST_ONCE, LEAST)
        limit = CLEARLY + 0.5 * math.log2(max(len(self._members) / 2, 1))
        clear = (total > limit * noise) & (total >= least * self._time)
        lasting = self._excess.lasting_ns
        chosen = np.flatnonzero(clear | (lasting >= LEAST_LASTING * self._time)).astype(arrays.MemberIndex, copy=False)
        return chosen[np.argsort(-np.maximum(total, lasting)[chosen], kind="stable")]

    @cached_property
    def _gains(self) -> Mapping[int, int]:
        """The gain of each of the first candidates alone."""
        return {member: self._gain(np.array([member])) for member in self._candidates[: 2 * MOST_NAMED].tolist()}

    @cached_property
    def _all_gain(self) -> int:
        return self._gain(self._candidates) if len(self._candidates) else 0

    @property
    def named(self) -> Mapping[int, Cause]:
        """The cause of each member that is named; ``unknown`` where it is no single one."""
        if not len(self._matched) or self._why_not:
            return {}
        charged = {member: self._charged(member) for member in self._named}
        return {member: main_cause(of, total) for member, (total, of) in charged.items()}

    @property
    def shared(self) -> SharedWait | None:
        """What all ranks wait for alike, per step; None if there is no such thing."""
        known = self._shared if self.tells else None
        return known and SharedWait(known[0], known[2] // max(self.step_count, 1))

    @cached_property
    def _shared(self) -> tuple[Reason, arrays.Int64s, int] | None:
        """Why the devices of most ranks wait for their own hosts, for how long each, by member, and what the job would
        gain if none did; None if that is little, or no more than if the rank that waits longest did not. A loader or a
        stall is named if it has most of these waits."""
        members = self._members.tolist()
        if self._gain_unknown or not any(self._summaries[member].states.gap_doing for member in members):
            return None
        spent: dict[tuple[str, Where], arrays.Int64s] = {}
        for member in members:
            edges = self._replay.progress.begin[[member]], self._replay.progress.finish[[member]]
            for name, where, ns in self._summaries[member].states.doing(*edges):
                spent.setdefault((name, where), np.zeros(len(self._summaries), np.int64))[member] = ns
        if not spent:
            return None
        every = sum(spent.values(), np.zeros(len(self._summaries), np.int64))
        most = max(spent, key=lambda each: int(spent[each].sum()))
        doing = most if 2 * spent[most].sum() >= every.sum() else None
        ns, least = (every, LEAST_SHARED_BY_ALL) if doing is None else (spent[most], LEAST_SHARED)
        fetches = doing is not None and doing[0].startswith(FETCH)
        late = np.array([self._spent(member, "data_loading", "fetch_ns") if fetches else 0 for member in members])
        if np.sort(np.maximum(ns[members], late))[(len(members) - 1) // 2] < LEAST_OF_EACH * self._time:
            return None
        gain, of_one = (
            self._saved(self._replay.time_ns(shift=self._without_waits(doing, of)))
            for of in (members, [int(ns.argmax())])
        )
        if np.sum(late >= LEAST_LATE * self._time) > 1:
            of_one = 0  # the batches of the others come no sooner
        if gain - of_one < least * self._time:
            return None
        return Reason("host", "many_operators") if doing is None else Reason("host", doing[1], doing[0]), ns, gain

    def _spent(self, member: int, rule: str, figure: str) -> int:
        """A figure of a rank's own diagnosis in all steps; of a loader, if its workers are slow: for how long its host
        waits for them (``fetch_ns``), also where its device waits for another rank meanwhile; or they need."""
        alone = self._summaries[member].own_diagnosis
        said = [row["figures"] for row in alone.rows if row["rule"] == rule] if alone else []
        return sum(each.get(figure, 0) * self.step_count for each in said if each.get("why") in (None, "slow_workers"))

    def _without_waits(self, doing: tuple[str, Where] | None, members: Sequence[int]) -> path.Shift:
        """The change by which devices of some members do not wait for their host to do that; None: for it at all."""
        part = self._excess.stretches
        length = part.own_ns + part.parts.communication
        less = np.zeros(len(length), np.int64)
        for member in members:
            chosen = np.flatnonzero(part.member == member)
            waits = self._summaries[member].states.waits(doing)
            since = int(self._replay.progress.begin[member])
            waits = arrays.Intervals(np.maximum(waits.start, since), np.maximum(waits.end, since))
            stretches_of = arrays.Intervals(part.ts[chosen] - length[chosen], part.ts[chosen])
            which, _, parts = arrays.intervals.clip(stretches_of, arrays.intervals.union(waits.start, waits.end))
            less[chosen] = arrays.sums(which, parts.end - parts.start, len(chosen))
        less = np.minimum(less, part.parts.host)
        return path.Shift(part, -less, {("host",): less}, self._summaries)

    @cached_property
    def _shared_rows(self) -> list[Row]:
        """The row of what all ranks wait for alike; else none."""
        if self._shared is None:
            return []
        reason, ns, gain = self._shared
        known = [each.own_diagnosis for each in self._summaries]
        if reason.where == "many_operators":  # the rank's "waiting for the host" lasts until its work starts
            steps, ns = self.steps.numbers, ns.copy()
            for member, (said, each) in enumerate(zip(known, self._summaries, strict=True)):
                judged = np.isin(each.step_column("number"), steps) | (not len(steps))
                if said is not None and said.device_count:
                    ns[member] = each.step_column("host_wait_ns")[judged].sum() // said.device_count
        waits = ns[self._members]
        alone = all(self._summaries[member].is_host_alone for member in self._members.tolist())
        evidence = verdict_text.shared(reason, waits, self._own_time, len(waits), alone)
        figures = {**msgspec.to_builtins(reason), "least_ns": int(waits.min()), "most_ns": int(waits.max())}
        figures["step_count"] = self.step_count
        ranks = [rank for summary in self._summaries if (rank := summary.rank) is not None]
        problems = [{row["rule"]: row for row in each.others} for each in known if each]
        loading = [each for each in problems if verdict_text.may_be_loading(each)]
        saved = None if reason.where == "call" and 2 * len(loading) > len(known) else gain  # of loading, it is unknown
        confidence = "low" if saved is None else self._confidence
        return [Row(None, "", "", "shared", int(waits.mean()), saved, confidence, evidence, figures, ranks)]

    def _is_shared(self, member: int) -> bool:
        """Whether a rank is late by no more than what all ranks wait for, and by the same thing."""
        if self._shared is None or self._shared[0].where == "many_operators":
            return False
        return self._reason(member) == self._shared[0] and self._gains.get(member, 0) < self._shared[2]

    @cached_property
    def _uneven_rows(self) -> list[Row]:
        """The row of uneven work, where balance gains more than twice what any rank alone would; else none."""
        settled = self._gain_unknown or self._shared or self._stage is not None
        balance = None if settled else uneven(self._excess, self._summaries)
        if balance is None:
            return []
        cause = main_cause(balance.causes, balance.excess_ns)
        gain = self._saved(self._replay.time_ns(shift=balance.shift))
        alone = max(self._gains.values(), default=0)
        if cause not in verdict_text.UNEVEN or gain < max(LEAST_UNEVEN * self._time, 2 * alone):
            return []
        evidence = verdict_text.uneven(cause, balance.slower)
        return [Row(None, "", "", "uneven", balance.excess_ns, gain, self._confidence, evidence)]

    @cached_property
    def _named(self) -> list[int]:
        """The members that hold the job up; none where all do in turn."""
        if self._uneven_rows:
            return []
        alone = [member for member, gain in self._gains.items() if gain >= LEAST * self._time]
        if self._gain_unknown or (not alone and self._all_gain >= LEAST * self._time):
            alone = list(self._gains)
        if not self._gain_unknown:  # where ranks are equally late, none gains alone: those charged most come first
            least = LEAST * self._time
            alone.sort(key=lambda member: -self._gains[member] if self._gains[member] >= least else 0)
        return [member for member in alone if not self._is_shared(member)][:MOST_NAMED]

    @cached_property
    def _rank_rows(self) -> list[Row]:
        return [self._rank_row(member) for member in self._named]

    @cached_property
    def _joint_rows(self) -> list[Row]:
        """The rows of the verdict. Ranks that are late alike, so that none gains alone, are one row with what all gain
        together; a rank that gains nothing, neither alone nor so, has none where others have, or all wait alike."""
        least = LEAST * self._time
        alone = self._stage is None and any(gain >= least for gain in self._gains.values())
        if self._gain_unknown or self._uneven_rows or alone:
            return self._rank_rows
        alike: list[tuple[Cause, list[int]]] = []
        for member in (late for late in self._candidates.tolist() if not self._is_shared(late)):
            total, causes = self._charged(member)
            cause = main_cause(causes, total)
            for known, members in alike:
                if known == cause and total >= ALIKE * self._charged(members[0])[0]:
                    members.append(member)
                    break
            else:
                alike.append((cause, [member]))
        gains = [self._gain(np.array(members)) for _, members in alike]
        rows = [self._joint_row(of, gain) for (_, of), gain in zip(alike, gains, strict=True) if gain >= least]
        rows = sorted(rows, key=lambda row: -(row.gain_ns or 0))[:MOST_NAMED]
        return rows or ([] if self._shared else self._rank_rows)

    def _joint_row(self, members: Sequence[int], gain: int) -> Row:
        """The row of several ranks that are late alike."""
        members = sorted(
            members, key=lambda member: (self._summaries[member].rank is None, self._summaries[member].rank)
        )
        if len(members) == 1:
            return self._rank_row(members[0], min(gain, self._charged(members[0])[0]))
        first = self._rank_row(members[0], gain)
        each = [self._summaries[member] for member in members]
        charges = [self._charged(member) for member in members]
        causes = {cause: sum(of[cause] for _, of in charges) // len(charges) for cause in charges[0][1]}
        reasons = [self._reason(member) for member in members]
        reason = reasons[0] if len(set(reasons)) == 1 else Reason(reasons[0].cause)  # what differs is no cause of all
        lasts, once = (all(map(said, members)) for said in (self._lasts, self._once))
        hosts = {summary.host for summary in each}
        within, others = self._groups_of(members)
        whole = f"all ranks of a {within} group" if within else ""
        return replace(
            first,
            dimension=others or first.dimension,
            host=hosts.pop() if len(hosts) == 1 else "",
            ranks=[summary.rank for summary in each if summary.rank is not None],
            place=verdict_text.place_of(each, self._summaries) or whole,
            charged_ns=sum(total for total, _ in charges) // len(charges),
            evidence=verdict_text.evidence(
                reason, causes, self.step_count, lasts=lasts, once=once, several=True, alone=each[0].is_host_alone
            ),
            figures=self.figures_of(reason, causes, lasts, once) | self.hides_loaders,
        )

    def _then(self, member: int) -> dict[str, Any]:
        """Why no more is saved once a rank is like its peers: batches, another rank, transfers, or the others' work;
        and what faster hosts of all ranks would save where another rank is the limit, ns: by replay."""
        left = self._time - self._gains.get(member, 0)
        if left <= self._paced_ns([member], alone=False):
            return {"then": "batches of other ranks take that long"}
        if left <= self._own_hosts_ns([member]):
            return {"then": "its own host takes that long"}
        play = self._replay.time_ns
        if left <= self._paced_ns([member]):
            beside = {*self._alone}.intersection(self._members.tolist()) - {member}
            slowest = max(beside, key=lambda other: self._alone[other][1])
            rank, (_, pace, of_host) = ranks_text([self._summaries[slowest].rank]), self._alone[slowest]
            limit = f"the host of {rank} takes that long"
            limit = f"{rank} takes that long even if it waits for nobody" if of_host < pace else limit
            free = self._saved(play(shift=self._without_waits(None, self._members.tolist())))
            return {"then": limit} | ({"all_hosts_ns": free} if self._shared is None else {})
        still = np.zeros_like(self._replay.moving)
        brought = play(moving=still) - play(moving=still, shift=self._in_time([member]))  # without transfers
        others = "the other rank's host and device are" if len(self._summaries) == 2 else "other hosts and devices are"
        rest = "transfers fill" if 2 * brought > self._charged(member)[0] else f"{others} busy for"
        return {"then": f"{rest} most of that time anyway"}

    @cached_property
    def hides_loaders(self) -> dict[str, bool]:
        """The figure that says that the workers of a loader may be the limit next: their batches come while a rank is
        late, or is waited for."""
        unknown = [each for at, each in enumerate(self._summaries) if not self._batches[at]]
        known = (row for each in unknown if each.own_diagnosis for row in each.own_diagnosis.rows)
        fetches = [row for row in known if row["rule"] == "data_loading" and row["status"] != "not_applicable"]
        has_workers = any((row["figures"] or {}).get("why") != "no_workers" for row in fetches)
        return {"hides_loaders": True} if has_workers else {}

    def figures_of(self, reason: Reason, causes: Mapping[Cause, int], lasts: bool, once: bool) -> dict[str, Any]:
        """The figures of a row's evidence."""
        figures = {"causes_ns": causes, "lasts": lasts, "in_one_step": once, "step_count": self.step_count}
        return {**msgspec.to_builtins(reason), **figures}

    def _groups_of(self, members: Sequence[int]) -> tuple[str, str]:
        """The dimension of a process group that consists of these members, and that in whose groups others wait for
        them; each empty if there is none, or it is unknown."""
        matched, whose = self._replay.progress.matched, set(members)
        within, beyond = "", Counter[str]()
        is_late = np.isin(matched.member, members)
        (groups, kinds), which = arrays.combinations(matched.group[matched.instance], matched.kind[matched.instance])
        rows_of_late = np.bincount(which[is_late], minlength=len(groups))
        for place, rows in arrays.each(which, len(groups)):
            name = self._dims.of(int(groups[place]), matched.kinds[kinds[place]]) if rows_of_late[place] else UNKNOWN
            if name in (UNKNOWN, WORLD):
                continue
            if not is_late[rows].all():
                beyond[name] += int(rows_of_late[place])
            elif set(matched.member[rows].tolist()) == whose:
                within = name
        return within, max(beyond, key=lambda name: beyond[name], default="")

    @property
    def _together(self) -> tuple[str, ...]:
        """A sentence where several ranks must change for the job to gain; none for few steps, which may be chance."""
        alone = max(self._gains.values(), default=0)
        if self.step_count < FEWEST_STEPS or self._uneven_rows or all(map(self._is_shared, self._candidates.tolist())):
            return ()
        known = max([alone, *(row.gain_ns or 0 for row in self._joint_rows)])
        if self._gain_unknown or len(self._candidates) < 2 or self._all_gain < known + LEAST * self._time:
            return ()
        share = percent(self._all_gain / self._time)
        hosts = {self._summaries[member].host for member in self._candidates.tolist()}
        where = f" (all on host {hosts.pop()})" if len(hosts) == 1 and hosts != {""} else ""
        ranks = ranks_text(self._summaries[member].rank for member in self._candidates.tolist())
        named = {rank for row in self._joint_rows for rank in (row.rank, *row.ranks)}
        others = [rank for member in self._candidates.tolist() if (rank := self._summaries[member].rank) not in named]
        then = f"Then {ranks_text(others)} would be late: w" if named and others else "W"
        return (f"{then}ith {ranks}{where} at the median's speed, the job would take {share} less time.",)

    def _charged(self, member: int) -> tuple[int, dict[Cause, int]]:
        """What is charged to a member, and the part that is due to each cause, ns."""
        lasts = self._lasts(member)
        part = self._excess.lasting_causes if lasts else self._excess.causes
        total = int((self._excess.lasting_ns if lasts else self._excess.total_ns)[member])
        return total, {cause: int(values[member]) for cause, values in part.items()}

    def _reason(self, member: int) -> Reason:
        total, causes = self._charged(member)
        return verdict_text.reason_of(main_cause(causes, total), member, self._excess, self._summaries)

    def _lasts(self, member: int) -> bool:
        """Whether the rank is charged for the places of a step alone where it takes longer in most steps: where its
        whole excess does not explain what the job would gain."""
        total = int(self._excess.total_ns[member])
        explained = not self._gain_unknown and total > 0 and self._gains.get(member, 0) <= EXPLAINED * total
        return 2 * total < int(self._excess.lasting_ns[member]) and not explained

    def _once(self, member: int) -> bool:
        """Whether most of the excess is in one step of several."""
        return self._step_time[1] > 2 and bool(self._excess.worst_ns[member] > ONCE * self._excess.total_ns[member])

    def _rank_row(self, member: int, gain: int | None = None) -> Row:
        summary = self._summaries[member]
        total, causes = self._charged(member)
        cause = main_cause(causes, total)
        share = max(causes.values()) / total if total else 0.0
        reason = self._reason(member)
        if reason.more_work and gain is None and not self._gain_unknown:
            gain = self._saved(self._replay.time_ns(shift=balanced(self._excess, self._summaries)))
        lasts, once = self._lasts(member), self._once(member)
        unnamed = not any(group.name for group in self._matched.groups)
        unsure = unnamed and total < PLAIN * self._time  # groups that are inferred may be others
        sure = share >= 0.75 and not summary.partial and not self._gain_unknown and self._seen[0] == self._seen[1]
        # The dimension in which the rank's excess showed most; empty if it is unknown
        stretches = self._excess.stretches
        chosen = np.flatnonzero(stretches.member == member)
        matched = self._replay.progress.matched
        instance = matched.instance[stretches.row[chosen]]
        (groups, kinds), which = arrays.combinations(matched.group[instance], matched.kind[instance])
        totals: Counter[str] = Counter()
        for group, kind, ns in zip(
            groups.tolist(),
            kinds.tolist(),
            arrays.sums(which, self._excess.by_stretch[chosen], len(groups)).tolist(),
            strict=True,
        ):
            totals[self._dims.of(group, matched.kinds[kind])] += ns
        most = max(totals, key=lambda name: totals[name], default=UNKNOWN)
        dimension_of = "" if most in (UNKNOWN, WORLD) else most
        if gain is None and not self._gain_unknown:
            gain = min(self._gains[member], total)
        remains = gain is not None and LEAST * self._time <= gain < total / 2
        return Row(
            rank=summary.rank,
            host=summary.host,
            dimension=dimension_of,
            cause=cause,
            charged_ns=total,
            gain_ns=gain,
            confidence="low" if unsure or cause == "unknown" else "high" if sure and not unnamed else "medium",
            evidence=verdict_text.evidence(
                reason, causes, self.step_count, lasts=lasts, once=once, alone=summary.is_host_alone
            ),
            figures=self.figures_of(reason, causes, lasts, once)
            | (self._then(member) if remains else self.hides_loaders),
        )

    @cached_property
    def _balanced_stages(self) -> path.Scale | None:
        return balanced_stages(self._replay, self._summaries)

    @property
    def _stage_rows(self) -> list[Row]:
        """The row of pipeline stages that compute for unequally long, where balance gains much; else none."""
        shift = None if self._gain_unknown else self._balanced_stages
        gain = 0 if shift is None else self._saved(self._replay.time_ns(shift=shift))
        if shift is None or gain < LEAST_UNEVEN * self._time:
            return []
        least = min(shift.factor.values())
        ranks = sorted(self._summaries[each].rank or 0 for each, factor in shift.factor.items() if factor == least)
        stage_count = len(chains(self._summaries)[0])
        longer = (stage_count - 1) / (stage_count * least - 1) - 1  # than the mean of the others
        evidence, figures = verdict_text.uneven_stages(ranks, longer), {"longer_ratio": longer}
        return [Row(None, "", "pp", "uneven", gain, gain, "medium", evidence, figures, ranks)]

    @cached_property
    def _group_rows(self) -> list[Row]:
        rows = []
        for group in slow_groups(self._replay, self._summaries):
            gain = self._saved(self._replay.time_ns(moving=group.moving))
            if gain < LEAST * self._time:
                continue
            rank = self._summaries[group.member].rank if group.member is not None else None
            host = self._summaries[group.member].host if group.member is not None else ""
            saved, took = None if self._gain_unknown else gain, group.charged_ns
            messages = {"links": self._links(group), "messages": group.messages}
            figures = {"groups": group.groups, "times": group.times, **messages}
            rows.append(
                Row(rank, host, group.dimension, "communication", took, saved, "medium", group.evidence, figures)
            )
        return sorted(rows, key=lambda row: -(row.gain_ns or 0))[:MOST_NAMED]

    def _links(self, slow: SlowGroup) -> list[tuple[int, int, str]]:
        """The ranks of each slow link, and by what NCCL joins them, where its log says; none if a rank is unknown."""
        links = []
        for first, second, group in slow.links:
            ends = self._summaries[first], self._summaries[second]
            if ends[0].rank is None or ends[1].rank is None:
                return []
            transports = {end.transports.get(group.identity, "") for end in ends} - {""}
            links.append((ends[0].rank, ends[1].rank, transports.pop() if len(transports) == 1 else ""))
        return links


# What would be gained if something were otherwise: scenarios of a job, by replay.


MOST_RANKS = 8  #: with scenarios of their own: those whose excess is largest
LIKE_MEDIAN, NO_HOST = "the rank is like the median of its peers", "the rank's device never waits for its host"
ALL_LIKE_MEDIAN = "{} are like the median of their peers"
#: by the cause of a row of the verdict that names no rank
ALIKE_ROWS = {"shared": "no device waits for what all wait for", "uneven": "the work of each step is balanced"}
FIXED = "{} is fixed on all ranks"  #: of a rule
FASTER, NO_TIME = "links twice as fast", "communication takes no time"
HIDDEN = "no rank waits in {}"
BALANCED = "pipeline stages are balanced"
Scenario = tuple[str, int, tuple[int | None, str]]  #: its name, time (ns), and rank and dimension


def scenarios(
    replay: path.Replay,
    excess: Excess,
    summaries: Sequence[RankSummary],
    promised: Mapping[str, int],
    balanced: path.Scale | None,
    least: Mapping[str, Callable[[Sequence[int]], int]],
) -> list[WhatIfRow]:
    """The rows: unchanged, then those with the largest gain first; ``promised`` are gains of other scenarios, and
    ``balanced`` is the change by which pipeline stages compute for equally long; ``least``: what the job takes at
    least, by scenario of some members."""
    unchanged, recorded = replay.time_ns(), max(replay.recorded_ns, 1)
    error = (replay.time_ns(is_steady=False) - recorded) / recorded

    def row(name: str, gain: int, rank: int | None = None, dimension: str = "") -> WhatIfRow:
        return WhatIfRow(name, rank, dimension, recorded - gain, gain, gain / recorded, error)

    of_ranks = (
        (name, max(time, unchanged - max(recorded - least[name]([member]), 0)), (summaries[member].rank, ""))
        for name, time, member in _of_ranks(replay, excess, summaries)
    )
    replayed = [*of_ranks, *_of_dimensions(replay)]
    if balanced is not None:
        replayed.append((BALANCED, replay.time_ns(shift=balanced), (None, "pp")))
    rows = [row(name, saved_of(unchanged - time, unchanged, recorded), *of) for name, time, of in replayed]
    rows += [row(name, gain) for name, gain in promised.items()]
    return [row("unchanged", 0), *sorted(rows, key=lambda each: -each.gain_ns)]


def saved_of(gain_ns: int, unchanged_ns: int, recorded_ns: int) -> int:
    """By how much a job is shorter that the replay ends so much earlier, ns: the share that is saved of the replay of
    the unchanged job, where that is longer than the recorded time, as ranks that begin earlier are not ahead."""
    return round(gain_ns * min(1.0, recorded_ns / max(unchanged_ns, 1)))


def _of_ranks(replay: path.Replay, excess: Excess, summaries: Sequence[RankSummary]) -> Iterator[tuple[str, int, int]]:
    """Scenario, time and member for the ranks with the largest excess."""
    largest = np.argsort(-excess.total_ns, kind="stable")[:MOST_RANKS]
    for member in largest[excess.total_ns[largest] > 0].tolist():
        chosen, host = excess.stretches.member == member, excess.stretches.parts.host
        waits: dict[tuple[str, ...], arrays.Int64s] = {("host",): host}
        for name, less, parts in ((LIKE_MEDIAN, excess.by_stretch, excess.by_parts), (NO_HOST, host, waits)):
            shift = path.Shift(excess.stretches, np.where(chosen, -less, 0), parts, summaries)
            yield name, replay.time_ns(shift=shift), member


def _of_dimensions(replay: path.Replay) -> Iterator[Scenario]:
    """The same for the links of each dimension, and for each of its kinds of collectives."""
    matched = replay.progress.matched
    names = [dimension_told(group.description) or group.description or group.name for group in matched.groups]
    for name in sorted({names[group] for group in np.unique(matched.group).tolist()}):
        inside = np.array([each == name for each in names], np.bool_)[matched.group]
        for label, factor in ((FASTER, 0.5), (NO_TIME, 0.0)):
            moving = np.where(inside, np.rint(replay.moving * factor), replay.moving).astype(np.int64)
            yield label, replay.time_ns(moving=moving), (None, name)
        for kind in np.unique(matched.kind[inside]).tolist():
            hidden: arrays.Bools = inside & (matched.kind == kind)
            yield HIDDEN.format(matched.kinds[kind]), replay.time_ns(hidden=hidden), (None, name)


def balanced_stages(replay: path.Replay, summaries: Sequence[RankSummary]) -> path.Scale | None:
    """The change by which the devices of all pipeline stages compute for equally long; None without known stages."""
    member_of = {summary.rank: member for member, summary in enumerate(summaries) if summary.rank is not None}
    rank_chains = chains(summaries)
    joined = set(replay.members.tolist())
    if not rank_chains or len({len(chain) for chain in rank_chains}) > 1:
        return None
    members = np.array([[member_of.get(rank, -1) for rank in chain] for chain in rank_chains])
    if not joined.issuperset(members.ravel().tolist()):
        return None
    sides = [(each.states, each.step_column("start"), each.step_column("end")) for each in summaries]
    computed = np.array([int(states.parts(start, end).compute.sum()) for states, start, end in sides])
    compute = computed[members].mean(axis=0)
    if not compute.all():
        return None
    factor = compute.mean() / compute
    return path.Scale(summaries, {int(member): float(factor[stage]) for (_, stage), member in np.ndenumerate(members)})


def stages(summaries: Sequence[RankSummary], matched: Matched) -> arrays.Int64s | None:
    """The pipeline stage of each member; None if ranks send to each other, and it is not known of all."""
    stage = np.zeros(len(summaries), np.int64)
    if not (len(matched) and matched.is_pair().any()):
        return stage
    known = {rank: place for chain in chains(summaries) for place, rank in enumerate(chain)}
    for member, summary in enumerate(summaries):
        if summary.rank is None or summary.rank not in known:
            return None
        stage[member] = known[summary.rank]
    return stage
