"""What the traces of the other ranks of a job tell about the collectives of one rank."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from augment.arrays.types import Int64s
from augment.core.text import short

Cause = Literal["host", "compute", "communication", "queued", "before_recording", "unknown"]
Where = Literal["", "operator", "annotation", "no_operator", "many_operators"]


class Reason(Struct, frozen=True):
    """Why a rank is late: the ``cause``; where its host was meanwhile, and the name of that operator or annotation; the
    kernels that take longer than on its peers, each with how much (1: twice as long)."""

    cause: Cause
    where: Where = ""
    name: str = ""
    kernels: tuple[tuple[str, float], ...] = ()

    @property
    def text(self) -> str:
        """The same in words: ``its host, in `aten::item```."""
        where = {
            "": "",
            "operator": f", in `{short(self.name)}`",
            "annotation": f", outside operators in `{short(self.name)}`",
            "no_operator": ", outside all operators and annotations",
            "many_operators": ", spread over many operators",
        }[self.where]
        longer = " and ".join(f"`{short(name)}` {100 * more:.0f} %" for name, more in self.kernels)
        return _CAUSES[self.cause] + where + (f", most in {longer} longer" if longer else "")


_CAUSES: dict[Cause, str] = {
    "host": "its host",
    "compute": "its device computes longer",
    "communication": "its links",
    "queued": "its device stood idle with work queued",
    "before_recording": "work from before its recording",
    "unknown": "no single cause",
}


class LateRank(Struct, frozen=True):
    """A rank that holds its job up: what it is called, whether it is the trace's own, and the ``reason``. Per step:
    ``charged_ns``, by how much its own work exceeds its peers'; ``gain_ns``, by how much a step would be shorter if it
    were like the median (None: unknown).
    """

    name: str
    is_own: bool
    reason: Reason
    charged_ns: int
    gain_ns: int | None
    confidence: Literal["high", "medium"]


class JobWaits(Struct, frozen=True):
    """What the traces of the other ranks tell about the collectives of one.

    Equal-length int64 columns, ascending ``row``, the collective's kernel in the event table: ``wait_ns``, from its
    start until the last rank arrived; ``late``, that rank, into ``ranks``; ``lead_ns``, by how much the rank itself was
    the last, else 0. ``late_ranks`` hold the job up. ``transfer_gain_ns``: by how much a step would be shorter if no
    communication of the job took time; None if unknown.
    """

    row: Int64s
    wait_ns: Int64s
    lead_ns: Int64s
    late: Int64s
    ranks: tuple[str, ...]
    late_ranks: tuple[LateRank, ...] = ()
    transfer_gain_ns: int | None = None

    def at(self, rows: Int64s) -> JobWaits:
        """The same with other ``rows``, of a part of the trace; -1 leaves a collective out."""
        order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
        wait, lead, late = (column[order] for column in (self.wait_ns, self.lead_ns, self.late))
        return JobWaits(rows[order], wait, lead, late, self.ranks, self.late_ranks, self.transfer_gain_ns)
