"""Is a rank of the job late at collectives?

One trace cannot tell: a collective takes long on all ranks if one of them is late. The traces of all ranks together
tell which, and why ([jobs](jobs.md)).

**What to do**: ``augment diagnose FOLDER`` with the traces of all ranks.
"""

from __future__ import annotations

from augment.derived.collectives.collectives import collectives
from augment.diagnosis.rule import Answer, NoData, NotApplicable
from augment.trace import Trace

NAME = "straggling_rank"


def check(trace: Trace) -> Answer:
    """Say what it would take."""
    if not len(collectives(trace)):
        return NotApplicable("this rank communicates with no other")
    return NoData(
        "which rank comes late to collectives is in no single trace",
        "run augment diagnose FOLDER with the traces of all ranks",
    )
