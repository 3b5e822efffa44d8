"""What is attached to a trace: what was recorded beside it, and what the other ranks of its job tell of it.

``trace.context.attached(MemoryChanges)`` is the one of that type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from augment.arrays.types import Int32s, Int64s
from augment.core.text import percent, short
from augment.core.trace import Trace


class ExecutionNodes(Struct, frozen=True):
    """The ``nodes`` of the execution trace recorded with the trace."""

    nodes: Sequence[dict[str, Any]]


class MemoryChanges(Struct, frozen=True):
    """The content of a memory timeline: equal-length int64 columns in the file's order."""

    ts: Int64s  #: absolute ns; negative for memory held before the recording
    action: Int64s  #: the file's number
    size: Int64s  #: bytes; negative where memory is freed or leaves its category
    category: Int64s  #: the file's number


class RequestSpans(Struct, frozen=True):
    """The requests of a server in files of spans, equal-length columns, by arrival.

    ``moments``, int64 ns (Unix), a row a request: it arrives, joins the engine's queue, is scheduled, has its first
    token, its last one, and ends. They ascend; what is not recorded is the moment before it.
    """

    name: str  #: of the file
    ids: Sequence[str]
    engines: Sequence[str]  #: ``vllm`` or ``sglang``
    moments: Int64s
    prompt_tokens: Int64s  #: -1 where not recorded
    output_tokens: Int64s  #: the same
    unreadable: int = 0  #: lines, or entries in them


class Stacks(Struct, frozen=True):
    """Where memory was allocated: equal-length columns by stack. Frames are numbers of ``labels``, -1 for none.

    ``line``: the innermost line of the user's own code, else of any Python file. ``module``: the innermost ``forward``
    of a module; ``operator``: the innermost operator (only where C++ frames were recorded). ``signs``: which kinds of
    frames are there, bits of ``augment/facts/memory/held.py``.
    """

    line: Int32s
    module: Int32s
    operator: Int32s
    signs: Int32s
    labels: Sequence[str]


class MemorySnapshot(Struct, frozen=True):
    """The content of a CUDA memory snapshot, int64 columns if nothing else is said; stacks are numbers of ``stacks``,
    -1 for none.

    Segments of memory that PyTorch reserved, by ``segment_…``: ``is_large``, ``is_expandable`` and ``pool`` (0: the
    default one, else a private pool). The blocks in them at the end, by ``block_…``: ``state`` is an index of
    ``STATES``. What the allocators did until then, by ``action_…``: ``kind`` is an index of ``ACTIONS``, ``size`` in
    bytes as requested, ``ts`` in Unix ns, 0 throughout where no times were recorded (``has_times``); device by device,
    each in order. Of an ``oom``, ``addr`` is what the device had free, -1 if unknown. ``compiled``: a number of
    ``labels``, -1. ``mark_…``: annotations that began.
    """

    name: str
    segment_device: Int64s
    segment_address: Int64s
    segment_size: Int64s
    segment_stream: Int64s
    segment_pool: Int64s
    segment_is_large: Int64s
    segment_is_expandable: Int64s
    block_segment: Int64s
    block_address: Int64s
    block_size: Int64s
    block_requested: Int64s
    block_state: Int64s
    block_stack: Int32s
    action_device: Int64s
    action_kind: Int64s
    action_addr: Int64s
    action_size: Int64s
    action_stream: Int64s
    action_ts: Int64s
    action_stack: Int32s
    action_compiled: Int32s
    mark_name: Sequence[str]
    mark_ts: Int64s
    stacks: Stacks
    settings: Mapping[str, Any]
    has_times: bool


#: what an allocator does, and how blocks are, as PyTorch names them
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom",
)  # fmt: skip
STATES = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")


class GraphCapture(Struct, frozen=True):
    """The recording of the capture of the trace's CUDA graphs."""

    trace: Trace


class Tables(Struct, frozen=True):
    """The user's own tables by key: rows that come before the package's (``augment/readers/attachments/tables.py``)."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]


def tables_of(trace: Trace) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The rows of the user's own tables by their key; empty without any."""
    tables = trace.context.attached(Tables)
    return tables.rows if tables else {}


Cause = Literal["host", "compute", "copies", "communication", "queued", "before_recording", "unknown"]
Where = Literal["", "operator", "annotation", "call", "memory", "no_operator", "many_operators"]


class Reason(Struct, frozen=True):
    """Why a rank is late: the ``cause``; where its host was meanwhile, and the name of that operator, annotation or
    call (``memory``: those that ask the driver for memory, and give it back); the kernels that take longer than on its
    peers, each with how much (1: twice as long). ``more_work``: by how much the operations of its products exceed its
    peers' (1: twice as many), where that is why its device computes longer. ``hot_experts``: only its kernels of
    experts take longer."""

    cause: Cause
    where: Where = ""
    name: str = ""
    kernels: tuple[tuple[str, float], ...] = ()
    more_work: float = 0.0
    hot_experts: bool = False

    @property
    def doing(self) -> tuple[str, Where] | None:
        """What its host did: a name (empty: nothing recorded), and where it stands; None: many things."""
        return None if self.where in ("", "many_operators") else (self.name, self.where)

    @property
    def place(self) -> str:
        """Where its host was, in words: ``, in `aten::item```; empty if that is not known."""
        return {
            "": "",
            "operator": f", in `{short(self.name)}`",
            "annotation": f", in `{short(self.name)}`, outside its operators",
            "call": f", in single calls of `{short(self.name)}`",
            "memory": f", in calls of {self.name}",
            "no_operator": ", outside all operators and annotations",
            "many_operators": ", in many operators",
        }[self.where]

    def text(self, several: bool = False) -> str:
        """The same in words, of one rank or ``several``: ``its host, in `aten::item```."""
        its = "their" if several else "its"
        if self.more_work:
            more = f"{its} products take {percent(self.more_work)} more operations"
            return f"{'they have' if several else 'it has'} more work: {more}"
        longer = " and ".join(f"`{short(name)}` {percent(more)}" for name, more in self.kernels)
        if self.hot_experts:
            return f"{its} experts compute longer{f', {longer}' if longer else ''}, and {its} other kernels do not"
        return f"{_CAUSES[self.cause][several]}{self.place}{f', most in {longer} longer' if longer else ''}"


#: why one rank is late, and why several are
_CAUSES: dict[Cause, tuple[str, str]] = {
    "host": ("its host", "their hosts"),
    "compute": ("it computes longer", "they compute longer"),
    "copies": ("its copies that nothing hides", "their copies that nothing hides"),
    "communication": ("its links", "their links"),
    "queued": ("its device stood idle with work queued", "their devices stood idle with work queued"),
    "before_recording": ("work from before its recording", "work from before their recordings"),
    "unknown": ("no single cause", "no single cause"),
}


class LateRank(Struct, frozen=True):
    """A rank that holds its job up: what it is called, whether it is the trace's own, and the ``reason``. Per step:
    ``charged_ns``, by how much its own work exceeds its peers'; ``gain_ns``, by how much a step would be shorter if it
    were like the median, or more work were balanced (None: unknown).
    """

    name: str
    is_own: bool
    reason: Reason
    charged_ns: int
    gain_ns: int | None
    confidence: Literal["high", "medium"]
    at_most: bool = False  #: the gain: data loaders may be the next limit, which its lateness hides


class SharedWait(Struct, frozen=True):
    """What the devices of all ranks wait for alike, each for its own host; ``gain_ns``: by how much a step would be
    shorter without."""

    reason: Reason
    gain_ns: int


WORKERS = "_MultiProcessingDataLoaderIter"  #: in the name of a fetch from a data loader with workers


class RankInJob(Struct, frozen=True):
    """What the traces of all ranks tell of one: figures of a steady step, ns.

    ``wait_ns``: its device does nothing but wait for late ranks; ``transfer_ns``: nothing but move data of collectives.
    ``waits_for``: the rank but for which most of the wait would be none, with ``most_ratio`` of it; empty without one.
    ``late_ranks`` hold the job up. ``transfer_gain_ns``: by how much a step would be shorter if no communication of the
    job took time; None if unknown. ``shared``: what all ranks wait for alike. ``is_told``: whether the job can tell who
    is late; else the wait is by the shortest of each collective, for which no clocks are compared. ``is_whole``: all
    ranks of its collectives have traces; else it may wait for those that have none while data seems to move.
    ``fixed_ns``: by rule, what the job gains if its finding, which all ranks have, is fixed on all of them;
    ``most_fixed``: the rule of which the job's verdict says so.
    """

    wait_ns: int
    transfer_ns: int
    waits_for: str = ""
    most_ratio: float = 0.0
    late_ranks: tuple[LateRank, ...] = ()
    transfer_gain_ns: int | None = None
    shared: SharedWait | None = None
    is_told: bool = True
    is_whole: bool = True
    fixed_ns: Mapping[str, int] = field(default_factory=dict)
    most_fixed: str = ""

    @property
    def itself(self) -> LateRank | None:
        """The rank, if it holds the job up."""
        return next((each for each in self.late_ranks if each.is_own), None)

    @property
    def held_ns(self) -> int:
        """The wait for ranks that are known to be late, in which a faster host of this rank would only wait longer; 0
        where it is late itself, or all wait for their hosts alike."""
        return self.wait_ns if (self.waits_for or self.late_ranks) and not self.itself and self.shared is None else 0

    def gained_ns(self, saved_ns: int) -> int:
        """What the job gains by a host of this rank that is ``saved_ns`` faster: where the rank is late, no more than
        what being like its peers brings."""
        late = self.itself
        if late is None or late.gain_ns is None or self.shared is not None:
            return saved_ns
        return min(max(late.gain_ns, 0), saved_ns)

    @property
    def held_by(self) -> str:
        """The rank that the job waits for whatever the host of this one does; empty if it is late itself, if no other
        is known to be, or if what all ranks wait for alike is more."""
        first = next((late for late in self.late_ranks if (late.gain_ns or 0) > 0), None)
        return first.name if first is not None and not self.itself and self.shared is None else ""

    @property
    def is_paced_by_workers(self) -> bool:
        """Whether the workers of data loaders decide how long a step of the job is."""
        reasons = [late.reason for late in self.late_ranks] + ([self.shared.reason] if self.shared else [])
        return any(WORKERS in reason.name for reason in reasons)

    @property
    def most_saved_ns(self) -> int:
        """What faster communication of the rank saves at most: a rank that only waits gains nothing by it, nor does one
        that waits for a rank which the workers of its data loader pace: a batch comes at a moment of the clock."""
        if self.is_paced_by_workers:
            return 0
        return self.transfer_ns if self.transfer_gain_ns is None else min(self.transfer_ns, self.transfer_gain_ns)
