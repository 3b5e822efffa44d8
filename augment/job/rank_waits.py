"""What the job tells one rank about its collectives: how long it waited in each, for whom, and who holds the job up.

The rules of a rank's diagnosis rest on it (:class:`~augment.core.job_waits.JobWaits`). Messages of pipelines are left
out, as stages wait by design; so are collectives of which at most half of the ranks have traces.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Places
from augment.core.job_waits import JobWaits, LateRank
from augment.job.answer import Answer
from augment.job.ranks.rank_lists import rank_names


def job_waits(answer: Answer, member: int) -> JobWaits | None:
    """The waits of a member; None where the job cannot tell who is late."""
    matched, parted, summary = answer.matched, answer.parted, answer.summaries[member]
    if not len(matched) or not answer.judgement.tells:
        return None
    rows = rows_of_known(answer, member)
    row = summary.column("row")[matched.place[rows]]
    order = np.argsort(row, kind="stable")
    rows, instance = rows[order], matched.instance[rows[order]]
    last = parted.late[instance]
    return JobWaits(
        row=row[order],
        wait_ns=parted.wait_ns[rows],
        lead_ns=np.where(last == rows, parted.lead_ns[instance], 0),
        late=matched.member[last].astype(np.int64),
        ranks=rank_names(answer.summaries),
        late_ranks=late_ranks(answer, member),
        transfer_gain_ns=answer.judgement.transfer_gain_ns,
    )


def rows_of_known(answer: Answer, member: int) -> Places:
    """The rows in ``answer.matched`` of a member's collectives in which it is known who was late."""
    matched = answer.matched
    rows = matched.rows_of(member)
    return rows[answer.tells_late[matched.instance[rows]]]


def late_ranks(answer: Answer, member: int) -> tuple[LateRank, ...]:
    """The ranks that hold the job up, as a member sees them."""
    steps = answer.judgement.step_count or 1
    return tuple(
        LateRank(
            name=rank_names([answer.summaries[late]])[0],
            is_own=late == member,
            reason=reason,
            charged_ns=row.charged_ns // steps,
            gain_ns=None if row.gain_ns is None else row.gain_ns // steps,
            confidence="high" if row.confidence == "high" else "medium",  # the waits are known, even if not why
        )
        for late, row, reason in answer.judgement.late_ranks
    )
