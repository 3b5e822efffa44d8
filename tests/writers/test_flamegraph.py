"""Time by call stack: what Perfetto's engine sums up is what the tables say, and samples are what its schema wants."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import InternedData, TracePacket
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Packets

from augment import Trace, augment, read
from augment.writers import write_all
from augment.writers.perfetto.flames import time_by_stack
from metamorphic import real_trace
from perfetto_engine import PerfettoEngine
from tables import call, fwdbwd, kernel, launched_kernel, op, python, trace_of
from traces import by_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated" / "job" / "rank0.pt.trace.json.gz"
EVIDENCE = Path(__file__).resolve().parents[3] / "shared" / "evidence" / "kineto"
TRACES = (
    EXAMPLE,
    "h100_8rank_modded_nanogpt/rank1.json.gz",  # streams overlap, collectives are exposed
    EVIDENCE / "h100_transformer_dc3b.pt.trace.json.gz",  # with_stack
    "hta_triton/triton_example.json.gz",
    "ascend_trace_view/trace_view.json.gz",  # operators on another thread
)
LEAVES = """
    with inner as (select parent_id from slice where parent_id is not null)
    select track.name, sum(iif(slice.id in inner, 0, dur)),
        sum(iif(slice.id in inner, dur - (select sum(dur) from slice c where c.parent_id = slice.id), 0))
    from slice join track on track.id = track_id where slice.category = 'augment.flamegraph' group by 1
"""


def tables(trace: Trace) -> Counter[str]:
    """The figures of the tables, over all devices."""
    rows = {name: getattr(each, "rows", ()) for name, each in augment(trace).outcomes.items()}
    sums: Counter[str] = Counter()
    for row in rows["kernel_breakdown"]:
        sums["GPU time"] += row.sum_ns
    for row in rows["temporal_breakdown"]:
        sums["Idle time"] += row.idle_ns
    for row in rows["communication_computation_overlap"]:
        sums["Exposed communication"] += row.communication_ns - row.overlap_ns
    return +sums


def written(trace: Trace, folder: Path, name: str = "flamegraph") -> Path:
    return next(path for path in write_all(augment(trace), folder, [name]) if path.suffix == ".pftrace")


def packets(path: Path) -> list[TracePacket]:
    content = Packets.FromString(path.read_bytes())
    return [
        inner
        for packet in content.packet
        for inner in (
            Packets.FromString(zlib.decompress(packet.compressed_packets)).packet
            if packet.compressed_packets
            else [packet]
        )
    ]


@pytest.mark.parametrize("name", TRACES, ids=by_folder)
def test_flame_graphs_sum_up_to_the_tables(perfetto: PerfettoEngine, name: str | Path, tmp_path: Path) -> None:
    trace = read(str(real_trace(name)))
    path = written(trace, tmp_path)
    assert path.name.endswith(".augmented.flame.pftrace")
    perfetto.load_clean(path)
    shown: Counter[str] = Counter()
    for track, leaves, others in perfetto.rows(LEAVES):
        assert others == 0, "time of its own is in the innermost frame"
        shown[str(track).partition(" by stack")[0]] += int(str(leaves))
    assert shown == tables(trace)
    sampled: Counter[str] = Counter()
    sources = {"gpu.time": "GPU time", "gpu.idle": "Idle time", "gpu.exposed_communication": "Exposed communication"}
    source: dict[int, str] = {}
    for packet in packets(path):
        if packet.trace_packet_defaults.HasField("stack_sample_defaults"):
            defaults = packet.trace_packet_defaults.stack_sample_defaults
            source[packet.trusted_packet_sequence_id] = sources[defaults.source]
            assert (defaults.primary_descriptor.name, defaults.primary_descriptor.unit) == ("ns", 1)
        if packet.HasField("stack_sample"):
            sampled[source[packet.trusted_packet_sequence_id]] += packet.stack_sample.primary_weight
    assert sampled == shown


def test_what_lies_in_a_module_is_its_gpu_time() -> None:
    """A checker of its own: every piece of work by the modules in its stack, against the table of modules."""
    trace = read(str(real_trace(TRACES[2])))
    tree, times = time_by_stack(trace)
    table = {row.module: row.gpu_ns for row in augment(trace).outcomes["gpu_time_by_module"].rows if row.module}  # type: ignore[union-attr]
    names = {part for module in table for part in module.split("/")}
    sums: Counter[str] = Counter()
    for each in times:
        for node, ns in zip(each.node.tolist(), each.dur.tolist(), strict=True):
            path = [frame for frame in tree.frames(node) if frame in names]
            for end in range(len(path) * (each.kind == "GPU time")):
                sums["/".join(path[: end + 1])] += ns
    assert len(table) > 5
    assert sums == table


def test_backward_lies_in_the_module_of_its_forward_operator() -> None:
    trace = trace_of(
        python("train.py(5): main", 0, 190),
        python("nn.Module: Linear_0", 10, 100),
        python("torch/nn/modules/linear.py(9): forward", 11, 99),
        python("<built-in method linear>", 12, 98),
        op("aten::linear", 20, 40),
        fwdbwd("s", 1, 20),
        *launched_kernel("forward", (25, 30), (30, 40), correlation=1),
        op("autograd::engine::evaluate_function: Mm", 120, 180, thread=2),
        fwdbwd("f", 1, 120, thread=2),
        op("aten::mm", 130, 170, thread=2),
        call("cudaLaunchKernel", 140, 150, thread=2, correlation=2),
        kernel("backward", 150, 170, correlation=2),
    )
    tree, times = time_by_stack(trace)
    known = {
        each.kind: [(tree.frames(node), ns) for node, ns in zip(each.node, each.dur, strict=True)] for each in times
    }
    above = ["main (train.py:5)", "Linear_0"]
    behind = [*above, "autograd::engine::evaluate_function: Mm", "aten::mm"]
    assert known == {
        "GPU time": [([*above, "aten::linear", "forward"], 10), ([*behind, "backward"], 20)],
        "Idle time": [(["host_wait", *behind], 110)],
    }


def test_kernels_without_a_host_lie_at_the_root() -> None:
    tree, times = time_by_stack(trace_of(kernel("a", 0, 10), kernel("b", 15, 20), kernel("b", 16, 17, stream=8)))
    shown = [
        (each.kind, [(tree.frames(node), ns) for node, ns in zip(each.node, each.dur, strict=True)]) for each in times
    ]
    assert shown == [("GPU time", [(["a"], 10), (["b"], 5), (["b"], 1)]), ("Idle time", [(["other", "b"], 5)])]


def test_the_engine_knows_the_frames_of_samples(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """Stack samples share their interned stacks with those of Linux's perf, which older engines read."""
    trace = read(str(real_trace(EXAMPLE)))
    tree, times = time_by_stack(trace)
    out = Packets()
    for packet in packets(written(trace, tmp_path)):
        if packet.HasField("stack_sample"):
            sample = packet.stack_sample
            packet.perf_sample.callstack_iid = sample.callstack_iid
            packet.perf_sample.pid, packet.perf_sample.tid, packet.perf_sample.cpu = 4242, 4242, 0
            packet.ClearField("stack_sample")
        elif not packet.trace_packet_defaults.HasField("stack_sample_defaults"):
            continue
        out.packet.append(packet)
    path = tmp_path / "as_perf.pftrace"
    path.write_bytes(out.SerializeToString())
    perfetto.load(path)
    rows = perfetto.rows("""
        with recursive up(ts, id, depth, text) as (
            select s.ts, c.parent_id, c.depth, f.name from perf_sample s
            join stack_profile_callsite c on c.id = s.callsite_id join stack_profile_frame f on f.id = c.frame_id
            union all
            select ts, c.parent_id, c.depth, f.name || ';' || text from up
            join stack_profile_callsite c on c.id = up.id join stack_profile_frame f on f.id = c.frame_id
        ) select ts, text from up where id is null
    """)
    known = Counter(
        (ts, ";".join(tree.frames(node)))
        for each in times
        for ts, node in zip(each.ts.tolist(), each.node.tolist(), strict=True)
    )
    assert Counter((int(str(ts)), str(text)) for ts, text in rows) == known


def test_samples_name_their_process(tmp_path: Path) -> None:
    trace = read(str(EXAMPLE))
    tasks = [
        (task.iid, task.pid)
        for packet in packets(written(trace, tmp_path))
        for task in packet.interned_data.stack_sample_task_contexts
    ]
    pids = {track.pid for track in trace.tracks if track.device is None}
    assert tasks
    assert {pid for _, pid in tasks} <= pids
    assert InternedData.DESCRIPTOR.fields_by_name["callstacks"].number == 7


def test_stacks_are_not_read_as_events(tmp_path: Path) -> None:
    trace = read(str(EXAMPLE))
    plain, with_stacks = (read(str(written(trace, tmp_path / name, name))) for name in ("perfetto", "flamegraph"))
    assert len(plain.events) == len(with_stacks.events) == len(trace.events)
    assert tables(plain) == tables(with_stacks)
