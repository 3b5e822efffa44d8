"""CUPTI's counters by operator."""

from __future__ import annotations

from pathlib import Path

from augment.analyses import cupti_counters
from augment.core.findings import Skipped
from augment.core.trace import Category, Track
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, op, rows_of, trace_of

OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def measured(ts: int, **args: float) -> Event:
    return Event(Category.CUDA_PROFILER_RANGE, "__missing__", ts, ts + 5, Track(0, 0, 0), args=args)


def counted(ts: int, **by_op: int) -> Event:
    return measured(ts, **{OP.format(name): value for name, value in by_op.items()})


def test_the_nth_range_is_of_the_nth_launch() -> None:
    findings = cupti_counters.analyze(
        trace_of(
            op("aten::linear", 0, 30),
            op("aten::addmm", 5, 25),
            call("cudaLaunchKernel", 10, 12, correlation=1),
            call("cuLaunchKernel", 11, 12, correlation=1),  # within the other
            call("cudaMemcpyAsync", 13, 14, correlation=2),
            call("cudaLaunchKernelExC", 15, 16, correlation=3),
            call("cuLaunchKernel", 40, 41, correlation=4),
            counted(100, ffma=10, fadd=1),
            counted(101, ffma=20, fadd=2),
            counted(102, hmul=7, dfma=1),
        )
    )
    assert findings.partial is None
    assert rows_of(findings, "outer_operator", "operator", "counter", "statistic", "value", "kernel_count") == [
        ("aten::linear", "aten::addmm", OP.format("ffma"), "sum", 30, 2),
        ("aten::linear", "aten::addmm", OP.format("fadd"), "sum", 3, 2),
        ("aten::linear", "aten::addmm", "flop", "sum", 63, 2),
        (None, None, OP.format("hmul"), "sum", 7, 1),
        (None, None, OP.format("dfma"), "sum", 1, 1),
        (None, None, "flop", "sum", 9, 1),
    ]


def test_other_counters_are_not_summed() -> None:
    findings = cupti_counters.analyze(
        trace_of(
            measured(1, **{"sm__throughput.avg.pct": 10.0, "x.max": 3, "x.min": 3, "text": "a"}),  # type: ignore[arg-type]
            measured(2, **{"sm__throughput.avg.pct": 20.0, "x.max": 4, "x.min": 2}),
        )
    )
    assert findings.partial == "2 ranges and 0 launches of kernels: nothing tells which belongs to which"
    assert rows_of(findings, "operator", "counter", "statistic", "value") == [
        (None, "sm__throughput.avg.pct", "mean", 15.0), (None, "x.max", "max", 4), (None, "x.min", "min", 2)
    ]  # fmt: skip


def test_ranges_without_counters() -> None:
    assert isinstance(cupti_counters.analyze(trace_of(measured(1))), Skipped)


def test_a_simulated_job(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, counters=True), tmp_path)
    trace = read(str(path))
    findings = cupti_counters.analyze(trace)
    assert findings.partial is None
    ranges = trace.args_of(trace.events.slices_of(Category.CUDA_PROFILER_RANGE))
    expected = sum(2 * args[OP.format("ffma")] + args[OP.format("fadd")] for args in ranges)
    assert sum(row.value for row in findings.rows if row.counter == "flop") == expected
    # the name of a kernel goes into its fadd counter: so each operator's sum is that of the kernels it launched
    kernels = trace.events.slices_of(Category.KERNEL)
    external = {args["External id"]: 0 for args in trace.args_of(kernels)}
    for args, name in zip(trace.args_of(kernels), trace.names_of(kernels), strict=True):
        external[args["External id"]] += sum(map(ord, name))
    operators = trace.events.slices_of(Category.CPU_OP)
    by_operator: dict[str, int] = {}
    for args, name in zip(trace.args_of(operators), trace.names_of(operators), strict=True):
        if args["External id"] in external:
            by_operator[name] = by_operator.get(name, 0) + external[args["External id"]]
    summed: dict[str | None, float] = {}
    for row in findings.rows:
        if row.counter == OP.format("fadd"):
            summed[row.operator] = summed.get(row.operator, 0) + row.value
    assert {name: value for name, value in summed.items() if name in by_operator} == by_operator


def test_real_trace(shared_traces: Path) -> None:
    trace = read(str(shared_traces / "hta_cupti" / "cupti_profiler.json.gz"))
    findings = cupti_counters.analyze(trace)
    assert findings.partial is None
    assert sum(row.kernel_count for row in findings.rows if row.counter == "flop") == 77
    assert all(row.operator for row in findings.rows)
