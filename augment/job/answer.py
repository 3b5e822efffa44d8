"""The answer to everything that is asked of a whole job, from its ranks' summaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from augment.annotations import CounterTrack, SliceTrack
from augment.arrays.types import Int64s
from augment.findings import Findings, Outcome, Skipped
from augment.job import aggregates, alignment, collectives, path_drawing, path_figures, stragglers, tracks
from augment.job.alignment import Clock, align
from augment.job.matching import Matched, match
from augment.job.path import Path, path_of
from augment.job.summary import RankSummary, read_summary
from augment.job.waits import Waits, apart, waits
from augment.trace import Diagnostic

_NAMED = 5  #: traces that are not whole
#: the rows of each question
ROWS: dict[str, type[Any]] = {
    "clock_alignment": alignment.Row,
    "job_collectives": collectives.Row,
    "collective_sizes": collectives.SizeRow,
    "stragglers": stragglers.Row,
    "load_imbalance": stragglers.ImbalanceRow,
    "cross_rank_critical_path": path_figures.Row,
    "cross_rank_handovers": path_figures.HandoverRow,
    "aggregates": aggregates.Row,
}


@dataclass(frozen=True)
class Answer:
    """What is known of a job. ``clocks`` are in the order of ``summaries``; ``matched`` and ``parted`` are columns."""

    summaries: Sequence[RankSummary]
    clocks: Sequence[Clock]
    matched: Matched
    parted: Waits
    diagnostics: Sequence[Diagnostic]

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The figures by question, in the order of :data:`ROWS`."""
        named = zip(self.clocks, self.summaries, strict=True)
        clocks = [alignment.row_of(clock, one.name) for clock, one in named]
        link = max((one.link_gbps for one in self.summaries), default=0.0)
        groups, sizes = collectives.figures(self.matched, self.parted, link)
        late = list(stragglers.stragglers(self.matched, self.parted, self.summaries))
        steps = list(stragglers.imbalance(self.summaries))
        unmatched = "no collective was found on two ranks"
        return {
            "clock_alignment": Findings(clocks) if len(self.matched) else Skipped(unmatched),
            "job_collectives": Findings(groups) if groups else Skipped(unmatched),
            "collective_sizes": Findings(sizes) if sizes else Skipped("no collective of known size was matched"),
            "stragglers": Findings(late, partial=self._missing()) if late else Skipped(unmatched),
            "load_imbalance": Findings(steps) if steps else Skipped("no rank recorded a step"),
            **self._of_path(),
            "aggregates": aggregates.aggregates(self.summaries),
        }

    @cached_property
    def path(self) -> Path | Skipped:
        """The critical path through the ranks."""
        if not len(self.matched):
            return Skipped("no collective was found on two ranks")
        found = path_of(self.matched, self.parted, self.clocks, self.summaries)
        return Skipped(found) if isinstance(found, str) else found

    def _of_path(self) -> Mapping[str, Outcome]:
        path = self.path
        if isinstance(path, Skipped):
            return {"cross_rank_critical_path": path, "cross_rank_handovers": path}
        refused = sum(not clock.comparable for clock in self.clocks)
        why = f"the path cannot come to {refused} ranks, whose clocks cannot be compared with the others'"
        doubts = filter(None, (why if refused else None, self._missing()))
        rows = list(path_figures.figures(path, self.clocks, self.summaries))
        over = path_figures.handovers(path, self.matched, self.parted, self.summaries)
        none = Skipped("the path stays on one rank, which waits for no other")
        return {
            "cross_rank_critical_path": Findings(rows, partial="; ".join(doubts) or None),
            "cross_rank_handovers": over if over.rows else none,
        }

    def _missing(self) -> str | None:
        """What is to be said where ranks are missing."""
        missing = int((self.matched.size() > self.matched.members).sum())
        why = f"of {missing} collectives not all ranks' traces are there: whoever is late may be among the others"
        return why if missing else None

    def is_drawn(self, member: int) -> bool:
        """Whether there is something to draw on the timeline of a rank."""
        on_path = not isinstance(self.path, Skipped) and bool((self.path.member == member).any())
        return bool(self.summaries[member].streams) and (on_path or len(self.matched.rows_of(member)) > 0)

    def annotations(self, member: int) -> list[SliceTrack | CounterTrack]:
        """What is drawn on the timeline of a rank, under tracks of its trace; times on the rank's own clock."""
        job = self.matched, self.parted, self.summaries
        path = [] if isinstance(self.path, Skipped) else path_drawing.tracks(self.path, *job, member)
        return [*path, *tracks.tracks(*job, member)]

    def links(self) -> tuple[Int64s, Int64s, Int64s]:
        """The parts of every matched collective: its number, the member, and the kernel's row in that one's events.

        By collective, those of one in the order of arrival if the clocks tell it.
        """
        return tracks.links(self.matched, self.parted, self.summaries)


def answer(contents: Sequence[bytes], names: Sequence[str]) -> Answer:
    """Conclude a job from its ranks' summaries; ``names`` are told of those that cannot be read.

    Raises:
        InputError: a summary is damaged, or another version's.
    """
    summaries = [read_summary(content, name) for content, name in zip(contents, names, strict=True)]
    matched = match(summaries)
    clocks, doubts = align(matched, summaries)
    wrong = apart(matched, clocks)
    if wrong.any():
        why = "collectives of no told group, of which a rank is done before another has begun: not one; left out"
        doubts.append(Diagnostic("collectives_apart", int(wrong.sum()), why))
        matched = matched.take(~wrong)
    doubts += _doubts(summaries, matched)
    return Answer(summaries, clocks, matched, waits(matched, clocks), [*matched.diagnostics, *doubts])


def _doubts(summaries: Sequence[RankSummary], matched: Matched) -> Iterator[Diagnostic]:
    """What may be otherwise than the traces tell."""
    claimed = [one.rank for one in summaries if one.rank is not None]
    if twice := len(claimed) - len(set(claimed)):
        why = "traces that claim the rank of another of the job; each is taken for a rank of its own"
        yield Diagnostic("rank_claimed_twice", twice, why)
    if cut := [f"{one.name} ({one.partial})" for one in summaries if one.partial]:
        named = "; ".join(cut[:_NAMED]) + (f"; and {len(cut) - _NAMED} more" if len(cut) > _NAMED else "")
        yield Diagnostic(
            "truncated_rank", len(cut), f"traces that are not whole; what they lost is in no figure: {named}"
        )
    untold = [not one.identity for one in matched.groups]
    of_three = np.flatnonzero(matched.members > 2)
    if doubtful := int(np.count_nonzero(np.array(untold, np.bool_)[matched.group[of_three]])):
        why = "collectives of no told process group; taken for one of all ranks, and wrong if there are smaller ones"
        yield Diagnostic("group_not_told", doubtful, why)
