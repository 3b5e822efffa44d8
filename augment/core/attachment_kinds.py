"""The registry of what may be recorded beside a trace, or judged alone. To add a kind: a module in
``augment/readers/attachments/`` that reads it, an entry here, and ``with_…`` in that folder's ``__init__.py``.

From an entry follow the option of the command, ``{rank}`` in it, the file that is found beside a trace, the input that
is judged alone, and what messages call such a file. Nothing is imported before a file of the kind is there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TABLES = "tables"  #: what an attachment of the user's own tables is called by a server; every trace shares it
RANK, STEM = "{rank}", "{stem}"  #: placeholders in paths: the rank of a trace, its file's name without endings


class Kind(NamedTuple):
    """A kind of file.

    Args:
        name: ``memory_snapshot`` makes the option ``--memory-snapshot``, ``augment.with_memory_snapshot``, and the name
            of the analysis that says whether it was joined.
        what: what messages call such a file.
        help: of the option.
        reads: ``MODULE:FUNCTION`` below ``augment.readers.attachments``: takes a path (of several files, a pattern),
            and returns what is attached.
        together: the record of ``augment.core.records`` that is attached where the function reads one of several files.
        begins: what the first bytes of the text match, decompressed; None: other bytes may begin one, too.
        usual: names that such a file has beside a trace, with placeholders. Names without any stand for the only trace
            of a folder.
        alone: whether a file of the kind can be an input by itself.
        several: whether a glob may name files of many ranks, for one trace.
        analyses: those that use it, if it is not called as its only one; the first says why it is not used.
        inside: a pattern for the names of such files anywhere in a folder, which may be given for them. The name of the
            folder that has a file then belongs to what the file says.
    """

    name: str
    what: str
    help: str
    reads: str
    together: str = ""
    begins: re.Pattern[bytes] | None = None
    usual: tuple[str, ...] = ()
    alone: bool = False
    several: bool = False
    analyses: tuple[str, ...] = ()
    inside: str = ""

    @property
    def option(self) -> str:
        """The option of the command, without the dashes before it."""
        return self.name.replace("_", "-")


KINDS: tuple[Kind, ...] = (
    Kind(
        name="execution_trace",
        what="an execution trace",
        help="The trace's file of ExecutionTraceObserver; for several traces, {rank} stands for the rank.",
        reads="recorded_files:execution_nodes",
        begins=re.compile(rb'\s*\{\s*"schema"\s*:\s*"[^"]*",[^{}\[\]]*"nodes"\s*:\s*\['),
    ),
    Kind(
        name="memory_timeline",
        what="a memory timeline",
        help="The trace's memory timeline, a *.raw.json.gz of export_memory_timeline; {rank} as above.",
        reads="recorded_files:memory_changes",
        begins=re.compile(rb"\s*\[\s*\[\s*-?\d+\s*,\s*\d+\s*,\s*-?\d+\s*,\s*\d+\s*\]"),
    ),
    Kind(
        name="graph_capture",
        what="a trace of the capture of CUDA graphs",
        help="A trace of the capture of the CUDA graphs, with shapes of operators; {rank} as above.",
        reads="recorded_files:graph_capture",
    ),
    Kind(
        name="flight_recorder",
        what="a dump of PyTorch's flight recorder",
        help="Dumps of the flight recorder, one a rank: a glob such as 'dumps/rank_*'.",
        reads="flight_recorder:read_dump",
        together="FlightDumps",
        usual=("nccl_trace_rank_{rank}", "fr_trace_{rank}.pickle", "fr_trace_{rank}.json"),
        begins=re.compile(
            rb"(?s)\x80[\x02-\x05].{0,99}?(?:version|entries|pg_config|pg_status|nccl_comm_state).{0,2000}?"
            rb"(?:pg_config|pg_status|entries|nccl_comm_state)"
            rb"|\s*\{\s*\"(?:comm_lib_version|nccl_comm_state|nccl_version|pg_config|pg_status)\"\s*:"
            rb"|\s*\{\s*\"version\"\s*:\s*\"?[12]\.\d+\"?\s*,\s*\"(?:entries|nccl|comm|pg_)"
            rb"|\s*\{\s*\"entries\"\s*:\s*\[\s*\{[^{}]*?\"(?:collective_seq_id|profiling_name|record_id|pg_id)\""
        ),
        alone=True,
        several=True,
        analyses=("collective_records",),
    ),
    Kind(
        name="nccl_inspector",
        what="records of NCCL's Inspector",
        help="Records of NCCL's Inspector, one file a process: a glob such as 'inspector/*.log'.",
        reads="inspector:read_inspector",
        together="InspectorLogs",
        begins=re.compile(
            rb"(?s)\s*\{\s*\"(?:header|metadata|dump_stats|coll_perf|p2p_perf)\"\s*:\s*\{.{0,3000}?"
            rb"\"(?:coll_perf|p2p_perf|dump_stats|inspector_output_format_version)\""
        ),
        alone=True,
        several=True,
        analyses=("collective_records",),
    ),
    Kind(
        name="torch_trace",
        what="a log of PyTorch's compiler",
        help="Logs of TORCH_TRACE, one a rank: a file or a glob.",
        reads="compile_log:read_compile_log",
        together="CompileLogs",
        begins=re.compile(
            rb"(?:\[[^\]]{1,40}\]: ?)?[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d{6} (?:\d{1,20} )?\S{1,4096}?:\d{1,9}\] \{\s*\""
        ),
        alone=True,
        several=True,
        analyses=("compilations",),
    ),
    Kind(
        name="inductor_provenance",
        what="Inductor's origins of kernels",
        help="Folder with Inductor's origins of kernels, or such files.",
        reads="compile_log:read_provenance",
        inside="inductor_provenance_track*",
        begins=re.compile(
            rb"\s*\{\s*\"(?:(?:preToPost|postToPre|cppCodeToPost)\"\s*:|[\w.:]{1,999}\"\s*:\s*\[\s*\"\s*File \\\")"
        ),
        several=True,
    ),
    Kind(
        name="telemetry",
        what="telemetry of GPUs",
        help="Power and clocks by nvidia-smi, rocm-smi, dcgmi or Prometheus; FILE@zone=+01:00,gpu=0 says more.",
        reads="telemetry_file:read_telemetry",
        begins=re.compile(
            rb"(?is)(?:\xef\xbb\xbf)?[\w .,;:\[\]()%/\"*-]{0,999}?(?:power[._]draw|power_w\b|\bwatts\b"
            rb"|utilization[._ ]gpu|temperature[._]gpu|graphics package power|clocks[._](?:current|sm|gr))[^\n]*\n"
            rb"|\xff\xfe(?:[^\n]\0){0,999}?(?:p\0o\0w\0e\0r\0|u\0t\0i\0l\0)"
            rb"|(?![\s]*\{).{0,3000}?(?:^|\n)#\s?(?:Entity\s+\w|gpu\s+(?:pwr|sm|gtemp)|Date\s+Time\s+gpu)"
            rb"|\s*\{[^{}]{0,99}\"data\"\s*:\s*\{\s*\"resultType\"\s*:\s*\"matrix\""
        ),
        alone=True,
        several=True,
    ),
    Kind(
        name="nccl_log",
        what="a log of NCCL",
        help="Logs of NCCL_DEBUG=INFO, of one or many processes: a file or a glob.",
        reads="nccl_log:read_nccl_log",
        together="NcclLogs",
        usual=("nccl.log", "nccl.{rank}.log", "nccl_rank{rank}.log"),
        begins=re.compile(rb"(?s)(?!\s*(?:\{|\[\s*[{\]\"])|\x80).{0,4000}?(?:NCCL INFO |NCCL WARN |[NR]CCL version)"),
        alone=True,
        several=True,
        analyses=("communicators", "collective_records"),
    ),
    Kind(
        name="spans",
        what="spans of requests",
        help="Spans of requests that vLLM or SGLang exported, as JSON of OTLP or Jaeger: a file or a glob.",
        reads="spans:read_spans",
        begins=re.compile(
            rb"(?s)\s*\{\s*\"resourceSpans\"\s*:|\s*\{\s*\"data\"\s*:\s*\[\s*\{.{0,300}?\"(?:traceID|spans)\"\s*:"
        ),
        several=True,
        analyses=("requests",),
    ),
    Kind(
        name="memory_snapshot",
        what="a CUDA memory snapshot",
        help="The trace's CUDA memory snapshot, a pickle of torch.cuda.memory._dump_snapshot; {rank} as above.",
        reads="snapshot_file:memory_snapshot",
        # a pickle of protocol 2 to 5, whose first key or value says what it is: of the dict, or of a bare list; or a
        # page of PyTorch's MemoryViz with such a pickle in it
        begins=re.compile(
            rb"\x80[\x02-\x05](?:\x95.{8})?(?:(?:\}|\]).{0,12}\(?.{0,8}"
            rb"(?:segments|device_traces|allocator_settings|external_annotations)|\].{0,300}(?:segment_type|total_size))"
            rb'|\s*<!DOCTYPE html>.{0,2000}?MemoryViz\.js.{0,2000}?"base64"\s*:\s*"gA[I-X]',
            re.DOTALL,
        ),
        usual=(
            "{stem}.memory_snapshot.pickle",
            "rank{rank}_memory_snapshot.pickle",
            "memory_snapshot_rank{rank}.pickle",
            "memory_snapshot_{rank}.pickle",
            "snapshot_{rank}.pickle",
            "memory_snapshot.pickle",
            "snapshot.pickle",
        ),
        alone=True,
    ),
)


def kind_named(name: str) -> Kind:
    """The kind of this name."""
    return next(kind for kind in KINDS if name == kind.name)


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file whose text begins with ``head``; None if it is of none of them."""
    return next((kind for kind in KINDS if kind.begins and kind.begins.match(head)), None)
