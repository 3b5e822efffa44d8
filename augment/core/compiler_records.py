"""What PyTorch's compiler records beside a trace: what it compiled, when and why, and where its kernels come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from augment.core.source_code import CodeLine


class GraphBreak(Struct, frozen=True):
    """Where and why the compiler ended a graph; no ``line`` where the log does not tell."""

    reason: str
    line: CodeLine | None = None


class CompileSpan(Struct):
    """When the compiler worked, Unix ns, and at what: ``dynamo``, or its name of what it did later (backward)."""

    name: str
    start_ns: int
    end_ns: int


class Compilation(Struct):
    """One compilation of one frame. ``compile_id`` is that of the slices ``Torch-Compiled Region: 1/0``.

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
