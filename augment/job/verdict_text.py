"""The words of a job's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from augment.job.alignment import Clock
from augment.job.excess import Excess
from augment.job.matching import Matched
from augment.job.rank_lists import ranks_text
from augment.job.summary import Figures, RankSummary
from augment.job.verdict_rows import Row

_MOST_KERNELS = 2
MUCH = 0.2  #: of the collectives
_LEAST_SHARE = 0.1  #: of an excess, to be mentioned
_MAIN_SHARE = 0.5  #: of what the host did, to name it
_NAME_CHARS = 60
_SPELLED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_CAUSES = {
    "host": "its host",
    "compute": "its device computes longer",
    "queued": "its device stood idle with work queued",
    "before_recording": "work from before its recording",
    "unknown": "no single reason",
}


def unrelated(count: int) -> str:
    """The sentence on traces that nothing joins."""
    return f"These {spelled(count)} traces share no collectives: nothing shows that they are ranks of one job."


def sentence(row: Row, time_ns: int, ranks: int, step: tuple[float, int]) -> str:
    """The sentences of a row, each of at most 30 words.

    Args:
        row: a rank or a group that holds the job up.
        time_ns: the job's time.
        ranks: how many ranks were compared.
        step: the mean time of a step, ns, and the number of steps.
    """
    gain = row.gain_ns or 0
    after = _gained(gain, time_ns, step)
    where = f" in {row.dimension}" if row.dimension else ""
    if row.cause == "communication":
        who = f"The links of rank {row.rank} hold" if row.rank is not None else "Slow links hold"
        text = f"{who} the job up{where}: {row.evidence}."
        return text if row.gain_ns is None else f"{text} Otherwise {after}."
    others = "the other rank" if ranks == 2 else f"the other {spelled(ranks - 1)}"
    share = 100 * row.charged_ns / time_ns
    host = f" (host {row.host})" if row.host else ""
    who = f"Rank {row.rank}" if row.rank is not None else "A rank of unknown number"
    charged = f"{_time(row.charged_ns)} of {_time(time_ns)} ({share:.0f} %)"
    text = f"{who}{host} holds up {others}{where} for {charged}. Why: {row.evidence}."
    return text if row.gain_ns is None else f"{text} If it were like the median, {after}."


def _gained(gain: int, time_ns: int, step: tuple[float, int]) -> str:
    length, count = step
    if count:
        return f"a step would take {_time(length - gain / count)} instead of {_time(length)}"
    return f"the job would take {_time(time_ns - gain)} instead of {_time(time_ns)}"


def late_without_gain(rank: int | None, charged_ns: int, cause: str, cause_ns: int, gain: float) -> str:
    """The sentence on a rank whose excess would bring no gain; ``gain`` is a share of the job's time."""
    who = f"Rank {rank}" if rank is not None else "A rank of unknown number"
    saved = f"only {100 * gain:.1f} %" if gain > 0 else "nothing"
    most = f"{_time(cause_ns)} {cause.replace('_', ' ')}"
    return (
        f"{who} keeps others waiting: {_time(charged_ns)} more than its peers between collectives, {most} of it. "
        f"But if it were like the median, the job would gain {saved}."
    )


def evidence(
    cause: str, causes: Mapping[str, int], member: int, excess: Excess, summaries: Sequence[RankSummary]
) -> str:
    """What shows the cause of a member's excess; ``causes`` are its parts, ns."""
    text = reason(cause, member, excess, summaries)
    parts = sorted(((ns, name) for name, ns in causes.items() if ns > 0), reverse=True)
    whole = sum(ns for ns, _ in parts)
    shown = [f"{_time(ns)} {name.replace('_', ' ')}" for ns, name in parts if ns >= _LEAST_SHARE * whole]
    return f"{text} ({', '.join(shown)} more than its peers)" if shown else text


def reason(cause: str, member: int, excess: Excess, summaries: Sequence[RankSummary]) -> str:
    """The cause of a member's excess, and in what: ``its host, in `aten::item```."""
    if cause == "host":
        return _CAUSES[cause] + _doing(member, excess, summaries)
    return _CAUSES[cause] + (_kernels(member, summaries) if cause == "compute" else "")


def _doing(member: int, excess: Excess, summaries: Sequence[RankSummary]) -> str:
    """What the host did while the device waited, in the stretches with more waiting than usual."""
    stretches = excess.stretches
    chosen = np.flatnonzero((stretches.member == member) & (excess.by_stretch > 0))
    end = stretches.ts[chosen]
    length = stretches.own_ns[chosen] + stretches.parts.communication[chosen]
    doing = summaries[member].states.doing(end - length, end)
    if not doing:
        return ""
    name, is_operator, ns = doing[0]
    if ns < _MAIN_SHARE * sum(time for _, _, time in doing):
        return ", spread over many operators"
    if not name:
        return ", outside all operators and annotations"
    return f", in `{_short(name)}`" if is_operator else f", outside operators in `{_short(name)}`"


def _kernels(member: int, summaries: Sequence[RankSummary]) -> str:
    """The kernels that take longest beyond the median of the ranks that have them."""
    times = _kernel_times(summaries[member].figures.get("kernel_breakdown"))
    if not times or len(summaries) > 256:
        return ""
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
            longer.append((ns - usual, name, ns / usual))
    longer.sort(reverse=True)
    shown = [f"`{_short(name)}` {100 * (ratio - 1):.0f} %" for _, name, ratio in longer[:_MOST_KERNELS]]
    return f", most in {' and '.join(shown)} longer" if shown else ""


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
            f"{100 * ratio:.0f} % of the collectives could not be matched across ranks. Waits in them are not "
            "charged, and what would be gained cannot be told."
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


def spelled(number: int) -> str:
    """Small numbers as words."""
    return _SPELLED[number] if number < len(_SPELLED) else f"{number:,}"


def _time(ns: float) -> str:
    for unit, scale in (("s", 1e9), ("ms", 1e6)):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}" if ns < 1000 * scale else f"{ns / scale:,.0f} {unit}"
    return f"{ns / 1e3:.3g} µs"


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 1] + "…"
