"""What others record beside a trace.

Libraries of collectives: flight recorder dumps, logs of NCCL, records of its Inspector. PyTorch's compiler: what it
compiled, when and why, and where its kernels come from. Tools that watch GPUs: power, clocks, temperature, bytes on
links.

``trace.context.attached(NcclRecords)`` has all that was given with a trace, or alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from augment.arrays.types import Int64s
from augment.core.source_code import CodeLine


class PythonLine(Struct):
    """A line of Python that led to a collective."""

    filename: str = ""
    line: int = 0
    name: str = ""


class DumpedGroup(Struct, frozen=True):
    """A process group: its ranks in their order in the group, empty where the dump does not list them."""

    name: str
    description: str
    ranks: tuple[int, ...]


class DumpedOperation(Struct):
    """A collective, or a message between two ranks, as one rank enqueued it."""

    group: str  #: the name of the group
    group_number: int  #: of the rank's own counting; the key of its status
    sequence: int  #: among the collectives of the group; of a message: among the messages
    kind: str  #: ``all_reduce``, ``send``
    created_ns: int  #: Unix time
    done: bool
    peer: int | None = None  #: the other rank of a message
    input_sizes: list[list[int]] = field(default_factory=list)
    output_sizes: list[list[int]] = field(default_factory=list)
    dtypes: tuple[str, ...] = ()
    timeout_ms: int | None = None
    frames: list[PythonLine] = field(default_factory=list)

    @property
    def is_message(self) -> bool:
        """Whether it is between two ranks, and not a collective."""
        return self.peer is not None

    @property
    def sent(self) -> int:
        """The elements of its inputs."""
        return sum(map(math.prod, self.input_sizes))

    @property
    def received(self) -> int:
        """The elements of its outputs."""
        return sum(map(math.prod, self.output_sizes))


class RankDump(Struct):
    """What one rank dumped: its operations in the order in which it enqueued them; and of each group, by the rank's own
    number of it, the sequence number of the last collective enqueued and of the last completed.
    """

    path: str
    rank: int
    groups: dict[str, DumpedGroup]
    progress: dict[int, tuple[int, int]]
    operations: list[DumpedOperation]

    @property
    def members(self) -> set[int]:
        """The ranks of all its groups, itself among them."""
        return {self.rank, *(rank for group in self.groups.values() for rank in group.ranks)}


class RankConnection(Struct, frozen=True):
    """A connection between two ranks of a communicator, and by what (``P2P/CUMEM``, ``NET/IB/0/GDRDMA``)."""

    rank_from: int
    rank_to: int
    via: str


class TreeOfRank(Struct, frozen=True):
    """The neighbours of a rank in the tree of a channel: towards its root, None at the root, and away from it."""

    rank: int
    up: int | None
    down: tuple[int, ...]


class Communicator(Struct):
    """One rank's side of a communicator; what the log does not tell is None, or empty."""

    host: str
    pid: int | None
    pointer: str
    rank: int
    size: int
    device: int
    identity: str = ""  #: equal on all ranks (NCCL ≥ 2.16)
    nodes: int | None = None
    is_begun: bool = False  #: its beginning was logged (NCCL ≥ 2.18)
    is_complete: bool = False
    init_seconds: float | None = None
    channels: int | None = None
    max_bandwidth: float | None = None  #: GB/s of the fastest path between its devices, or to the network
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: dict[int, TreeOfRank] = field(default_factory=dict)
    edges: Counter[RankConnection] = field(default_factory=Counter)  #: with the number of channels


class LoggedCollective(Struct):
    """A collective as it was enqueued on one rank. ``bytes`` are, of an all-gather, what a rank sends, of a
    reduce-scatter what it receives, else all."""

    communicator: int  #: index, -1 if its beginning was not logged
    kind: str  #: ``AllReduce``
    bytes: int
    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None


class Tuned(Struct, frozen=True):
    """Which algorithm and protocol NCCL chose for a size."""

    kind: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None


class NcclLog(Struct):
    """All that is read of a log."""

    path: str
    versions: list[str] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    #: by device of a process: what connects the ranks of a communicator of which nothing else was logged
    unnamed: list[Communicator] = field(default_factory=list)
    collectives: list[LoggedCollective] = field(default_factory=list)
    tuned: Counter[Tuned] = field(default_factory=Counter)
    networks: Counter[str] = field(default_factory=Counter)
    environment: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, bool] = field(default_factory=dict)  #: each with who warns, and whether something failed
    max_bandwidth: float | None = None  #: GB/s of the fastest path in the system, as NCCL measures topology
    patterns: Counter[tuple[str, str]] = field(default_factory=Counter)  #: type of path inside a node and between
    lines: int = 0
    messages: int = 0  #: that NCCL_DEBUG=INFO makes it log
    long_lines: int = 0  #: whose end was passed over
    glued_lines: int = 0
    unreadable_lines: int = 0  #: with numbers that are none
    cut_lines: int = 0  #: without their beginning: of any process
    unplaced: int = 0  #: messages about a connection that may be one of several communicators
    left_out: int = 0  #: messages beyond the most that are kept
    warnings_left_out: int = 0  #: the same of warnings: what was enqueued is whole


class InspectorRecord(Struct):
    """A collective, or a message, that one rank ran. What was not recorded is None, or empty."""

    communicator: str  #: equal on all ranks; empty in records of other writers
    rank: int
    ranks: int
    kind: str  #: ``AllReduce``, ``Send``
    sequence: int  #: of the communicator; monotonic, with gaps
    bytes: int
    exec_ns: int
    timing_source: str  #: ``kernel_gpu``, ``kernel_cpu``, ``collective_cpu``
    algorithm: str = ""
    protocol: str = ""
    peer: int | None = None
    channel_ends: list[int] = field(default_factory=list)  #: when the kernel of each channel ended, Unix ns; 0: unknown

    @property
    def skew_ns(self) -> int | None:
        """How much later the last channel's kernel ended than the first one's."""
        ends = [end for end in self.channel_ends if end]
        return max(ends) - min(ends) if ends else None


class InspectorLog(Struct):
    """The records of one process, in the order of the file."""

    path: str
    version: str = ""
    hostname: str = ""
    pid: int | None = None
    records: list[InspectorRecord] = field(default_factory=list)
    dropped: int = 0  #: collectives and messages that the plugin says it lost (v4.3)
    unreadable_lines: int = 0
    left_out: int = 0  #: records beyond the most that are read


class FlightDumps(Struct, frozen=True):
    """The dumps of the flight recorder given with a trace, or alone: one a rank."""

    dumps: tuple[RankDump, ...]


class NcclLogs(Struct, frozen=True):
    """The logs of NCCL given with a trace, or alone."""

    logs: tuple[NcclLog, ...]


class InspectorLogs(Struct, frozen=True):
    """The records of NCCL's Inspector given with a trace, or alone: one a process."""

    logs: tuple[InspectorLog, ...]


class GraphBreak(Struct, frozen=True):
    """Where and why the compiler ended a graph; no ``line`` where the log does not tell."""

    reason: str
    line: CodeLine | None = None


class CompileSpan(Struct):
    """When the compiler worked, Unix ns, and at what: ``dynamo``, or its name of what it did later (backward)."""

    name: str
    start_ns: int
    end_ns: int


AHEAD_OF_TIME = "aot"  #: in the place of an id: what AOTInductor compiles is no frame


class Compilation(Struct):
    """One compilation of one frame. ``compile_id`` is that of the slices ``Torch-Compiled Region: 1/0``, or ``aot``.

    ``guard`` is the condition that no earlier compilation of the frame met, as the log has it, and ``guard_line`` where
    it comes from. ``spans`` ascend. ``stated_ns``: how long it took, of logs that do not say when.
    """

    compile_id: str
    line: CodeLine | None = None
    guard: str = ""
    guard_line: CodeLine | None = None
    failure: str = ""
    spans: list[CompileSpan] = field(default_factory=list)
    stated_ns: int = 0
    caches: list[str] = field(default_factory=list)  #: ``fx_graph_cache_miss``, in the order of the log
    breaks: list[GraphBreak] = field(default_factory=list)
    is_finished: bool = False

    @property
    def function(self) -> str:
        """The function that was compiled, empty if the log does not tell."""
        return self.line.function if self.line else ""

    @property
    def compile_ns(self) -> int:
        """How long the compiler worked on it."""
        return sum(span.end_ns - span.start_ns for span in self.spans) or self.stated_ns


class GraphNode(Struct, frozen=True):
    """An operation of a compiled graph, or an input of it.

    ``operator`` is as the profiler calls it (``aten::mm``), ``getitem``, or empty for an input. ``operands`` are names
    of nodes, and texts of other values. ``shape`` and ``strides`` are of its result, None where they are not whole
    numbers; ``type`` is the compiler's, such as ``bf16``.
    """

    operator: str
    operands: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    type: str = ""


class GraphOrigins(Struct, frozen=True):
    """Of each kernel of a compiled graph the lines it was made of. Names may end in the number of their call:
    ``triton_poi_fused_mul_1:2``. ``compile_id`` is empty where it is not known. If they were recorded: the ``nodes`` of
    the graph, the names of its ``results``, and the names of those nodes that each kernel is ``made_of``."""

    compile_id: str
    lines: Mapping[str, tuple[CodeLine, ...]]
    nodes: Mapping[str, GraphNode] = {}
    results: frozenset[str] = frozenset()
    made_of: Mapping[str, tuple[str, ...]] = {}


class CompileLog(Struct):
    """All that is read of a log of ``TORCH_TRACE``."""

    path: str
    rank: int | None = None
    compilations: list[Compilation] = field(default_factory=list)
    graphs: list[GraphOrigins] = field(default_factory=list)
    records: int = 0
    unreadable_records: int = 0

    @property
    def period(self) -> tuple[int, int] | None:
        """When the compiler worked first and last, Unix ns; None where the log does not tell."""
        spans = [span for each in self.compilations for span in each.spans]
        return (min(span.start_ns for span in spans), max(span.end_ns for span in spans)) if spans else None


class CompileLogs(Struct, frozen=True):
    """The logs of the compiler given with a trace, or alone: one a rank."""

    logs: tuple[CompileLog, ...]


class KernelOrigins(Struct, frozen=True):
    """What Inductor wrote of the origin of its kernels, graph by graph."""

    graphs: Sequence[GraphOrigins]


POWER, ENERGY = "power", "energy"


class Samples(Struct, frozen=True):
    """One quantity of one GPU. ``gpu`` is its number or name in the file; of equal ``ts`` the first counts."""

    gpu: str
    quantity: str  #: ``power``, ``sm_clock``, ``throttled`` or another
    unit: str  #: of the values: W, MHz, °C, ratio, bytes, GB/s, J
    ts: Int64s  #: Unix ns, strictly ascending; without times the number of the sample
    values: npt.NDArray[np.float64]


class Telemetry(Struct, frozen=True):
    """All that is read of a file. ``has_times``: else ``ts`` only counts samples. ``has_zone``: whether times are Unix
    times; else they are of an unknown zone, as if that were UTC."""

    path: str
    samples: tuple[Samples, ...]
    has_times: bool = True
    has_zone: bool = True
    chosen: str = ""  #: the GPU that the user named
    unreadable_rows: int = 0
