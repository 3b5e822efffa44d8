"""Roles that work together, as in reinforcement learning: rollouts, an actor, a reference, a reward.

Each role is a job of its own. All are laid on one time, which is Unix time as the hosts' clocks have it, and judged for
as long as all of them were recorded. A role is *at work* while a device of any of its ranks computes or copies; pauses
shorter than :data:`LEAST_PAUSE` of the time are part of the work. A device that does nothing but communicate for longer
than that may be waiting: it is told apart. What a role waits for is not in a trace; what is told is which roles are at
work while it is not.

An iteration begins when rollouts begin after a role that trains has worked. The *longest rollouts* are what is left
when nine of ten sequences that ran at once have ended, by the batches that the names of an engine's steps tell; without
those, what is left when half of the ranks have ended. Their time counts while no other role is at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, Int64s, Intervals, clip, intervals, median, subtract, total, union
from augment.core import Diagnostic, Findings, Outcome, Skipped, SliceTrack, Texts, Verdict, column
from augment.core.text import counted, listed, percent, time
from augment.facts.collectives.rank_progress import State
from augment.facts.names import ACTOR, CRITIC, ROLLOUT, place_of_role
from augment.facts.source.recorded_times import SINCE_2001_NS, period
from augment.job.answer import Answer
from augment.job.ranks import IDLE, RankSummary

NAME = "roles"
LEAST_PAUSE = 0.005  #: of the common time
LAST_OF_SEQUENCES = 0.1  #: what is left of those that ran at once when the longest are waited for
TOLD, LEAST_TOLD = 0.05, 0.02  #: of the common time: less is not said; the same of parts of an idle time
_NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


class Row(Struct, frozen=True):
    """A role in an iteration, or in all of the common time."""

    iteration: Annotated[int | None, column("Number of the iteration, from 0; null: all of the common time.")]
    role: Annotated[str, column("The role.")]
    trace_count: Annotated[int, column("Traces of the role.", "count")]
    window_ns: Annotated[int, column("Length of the iteration, or of the common time.", "ns")]
    active_ns: Annotated[int, column("Time in which it is at work.", "ns")]
    communication_ns: Annotated[int, column("Time in which it only communicates, for long at once.", "ns")]
    idle_ns: Annotated[int, column("The rest: no rank of it does anything.", "ns")]
    alone_ns: Annotated[int, column("Part of the time at work in which no other role is.", "ns")]
    longest_ns: Annotated[
        int | None, column("Part of that in which all but the longest rollouts have ended; null where not known.", "ns")
    ]
    longest: Annotated[str | None, column("The trace whose rollouts end last.")]


class WaitRow(Struct, frozen=True):
    """What other roles do while a role is idle."""

    iteration: Annotated[int | None, column("Number of the iteration, from 0; null: all of the common time.")]
    role: Annotated[str, column("The role that is idle.")]
    others: Annotated[str, column("The roles at work meanwhile, joined by +; none: no role is.")]
    idle_ns: Annotated[int, column("How long.", "ns")]
    idle_ratio: Annotated[float, column("Of the iteration, or of the common time.", "ratio")]


ROWS: dict[str, type[Any]] = {NAME: Row, "role_waits": WaitRow}


class Role(Struct, frozen=True):
    """A role: its traces are a job, or several recordings."""

    name: str
    answers: tuple[Answer, ...]

    @property
    def traces(self) -> Iterator[tuple[RankSummary, Answer, int]]:
        """Each trace, with its answer and its place in it."""
        for answer in self.answers:
            for place, summary in enumerate(answer.summaries):
                yield summary, answer, place

    @property
    def works(self) -> bool:
        """Whether any trace has GPU work."""
        return any(summary.states.span() is not None for summary, _, _ in self.traces)

    @property
    def recorded(self) -> tuple[int, int] | None:
        """From the first event to the last, on the common clock; None without events."""
        spans = [
            answer.clocks[place].to_common(np.array([summary.first_ns, summary.last_ns], np.int64))
            for summary, answer, place in self.traces
            if summary.first_ns is not None and summary.last_ns is not None
        ]
        return (int(min(span[0] for span in spans)), int(max(span[1] for span in spans))) if spans else None


def together(of_role: Mapping[str, Sequence[Answer]]) -> Together:
    """The answers of jobs by role, in the order of roles. Roles that never use a GPU are left to their own verdict, if
    two others are there."""
    names = sorted(of_role, key=lambda name: (place_of_role(name), name))
    roles = tuple(Role(name, tuple(of_role[name])) for name in names)
    working = tuple(role for role in roles if role.works)
    return Together(working if len(working) > 1 else roles, tuple(role.name for role in roles if not role.works))


class Together(Struct, frozen=True, dict=True):
    """The roles of a pipeline, sorted as they are given: at least two."""

    roles: tuple[Role, ...]
    on_hosts: tuple[str, ...] = ()  #: roles without GPU work

    @property
    def summaries(self) -> list[RankSummary]:
        """Those of all traces, role by role."""
        return [summary for role in self.roles for summary, _, _ in role.traces]

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """Caveats."""
        why = "roles are joined by Unix time: the clocks of their hosts may differ by milliseconds"
        return [] if self.lacking else [Diagnostic("clocks_of_hosts", len(self.roles), why)]

    @cached_property
    def lacking(self) -> str:
        """Why they are not judged together; empty if they are."""
        spans = {role.name: role.recorded for role in self.roles}
        if without := next((name for name, span in spans.items() if span is None), None):
            return f"the traces of {without} have no events"
        if idle := next((role.name for role in self.roles if not role.works), None):
            return f"the traces of {idle} have no GPU work, and what its host does is not followed"
        times = {name: span for name, span in spans.items() if span is not None}
        if odd := next((name for name, span in times.items() if span[0] < SINCE_2001_NS), None):
            return f"the times of {odd} do not count from 1970, so that roles cannot be joined by time"
        last = max(times, key=lambda name: times[name][0])
        first = min(times, key=lambda name: times[name][1])
        if times[last][0] >= times[first][1]:
            return (
                f"{first} was recorded {period(*times[first])}, {last} {period(*times[last])}: "
                "no moment has all roles; record all of them for a whole iteration"
            )
        return ""

    @cached_property
    def window(self) -> tuple[int, int]:
        """The time in which all roles were recorded, int64 ns on the common clock."""
        spans = [role.recorded for role in self.roles]
        known = [span for span in spans if span is not None]
        return max(start for start, _ in known), min(end for _, end in known)

    @cached_property
    def of_traces(self) -> tuple[tuple[tuple[Intervals, Intervals], ...], ...]:
        """For each trace of each role, when it is at work and when it only communicates, within the window."""
        return tuple(
            tuple(self._of_trace(summary, answer, place) for summary, answer, place in role.traces)
            for role in self.roles
        )

    def _of_trace(self, summary: RankSummary, answer: Answer, place: int) -> tuple[Intervals, Intervals]:
        span = summary.states.span()
        if span is None:
            return _NONE, _NONE
        clock = answer.clocks[place]
        whole = Intervals(*(np.array([moment], np.int64) for moment in span))
        idle, moving = (self._long(summary.states.stays(*states)) for states in (IDLE, (State.COMMUNICATION,)))
        active = subtract(subtract(whole, idle), moving)
        return tuple(  # type: ignore[return-value]
            _within(Intervals(clock.to_common(some.start), clock.to_common(some.end)), self.window)
            for some in (active, moving)
        )

    def _long(self, some: Intervals) -> Intervals:
        long = some.end - some.start >= max(int(LEAST_PAUSE * (self.window[1] - self.window[0])), 1)
        return Intervals(some.start[long], some.end[long])

    @cached_property
    def at_work(self) -> tuple[Intervals, ...]:
        """When each role is at work."""
        return tuple(_union([active for active, _ in of_role]) for of_role in self.of_traces)

    @cached_property
    def communicating(self) -> tuple[Intervals, ...]:
        """When each role does nothing but communicate."""
        return tuple(
            subtract(_union([moving for _, moving in of_role]), active)
            for of_role, active in zip(self.of_traces, self.at_work, strict=True)
        )

    @cached_property
    def iterations(self) -> tuple[tuple[int, int], ...]:
        """The whole iterations in the window; none where training and rollouts are not told, or go on at once."""
        rollouts = self._of_names(ROLLOUT)
        trains = self._of_names(ACTOR, CRITIC)
        begins: list[int] = []
        for start in rollouts.start.tolist():
            if (trains.start <= start).any() and ((trains.start <= start) & (start < trains.end)).any():
                return ()
            since = begins[-1] if begins else self.window[0] - 1
            if not begins or ((trains.end > since) & (trains.end <= start)).any():
                begins.append(start)
        if not begins or not (trains.end > begins[-1]).any():
            ends = begins[1:]
        else:
            last = max(int(some.end.max()) for some in self.at_work if len(some.end))
            ends = [*begins[1:], last]
        return tuple(zip(begins, ends))  # noqa: B905 - the last may not be whole

    def _of_names(self, *names: str) -> Intervals:
        return _union([some for role, some in zip(self.roles, self.at_work, strict=True) if role.name in names])

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The rows of :data:`ROWS`."""
        if self.lacking:
            return {name: Skipped(self.lacking) for name in ROWS}
        windows = [(None, self.window), *enumerate(self.iterations)]
        rows: list[Row] = []
        for number, window in windows:
            for place, role in enumerate(self.roles):
                active, moving = (_within(each[place], window) for each in (self.at_work, self.communicating))
                rest = _union([some for other, some in enumerate(self.at_work) if other != place])
                length = window[1] - window[0]
                tails = self._tails(number) if role.name == ROLLOUT else []
                last = [name for _, name in tails]
                rows.append(
                    Row(
                        iteration=number,
                        role=role.name,
                        trace_count=len(self.of_traces[place]),
                        window_ns=length,
                        active_ns=total(active),
                        communication_ns=total(moving),
                        idle_ns=length - total(active) - total(moving),
                        alone_ns=total(subtract(active, rest)),
                        longest_ns=sum(total(some) for some, _ in tails) if tails else None,
                        longest=max(last, key=last.count) if last else None,
                    )
                )
        waits = [row for number, window in windows for row in self._waits(number, window)]
        return {NAME: Findings(rows), "role_waits": Findings(waits) if waits else Skipped("no role is ever idle")}

    def _waits(self, number: int | None, window: tuple[int, int]) -> Iterator[WaitRow]:
        edges = np.unique(np.concatenate([np.array(window), *(side for some in self.at_work for side in some)]))
        edges = edges[(edges >= window[0]) & (edges <= window[1])]
        working = np.array([_holds(some, edges[:-1]) for some in self.at_work])
        for place, role in enumerate(self.roles):
            idle = _within(subtract(_whole(window), _union([self.at_work[place], self.communicating[place]])), window)
            spent: dict[str, int] = {}
            for start, end, mask in zip(edges[:-1].tolist(), edges[1:].tolist(), working.T.tolist(), strict=True):
                if not mask[place] and (lasting := total(_within(idle, (start, end)))):
                    at_work = (other.name for other, works in zip(self.roles, mask, strict=True) if works)
                    others = " + ".join(at_work) or "none"
                    spent[others] = spent.get(others, 0) + lasting
            for others, lasting in sorted(spent.items(), key=lambda item: -item[1]):
                yield WaitRow(number, role.name, others, lasting, lasting / max(window[1] - window[0], 1))

    def _tails(self, number: int | None = None) -> list[tuple[Intervals, str]]:
        """:meth:`_longest` of the iteration with this number, or of all; of the window if none is told."""
        windows = self.iterations or (self.window,)
        tails = map(self._longest, windows if number is None else [windows[number]])
        return [tail for tail in tails if tail is not None]

    def _longest(self, window: tuple[int, int]) -> tuple[Intervals, str] | None:
        """When all but the longest rollouts of an iteration have ended and no other role works, with the trace that
        ends last; None without rollouts, or where one trace without batches is all there is."""
        place = next((place for place, role in enumerate(self.roles) if role.name == ROLLOUT), None)
        if place is None:
            return None
        traces = list(self.roles[place].traces)
        ends = [int(some.end.max(initial=-1)) for some in (_within(each, window) for each, _ in self.of_traces[place])]
        if max(ends) < 0:
            return None
        begin = self._last_sequences(traces, window)
        there = np.array([end for end in ends if end >= 0])
        if begin is None and len(there) > 1:
            begin = int(np.sort(there)[(len(there) - 1) // 2])
        if begin is None:
            return None
        last = int(np.argmax(ends))
        others = _union([some for other, some in enumerate(self.at_work) if other != place])
        summary = traces[last][0]
        name = f"rank {summary.rank}" if summary.rank is not None else summary.name
        return subtract(_whole((begin, max(ends))), others), name

    def _last_sequences(self, traces: Sequence[tuple[RankSummary, Answer, int]], window: tuple[int, int]) -> int | None:
        """From when at most a tenth of the sequences that ran at once go on; None where batches are not told."""
        edges: list[Int64s] = []
        changes: list[Int64s] = []
        for summary, answer, place in traces:
            requests = summary.step_column("requests")
            if not len(requests) or (requests < 0).any():
                return None
            clock = answer.clocks[place]
            start, end = (np.clip(clock.to_common(summary.step_column(side)), *window) for side in ("start", "end"))
            edges += [start, end]
            changes += [requests, -requests]
        ts, running = intervals.steps(np.concatenate(edges), np.concatenate(changes))
        if not running.max():
            return None
        many = np.flatnonzero(running > LAST_OF_SEQUENCES * running.max())
        return int(ts[many[-1] + 1]) if many[-1] + 1 < len(ts) else int(ts[-1])

    @cached_property
    def verdict(self) -> Verdict:
        """The answer in sentences."""
        return Verdict(list(self._sentences()))

    def _sentences(self) -> Iterator[str]:
        names = [role.name for role in self.roles]
        if self.lacking:
            yield f"{listed(names, len(names)).capitalize()} are not judged together: {self.lacking}."
            return
        outcome = self.outcomes[NAME]
        rows = [row for row in getattr(outcome, "rows", ()) if row.iteration is None]
        length = self.window[1] - self.window[0]
        lengths = np.array([end - start for start, end in self.iterations], np.int64)
        of = f", {counted(len(lengths), 'whole iteration')} of {time(median(lengths))}" if len(lengths) else ""
        shares = ", ".join(f"{row.role} {percent(row.active_ns / length)}" for row in rows)
        nobody = length - total(_within(_union(self.at_work), self.window))
        alone = f"; no role for {percent(nobody / length)}" if nobody >= TOLD * length else ""
        yield f"{counted(len(names), 'role')} in {time(length)}{of}. At work: {shares}{alone}."
        for row in rows:
            if sentence := self.idle_sentence(row.role):
                yield sentence
            if row.communication_ns >= TOLD * length:
                ratio = percent(row.communication_ns / length)
                yield f"{row.role.capitalize()} only communicates for {ratio}: transfers, or waits for others in them."
        tails = self._tails()
        waited = sum(total(some) for some, _ in tails)
        whole = sum(end - start for start, end in self.iterations) or length
        if waited >= TOLD * whole:
            last = [name for _, name in tails]
            often = max(set(last), key=last.count)
            of = f" of {ROLLOUT} {often}" if last.count(often) == len(last) else ""
            yield (
                f"{percent(waited / whole)} of {'the iterations' if self.iterations else 'the time'} waits for the "
                f"longest rollouts{of}, with no other role at work: train on what has ended, begin the next rollouts "
                "meanwhile, or limit their length."
            )
        if self.on_hosts:
            yield f"{listed(self.on_hosts, 10).capitalize()} without GPU work may be what others wait for: not judged."

    def idle_sentence(self, role: str) -> str:
        """For how much of the time a role idles, and which others are at work meanwhile; empty if that is little."""
        rows = [row for row in getattr(self.outcomes["role_waits"], "rows", ()) if row.iteration is None]
        waits = [row for row in rows if row.role == role]
        parts = [
            f"{'no role' if wait.others == 'none' else wait.others} {percent(wait.idle_ratio)}"
            for wait in waits
            if wait.idle_ratio >= LEAST_TOLD
        ]
        idle = sum(wait.idle_ratio for wait in waits)
        if idle < TOLD or not parts:
            return ""
        return f"{role.capitalize()} idles for {percent(idle)} of the time; at work meanwhile: {', '.join(parts)}."

    def tracks(self) -> list[list[SliceTrack]]:
        """The tracks of all roles together, then those of each, on the common clock; none if they are not judged."""
        if self.lacking:
            return [[] for _ in range(len(self.roles) + 1)]
        whole = [
            _track("Iterations", [(f"iteration {at}", window) for at, window in enumerate(self.iterations)]),
            _track(
                "Longest rollouts",
                [(f"waits for {name}", (start, end)) for some, name in self._tails() for start, end in _pairs(some)],
            ),
        ]
        return [[track for track in whole if len(track.ts)], *([self._track_of(at)] for at in range(len(self.roles)))]

    def _track_of(self, place: int) -> SliceTrack:
        """What a role does: at work, communicating, or idle while others work."""
        active, moving = self.at_work[place], self.communicating[place]
        idle = subtract(_whole(self.window), _union([active, moving]))
        slices = [("at work", part) for part in _pairs(active)]
        slices += [("communicates", part) for part in _pairs(moving)]
        for start, end in _pairs(idle):
            edges = np.unique(
                np.concatenate([np.array([start, end]), *(side for some in self.at_work for side in some)])
            )
            for low, high in pairwise(edges[(edges >= start) & (edges <= end)].tolist()):
                at = np.array([low], np.int64)
                others = [role.name for role, some in zip(self.roles, self.at_work, strict=True) if _holds(some, at)[0]]
                slices.append((f"idle while {' + '.join(others) or 'no role'} works", (low, high)))
        return _track(f"Role {self.roles[place].name}", sorted(slices, key=lambda each: each[1]))


def _track(name: str, slices: Sequence[tuple[str, tuple[int, int]]]) -> SliceTrack:
    labels = list(dict.fromkeys(label for label, _ in slices))
    return SliceTrack(
        analysis=NAME,
        name=name,
        under=0,
        ts=np.array([start for _, (start, _) in slices], np.int64),
        dur=np.array([end - start for _, (start, end) in slices], np.int64),
        names=Texts(np.array([labels.index(label) for label, _ in slices], np.int32), labels),
        description="what roles do together, by the clocks of their hosts",
    )


def _pairs(some: Intervals) -> list[tuple[int, int]]:
    return list(zip(some.start.tolist(), some.end.tolist(), strict=True))


def _whole(window: tuple[int, int]) -> Intervals:
    start, end = window
    return Intervals(np.array([start], np.int64), np.array([max(start, end)], np.int64))


def _within(some: Intervals, window: tuple[int, int]) -> Intervals:
    return clip(some, _whole(window))[2]


def _union(sets: Sequence[Intervals]) -> Intervals:
    if not sets:
        return _NONE
    return union(np.concatenate([some.start for some in sets]), np.concatenate([some.end for some in sets]))


def _holds(some: Intervals, moments: Int64s) -> Bools:
    place = np.searchsorted(some.start, moments, side="right") - 1
    holds: Bools = (place >= 0) & (moments < np.append(some.end, 0)[place])
    return holds
