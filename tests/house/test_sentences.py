"""Every sentence that the tool can print is in ``sentences.txt``, for people to read; ``pytest
tests/house/test_sentences.py --update`` writes it anew. And no text decides anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from msgspec.structs import replace

from augment.compare import diff_verdict as comparison_verdict
from augment.compare.diff_rows import FigureRow, StepRow
from augment.core import Cause, LateRank, Reason, Where
from augment.core.text import VENDORS, capitalized, words_of
from augment.diagnosis import rules, wording
from augment.diagnosis.late_ranks import nobody_late
from augment.diagnosis.rule import NOWHERE, Finding, Found, Seen
from augment.diagnosis.wording import HEADINGS, heading
from augment.facts.operators.matrix_products import TileFit
from augment.job.verdict import Row, verdict_text

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).parent / "sentences.txt"
MS = 1_000_000
LINES = ["train.py(12): step"]
LATE = LateRank("rank 1", False, Reason("host", "operator", "aten::item"), 5 * MS, 4 * MS, "high")
OWN = LateRank("rank 1", True, Reason("compute", kernels=(("gemm", 0.4),)), 5 * MS, 4 * MS, "high")
COMMUNICATION = rules.exposed_communication.ExposedCommunication(
    exposed_ns=12 * MS,
    wait_ns=None,
    kind="AllGather",
    group="default_pg",
    rank_count=8,
    most_ratio=0.56,
    trains=True,
    collective_count=14,
    median_bytes=25e6,
    beyond_fastest_ratio=0.6,
    small_count=40,
)
PROBLEMS = get_args(rules.network_setup.Problem)
SAMPLES: list[Seen] = [
    *(
        rules.partial_recording.PartialRecording(problem, "10 to 20 ms", 0.2, 3 * MS, 4)
        for problem in get_args(rules.partial_recording.Problem)
    ),
    rules.partial_recording.PartialRecording("truncated", "10 to 20 ms", whole_count=1, count=2),
    rules.cold_start.ColdStart(9 * MS, 10 * MS, [("aten::conv2d", 9 * MS)], ("cudaFree", 1_000 * MS)),
    rules.cold_start.ColdStart(0, 10 * MS, [], ("cudaFree", 1_000 * MS)),
    rules.long_calls.LongCalls(1, [("cudaLaunchKernel", 9 * MS)], False, LINES, is_once=True),
    rules.long_calls.LongCalls(3453, [("job_prep_and_submit", 900 * MS)], False, []),
    rules.long_calls.LongCalls(3453, [("job_prep_and_submit", 900 * MS)], False, [], launches=True),
    rules.long_calls.LongCalls(1, [("cudaLaunchKernel", 9 * MS)], False, LINES, is_loading=True, step_count=3),
    rules.long_calls.LongCalls(1, [("cudaLaunchKernel", 9 * MS)], False, LINES, is_loading=True),
    rules.long_calls.LongCalls(9, [("cuLibraryLoadData", 9 * MS)], False, LINES, is_loading=True),
    rules.profiler_overhead.ProfilerOverhead(4 * MS, ["Activity Buffer Request"]),
    *(
        rules.data_loading.Fetches(5 * MS, 4 * MS, alone, why)
        for alone, why in zip((False, True, False, False), get_args(rules.data_loading.Why), strict=True)
    ),
    rules.synchronizing_calls.SynchronizingCalls(3, 2 * MS, ["aten::item"], LINES),
    rules.synchronizing_calls.SynchronizingCalls(1, 2 * MS, ["aten::item", "cudaStreamSynchronize"], [], 9 * MS),
    rules.pageable_copies.PageableCopies(1, 3e6, LINES),
    rules.exposed_copies.Copies(2, 3e6, 2 * MS, 8 * MS, True, 0.0, LINES),
    rules.exposed_copies.Copies(2, 3e6, 2 * MS, 8 * MS, True, 0.9, LINES),
    rules.exposed_copies.Copies(2, 0, 2 * MS, 8 * MS, True, 0.0, []),
    rules.exposed_copies.Copies(2, 3e6, 2 * MS, MS, False, 0.9, []),
    rules.exposed_copies.Copies(2, 3e6, 2 * MS, MS, False, 0.0, []),
    rules.exposed_copies.Copies(2, 3e6, 2 * MS, 8 * MS, True, 0.0, [], migrates=True),
    rules.exposed_copies.Copies(
        2, 3e6, 2 * MS, 0, False, 0.0, [], True, True, ({"to the device": 5.0, "from it": 9.0}, 25)
    ),
    rules.allocator_calls.AllocatorCalls(1, ["hipMalloc"], 3 * MS, [], "starting"),
    *(
        rules.allocator_calls.AllocatorCalls(12, ["cudaFree", "cudaMalloc"], 3 * MS, ["aten::empty"], why)
        for why in rules.allocator_calls._ADVICE
    ),
    rules.allocator_calls.AllocatorCalls(
        12, ["hipFree", "hipMalloc"], 3 * MS, ["aten::add"], "not_kept", ("hipFree", MS)
    ),
    *(
        rules.long_calls.LongCalls(0.5, [(name, 9 * MS)], every, LINES)
        for name in ("cudaFree", "cudaGraphLaunch")
        for every in (False, True)
    ),
    *(
        rules.long_calls.LongCalls(2, [("AscendCL@aclopCompileAndExecute", 9 * MS)], every, [])
        for every in (False, True)
    ),
    rules.long_calls.LongCalls(2, [("AscendCL@aclopCompileAndExecute", 9 * MS), ("AscendCL@aclnnAdd", MS)], True, []),
    *(
        rules.launch_bound.LaunchBound(
            5 * MS,
            512,
            40,
            launcher,
            [("in operators", 3 * MS)],
            [("aten::mul", MS)],
            long * MS // 2,
            long * MS,
            4_000,
            900_000 if long else 9_000,
            stacks,
            stacks,
            engine,
        )
        for launcher in get_args(rules.launch_bound.Launcher)
        for stacks, long, engine in ((False, 0, None), (True, 2, None), (True, 3, None), (False, 0, "vLLM"))
    ),
    *(
        rules.launch_bound.LaunchBound(
            *(5 * MS, 512, 40, "calls"),
            *([("outside operators (Python, or not recorded)", 3 * MS), ("in operators", MS)], [("aten::mul", MS)]),
            *(0, 0, 4_000, 9_000, False, False, engine, 888, 2 * MS, 57_000, 2, ["aten::item"]),
        )
        for engine in ("vLLM", "SGLang", None)
    ),
    *(
        replace(COMMUNICATION, **more)
        for more in (
            {"slow_gbps": 2.6},
            {"wait_ns": MS, "is_whole": False},
            {"beyond_fastest_ratio": None, "gain_ns": 5 * MS, "computing_ns": MS},
            {"wait_ns": 9 * MS, "gain_ns": 5 * MS, "computing_ns": MS},
        )
    ),
    *(rules.host_gaps.HostGaps(2 * MS, MS, ["", "aten::nonzero"], why) for why in get_args(rules.host_gaps.Why)),
    rules.host_gaps.HostGaps(9 * MS, MS, ["read"], "unknown", ["read (80 %)"], 3 * MS),
    *(
        rules.step_gaps.StepGaps(engine, MS, MS, parts, bool(parts))
        for engine in ("vLLM", "")
        for parts in ([], [("scheduling", 0.9)], [("waiting for requests", 0.9)])
    ),
    rules.eager_decodes.EagerDecodes("SGLang", 3, 30, 9 * MS, 6 * MS, 40, 32),
    rules.eager_decodes.EagerDecodes("TensorRT-LLM", 3, 30, 9 * MS, 6 * MS, 30, 32),
    rules.graph_padding.GraphPadding("ATOM", 0.3, 40, 65, 128),
    rules.rejected_drafts.RejectedDrafts("SGLang", 0.12, 3.0, 1.36, 40),
    rules.prefill_stalls.PrefillStalls("vLLM", 4, 40, 60 * MS, 6 * MS, 0.3, 8192),
    rules.prefill_stalls.PrefillStalls("SGLang", 4, 40, 60 * MS, 6 * MS, 0.2, None),
    rules.starved_host.StarvedHost(4.5, 40 * MS, 28 * MS, ["aten::view", "cudaLaunchKernel", ""]),
    rules.layout_conversions.LayoutConversions(44, 3 * MS),
    rules.garbage_collection.Collections(2, 30 * MS, LINES),
    rules.recompilation.Compilations(30 * MS, ["backend_compile"]),
    rules.graph_capture.Captures(1, 8 * MS, True, False),
    rules.graph_capture.Captures(1, 8 * MS, False, False),
    rules.graph_capture.Captures(1, 8 * MS, False, False, 5 * MS),
    *(
        rules.graph_capture.Captures(
            0.6, 8 * MS, True, False, 5 * MS, True, same, "Torch-Compiled Region", ((3, 9 * MS), (2, MS)), same
        )
        for same in (False, True)
    ),
    rules.graph_capture.Captures(1, 8 * MS, False, True, 5 * MS),
    COMMUNICATION,
    replace(COMMUNICATION, beyond_fastest_ratio=0.95),
    *(replace(COMMUNICATION, kind=kind) for kind in ("AllReduce", "AllToAll")),
    replace(
        COMMUNICATION,
        engine="vLLM",
        decode_ratio=0.2,
        decode_requests=32,
        trains=False,
        wait_ns=9 * MS,
        beyond_fastest_ratio=None,
    ),
    rules.small_collectives.SmallCollectives(30, ["AllReduce"], 4096, 8_000),
    rules.small_collectives.SmallCollectives(30, ["AllReduce"], None, 8_000, by_host=True),
    rules.exposed_copies.CopiesWithin(768, 4.6e9, 15 * MS, ["aten::cat", "aten::clone"], LINES),
    rules.exposed_copies.CopiesWithin(768, 4.6e9, 15 * MS, [], [], "gradient_as_bucket_view=True"),
    rules.late_gathers.LateGathers(14, 3 * MS),
    rules.pipeline_bubble.PipelineBubble(9 * MS),
    rules.pipeline_bubble.PipelineBubble(9 * MS, 2 * MS),
    rules.straggling_rank.StragglingRank(9 * MS, "rank 1", 0.87, LATE),
    rules.straggling_rank.StragglingRank(9 * MS, "rank 3", 0.87, LATE),
    rules.straggling_rank.StragglingRank(9 * MS, "", 0.3),
    rules.straggling_rank.StragglingRank(9 * MS, is_told=False),
    rules.straggling_rank.StragglingRank(9 * MS, "rank 1", 0.67, hosts_alike=True),
    rules.straggling_rank.StragglingRank(MS, late=OWN),
    rules.straggling_rank.StragglingRank(
        9 * MS, "rank 1", 0.87, replace(LATE, reason=Reason("compute", more_work=0.2))
    ),
    rules.matrix_units.MatrixUnitsUse(9 * MS, 0, ["sgemm"], "tf32", 2.0, 8.0, TileFit(True, 0.9, 0.4)),
    rules.matrix_units.MatrixUnitsUse(9 * MS, 0, ["scudnn"], "tf32", 2.0, 8.0, TileFit(False), is_chosen=True),
    rules.matrix_units.MatrixUnitsUse(9 * MS, 0, ["sgemm"], "bf16", 1.9, 1.9, TileFit(True, 1.0, 0.4, True, 0.3)),
    rules.matrix_units.MatrixUnitsUse(9 * MS, 8 * MS, ["sgemm"], "fp16", 2.0, 8.0, TileFit(False)),
    rules.matrix_units.MatrixUnitsUse(9 * MS, 8 * MS, ["sgemm"], "fp16", 2.0, 8.0, TileFit(False), True),
    rules.written_attention.WrittenAttention(8, [16, 1024, 1024], 3 * MS, 2 * MS, False),
    rules.written_attention.WrittenAttention(1, [16, 1024, 1024], 3 * MS, 2 * MS, True),
    *(rules.unaligned_shapes.UnalignedShapes(ns, ["aten::mm 4096x768 × 768x50257"]) for ns in (9 * MS, 0)),
    *(rules.elementwise_chains.Chains(12, 48, 3 * MS, *norms) for norms in ((), (4, 2 * MS))),
    rules.unfused_optimizer.Optimizer(["Optimizer.step#AdamW.step"], 900),
    rules.unfused_optimizer.Optimizer(["Optimizer.step#AdamW.step"], 900, 9 * MS),
    rules.wide_norms.WideNorms(3 * MS),
    rules.graph_breaks.GraphBreaks(2, ["model.py:4: Failed to trace builtin operator"]),
    rules.low_roofline.LowRoofline(0.31, ["aten::mm 4096x512 × 512x4096"], ["gemm"]),
    rules.low_roofline.LowRoofline(0.31, ["aten::conv2d", "ours::attend"], ["convolution", "attention"]),
    rules.small_grids.SmallGrids(12 * MS, 0.12, "splitKreduce_kernel"),
    *(rules.slow_start.SlowStart(90 * MS, times) for times in (2.1, 1.2)),
    rules.step_outliers.StepOutliers([4], 90 * MS, 40 * MS, "waiting for the host", 0.8),
    rules.step_outliers.StepOutliers([4, 7], 90 * MS, 40 * MS, "", 0.0),
    rules.step_outliers.StepOutliers([4], 90 * MS, 40 * MS, "exposed communication", 0.8),
    *(
        rules.step_outliers.StepOutliers([4], 90 * MS, 40 * MS, "computation", 0.9, each)
        for each in ("names", "shapes")
    ),
    *(rules.clock_drop.ClockDrop(grown, grown < 0.1) for grown in (0.08, 0.12, -0.08)),
    *(rules.clock_drop.ClockDrop(0.08, True, 1980.0, last) for last in (1410.0, 1980.0)),
    rules.stream_contention.Contention(20, 5 * MS, 1.4, ["prepare"]),
    rules.disturbed_device.Disturbed(37, 14, 5, 25.3, "nvjet_tst", 9 * MS, 360_000, True),
    rules.disturbed_device.Disturbed(37, 14, 1, 25.3, "nvjet_tst", 9 * MS, 360_000, False),
    rules.memory_capacity.MemoryHeld(77 * 10**9, 80 * 10**9, 0.1, True),
    rules.memory_capacity.MemoryHeld(60 * 10**9, 80 * 10**9, 0.4, False),
    *(
        rules.network_setup.NetworkSetup(
            sorted(PROBLEMS, key=lambda each: each != problem),
            8,
            2,
            "Socket",
            "PHB",
            {"P2P": 6, "SHM": 2},
            1,
            ["n1:70 [0] socket.cc:12 Connection closed by remote peer"],
            ("0xb5" if len(ranks) == 1 else "", 4, [0, 1, 2], [3] if len(ranks) == 1 else []),
            ["n1:70 [0] net.cc:12 Connection is slow"],
            {"NCCL_IB_DISABLE": "1"},
            ranks,
            len(ranks) == 1,
            [("AllReduce", 4000), ("AllGather", 10**6)],
            "collective 57 of communicator 0xfe",
            (40, 8, 60.0, 240.0),
            (120, 8000, 16),
        )
        for problem in PROBLEMS
        for ranks in ([3], [0, 1])[: 1 + (problem == "differing")]
    ),
    *(
        rules.out_of_memory.OutOfMemory(
            " at 14:20:55 UTC on GPU 1",
            wanted,
            10**9,
            4 * 10**9,
            9 * 10**9,
            unused,
            9 * 10**8,
            private,
            "model.py:77 attention" if private or wanted > 10**10 else "",
            line,
            0.61 - lost,
            3,
            grew,
            others,
            lost,
        )
        for wanted, unused, private, line, grew, others, lost in (
            (2 * 10**9, 4 * 10**9, 0, "model.py:217 forward", 19 * 10**8, {}, 0.0),
            (2 * 10**9, 10**9, 0, "", None, {}, 0.0),
            (2 * 10**9, 10**9, 0, "model.py:217 forward", None, {"train.py:40 step": 0.2, "train.py:77 log": 0.1}, 0.0),
            (2 * 10**9, 10**9, 0, "model.py:217 forward", None, {}, 0.6),
            (2 * 10**9, 10**9, 4 * 10**9, "model.py:217 forward", None, {}, 0.0),
            (10**11, 10**9, 0, "model.py:217 forward", None, {}, 0.0),
        )
    ),
    rules.out_of_memory.NeverFreed(["train.py:40 step", "train.py:77 log"], [10**8, 10**6]),
]

#: what is said without a prediction
UNPREDICTED = (
    rules.partial_recording.PartialRecording,
    rules.profiler_overhead.ProfilerOverhead,
    rules.slow_start.SlowStart,
    rules.memory_capacity.MemoryHeld,
    rules.out_of_memory.OutOfMemory,
    rules.out_of_memory.NeverFreed,
    rules.unaligned_shapes.UnalignedShapes,
    rules.network_setup.NetworkSetup,
)


def findings() -> Iterator[str]:
    """Each finding in NVIDIA's words; for Ascend what to change, where it differs."""
    for seen in SAMPLES:
        words, ascend = (words_of(vendor, "step", 44 * MS) for vendor in ("nvidia", "ascend"))
        saved = None if isinstance(seen, UNPREDICTED) else 4 * MS
        finding = Finding("", "info", Found(seen, NOWHERE, "high", saved_ns=saved), None)
        yield f"[{type(seen).__name__}]"
        yield f"  {wording.title(words, finding)}."
        yield f"  → {seen.advice(words)}."
        if seen.advice(ascend) != seen.advice(words):
            yield f"  → Ascend: {seen.advice(ascend)}."
        yield from (f"  also: {line}" for line in seen.evidence(words))
        if not isinstance(seen, rules.partial_recording.PartialRecording):
            yield f"  fine: {seen.fine(words, MS)}"
        yield ""


def vocabulary() -> Iterator[str]:
    for vendor in VENDORS:
        yield f"[{vendor}]"
        yield from (
            f"  {name}: {value}" for name, value in words_of(vendor)._asdict().items() if isinstance(value, str)
        )


def jobs() -> Iterator[str]:
    for cause in get_args(Cause):
        reason = Reason(cause, kernels=(("gemm", 0.4),) if cause == "compute" else ())
        evidence = verdict_text.evidence(reason, {cause: 30 * MS, "unknown": 4 * MS}, 4)
        row = Row(1, "node2" if cause == "queued" else "", "dp", cause, 30 * MS, 6 * MS, "high", evidence)
        row = replace(row, figures={"then": "transfers fill most of that time anyway"})
        yield verdict_text.sentence(row, 169 * MS, 8, (42.0 * MS, 4))
        of_several = verdict_text.evidence(reason, {cause: 30 * MS}, 4, lasts=True, several=True)
        joint = replace(row, ranks=[1, 5], place="local rank 1 of all 2 nodes", evidence=of_several)
        yield verdict_text.sentence(joint, 169 * MS, 8, (42.0 * MS, 4))
    for several in (False, True):
        yield Reason("compute", more_work=0.12).text(several)
        yield Reason("compute", hot_experts=True).text(several)
    for cause in get_args(Cause)[:2]:
        balance = Row(None, "", "", "uneven", 30 * MS, 6 * MS, "high", verdict_text.uneven(cause, (0.12, 0.4, 0.32)))
        yield verdict_text.sentence(balance, 169 * MS, 8, (42.0 * MS, 4))
    for where in get_args(Where):
        yield Reason("host", where, "aten::item").text()
    yield verdict_text.sentence(replace(row, rank=None, gain_ns=None), 169 * MS, 2, (0.0, 0))
    yield verdict_text.evidence(Reason("host"), {"host": MS}, lasts=True, once=True)
    yield verdict_text.late_without_gain(2, 98 * MS, "host", 45 * MS, 0.007, 4)
    yield verdict_text.late_without_gain(None, 98 * MS, "host", 45 * MS, 0.0, 0)
    yield from (sentence for first in (1, 2) for sentence in verdict_text.left_out([11, 12, 13], first))
    yield verdict_text.uneven_stages([4, 5, 6, 7], 0.18)
    yield from verdict_text.own_steps((13.3 * MS, 1), np.array([13, 19]) * MS, np.array([7, 0]) * MS, 7)
    yield verdict_text.unrelated(3)
    yield nobody_late("rank 3")


def comparisons() -> Iterator[str]:
    interval = (MS, 3 * MS)
    row = FigureRow(
        "wall_ns", "ns", "lower", 40 * MS, 42 * MS, 2 * MS, 0.05, 9, *interval, *interval, True, 0.01,
        "regression", None, None,
    )  # fmt: skip
    yield comparison_verdict._of_step(row, "A step")
    yield comparison_verdict._of_step(replace(row, delta=0.0), "A step")
    for low in (MS, -MS):
        yield comparison_verdict._of_step(replace(row, verdict="within_noise", low=low), "A step")
    yield comparison_verdict._of_step(replace(row, verdict="unknown", step_count=1), "The recording")
    steps = [StepRow(0, 0, 2 * MS, 3 * MS, MS), StepRow(1, 1, 78 * MS, 81 * MS, 3 * MS)]
    yield comparison_verdict._of_step(replace(row, verdict="unknown"), "A step", steps)
    yield from comparison_verdict._of_computing(row, replace(row, delta=-2 * MS, change_ratio=-0.05))
    for kind, name in (("host_wait", "loop"), ("computation", "Compiled")):
        times = [(kind, None, [name], 0, 30 * MS), (kind, None, ["aten::mm"], 17 * MS, 2 * MS)]
        yield comparison_verdict.parts(times, {"loop": -3 * MS})[0].doubt


#: where else sentences are made: as they stand in the source
SOURCES = (
    "diagnosis/verdict.py",
    "diagnosis/host_alone.py",
    "diagnosis/late_ranks.py",
    "diagnosis/ranking.py",
    "diagnosis/rules/*.py",
    "job/verdict/job_verdict.py",
    "job/verdict/hangs.py",
    "job/verdict/verdict_text.py",
    "job/rank_answers.py",
    "job/answer.py",
    "job/verdict/slow_groups.py",
    "job/parallel/group_roles.py",
    "job/parallel/dimensions.py",
    "compare/diff_verdict.py",
    "compare/gate.py",
    "cli/check.py",
    "results/recordings.py",
    "cli/run_summary.py",
)
_DATA = re.compile(r"[a-z]{2,}.* .*[a-z]{2,}", re.DOTALL)


def template(node: ast.AST) -> str:
    """The text of a literal; of an f-string with its names in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = [
            template(part) if isinstance(part, ast.Constant) else _placeholder(part.value)  # type: ignore[attr-defined]
            for part in node.values
        ]
        return "".join(parts)
    return ""


def _placeholder(value: ast.AST) -> str:
    """``{words.gpu}``; ``{…}`` for what is no name, as versions of Python print that differently."""
    return f"{{{ast.unparse(value)}}}" if isinstance(value, (ast.Name, ast.Attribute)) else "{…}"


def literals(tree: ast.AST) -> Iterator[str]:
    """Texts in source order, without docstrings and parts of f-strings."""
    for child in ast.iter_child_nodes(tree):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, (ast.Constant, ast.JoinedStr)):
            yield template(child)
        elif not is_docstring and not isinstance(child, (ast.arg, ast.AnnAssign)):
            yield from literals(child)
        elif isinstance(child, ast.AnnAssign) and child.value is not None:
            yield from literals(ast.Tuple([child.value]))


def templates() -> Iterator[str]:
    for pattern in SOURCES:
        for path in sorted((ROOT / "augment").glob(pattern)):
            texts = [text for text in literals(ast.parse(path.read_text())) if _DATA.search(text)]
            if texts:
                yield f"[{path.relative_to(ROOT / 'augment').as_posix()}]"
                yield from (f"  {' '.join(text.split())}" for text in dict.fromkeys(texts))


def errors() -> Iterator[str]:
    """What errors of ours say, by file."""
    for path in sorted((ROOT / "augment").rglob("*.py")):
        raised = [node.exc for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        calls = [each for each in raised if isinstance(each, ast.Call)]
        named = [(ast.unparse(each.func), text) for each in calls for text in literals(each) if _DATA.search(text)]
        if lines := [f"  {name}: {' '.join(text.split())}" for name, text in named]:
            yield f"[{path.relative_to(ROOT / 'augment').as_posix()}]"
            yield from dict.fromkeys(lines)


def snapshot() -> str:
    parts = {
        "What rules find": findings(),
        "Words of vendors": vocabulary(),
        "Verdicts of jobs": jobs(),
        "Verdicts of comparisons": comparisons(),
        "Other sentences, as they stand in the source": templates(),
        "Errors, as they stand in the source": errors(),
    }
    return "\n\n".join(f"# {title}\n\n" + "\n".join(lines).rstrip() for title, lines in parts.items()) + "\n"


def test_every_sentence_is_in_the_snapshot(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update"):
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    assert SNAPSHOT.read_text(encoding="utf-8") == snapshot(), (
        "read the changes, then: pytest tests/house/test_sentences.py --update"
    )


def test_every_rule_has_a_sample() -> None:
    values = [value for rule in rules.RULES for value in vars(rule).values()]
    kinds = {kind for kind in values if isinstance(kind, type) and issubclass(kind, Seen)}
    missing = kinds - {Seen} - {type(seen) for seen in SAMPLES}
    assert not missing, f"add a sample to SAMPLES in {Path(__file__).name}: {[kind.__name__ for kind in missing]}"


def test_samples_say_every_sentence_of_a_rule() -> None:
    """Else nobody reads what a finding looks like in a case that has words of its own."""
    said = "\n".join(findings())
    unsaid = []
    for path in sorted((ROOT / "augment" / "diagnosis" / "rules").glob("*.py")):
        kinds = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        pieces = [piece.strip() for kind in kinds for text in literals(kind) for piece in re.split(r"{[^}]*}", text)]
        pieces = [piece for piece in pieces if " " in piece and piece not in said]
        unsaid += [
            f"{path.stem}: {piece}" for piece in pieces if capitalized(piece) not in said
        ]  # cures begin sentences
    assert not unsaid, f"add samples that say these to SAMPLES in {Path(__file__).name}: {unsaid}"


def test_a_sentence_begins_with_a_capital_and_has_no_full_stop() -> None:
    words = words_of("nvidia", "step", 44 * MS)
    for seen in SAMPLES:
        title = seen.title(words)
        assert title[0].isupper() or title[0].isdecimal(), title
        assert not title.endswith(".")
        assert not seen.advice(words).endswith(".")


def test_numbers_are_short_and_an_interval_has_one_unit() -> None:
    """``4.0 ms``, not ``4.013 ms``; ``-1 to +3 ms``, not ``900 µs to 3 ms``."""
    said, unit = [*findings(), *jobs(), *comparisons()], r"(?:ns|µs|ms|s|%|kB|MB|GB)\b"
    assert len(said) > 300
    for line in said:
        assert "{" not in line, f"a placeholder: {line}"
        assert not re.search(rf"\d {unit} (?:to|…|and up to) [+-]?\d", line), line
        for number in re.findall(rf"([\d.,]+) {unit}", line):
            assert len(re.sub(r"\D", "", number).lstrip("0")) <= 3, line


#: names that hold sentences, and what would make a condition or a new text of one
_TEXTS = {"title", "titles", "advice", "sentence", "sentences", "evidence", "headline"}
_LOOKS = {"startswith", "endswith", "partition", "rpartition", "split", "replace", "find", "sub"}
_LOOKS |= {"removeprefix", "removesuffix"}


def conditions(tree: ast.AST) -> Iterator[ast.AST]:
    """Where a sentence is compared, searched, split or rewritten."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            for side in (node.left, *node.comparators):
                in_data = isinstance(node.ops[0], (ast.In, ast.NotIn)) and side is node.comparators[0]
                text = template(side)
                if (_name(side) in _TEXTS and not in_data) or (len(text.split()) > 2 and _DATA.search(text)):
                    yield node
            if _name(node.comparators[0]) in _TEXTS and not template(node.left):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKS:
            if _name(node.func.value) in _TEXTS or any(len(template(each).split()) > 2 for each in node.args):
                yield node


def _name(node: ast.AST) -> str:
    """The last name in ``a.b.title[0]``; the key in ``row["title"]``."""
    while isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


#: texts of other programs, which have nothing else to tell one failure from another
_OF_OTHERS = ("Concurrent RPC limit", "Trace processor failed to start", "## backward ##")


def test_no_text_decides_anything() -> None:
    texts = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in sorted((ROOT / "augment").rglob("*.py"))
        for node in conditions(ast.parse(path.read_text()))
    ]
    assert [text for text in texts if not any(known in text for known in _OF_OTHERS)] == []


def test_conditions_on_texts_are_seen() -> None:
    texts = (
        'title.endswith(") shorter")',
        "row['title'] not in verdict",
        "'share no collectives' in job.verdict[0]",
        "group.description == 'inferred: its ranks end together'",
        "evidence.partition(';')",
        "text.replace('CUDA graphs (or torch.cuda.graph)', other)",
    )
    assert [text for text in texts if not any(conditions(ast.parse(text)))] == []


def test_each_rule_has_a_heading_in_words() -> None:
    names = {rule.NAME for rule in rules.RULES}
    assert set(HEADINGS) <= names
    assert all(len(heading(name)) <= 40 and "_" not in heading(name) for name in names)
    assert heading("of_another_version") == "Of another version"
