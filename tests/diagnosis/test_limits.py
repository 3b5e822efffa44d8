"""What limits a saving, and what comes after the first cures: each beside a simulation of the run without the fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from simulated_jobs import HEALTHY, changed, diagnosis_of, trace_of

from augment import Trace, read
from augment.analyses import step_efficiency
from augment.core.text import percent
from augment.diagnosis.judging import decided_in_steps, measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.verdict import busy, verdict
from augment.facts.critical.critical_graph import critical_graph
from augment.facts.critical.what_if import Cut, decided, saved_ns
from augment.facts.operators.step_time_parts import SAID
from tables import Event, annotation, call, kernel, launched_kernel, op, shaped
from tables import trace_of as made_of

US, MS = 1_000, 1_000_000
SLOW_LOADER = changed(host_stall_us=20_000.0)
LAUNCHING = changed(host_stall_us=5_000.0, run_ahead=None)


def whole(trace: Trace) -> tuple[int, int]:
    """When the recording begins and ends, ns."""
    ts = critical_graph(trace).ts
    return int(ts[0]), int(ts[-1])


@pytest.mark.parametrize("options", [HEALTHY, SLOW_LOADER, LAUNCHING])
def test_what_decides_is_as_long_as_the_recording_without_what_was_cut(options: object) -> None:
    trace = trace_of(options)  # type: ignore[arg-type]
    begin, end = whole(trace)
    left, then = decided(trace, Cut.nothing(), begin, end)
    assert left.ns == then.ns == end - begin
    cuts = [each.found.cut for each in diagnose(trace).findings if each.found.cut is not None]
    assert cuts
    for cut in cuts:
        left, then = decided(trace, cut, begin, end)
        assert then.ns == end - begin - saved_ns(trace, cut)
        assert left.ns <= end - begin


def test_a_saving_says_what_is_the_limit() -> None:
    """A loader takes 20 ms beside kernels of 13 ms: without it a step takes these 13 ms, as a simulation shows."""
    (finding,) = (each for each in diagnosis_of(SLOW_LOADER).findings if each.rule == "data_loading")
    assert finding.limit == "computing"
    assert "); then computing is the limit." in verdict(trace_of(SLOW_LOADER))[1]
    assert "95 % computing" in busy(trace_of(HEALTHY))


def test_a_saving_that_loses_nothing_has_no_limit() -> None:
    assert all(each.limit is None for each in diagnosis_of(LAUNCHING).findings if each.is_grave)


def test_what_decides_after_the_cures() -> None:
    """Truth: the healthy run computes for 95 % of a step."""
    said = verdict(trace_of(LAUNCHING))[-2]  # before what is merely possible
    share = "96 % of what remains of a step; 89 % of their time today is compute-bound"
    assert said == f"After that, the limit is the GPU's kernels: {share}."
    faster = " ".join(verdict(trace_of(changed(host_stall_us=5_000.0, run_ahead=None, work=0.2))))
    assert "the limit is the GPU's kernels: 82 % of what remains of a step (11 % communication); 89 %" in faster


@pytest.mark.parametrize(("name", "place", "ends"), [
    (
        "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_B300_TP0.trace.json.gz",
        2,
        "Removing that idle time would save up to 1.1 ms per step (15 %).",  # nothing is certain, and nothing after it
    ),
    ("torchbench/trace.json", -1, "Removing them would save up to 31 ms per step (99.5 %)."),  # the rest is no news
    ("dlrm_8rank_v100_param/kineto/worker0_step_12.pt.trace.json.gz", 2, "would save up to 1.9 ms per step (13 %)."),
    ("mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz", 1, "host is the limit, which kernels hide today."),
    ("a100_sam_fast/amg_example_trace.json.gz", -1, "74 % of their time today is memory-bound."),
    ("hta_trace_diff_pair/test.json.gz", -1, "; then the host is the limit, which kernels hide today."),
    ("hta_trace_diff_pair/control.json.gz", 3, "more than their sum: once one is fixed, the others save more."),
])  # fmt: skip
def test_what_decides_after_the_cures_of_recorded_runs(name: str, place: int, ends: str, shared_traces: Path) -> None:
    assert verdict(read(str(shared_traces / name)))[place].endswith(ends)


def test_where_nothing_is_found_the_largest_loss_is_that_of_the_table(shared_traces: Path) -> None:
    trace = read(str(shared_traces / "h100_8rank_modded_nanogpt" / "rank7.json.gz"))
    table = step_efficiency.analyze(trace)
    rows = [row for row in table.rows if row.step in measure(trace).windows.number]
    wall = sum(row.wall_ns for row in rows)
    spent = {said: sum(getattr(row, f"{part}_ns") for row in rows for part in parts) for said, parts in SAID.items()}
    most, mfu = max(spent, key=spent.__getitem__), sum(row.mfu_ratio * row.wall_ns for row in rows) / wall
    lost = f"{most}, {percent(spent[most] / wall)} of a step"
    assert verdict(trace)[-1].endswith(f" MFU is {percent(mfu)}; the largest loss: {lost}.")


def checkpointing(node: str, recomputed: int) -> Trace:
    """Steps with a forward of 4 ms, and a node of the backward with one of ``recomputed`` ns, then 8 ms of its own."""
    events, free = list[Event](), 0
    for number in range(9):
        at = number * MS
        events.append(annotation(f"ProfilerStep#{number}", at, at + MS))
        events.append(op(f"autograd::engine::evaluate_function: {node}", at + 200_000, at + 900_000))
        for place, dur in enumerate((4 * MS, recomputed, 8 * MS)):
            launch, start = at + 20_000 + 250_000 * place, max(at + 30_000 + 250_000 * place, free)
            name = "aten::mm" if place < 2 else node
            sizes = shaped([4096, 4096], [4096, 4096])
            events += [op(name, launch - 10_000, launch + 20_000, args=sizes)] if dur else []
            more = {"correlation": 1 + 3 * number + place}
            events += launched_kernel("gemm", (launch, launch + 5_000), (start, start + dur), **more) if dur else ()
            free = start + dur
    return made_of(*events)


def test_what_checkpoints_cost_is_said() -> None:
    """Metamorphic: in a node of another name it is no recomputation. Truth: the steps without it."""
    before, after = (checkpointing("CheckpointFunctionBackward", ns) for ns in (4 * MS, 0))
    assert 1 - measure(after).length_ns / measure(before).length_ns == pytest.approx(0.25, abs=0.01)
    assert "recomputing activations takes at least 25 % of a step" in verdict(before)[0]
    assert "recomputing" not in verdict(after)[0]
    assert "recomputing" not in verdict(checkpointing("AddmmBackward0", 4 * MS))[0]


def test_what_checkpoints_cost_in_a_recorded_run(shared_traces: Path) -> None:
    """By the JSON alone, work that is launched in frames of ``checkpoint.py`` as hooks unpack takes 1.40 ms of 18.8."""
    trace = read(str(shared_traces / "mi300_tracelens" / "resnet_act_checkpoint_rank0of8.json.gz"))
    assert "recomputing activations takes at least 7.3 % of a step" in verdict(trace)[0]


def alternating() -> Trace:
    """Steps in which the host fetches a batch for 4 ms, then launches a kernel of 6 ms, and waits for it."""
    events: list[Event] = []
    for number in range(4):
        at = number * 11 * MS
        start, end = at + 4 * MS + 20_000, at + 10 * MS
        events += [
            annotation(f"ProfilerStep#{number}", at, at + 10 * MS + 10_000),
            op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 4 * MS),
            op("aten::mm", at + 4 * MS, at + 4 * MS + 15_000),
            *launched_kernel("gemm", (start - 15_000, start - 10_000), (start, end), correlation=number + 1),
            call("cudaDeviceSynchronize", at + 4 * MS + 20_000, end + 5_000, correlation=100 + number),
        ]
    return made_of(*events)


def test_time_on_the_path_is_told_by_what_it_is() -> None:
    trace = alternating()
    left, _ = decided_in_steps(trace, Cut.nothing())
    assert left.computing == pytest.approx(4 * 6 * MS, rel=0.01)
    assert left.host == pytest.approx(4 * 5 * MS, rel=0.05)
    assert left.communication == left.copies == 0


def test_the_next_finding_says_what_it_saves_then(shared_traces: Path) -> None:
    """A host that loads and launches hides that products without tensor cores take 63 % of the device's time."""
    path = shared_traces / "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz"
    state, *_, together, following = verdict(read(str(path)))
    assert "a mean step of 155 ms" in state, "augment diff leaves the first out, and has 151.5 ms"
    assert state.endswith(" (6 steps, including the first, which takes 13 % longer).")
    assert together == "Fixing all of the above would save 52 ms per step (33 %)."  # 35 and 16 ms alone
    assert following.startswith("Next: FP32 convolutions run without tensor cores for 62 ms per step. Once")
    assert following.endswith("twice as fast would save up to 31 ms per step (20 %).")


def run_ahead(host_us: int, communication_us: int, steps: range) -> tuple[list[Event], int]:
    """Those ``steps`` of a run whose host never waits, 8 ms of products and an all-reduce after them in each, recorded
    from the first on; and how long the devices take for the last of them, us."""
    events, free, ends = [], 0, list[int]()
    for step in range(steps.stop):
        begin = step * host_us
        launches = (
            (begin + 1_000, 8_000, "gemm"),
            (begin + host_us - 1_000, communication_us, "ncclKernel_AllReduce_RING"),
        )
        for number, (launched, length, name) in enumerate(launches):
            start = max(free, launched + 10)
            free = start + length
            if step in steps:
                correlation = 2 * step + number + 1
                events.append(call("cudaLaunchKernel", launched * US, (launched + 5) * US, correlation=correlation))
                events.append(kernel(name, start * US, free * US, correlation=correlation))
        ends.append(free)
        if step in steps:
            events.append(annotation(f"ProfilerStep#{step}", begin * US, (begin + host_us - 20) * US))
    return events, ends[-1] - ends[-2]


@pytest.mark.parametrize("host_us", [4_000, 9_000, 16_000, 18_500])
def test_a_host_that_is_ahead_for_a_while_limits_a_saving(host_us: int) -> None:
    """Truth: the same run a thousand steps later without communication."""
    recorded, before = run_ahead(host_us, 11_000, range(10, 14))
    _, after = run_ahead(host_us, 0, range(1000, 1001))
    (answer,) = [each for each in diagnose(made_of(*recorded)).findings if each.rule == "exposed_communication"]
    assert answer.found.saved_ns / US == pytest.approx(before - after, abs=300)
    assert (answer.limit == "host") == answer.is_hidden == (host_us > 10_000)


@pytest.mark.parametrize("beside", [250, 378])
def test_together_no_more_communication_is_hidden_than_is_exposed(beside: int) -> None:
    """A collective has computation beside most of it, and the host waits for each step."""
    events: list[Event] = []
    for at in range(0, 6_000, 1_000):
        spans = [("gemm", 0, 300, 7), ("ncclAllReduce", 300, 700, 7), ("mul", 300, 300 + beside, 30)]
        for number, (name, start, end, stream) in enumerate([*spans, ("gemm", 700, 850, 7)]):
            called, ran = (at + 90 + 10 * number, at + 95 + 10 * number), (at + 130 + start, at + 130 + end)
            events += launched_kernel(name, called, ran, stream=stream, correlation=at + number + 1)
        events += [call("cudaDeviceSynchronize", at + 130, at + 983, correlation=at + 9)]
        events += [annotation(f"ProfilerStep#{at}", at, at + 990)]
    said = verdict(made_of(*(replace(each, ts=each.ts * US, end=each.end * US) for each in events)))
    assert any("overlap" in each for each in said)
    assert not any("more than their sum" in each or each.startswith("Next: ") for each in said)
