"""Which gathers are of parameters, and which collectives carry activations: by hand, simulated, changed, and in real
traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import truth
from simulated_jobs import changed, trace_of
from test_rules_by_hand import problem_of

from augment import Trace, read
from augment.diagnosis import judging
from augment.diagnosis.rule import NotApplicable
from augment.diagnosis.rules import exposed_communication, late_gathers
from augment.facts.collectives.collective_kernels import (
    carries_activations,
    collectives,
    gathers_of_parameters,
    opens_pass,
    trains,
)
from augment.facts.gpu.gpu_work import gpu_work
from metamorphic import Document, load, real_trace, save
from said import advice_of, title_of
from simulator import simulate
from tables import Event, annotation, call, kernel, op
from tables import trace_of as table_of

GATHER, SCATTER, REDUCE = (
    f"ncclDevKernel_{kind}(ncclDevComm*)" for kind in ("AllGather", "ReduceScatter", "AllReduce")
)
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
US = 1_000


def job(*phases: tuple[str, str], more: Sequence[Event] = ()) -> Trace:
    """Collectives on a stream of their own, one after the other: the phase and the kernel of each. Each device waits
    for its collective, and computes meanwhile for half of the time. The backward pass has a thread of its own."""
    events = list[Event](more)
    names = {"backward": BACKWARD, "optimizer": "Optimizer.step#AdamW.step"}
    for place, (phase, name) in enumerate(phases):
        at, thread = 100 * US * (place + 1), 2 if phase == "backward" else 1
        around = op if phase == "backward" else annotation
        events.append(around(names.get(phase, phase), at - 20 * US, at - 2 * US, thread=thread))
        for stream, label, start, end, launch in ((9, name, 30, 70, 10), (7, "gemm", 0, 30, 5)):
            number = 2 * place + (stream == 9) + 1
            begin = at - launch * US
            events.append(call("cudaLaunchKernel", begin, begin + 2 * US, thread=thread, correlation=number))
            events.append(kernel(label, at + start * US, at + end * US, stream=stream, correlation=number))
    return table_of(*events)


SHARDED = [("forward", GATHER), ("backward", GATHER), ("backward", SCATTER)]


@pytest.mark.parametrize(("phases", "expected"), [
    (SHARDED, [True, True, False]),
    ([*SHARDED, ("forward", SCATTER)], [False] * 4),  # sequence parallelism
    ([*SHARDED, ("optimizer", GATHER)], [True, True, False, False]),
    ([("optimizer", GATHER), ("backward", SCATTER)], [False] * 2),  # a sharded optimizer
    ([("forward", GATHER), ("forward", GATHER)], [False] * 2),
    ([("FSDP::pre_forward (layers.3)", GATHER), ("request", GATHER)], [True, False]),
    ([("FullyShardedDataParallel._pre_forward", GATHER)], [True]),
    ([("request", GATHER), ("request", SCATTER)], [False] * 2),
])  # fmt: skip
def test_gathers_of_parameters(phases: list[tuple[str, str]], expected: list[bool]) -> None:
    trace = job(*phases)
    assert gathers_of_parameters(trace).tolist() == expected
    assert isinstance(late_gathers.check(trace), NotApplicable) == (not any(expected))


def test_a_late_gather_is_told_of_parameters_alone() -> None:
    """Metamorphic: of the same times, only those launched by FSDP could begin earlier."""
    phases = [(f"FSDP::pre_forward (layers.{layer})", GATHER) for layer in range(20)]
    assert "begin too late" in title_of(problem_of(late_gathers.check(job(*phases))))
    server = job(*(("execute_model", name) for _, name in phases))
    assert isinstance(late_gathers.check(server), NotApplicable)
    assert problem_of(exposed_communication.check(server)).saved_ns


def test_a_gather_after_the_optimizer_is_not_late() -> None:
    """Metamorphic: of the same times, parameters that the work before changed could not be gathered earlier."""
    late = {}
    for phase in ("Optimizer.step#AdamW.step", "loss"):
        events = list[Event]()
        for number in range(1, 9):
            at = 100 * US * number
            events.append(annotation(phase, at, at + 4 * US))
            events.append(annotation("FSDP::pre_forward (layers.0)", at + 5 * US, at + 9 * US))
            for place, (name, stream, start, end) in enumerate((("gemm", 7, 20, 60), (GATHER, 9, 60, 90))):
                begin, correlation = at + (5 * place + 1) * US, 2 * number + place
                events.append(call("cudaLaunchKernel", begin, begin + 2 * US, correlation=correlation))
                events.append(kernel(name, at + start * US, at + end * US, stream=stream, correlation=correlation))
        answer = late_gathers.check(table_of(*events))
        late[phase] = getattr(answer, "saved_ns", 0)
    assert late["loss"] > 0 == late["Optimizer.step#AdamW.step"]


def test_advice_of_buckets_and_units_is_for_training() -> None:
    for name, words in ((REDUCE, "bucket_cap_mb"), (GATHER, "forward_prefetch")):
        trained, served = job(*[("backward", name)] * 20), job(*[("execute_model", name)] * 20)
        assert trains(trained)
        assert not trains(served)
        assert words in advice_of(problem_of(exposed_communication.check(trained)))
        advice = advice_of(problem_of(exposed_communication.check(served)))
        assert "micro-batch" in advice
        assert words not in advice


def test_activations_cannot_be_joined() -> None:
    both = job(*[("forward", REDUCE), ("backward", REDUCE), ("backward", SCATTER)])
    assert carries_activations(both).tolist() == [True, True, False]
    assert carries_activations(job(*SHARDED)).tolist() == [False] * 3
    assert carries_activations(job(*[("execute_model", REDUCE)] * 3)).all()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_simulated_job_gathers_parameters_or_none(kind: str) -> None:
    trace = trace_of(changed(collectives=kind))
    kinds = np.array(collectives(trace).kind.values)[collectives(trace).kind.codes]
    assert trains(trace)
    assert not carries_activations(trace).any()
    # the first one, which no phase encloses, belongs to the group of the others
    assert gathers_of_parameters(trace).tolist() == (kinds == "AllGather").tolist()
    assert (kinds == "AllGather").any() == (kind == "fsdp")


def test_work_without_operators_gathers_no_known_parameters(tmp_path: Path) -> None:
    """Metamorphic: launches and kernels alone, as of a CUDA graph, do not tell what collectives are for."""
    document = load(simulate(changed(collectives="fsdp", ranks=1), tmp_path)[0][0])
    rows = [each for each in document["traceEvents"] if each.get("cat") in ("kernel", "cuda_runtime", "gpu_memcpy")]
    trace = read(str(save(document | {"traceEvents": rows}, tmp_path / "changed.json")))
    assert len(collectives(trace))
    assert not trains(trace)
    assert not gathers_of_parameters(trace).any()
    assert carries_activations(trace).all()
    assert isinstance(late_gathers.check(trace), NotApplicable)


def plainly(document: Document) -> dict[float, bool]:
    """By the time of each gather's kernel: whether it is of parameters, by plain loops over the events."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    launches = {
        each["args"].get("correlation"): each for each in rows if "cuda_" in str(each.get("cat")) and "args" in each
    }
    named = defaultdict(list)
    for each in rows:
        if each.get("cat") in ("cpu_op", "user_annotation"):
            named[each["pid"], each["tid"]].append(each)
    uses, of = defaultdict(set), {}
    for each in rows:
        if each.get("cat") != "kernel" or "nccl" not in each["name"].lower():
            continue
        launch = launches.get(each["args"].get("correlation"))
        around = [] if launch is None else [
            str(other["name"]) for other in named[launch["pid"], launch["tid"]]
            if other["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= other["ts"] + other["dur"]
        ]  # fmt: skip
        text = " ".join(around)
        phase = "optimizer" if "Optimizer." in text else "backward" if "autograd::engine" in text else "other"
        group = each["args"].get("Process Group Name")
        uses[group].add(("ReduceScatter" in each["name"] or "reduce_scatter" in text, phase))
        if "AllGather" in each["name"] or "all_gather" in text:
            of[each["ts"]] = (group, phase, "FSDP" in text)
    return {
        ts: by_name
        or (phase != "optimizer" and (True, "backward") in uses[group] and (True, "other") not in uses[group])
        for ts, (group, phase, by_name) in of.items()
    }


@pytest.mark.parametrize("name", [
    "h100_8rank_modded_nanogpt/rank0.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
    "hta_sampled_2_of_128/sampled_rank-0.json.gz",
    "b200_tracelens/b200_eager_rank0of8.json.gz",
])  # fmt: skip
def test_gathers_of_real_traces(name: str) -> None:
    path = real_trace(name)
    trace, expected = read(str(path)), plainly(load(path))
    kinds = np.array(collectives(trace).kind.values)[collectives(trace).kind.codes] == "AllGather"
    rows = gpu_work(trace).row[collectives(trace).place]
    assert kinds.sum() == len(expected) > 0
    assert gathers_of_parameters(trace)[kinds].tolist() == [expected[key] for key in sorted(expected)]
    assert len(rows) == len(kinds)


def test_the_first_gather_of_a_backward_pass_is_not_late() -> None:
    """Metamorphic: of the same times, the more passes, the fewer gathers that a unit before could have asked for."""
    counts = []
    for passes in (1, 2, 4):
        of_pass = [*[("forward", GATHER)] * (20 // passes), *[("backward", GATHER)] * (20 // passes)]
        answer = late_gathers.check(job(*of_pass * passes, ("backward", SCATTER)))
        counts.append(round(answer.seen.gather_count))
    assert counts == [40 - 1 - 1, 40 - 1 - 3, 40 - 1 - 7], "the first of all has nothing before it"


def test_a_step_opens_no_pass() -> None:
    """What its first gather waits for is the optimizer; that of a backward pass has nothing before it that asks."""
    phases = [("forward", GATHER), ("forward", GATHER), ("backward", GATHER), ("backward", GATHER)] * 2
    whole = job(*phases, ("backward", SCATTER))
    assert np.flatnonzero(opens_pass(whole)).tolist() == [2, 4, 6]
    spans = [(90 * US, 490 * US), (490 * US, 995 * US)]
    steps = [annotation(f"ProfilerStep#{number}", *span) for number, span in enumerate(spans)]
    assert np.flatnonzero(opens_pass(job(*phases, ("backward", SCATTER), more=steps))).tolist() == [2, 6]


@pytest.mark.parametrize("seed", [7301, 7302])
def test_prefetching_saves_what_a_simulation_with_it_saves(seed: int, tmp_path: Path) -> None:
    """By a simulator that shares no code, whose units gather the parameters of the next one, or only their own."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.drawn("fsdp", seed, {"reads_loss": True})
    worlds = [work.world(fault, None) for fault in ({"noprefetch": True}, {})]
    worlds[0].ranks[0].write(str(tmp_path / "rank0.json"))
    trace = read(str(tmp_path / "rank0.json"))
    true = 1 - truth.length(worlds[1]) / truth.length(worlds[0])
    answer = problem_of(late_gathers.check(trace))
    assert answer.saved_ns / judging.measure(trace).length_ns == pytest.approx(true, abs=0.02)
