"""The words of a job's verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, combinations
from augment.core import Cause, Reason, Where, column
from augment.core.text import counted, parallelism, percent, percents, ranges_text, spelled, three_digits
from augment.diagnosis import rules, wording
from augment.job.matching import Clock, Matched
from augment.job.parallel import nodes
from augment.job.ranks import Figures, RankSummary, ranks_text
from augment.job.verdict.excess import CAUSES, Excess

LEAST = 0.01  #: share of the job's time that is worth a name
_MOST_KERNELS = 2
MUCH = 0.2  #: of the collectives
LEAST_MORE = 0.03  #: of operations, to say that a rank has more work
_LEAST_SHARE = 0.1  #: of an excess, to be mentioned
_EXPERTS = re.compile(r"moe|expert|group(?:ed)?_?gemm", re.IGNORECASE)  #: names of kernels that compute experts
_HOT, _COLD = 0.05, 0.2  #: of their usual time, to be called longer; of that, by how much other kernels may be
_MAIN_SHARE = 0.5  #: of what the host did longer than its peers', to name it
MOST_PEERS = 64  #: whose hosts are compared, evenly chosen
_NOUNS: dict[Cause, str] = {
    "host": "waiting for the host",
    "compute": "compute time",
    "copies": "copy time",
    "communication": "communication time",
    "queued": "time with work queued",
    "before_recording": "time before recording",
    "unknown": "unexplained time",
}


#: what the slowest rank of each step does, where work is uneven
UNEVEN = {"compute": "computing", "copies": "copying", "host": "on its host"}


def unrelated(count: int, *, in_stages: bool = False) -> str:
    """The sentence on traces that nothing joins, but for the passes of ``in_stages`` of a pipeline."""
    if count == 1:
        return "One trace: nothing shows of which job it is a rank."
    shown = "their passes are those of one pipeline" if in_stages else "nothing shows that they are ranks of one job"
    return f"These {spelled(count)} traces share no collectives: {shown}."


def sentence(row: Row, time_ns: int, ranks: int, step: tuple[float, int]) -> str:
    """The sentences of a row, each of at most 30 words: who delays whom by how much, why, and what would be gained.

    Args:
        row: a rank or a group that holds the job up.
        time_ns: the job's time.
        ranks: how many ranks were compared.
        step: the mean time of a step, ns, and the number of steps.
    """
    gain = row.gain_ns or 0
    _, count = step
    after = _gained(gain, time_ns, step, " or less" if row.figures.get("more_work") else "")
    where = f" in {parallelism(row.dimension)}" if row.dimension else ""
    lead = "Possible: " * (row.confidence == "low")
    if row.cause == "communication":
        who = f"The links of rank {row.rank} delay" if row.rank is not None else "Slow links delay"
        links = row.figures.get("links", [])
        if row.rank is None and len(links) == len(row.figures.get("groups", [])) == 1:
            ((first, second, transport),) = links
            who = f"The link between rank {first} and rank {second}{transport and f' ({transport})'} delays"
        shown = re.sub("^(its|their) links", "", row.evidence)
        text = f"{lead}{who} the job{where}{'' if shown[:1] == ' ' else ': '}{shown}."
        at_best = ", at best" * bool(row.figures.get("messages"))  # as of balanced stages
        return text if row.gain_ns is None else f"{text} At their peers' speed {after}{at_best}."
    if row.cause == "uneven":  # other orders of passes may limit balanced stages
        return f"{lead}{row.evidence}. If work were balanced, {after}{', at best' if row.dimension else ''}."
    if row.cause == "shared":
        loading = " These may be first launches, which load kernels: later steps may not have them."
        return f"{lead}{row.evidence}.{loading if row.gain_ns is None else f' Without that idle time, {after}.'}"
    per_step = " per step" if count else f" of {three_digits(time_ns)}"
    charged = f"{three_digits(row.charged_ns / max(count, 1))}{per_step} ({percent(row.charged_ns / time_ns)})"
    hidden = ", if data loaders keep up" * ("hides_loaders" in row.figures)
    if row.ranks:
        who = f"{ranks_text(row.ranks).capitalize()}{row.place and f' ({row.place})'}"
        text = f"{lead}{who} delay the others{where} by {charged} each, in the mean. Cause: {row.evidence}."
        return f"{text} Together at the median's speed {after}{hidden}."
    others = "the other rank" if ranks == 2 else f"the other {spelled(ranks - 1)}"
    host = f" (host {row.host})" if row.host else ""
    who = f"{lead}Rank {row.rank}" if row.rank is not None else f"{lead}A rank of unknown number"
    text = f"{who}{host} delays {others}{where} by {charged}. Cause: {row.evidence}."
    if row.gain_ns is None:
        return text
    if row.gain_ns < LEAST * time_ns:
        return f"{text} Fixing it alone would gain the job nothing: other ranks are just as late."
    if row.figures.get("hot_experts"):
        return f"{text} With experts balanced (vLLM, SGLang: --enable-eplb) {after}."
    if row.figures.get("more_work"):
        return f"{text} If work were balanced, {after}."
    then = row.figures.get("then")
    of_all = percent(row.all_hosts_ns / time_ns)
    limit = f"{lead}Hosts are the limit: faster ones on all ranks would save up to {of_all}. " * bool(row.all_hosts_ns)
    why = f", as {then}" if then else hidden
    return f"{limit}{text} At the median's speed {after}{why}."


def _gained(gain_ns: int, time_ns: int, step: tuple[float, int], bound: str = "") -> str:
    """``a mean step would take 35.7 ms instead of 44.0 ms (-19 %)``."""
    length, count = step
    what, now = (f"a {'mean ' * (count > 1)}step", length) if count else ("the job", time_ns)
    then = three_digits(now - gain_ns / max(count, 1))
    return f"{what} would take {then}{bound} instead of {three_digits(now)} (-{percent(gain_ns / time_ns)})"


class FixedOnAll(Struct, frozen=True):
    """A finding about devices that all ranks have, and what the job gains if all fix it, ns."""

    rule: str
    gain_ns: int
    confidence: str
    at_most: bool
    at_least: bool


def fixed(of: FixedOnAll, time_ns: int, step: tuple[float, int]) -> str:
    """The sentence on it."""
    gained = _gained(of.gain_ns, time_ns, step, " or less" * of.at_least)
    lead, at_best = "Possible: " * (of.confidence == "low"), ", at best" * of.at_most
    return f"{lead}{wording.heading(of.rule)}: fixed on all ranks, {gained}{at_best}."


def fixed_label(of: FixedOnAll, time_ns: int) -> str:
    """The same in a few words."""
    saved = wording.saves(of.gain_ns / time_ns, of.confidence, of.at_most, of.at_least)
    return f"On all ranks: {wording.heading(of.rule)}{saved}"


def labels(row: Row, time_ns: int) -> Iterator[str]:
    """A row in a few words: ``Ranks 1 and 2 are late (a fix saves 12 %)``, after what is more."""
    if row.all_hosts_ns:
        yield f"Faster hosts of all ranks save up to {percent(row.all_hosts_ns / time_ns)}"
    late = f"{ranks_text(row.ranks or [row.rank]).capitalize()} {'are' if len(row.ranks) > 1 else 'is'} late"
    uneven_work = "Uneven pipeline stages" if row.dimension else "Uneven work"
    headings = {"shared": "The hosts of all ranks are slow", "uneven": uneven_work, "communication": "Slow links"}
    ratio = (row.gain_ns or 0) / time_ns
    at_most = any((row.figures.get("more_work"), row.figures.get("messages"), row.cause == "uneven" and row.dimension))
    at_most |= "hides_loaders" in row.figures
    saved = wording.saves(ratio if ratio >= LEAST else None, row.confidence, at_most, False)
    yield headings.get(row.cause, late) + saved


def place_of(late: Sequence[RankSummary], summaries: Sequence[RankSummary]) -> str:
    """Where ranks are that are late alike: ``local rank 1 of all 8 nodes``, ``all ranks of host a``; empty if it is no
    such place."""
    node, _ = nodes(summaries)
    of_rank = {summary.rank: name for summary, name in zip(summaries, node, strict=True)}
    whose = [of_rank[summary.rank] for summary in late]
    if not all(node) or None in of_rank:
        return ""
    if len(set(whose)) == 1:
        every = node.count(whose[0]) == len(late)
        return f"all ranks of {whose[0]}" if every and len(set(node)) > 1 else ""
    first = {name: min(rank for rank, of in of_rank.items() if of == name and rank is not None) for name in set(node)}
    local = {(summary.rank or 0) - first[name] for summary, name in zip(late, whose, strict=True)}
    if len(local) > 1 or len(set(whose)) < len(whose):
        return ""
    count, known = len(set(whose)), len(first)
    return f"local rank {local.pop()} of {f'all {known} nodes' if count == known else f'{count} of {known} nodes'}"


def uneven(cause: Cause, slower: Sequence[float]) -> str:
    """What shows uneven work: by how much the work of each step's slowest rank exceeds the mean."""
    mean, each = percent(float(np.mean(slower))), percents(min(slower), max(slower))
    return (
        f"Work is uneven in every step, and another rank is slowest each time: it takes {mean} longer than the mean "
        f"({each}), most of it {UNEVEN[cause]}"
    )


def uneven_stages(ranks: Sequence[int], longer: float) -> str:
    """What shows that pipeline stages compute for unequally long: the ranks of the slowest, and by how much more."""
    return (
        f"Pipeline stages are uneven: the devices of {ranks_text(ranks)} compute {percent(longer)} longer than the "
        "mean of the other stages"
    )


def shared(reason: Reason, waits_ns: Int64s, steps_ns: Int64s, ranks: int, alone: bool) -> str:
    """What all ranks wait for alike: each for so long of its own steps; ``alone``: they have no devices."""
    ratio = waits_ns / steps_ns
    least, most = float(ratio.min()), float(ratio.max())
    each = percents(least, most) if least >= 0.001 else f"up to {percent(most)}"
    all_of_them = "both" if ranks == 2 else f"all {spelled(ranks)}"
    place = "; the hosts' time is spread over many operators" if reason.where == "many_operators" else reason.place
    if alone:
        return f"In {all_of_them} ranks no operator runs, in each for {each} of its time{place}"
    return f"The devices of {all_of_them} ranks wait for their hosts, each for {each} of its time{place}"


def may_be_loading(problems: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether one of a rank's problems, by rule, is the first use of kernels or libraries, which may cost nothing."""
    row = problems.get(rules.long_calls.NAME)
    return row is not None and row["confidence"] == "low" and row["severity"] != "info"


def late_without_gain(
    rank: int | None, charged_ns: int, cause: Cause, cause_ns: int, gain: float, step_count: int
) -> str:
    """The sentence on a rank whose excess would bring no gain; ``gain`` is a share of the job's time."""
    charged, of_cause = (three_digits(ns / max(step_count, 1)) for ns in (charged_ns, cause_ns))
    per_step = " per step" if step_count else ""
    who = f"Rank {rank}" if rank is not None else "A rank of unknown number"
    saved = f"only {percent(gain)}" if gain > 0 else "nothing"
    most = f"{of_cause} of that is {_NOUNS[cause]}"
    return (
        f"{who} keeps others waiting: {charged}{per_step} more than its peers between collectives, {most}. "
        f"At the median's speed the job would gain {saved}."
    )


def evidence(
    reason: Reason,
    causes: Mapping[Cause, int],
    step_count: int = 0,
    *,
    lasts: bool = False,
    once: bool = False,
    several: bool = False,
    alone: bool = False,
) -> str:
    """What shows the cause of a member's excess, or of ``several`` members'; ``causes`` are its parts in all steps, ns,
    of a member. ``lasts``: only where it usually takes longer; ``once``: most of it in one step; ``alone``: there are
    no devices that wait for the host."""
    parts = sorted(((ns, cause) for cause, ns in causes.items() if ns > 0), reverse=True)
    whole = sum(ns for ns, _ in parts)
    shown = [
        f"{three_digits(ns / max(step_count, 1))} more {'host time' if alone and cause == 'host' else _NOUNS[cause]}"
        for ns, cause in parts
        if ns >= _LEAST_SHARE * whole
    ]
    than = f"{' per step' if step_count else ''} than {'their' if several else 'its'} peers"
    text = f"{reason.text(several)} ({', '.join(shown)}{than})" if shown else reason.text(several)
    longer, takes = ("they usually take", "they take") if several else ("it usually takes", "it takes")
    usual = f", at the places of a step where {longer} longer ({takes} less elsewhere)" if lasts else ""
    return f"{text}{usual}{', most of it in one step' if once else ''}"


def reason_of(cause: Cause, member: int, excess: Excess, summaries: Sequence[RankSummary]) -> Reason:
    """The cause of a member's excess, and in what."""
    if cause == "compute":
        more, hot = _more_work(member, excess, summaries), has_hot_experts(member, summaries)
        kernels = tuple(each for each in _kernels(member, summaries) if not hot or _EXPERTS.search(each[1]))
        explains = hot or 2 * sum(ns for ns, _, _ in kernels) >= int(excess.causes[cause][member])
        named = tuple((name, more) for _, name, more in kernels if explains)
        return Reason(cause, kernels=named, more_work=more, hot_experts=hot)
    if cause == "host":
        # what a member's host did while its device waited, in the stretches that are longer than those of its peers,
        # by how much longer it did so than the median of them, ns, longest first: what all do alike explains nothing
        stretches = excess.stretches
        between = np.stack((excess.at, stretches.before))  # the same of peers
        late = (stretches.member == member) & (excess.by_stretch > 0)
        (_, _), which = combinations(*between)
        compared = np.isin(which, which[late])
        length = stretches.own_ns + stretches.parts.communication
        members = np.unique(stretches.member[compared])
        members = np.append(members[members != member][:: -(-len(members) // MOST_PEERS)], member)
        spent: dict[tuple[str, Where], Int64s] = {}
        for place, each in enumerate(members.tolist()):
            chosen = np.flatnonzero(compared & (stretches.member == each))
            end = stretches.ts[chosen]
            for name, where, ns in summaries[each].states.doing(end - length[chosen], end):
                spent.setdefault((name, where), np.zeros(len(members), np.int64))[place] = ns
        usual = {doing: int(np.median(ns[:-1])) if len(ns) > 1 else 0 for doing, ns in spent.items()}
        longer = [(doing, int(ns[-1]) - usual[doing]) for doing, ns in spent.items() if ns[-1] > usual[doing]]
        longer.sort(key=lambda each: -each[1])
        if not longer:
            return Reason("host")
        (name, where), ns = longer[0]
        if ns < _MAIN_SHARE * sum(time for _, time in longer):
            return Reason("host", "many_operators")
        if where == "memory" and not _asks_longer(member, summaries):
            return Reason("host")  # its device waits for what others' do not see, as these wait for it meanwhile
        return Reason("host", where, name)
    return Reason(cause)


def _asks_longer(member: int, summaries: Sequence[RankSummary]) -> bool:
    """Whether calls for memory take a member's host longer than those of its peers, whatever their devices do then."""
    peers = summaries[:: -(-len(summaries) // MOST_PEERS)]
    taken = [
        next((row["figures"].get("host_ns", 0) for row in diagnosis.rows if row["rule"] == "allocator_calls"), 0)
        for diagnosis in (summary.own_diagnosis for summary in (*peers, summaries[member]))
        if diagnosis is not None
    ]
    return len(taken) > 1 and taken[-1] > float(np.median(taken[:-1]))


def _more_work(member: int, excess: Excess, summaries: Sequence[RankSummary]) -> float:
    """By how much the operations of a member's products exceed those of its peers, in the steps of all; 0 if they do
    not, if that is unknown, or if they explain less than half of its longer computing."""
    peers = np.unique(excess.stretches.member).tolist()
    steps = [summaries[peer].table_column("work", "step") for peer in peers]
    if any(step is None or not len(step) for step in steps):
        return 0.0
    common = set.intersection(*(set(step[step >= 0].tolist()) for step in steps if step is not None))
    flops = {}
    for peer, step in zip(peers, steps, strict=True):
        of_step = summaries[peer].table_column("work", "flops")
        assert of_step is not None
        flops[peer] = float(of_step[np.isin(step, list(common))].sum())
    usual = float(np.median([flops[peer] for peer in peers if peer != member] or [0.0]))
    longer = int(excess.causes["compute"][member])
    chosen = excess.stretches.member == member
    computed = int(excess.stretches.parts.of(CAUSES["compute"])[chosen].sum()) - longer
    if usual <= 0 or computed <= 0:
        return 0.0
    more = flops[member] / usual - 1
    return more if more >= max(LEAST_MORE, longer / computed / 2) else 0.0


def _kernels(member: int, summaries: Sequence[RankSummary]) -> Sequence[tuple[float, str, float]]:
    """The kernels that take longest beyond the median of the ranks that have them: by how much, ns; name; share."""
    times = _kernel_times(summaries[member].figures.get("kernel_breakdown"))
    if not times or len(summaries) > 256:
        return ()
    others = [
        _kernel_times(summary.figures.get("kernel_breakdown"))
        for place, summary in enumerate(summaries)
        if place != member
    ]
    longer = []
    for name, ns in times.items():
        peers = [times[name] for times in others if name in times]
        usual = float(np.median(peers)) if peers else 0.0
        if usual and ns > usual:
            longer.append((ns - usual, name, ns / usual - 1))
    longer.sort(reverse=True)
    return longer[:_MOST_KERNELS]


def has_hot_experts(member: int, summaries: Sequence[RankSummary]) -> bool:
    """Whether a member's kernels of experts take longer than the median of its peers', and its other kernels do not."""
    if len(summaries) > 256:
        return False
    times = [_kernel_times(summary.figures.get("kernel_breakdown")) for summary in summaries]
    parts = [
        [sum(ns for name, ns in of.items() if bool(_EXPERTS.search(name)) is experts) for of in times]
        for experts in (True, False)
    ]
    ratios = []
    for spent in parts:
        usual = float(np.median([ns for place, ns in enumerate(spent) if place != member] or [0.0]))
        ratios.append(spent[member] / usual - 1 if usual else 0.0)
    of_experts, of_others = ratios
    return of_experts > _HOT and of_others < _COLD * of_experts


def _kernel_times(figures: Figures | None) -> dict[str, float]:
    if figures is None or "sum_ns" not in figures.columns:
        return {}
    column = figures.table()[:, figures.columns.index("sum_ns")]
    out = {}
    for key, ns in zip(figures.keys, column.tolist(), strict=True):
        name = next((part.removeprefix("name=") for part in key if part.startswith("name=")), "")
        if name and "kernel_type=COMMUNICATION" not in key:
            out[name] = ns
    return out


def much_missed(summaries: Sequence[RankSummary], matched: Matched) -> float:
    """The share of the collectives that are not matched, if that is much; else 0."""
    parts = sum(len(summary.column("ts")) for summary in summaries)
    missed = parts - len(matched.instance)
    return missed / parts if missed > MUCH * parts else 0.0


def doubts(
    summaries: Sequence[RankSummary], clocks: Sequence[Clock], seen: tuple[int, int], matched: Matched
) -> Iterator[str]:
    """Sentences about what the verdict does not cover."""
    count, world = seen
    if len(matched) and (ratio := much_missed(summaries, matched)):
        yield (
            f"{percent(ratio)} of the collectives could not be matched across ranks. Waits in them are not "
            "charged, and the gain is unknown."
        )
    if world > count:
        yield f"Only {count} of {world} ranks have traces; the others are not judged."
    if cut := [summary for summary in summaries if summary.partial]:
        ranks = ranks_text(summary.rank for summary in cut)
        yield f"Incomplete: {ranks} ({cut[0].name}: {cut[0].partial})."
    apart = [clock.rank for clock in clocks if not clock.comparable]
    if apart and len(apart) < len(clocks):
        reason = next(clock.refused for clock in clocks if not clock.comparable)
        yield f"Not compared with the others: {ranks_text(apart)} ({reason})."


def transfers(
    gain_ns: int, share: str, time_ns: int, step: tuple[float, int], matched: Matched, late: Sequence[int | None]
) -> str:
    """What limits the job, once the ``late`` ranks are in time: that collectives move data, a ``share`` of a kind."""
    waits = ""
    if (matched.size() > matched.members).any():
        waits = " or that wait for ranks without traces"
    elif matched.world < 0 and any(group.size <= 0 for group in matched.groups):
        waits = " or that wait for other ranks (the traces do not say how many there are)"
    after = _gained(gain_ns, time_ns, step)
    if late:
        peers = f"Once {ranks_text(late)} {'are' if len(late) > 1 else 'is'} like the other ranks"
        limit = f"transfers that nothing hides{waits} hold all ranks up, {share}"
        return f"{peers}, {limit}. Without these, too, {after}."
    return f"Transfers that nothing hides{waits}, {share}, hold all ranks up: without them {after}."


def left_out(numbers: Sequence[int], first: int) -> Iterator[str]:
    """A sentence on the ``first`` steps, without which the job is judged by those of these ``numbers``."""
    if first:
        which = "one, which warms up or overlaps" if first == 1 else f"{spelled(first)}, which warm up or overlap"
        steps = f"{counted(len(numbers), 'step')} ({ranges_text(numbers)})"
        yield f"Figures are of {steps}, without the first {which} earlier work."


def own_steps(step: tuple[float, int], own_ns: Int64s, begin: Int64s, last: int | None) -> Iterator[str]:
    """What a step of the job is, where those of its ranks are longer on average by more than a tenth: that of the rank
    which is the ``last`` to ``begin``."""
    step_ns, count = step
    if 0 < 1.1 * step_ns < own_ns.mean():
        yield (
            f"Counted from when the last rank begins ({ranks_text([last])}), {'a mean' if count > 1 else 'the'} step "
            f"takes {three_digits(step_ns)}. Ranks that begin earlier, by up to {three_digits(int(np.ptp(begin)))}, "
            f"also wait for it: their own steps look longer, up to {three_digits(own_ns.max())}."
        )


# The rows of a job's verdict, and of what would be gained.


class Row(Struct, frozen=True):
    """A rank, or a process group, that holds the job up; work that is uneven in every step; or what all wait for."""

    rank: Annotated[
        int | None,
        column("The rank; of several the first; null for a process group, for uneven work, and what all wait for."),
    ]
    host: Annotated[str, column("Its host; empty if unknown.")]
    dimension: Annotated[str, column("The parallel dimension in which others wait for it; empty if unknown.")]
    cause: Annotated[
        str, column("host, compute, copies, communication, queued, before_recording, uneven, shared or unknown.")
    ]
    charged_ns: Annotated[
        int, column("By how much its own work exceeds its peers'; of a group, the time of moving data.", "ns")
    ]
    gain_ns: Annotated[int | None, column("What the job would gain if it were like the median; null if unknown.", "ns")]
    confidence: Annotated[str, column("high, medium or low.")]
    evidence: Annotated[str, column("What shows it.")]
    figures: Annotated[dict[str, Any], column("The figures and names of the evidence, by name.", key=False)] = {}
    ranks: Annotated[
        list[int],
        column("Ranks that are late or wait alike: charged_ns is their mean, gain_ns of all together; else empty."),
    ] = []
    place: Annotated[str, column("Where these are, such as local rank 1 of all 8 nodes; empty if nowhere.")] = ""

    @property
    def all_hosts_ns(self) -> int:
        """What faster hosts of all ranks save, where that is much more than what this late one costs; else 0."""
        free = int(self.figures.get("all_hosts_ns", 0))
        return free if free > 2 * (self.gain_ns or 0) else 0


class WhatIfRow(Struct, frozen=True):
    """The job's time if something were otherwise."""

    scenario: Annotated[str, column("What is otherwise.")]
    rank: Annotated[int | None, column("The rank that would be; null if none alone.")]
    dimension: Annotated[str, column("The parallel dimension that would be; empty if none alone.")]
    time_ns: Annotated[int, column("The time of the job by replay.", "ns")]
    gain_ns: Annotated[int, column("By how much that is less than the unchanged job's by replay.", "ns")]
    gain_ratio: Annotated[float, column("The share of that.", "ratio")]
    error_ratio: Annotated[
        float, column("By how much the replay of the unchanged job misses the recorded time.", "ratio")
    ]
