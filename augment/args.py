"""Which args the analyses ask of all rows of a category: sparse columns, ``EventTable.args``.

Another arg is another line of :data:`WANTED`, what no analysis asks for any more is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from augment.trace import Category


@dataclass(frozen=True, slots=True)
class Arg:
    """An arg that is wanted of events of ``categories``: an integer, or a text; ``also`` are other spellings."""

    name: str
    categories: tuple[Category, ...]
    is_text: bool = False
    also: tuple[str, ...] = ()

    @property
    def category_bits(self) -> int:
        """A bit for each category."""
        return sum(1 << category for category in set(self.categories))


OPS = (Category.CPU_OP,)
MEMORY = (Category.CPU_INSTANT_EVENT,)
SYNCS = (Category.CUDA_SYNC,)
COLLECTIVES = (Category.KERNEL, Category.CPU_OP)  #: of the latter, record_param_comms has them
RECORDED = (Category.CPU_OP, Category.USER_ANNOTATION)

WANTED = (
    Arg("Input Dims", OPS, is_text=True, also=("Input dims",)),
    Arg("Sequence number", OPS),
    Arg("Fwd thread id", OPS),
    Arg("Addr", MEMORY),
    Arg("Bytes", MEMORY),
    Arg("Total Allocated", MEMORY),
    Arg("Total Reserved", MEMORY),
    Arg("Device Type", MEMORY),
    Arg("Device Id", MEMORY),
    # as torch/csrc/profiler/util.h names them
    Arg("Collective name", COLLECTIVES, is_text=True),
    Arg("dtype", COLLECTIVES, is_text=True),
    Arg("In msg nelems", COLLECTIVES),
    Arg("Out msg nelems", COLLECTIVES),
    Arg("Group size", COLLECTIVES),
    Arg("Process Group Name", COLLECTIVES, is_text=True),
    Arg("Process Group Description", COLLECTIVES, is_text=True),
    Arg("Process Group Ranks", COLLECTIVES, is_text=True),
    Arg("Src Rank", COLLECTIVES),
    Arg("Dst Rank", COLLECTIVES),
    Arg("Seq", COLLECTIVES),
    Arg("Comms Id", COLLECTIVES, is_text=True),
    Arg("wait_on_stream", SYNCS),
    Arg("wait_on_cuda_event_record_corr_id", SYNCS),
)
