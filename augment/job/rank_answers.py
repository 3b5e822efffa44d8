"""What the job tells each rank: for whom it waits, that others wait for it, or that nobody is late.

A rank's own diagnosis cannot tell waiting from slow communication; it is made before the other ranks are read, and
stays in the rank's outputs. What the job tells is drawn into them beside it, and stands in the rank's sidecar.
Messages of pipelines are left out, as stages wait by design; so are collectives of which at most half of the ranks have
traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays.intervals import Intervals
from augment.arrays.ordering import sums
from augment.core.annotations import SliceTrack, Texts
from augment.core.job_waits import LateRank
from augment.core.text import counted, percent, time
from augment.diagnosis.late_ranks import MOST_OF_IT, fix_rank, nobody_late, way_to_fix
from augment.job.path.step_parts import exposed_parts
from augment.job.rank_waits import late_ranks, rows_of_known
from augment.job.ranks.rank_lists import rank_names
from augment.writers.files import TOLD

if TYPE_CHECKING:
    from augment.job.answer import Answer

NAME = TOLD
TRACK = "Job diagnosis"
_LEAST_RATIO = 0.01  #: share of the steps from which a wait is worth its sentence
_UNKNOWN = -1


class RankAnswer(Struct, frozen=True):
    """What the job tells a rank: a sentence, what to do (both may be empty), and figures per step in ns, -1 unknown.

    ``wait_ns``: communication without computing, waiting for late ranks; ``transfer_ns``: moving data; ``charged_ns``:
    by how much the rank's own work exceeds its peers', if it holds the job up. ``waits_for``: the rank that most of the
    wait is for; empty if that is no single one.
    """

    sentence: str = ""
    advice: str = ""
    waits_for: str = ""
    wait_ns: int = _UNKNOWN
    transfer_ns: int = _UNKNOWN
    charged_ns: int = _UNKNOWN


class _Waits(Struct, frozen=True):
    """Communication without computing in the steps of a rank, ns: ``wall_ns`` of all ``count`` steps, of it ``wait_ns``
    and ``transfer_ns``; and the rank that most of the wait is for, with its ``share``."""

    wall_ns: int
    count: int
    wait_ns: int
    transfer_ns: int
    waits_for: str
    share: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.wait_ns / max(self.wall_ns, 1)

    @property
    def each(self) -> str:
        """``per step``."""
        return "per step" if self.unit == "step" else "in the recording"

    def per_step(self, ns: int) -> str:
        """``3.1 ms per step``."""
        return f"{time(ns / self.count)} {self.each}"

    @property
    def of_steps(self) -> str:
        """``12 % of its 4 steps``."""
        steps = f"its {counted(self.count, 'step')}" if self.count > 1 else "its step"
        whole = steps if self.unit == "step" else "the recording"
        return f"{percent(self.ratio)} of {whole}"


def rank_answer(answer: Answer, member: int) -> RankAnswer:
    """What the job tells a member."""
    waits = _waits(answer, member) if answer.judgement.tells else None
    if waits is None:
        return RankAnswer()
    said = _said(answer, member, waits)
    return replace(said, wait_ns=waits.wait_ns // waits.count, transfer_ns=waits.transfer_ns // waits.count)


def _said(answer: Answer, member: int, waits: _Waits) -> RankAnswer:
    """What is said to a member with these waits, without their figures."""
    late = late_ranks(answer, member)
    itself = next((each for each in late if each.is_own), None)
    if itself is not None:
        longer = f"it takes {time(itself.charged_ns)} {waits.each} longer than its peers ({itself.reason.text})"
        sentence = f"Other ranks wait for this one: {longer}{_gain(itself, 'it', waits)}"
        if waits.ratio >= _LEAST_RATIO:
            sentence += f"; it waits for others itself for {waits.of_steps}"
        return RankAnswer(sentence, f"This rank delays the job: {way_to_fix(itself)}", charged_ns=itself.charged_ns)
    if waits.ratio < _LEAST_RATIO:
        return RankAnswer(f"This rank hardly waits for others ({waits.of_steps})")
    return _of_waiting(waits, late)


def _of_waiting(waits: _Waits, late: tuple[LateRank, ...]) -> RankAnswer:
    """Of a rank that waits: for whom, and whether its communication itself matters."""
    named = waits.waits_for if waits.share >= MOST_OF_IT else ""
    whole = f"{waits.of_steps} ({waits.per_step(waits.wait_ns)})"
    sentence = f"For {whole} this rank does nothing but wait for others"
    if named:
        sentence += f", mostly ({percent(waits.share)}) {named}"
    culprit = next((each for each in late if each.name == named), next(iter(late), None))
    if culprit is None:
        return RankAnswer(f"{sentence}; {_against(waits)}", nobody_late(named), named)
    who = "" if culprit.name == named else f"; {culprit.name} delays the job"
    sentence += f"{who} ({culprit.reason.text}){_gain(culprit, culprit.name, waits)}; {_against(waits)}"
    if waits.wait_ns < waits.transfer_ns:
        advice = f"Fix {culprit.name}: {way_to_fix(culprit)}; the transfers here cost more than the waits"
        return RankAnswer(sentence, advice, named)
    return RankAnswer(sentence, fix_rank(culprit, waits.wait_ns / waits.count), named)


def _against(waits: _Waits) -> str:
    """What else its exposed communication is."""
    return f"exposed transfers take {waits.per_step(waits.transfer_ns)}"


def _gain(late: LateRank, name: str, waits: _Waits) -> str:
    if not late.gain_ns or late.gain_ns < 0:
        return ""
    whole = "a step of the job" if waits.unit == "step" else "the job"
    return f"; making {name} like the median would save {time(late.gain_ns)} of {whole}"


def _waits(answer: Answer, member: int) -> _Waits | None:
    """The waits of a member in its steps; None without steps or collectives."""
    matched, parted, summary = answer.matched, answer.parted, answer.summaries[member]
    rows = rows_of_known(answer, member)
    start, end = summary.step_column("start"), summary.step_column("end")
    if not len(rows) or not len(start):
        return None
    waited, moved = exposed_parts(matched, parted, summary, rows, Intervals(start, end))
    alone = np.minimum(parted.wait_ns[rows], summary.column("exposed_ns")[matched.place[rows]])
    late = matched.member[parted.late[matched.instance[rows]]]
    for_each = sums(late, np.maximum(alone, 0), len(answer.summaries))
    most = int(for_each.argmax())
    numbered = bool((summary.step_column("number") >= 0).any())
    return _Waits(
        wall_ns=int((end - start).sum()),
        count=len(start),
        wait_ns=int(waited.sum()),
        transfer_ns=int(moved.sum()),
        waits_for=rank_names([answer.summaries[most]])[0],
        share=float(for_each[most] / max(int(for_each.sum()), 1)),
        unit="step" if numbered else "recording",
    )


def track(answer: Answer, member: int) -> SliceTrack:
    """The track: a slice over the steps and collectives of a member."""
    summary, answered = answer.summaries[member], rank_answer(answer, member)
    edges = [summary.step_column(side) for side in ("start", "end")] + [summary.column(side) for side in ("ts", "end")]
    times = np.concatenate(edges)
    start, end = int(times.min()), int(times.max())
    code = np.zeros(1, np.int32)

    def text(value: str) -> Texts:
        return Texts(code if value else code - 1, [value])

    job = " ".join(answer.verdict.text)
    name = " → ".join(filter(None, (answered.sentence, answered.advice))) or job
    under = summary.main_track if summary.main_track >= 0 else summary.streams[0].device_track
    return SliceTrack(
        analysis=NAME,
        name=TRACK,
        under=under,
        ts=np.array([start], np.int64),
        dur=np.array([max(end - start, 1)], np.int64),
        names=text(name),
        args={
            "sentence": text(answered.sentence),
            "advice": text(answered.advice),
            "job": text(job),
            "waits_for": text(answered.waits_for),
            "wait_per_step_ns": np.array([answered.wait_ns], np.int64),
            "transfer_per_step_ns": np.array([answered.transfer_ns], np.int64),
            "longer_than_peers_per_step_ns": np.array([answered.charged_ns], np.int64),
        },
        description="what the traces of all ranks tell of this one: for whom it waits, or that others wait for it",
        of_process=True,
    )
