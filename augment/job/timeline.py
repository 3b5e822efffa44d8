"""The tracks of a job as a whole, on the job's clock: the verdict, its critical path, who is late, and how many wait.

A rank waits while its device does nothing but collectives, of which none moves data and one lacks its last rank. Only
collectives whose ranks have comparable clocks are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from augment.arrays import NO_INDEX, Int64s, Intervals, Places, combinations, each, intervals, run_starts, sums
from augment.core import Annotation, ArgColumn, Cause, CounterTrack, SliceTrack, Texts, Where
from augment.diagnosis.drawing import colour
from augment.facts.collectives.rank_progress import State
from augment.facts.names import bus_factor
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.matching.clocks import Clock, common_times
from augment.job.path import Path, is_handover
from augment.job.ranks import RankSummary, rank_names, rank_texts
from augment.job.verdict import Excess, lead_parts
from augment.job.verdict import excess as causes

NAME = "job_timeline"
VERDICT, PATH, LATE, WAITING = "Job diagnosis", "Job critical path", "Late rank", "Ranks waiting"
_CAUSES = {
    "gpu": "its device works",
    "host": "its host is late",
    "queued": "idle with work queued",
    "before_recording": "before its recording",
    "unknown": "no single cause known",
}
CATCHES_UP = "its device catches up"
_IDLE = ("host", "queued", "unknown", "before")  #: of :class:`Parts`
_IDLE_RATIO = 0.05  #: of a piece of the path: shorter idle stays are not drawn apart
_WORK = ("compute", "communication", "copies", "idle")
#: their names where they are drawn: those of a rank's own rows
_DRAWN = ("compute", "communication", "copy", "idle", "host_wait")


def verdict_track(
    start: Int64s, end: Int64s, text: str, severity: tuple[str, str], window: tuple[int, int]
) -> SliceTrack:
    """The verdict, around what is from ``start`` to ``end`` within ``window``, in the colour of its severity."""
    first, last = int(np.clip(start.min(initial=window[1]), *window)), int(np.clip(end.max(initial=window[0]), *window))
    count = int(bool(text) and first < last)
    return SliceTrack(
        analysis=NAME,
        name=VERDICT,
        under=0,
        ts=np.full(count, first, np.int64),
        dur=np.full(count, last - first, np.int64),
        names=Texts(np.zeros(count, np.int32), [text]),
        description="the verdict: who holds the job up, and what would be gained",
        colour=np.full(count, colour(*severity), np.int64),
    )


def with_cures(tracks: Iterable[SliceTrack | CounterTrack], cures: Sequence[str]) -> list[SliceTrack | CounterTrack]:
    """The tracks, the verdict with what to do: at the end of its name, as in that of a rank, and in its args."""
    cured = list(tracks)
    for place, track in enumerate(cured):
        if isinstance(track, SliceTrack) and track.name == VERDICT and cures:
            names = [" → ".join((name, *cures)) for name in track.names.values]
            advice = Texts(track.names.codes, [" → ".join(cures)] * len(names))
            cured[place] = replace(track, names=replace(track.names, values=names), args={"advice": advice})
    return cured


def path_track(path: Path, matched: Matched, summaries: Sequence[RankSummary], window: tuple[int, int]) -> SliceTrack:
    """The critical path within ``window``: the rank that it is on, and below what that rank does."""
    chosen = np.flatnonzero((path.end > window[0]) & (path.start < window[1]) & (path.end > path.start))
    pieces, start, end, times = _split(path, chosen, summaries)
    member, moves = path.member[pieces], path.is_transfer()[pieces]
    work, host = times[: len(_WORK)], times[len(_WORK)]
    most = np.vstack((work[:-1], work[-1] - host, host)).argmax(axis=0)
    doing = np.where(moves, len(_DRAWN) + matched.kind[matched.instance[path.part[pieces]]], most)
    first = run_starts(member)
    last = np.append(first[1:], len(pieces)) - 1
    start, end = np.clip(start, *window), np.clip(end, *window)
    names = rank_names(summaries)
    waited_for = np.where(moves, matched.member[path.late[pieces]], -1)
    # each stay on a rank comes before its pieces
    rows = np.concatenate((first, np.arange(len(pieces))))
    order = np.lexsort((np.arange(len(rows)) >= len(first), rows))
    rows, is_stay = rows[order], order < len(first)
    stays = np.cumsum(is_stay) - 1
    labels = (*names, *_DRAWN, *(f"transfer {kind}" for kind in matched.kinds))
    return SliceTrack(
        analysis=NAME,
        name=PATH,
        under=0,
        ts=start[rows],
        dur=np.where(is_stay, end[last][stays], end[rows]) - start[rows],
        names=Texts(np.where(is_stay, member[rows], len(names) + doing[rows]).astype(np.int32), labels),
        args={
            "rank": Texts(member[rows].astype(np.int32), names),
            "step": path.step[pieces][rows],
            "waited_for": Texts(np.where(is_stay, -1, waited_for[rows]).astype(np.int32), names),
            **{
                f"{name}_ns": np.where(is_stay | moves[rows], -1, times[place][rows])
                for place, name in enumerate(_WORK)
            },
        },
        description="what decided when the job was done: the rank, and below what it does most, or waits for",
        colour=np.where(is_stay, member[rows], -1),
    )


def _split(
    path: Path, chosen: Places, summaries: Sequence[RankSummary]
) -> tuple[Places, Int64s, Int64s, npt.NDArray[np.int64]]:
    """The chosen pieces, those of local work cut where the device is idle for a good part of them, which is what the
    path waits for there: of each its piece, start and end on the job's clock, and what it consists of, ns: a row for
    each of :data:`_WORK`, and one for the part of idle time in which it waits for its host."""
    of, cuts = [chosen, chosen], [path.own_start[chosen], path.own_end[chosen]]
    local = chosen[~path.is_transfer()[chosen]]
    for member, places in each(path.member[local], len(summaries)):
        rows = local[places]
        idle = summaries[member].states.stays(State.HOST, State.QUEUED, State.UNKNOWN)
        which, _, parts = intervals.clip(Intervals(path.own_start[rows], path.own_end[rows]), idle)
        long = parts.end - parts.start >= _IDLE_RATIO * (path.own_end[rows] - path.own_start[rows])[which]
        of += [rows[which[long]]] * 2
        cuts += [parts.start[long], parts.end[long]]
    piece, cut = np.concatenate(of), np.concatenate(cuts)
    order = np.lexsort((cut, piece))
    piece, cut = piece[order], cut[order]
    inside = np.flatnonzero((piece[1:] == piece[:-1]) & (cut[1:] > cut[:-1]))
    piece, begin, finish = piece[inside], cut[inside], cut[inside + 1]
    times = np.zeros((len(_WORK) + 1, len(piece)), np.int64)
    for member, places in each(path.member[piece], len(summaries)):
        done = summaries[member].states.parts(begin[places], finish[places])
        times[:, places] = (done.compute, done.communication, done.memory, done.of(_IDLE), done.host)
    start, end = path.start[piece] + begin - path.own_start[piece], path.end[piece] + finish - path.own_end[piece]
    return piece, start, end, times


class Late:
    """Who is late, and who waits, of collectives and messages on ranks with comparable clocks.

    Of each time in which a rank waits: ``part``, the row in ``matched`` that it waits in; ``start`` and ``end``, int64
    ns on the job's clock, disjoint within a part.
    """

    def __init__(
        self,
        matched: Matched,
        parted: Waits,
        clocks: Sequence[Clock],
        summaries: Sequence[RankSummary],
        excess: Excess | None,
        named: Mapping[int, Cause],
    ) -> None:
        self._matched, self._parted, self._summaries, self._excess = matched, parted, summaries, excess
        self._named = named
        start, _, margin = common_times(matched, clocks)
        self._arrival = start[parted.late]
        # the clocks of all ranks of each collective are comparable
        comparable = np.array([clock.comparable for clock in clocks], np.bool_)[matched.member]
        all_comparable = np.logical_and.reduceat(comparable, matched.first) if len(matched) else comparable
        known = all_comparable[matched.instance] & (parted.wait_ns > margin)
        none = np.empty(0, np.int64)
        parts, starts, ends = [none], [none], [none]
        for member, summary in enumerate(summaries):
            rows = matched.rows_of(member)
            standing = intervals.subtract(
                summary.states.communicating(),
                intervals.union(matched.ts[rows] + parted.wait_ns[rows], matched.end[rows]),
            )
            rows = rows[known[rows]]
            waits = Intervals(matched.ts[rows], matched.ts[rows] + parted.wait_ns[rows])
            which, _, waiting = intervals.clip(waits, standing)
            parts.append(rows[which])
            starts.append(clocks[member].to_common(waiting.start))
            ends.append(clocks[member].to_common(waiting.end))
        self.part, self.start, self.end = (np.concatenate(column) for column in (parts, starts, ends))

    def waiting(self, window: tuple[int, int]) -> CounterTrack:
        """How many ranks wait at each moment of ``window``; a rank that waits for several counts once."""
        since, until = np.clip(self.start, *window), np.clip(self.end, *window)
        joined = [
            intervals.union(since[places], until[places])
            for _, places in each(self._matched.member[self.part], len(self._summaries))
        ]
        none = np.empty(0, np.int64)
        edges = np.concatenate([none, *(side for union_ in joined for side in union_)])
        change = np.concatenate([none, *(np.repeat((1, -1), len(union_.start)) for union_ in joined)]).astype(np.int64)
        ts, count = intervals.steps(edges, change)
        return CounterTrack(
            analysis=NAME,
            name=WAITING,
            under=0,
            ts=ts,
            values=count,
            unit="ranks",
            description="whose device does nothing but wait for another rank in a collective",
        )

    def _of_ranks_that_do_not_wait(self, chosen: Places, first: Int64s, last: Int64s) -> tuple[Int64s, Int64s, Places]:
        """The times between ``first`` and ``last`` of the ``chosen`` collectives in which their late rank does not wait
        itself: starts, ends, and which collective each is of."""
        matched = self._matched
        late = matched.member[self._parted.late[chosen]]
        of_part = dict(each(matched.member[self.part], len(self._summaries)))
        starts, ends, which = [first[:0]], [first[:0]], [chosen[:0]]
        for member, places in each(late, len(self._summaries)):
            rows = of_part.get(member, places[:0])
            waits = intervals.union(self.start[rows], self.end[rows])
            index = chosen[places]
            span = Intervals(first[index].min(keepdims=True), last[index].max(keepdims=True))
            at, _, times = intervals.clip(Intervals(first[index], last[index]), intervals.subtract(span, waits))
            starts.append(times.start)
            ends.append(times.end)
            which.append(index[at])
        return np.concatenate(starts), np.concatenate(ends), np.concatenate(which)

    def track(self, window: tuple[int, int]) -> SliceTrack:
        """Whom ranks wait for within ``window``: a rank that does not wait itself.

        Of several at a time it is the one for whom most ranks wait, then the one for whom others wait longest in all.
        """
        matched, parted = self._matched, self._parted
        # For each collective how many ranks wait in it, and when the first begins to; messages have none
        together = np.flatnonzero(~matched.is_pair()[matched.instance[self.part]])
        waiting = np.bincount(np.unique(self.part[together]).astype(np.intp), minlength=len(matched.instance))
        first = np.full(len(matched), np.iinfo(np.int64).max)
        np.minimum.at(first, matched.instance[self.part[together]], self.start[together])
        waiting = np.add.reduceat(waiting, matched.first)
        first, last = np.clip(first, *window), np.clip(self._arrival, *window)
        begin, end, of = self._of_ranks_that_do_not_wait(np.flatnonzero((waiting > 0) & (first < last)), first, last)
        late = matched.member[parted.late[of]]
        most = np.argsort(np.argsort(-np.bincount(late, end - begin, len(self._summaries)), kind="stable"))
        start, end, which = _uppermost(begin, end, most[late] - waiting[of] * len(self._summaries))
        shown = of[which]
        named = matched.member[parted.late[shown]].astype(np.int32)
        spent = lead_parts(matched, parted, self._summaries)
        because = causes.of_leads(matched, parted, spent, self._excess, self._summaries, self._named)
        cause = causes.main_causes(because[:, shown])
        if self._excess is not None:  # what its device does later than its peers' do, and hardly for longer
            judged = np.isin(matched.step, self._excess.matched.step)
            waited = sums(matched.member[parted.late[judged]], because[0, judged], len(self._summaries))
            longer = self._excess.causes["compute"] + self._excess.causes["copies"]
            cause[(cause == 0) & (10 * longer < waited)[named]] = len(causes.DELAY_CAUSES)
        names, groups = rank_names(self._summaries), tuple(each.description or each.name for each in matched.groups)
        return SliceTrack(
            analysis=NAME,
            name=LATE,
            under=0,
            ts=start,
            dur=end - start,
            names=Texts(named, names),
            args={
                "waiting_ranks": waiting[shown],
                "after_the_others_ns": parted.lead_ns[shown],
                "kind": Texts(matched.kind[shown].astype(np.int32), matched.kinds),
                "process_group": Texts(matched.group[shown].astype(np.int32), groups),
                "bytes": matched.bytes[shown],
            },
            description="for whom ranks wait in a collective; below, why it is late",
            colour=named.astype(np.int64),
            inner=Texts(
                cause.astype(np.int32), [*(_CAUSES[each_cause] for each_cause in causes.DELAY_CAUSES), CATCHES_UP]
            ),
        )


def hosts_track(
    summaries: Sequence[RankSummary], clocks: Sequence[Clock], doing: tuple[str, Where] | None, window: tuple[int, int]
) -> CounterTrack:
    """How many devices wait for their own host at each moment of ``window``: for it at all, or ``doing`` this, as
    :meth:`StateTable.waits` has it."""
    edges, change = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for summary, clock in zip(summaries, clocks, strict=True):
        if clock.comparable:
            waits = summary.states.waits(doing)
            for times, by in ((waits.start, 1), (waits.end, -1)):
                edges.append(np.clip(clock.to_common(times), *window))
                change.append(np.full(len(times), by))
    ts, count = intervals.steps(np.concatenate(edges), np.concatenate(change))
    return CounterTrack(
        analysis=NAME,
        name="Devices that wait for their hosts",
        under=0,
        ts=ts,
        values=count,
        unit="devices",
        description="with nothing launched: what all ranks wait for alike",
    )


def _uppermost(start: Int64s, end: Int64s, order: Int64s) -> tuple[Int64s, Int64s, Places]:
    """Disjoint intervals, ascending: of those that overlap the one with the least ``order``; and which one each is."""
    if not len(start):
        return start, end, np.empty(0, np.intp)
    edges = np.unique(np.concatenate((start, end)))
    ranked = np.lexsort((start, order))
    place = np.empty(len(ranked), np.intp)
    place[ranked] = np.arange(len(ranked))
    least = intervals.least_over(
        np.searchsorted(edges, start), np.searchsorted(edges, end), place.astype(np.intp), len(edges)
    )
    runs = run_starts(least)
    until = np.append(edges[runs[1:]], edges[-1])
    real = (least[runs] < len(ranked)) & (until > edges[runs])
    return edges[runs][real], until[real], ranked[least[runs][real]]


# The job's tracks on a rank's timeline: wait and transfer under every collective, and the bandwidth.


OF_COLLECTIVES = "job_collectives"


def tracks(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack | CounterTrack]:
    """The tracks of one rank: those of each stream, then those of each device."""
    summary, rows = summaries[member], matched.rows_of(member)
    stream = summary.column("stream")[matched.place[rows]]
    device = np.array([device_track.device_track for device_track in summary.streams], np.int64)[stream]
    annotations: list[SliceTrack | CounterTrack] = []
    for number, places in each(stream, len(summary.streams)):
        stream_rows = rows[places]
        stream_rows = stream_rows[np.argsort(matched.ts[stream_rows], kind="stable")]
        stream_info = summary.streams[number]
        annotations.append(_slices(matched, parted, summaries, stream_rows, stream_info.track, stream_info.name))
    for track in dict.fromkeys(stream.device_track for stream in summary.streams):
        # The bus bandwidth of each process group while its data move
        parts = rows[device == track]
        # nccl-tests' factor of each collective; NaN where unknown
        if not len(matched):
            factors = np.empty(0)
        else:
            (kinds, sizes), which = combinations(matched.kind, matched.size())
            pairs = zip(kinds.tolist(), sizes.tolist(), strict=True)
            known = [bus_factor(matched.kinds[kind], size) for kind, size in pairs]
            factors = np.array([np.nan if known_factor is None else known_factor for known_factor in known])[which]
        factor = factors[matched.instance[parts]]
        moves = (matched.bytes[matched.instance[parts]] > 0) & (parted.transfer_ns[parts] > 0) & np.isfinite(factor)
        parts, factor = parts[moves], factor[moves]
        tracks = []
        of = matched.group[matched.instance[parts]]
        for group, members in each(of, len(matched.groups)):
            part, group_info = parts[members], matched.groups[group]
            instance = matched.instance[part]
            rate = np.rint(matched.bytes[instance] * factor[members] * 1e9 / parted.moving_ns[instance]).astype(
                np.int64
            )
            edges = np.concatenate((matched.ts[part] + parted.wait_ns[part], matched.end[part]))
            ts, value = intervals.steps(edges, np.concatenate((rate, -rate)))  # integers: exactly 0 again
            tracks.append(
                CounterTrack(
                    analysis=OF_COLLECTIVES,
                    name=f"Bus bandwidth without waits {group_info.description or group_info.name}",
                    under=track,
                    ts=ts,
                    values=value / 1e9,
                    unit="GB/s",
                    description="bytes times nccl-tests' factor, by the time from the last arrival to the end",
                    scale="bus bandwidth",
                )
            )
        annotations += tracks
    return annotations


def links(matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> tuple[Int64s, Int64s, Int64s]:
    """See :meth:`Answer.links`."""
    row = np.empty(len(matched.instance), np.int64)
    for member, summary in enumerate(summaries):
        parts = matched.rows_of(member)
        row[parts] = summary.column("row")[matched.place[parts]]
    order = np.lexsort((-parted.wait_ns, matched.instance))
    return matched.instance[order], matched.member[order], row[order]


def _slices(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], parts: Places, track: int, stream: str
) -> SliceTrack:
    """A slice for the wait and one for the transfer of each collective. An overlap with the next one is not drawn."""
    start, end = matched.ts[parts], matched.end[parts]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)
    turn = np.clip(start + parted.wait_ns[parts], begin, np.maximum(begin, end))
    ts = np.column_stack((begin, turn)).ravel()
    dur = np.column_stack((turn - begin, np.maximum(end, turn) - turn)).ravel()
    drawn = np.flatnonzero(dur > 0)
    shown = np.repeat(parts, 2)[drawn]
    instance = matched.instance[shown]
    names = Texts((drawn % 2).astype(np.int32), ("wait", "transfer"))
    late = rank_texts(matched.member[parted.late[instance]].astype(np.int64), summaries)
    waits = drawn % 2 == 0
    below = np.where(waits, late.codes, len(late.values) + matched.kind[instance]).astype(np.int32)
    return SliceTrack(
        analysis=OF_COLLECTIVES,
        name=f"Wait and transfer stream {stream}",
        under=track,
        ts=ts[drawn],
        dur=dur[drawn],
        names=names,
        args={
            "kind": Texts(matched.kind[instance].astype(np.int32), matched.kinds),
            "last_to_arrive": late,
            "after_the_others_ns": parted.lead_ns[instance],
            "wait_ns": parted.wait_ns[shown],
            "transfer_ns": parted.transfer_ns[shown],
            "bytes": matched.bytes[instance],
            "told_by": Texts(parted.by_arrival[instance].astype(np.int32), ("durations", "clocks")),
        },
        description="waiting for the last rank to arrive, then moving data",
        inner=Texts(below, [*(f"for {rank}" for rank in late.values), *matched.kinds]),
    )


# Draws the job's critical path on a rank's timeline: a track with the composition of the path while it is there.


ANALYSIS = "cross_rank_critical_path"
_CAME, _LEFT = "handover_before", "handover_after"  #: args: equal numbers on two ranks' tracks mark one handover


def path_tracks(
    path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack]:
    """The track of a rank, under the first device with collectives; empty if the path never reaches the rank."""
    pieces, streams = np.flatnonzero(path.member == member), summaries[member].streams
    if not len(pieces) or not streams:
        return []
    part = path.part[pieces]
    kind = np.where(part == NO_INDEX, 0, matched.kind[matched.instance[part]] + 1)
    times = {
        "compute_ns": path.compute_ns,
        "communication_ns": path.communication_ns,
        "memory_ns": path.memory_ns,
        "idle_ns": path.idle_ns,
    }
    args: dict[str, ArgColumn] = {"step": path.step[pieces]}
    args |= {name: np.where(path.is_transfer(), NO_INDEX, ns)[pieces] for name, ns in times.items()}
    moves, instance = path.is_transfer()[pieces], matched.instance[part]
    groups = tuple(group.description or group.name for group in matched.groups)
    args["process_group"] = Texts(np.where(moves, matched.group[instance], NO_INDEX).astype(np.int32), groups)
    args["bytes"] = np.where(moves, matched.bytes[instance], NO_INDEX)
    args["wait_ns"] = np.where(moves, parted.wait_ns[part], NO_INDEX)
    # the handovers by which the path comes and goes on
    came = is_handover(path)
    waited_for = np.where(came, matched.member[path.late], NO_INDEX)
    came[:1] = False  # the path begins here
    number = np.where(came, np.cumsum(came) - 1, NO_INDEX)
    following = np.append(number[1:], NO_INDEX)
    goes_on = np.where(following == NO_INDEX, NO_INDEX, np.append(path.member[1:], NO_INDEX))
    args["waited_for"], args[_CAME] = rank_texts(waited_for[pieces], summaries), number[pieces]
    args["goes_on_to"], args[_LEFT] = rank_texts(goes_on[pieces], summaries), following[pieces]
    return [
        SliceTrack(
            analysis=ANALYSIS,
            name="Cross-rank critical path",
            under=streams[0].device_track,
            ts=path.own_start[pieces],
            dur=path.own_end[pieces] - path.own_start[pieces],
            names=Texts(kind.astype(np.int32), ("local work", *(f"transfer {each}" for each in matched.kinds))),
            args=args,
            description="while the path of what decided when the job was done is on this rank",
        )
    ]


def handovers(annotations: Iterable[Annotation]) -> Iterator[tuple[SliceTrack, Int64s, Int64s]]:
    """Where the path enters and leaves a rank, found in the rank's annotations or copies of them.

    Yields the track, its rows, and the number of each handover: equal on the slices of the ranks before and after.
    """
    for track in annotations:
        if isinstance(track, SliceTrack) and track.analysis == ANALYSIS:
            for numbers in (track.args[_CAME], track.args[_LEFT]):
                assert not isinstance(numbers, Texts)
                rows = np.flatnonzero(numbers != NO_INDEX)
                yield track, rows, numbers[rows]
