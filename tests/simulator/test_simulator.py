"""Traces that ship with the project, and those of the simulator: what it promises, of known shapes and efficiency."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest

import augment
import simulate as command
from augment.analyses import roofline, step_efficiency
from augment.analyses.step_efficiency import BESIDE, COMPUTING, Row
from augment.core.trace import GPU_WORK
from augment.readers import read
from simulator import JobOptions, simulate
from simulator.communication import HIDDEN, TOKENS
from traces import SIMULATED

ROOT = Path(__file__).resolve().parents[2]

ORACLE = ROOT.parent / "shared" / "reference" / "oracle.py"
SMALL = JobOptions(steps=2, layers=2)
JOBS = {
    "ddp": SMALL,
    "fsdp": dataclasses.replace(SMALL, collectives="fsdp", stacks=True, memory=True),
    "host bound": dataclasses.replace(SMALL, ranks=1, collectives="none", work=0.05, jitter=0.0),
    "straggler": dataclasses.replace(SMALL, ranks=3, straggler=1, gpu="A100", clock_offset_ns=(0, 5000, -700)),
    "full queue": dataclasses.replace(SMALL, ranks=1, layers=45, gpu="V100", collectives="none", host_stall_us=700.0),
    "lines": dataclasses.replace(SMALL, layout="lines"),
}


def load(path: Path) -> dict[str, Any]:
    """A trace, parsed strictly."""
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return document


def nanoseconds(microseconds: Decimal) -> int:
    """Exact."""
    return int(microseconds * 1000)


def slices(document: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    """The ``X`` events of these categories."""
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def figure(truth: dict[str, Any], key: str) -> int:
    """A figure of the temporal breakdown."""
    value: int = truth["temporal_breakdown"][0][key]
    return value


@pytest.fixture(scope="session")
def oracle() -> Any:
    """The slow reading of ``shared/reference``."""
    if not ORACLE.exists():
        pytest.skip("the reference figures are not at hand")
    spec = importlib.util.spec_from_file_location("oracle", ORACLE)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the oracle leaves its file open
@pytest.mark.parametrize("job", JOBS)
def test_truth_is_what_a_slow_reading_of_the_file_finds(job: str, oracle: Any, tmp_path: Path) -> None:
    for path, truth in simulate(JOBS[job], tmp_path):
        truth.pop("file")
        assert truth == oracle.figures(oracle.load(path))
    if job == "full queue":
        assert any(row["full_queue_ns"] for row in truth["queue_length"])


@pytest.mark.parametrize("job", JOBS)
def test_parts_of_the_truth_add_up(job: str, tmp_path: Path) -> None:
    for path, truth in simulate(JOBS[job], tmp_path):
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
        assert sum(figure(truth, part) for part in parts) == figure(truth, "span_ns")
        assert json.loads(path.with_name(path.name.replace(".pt.trace.json.gz", ".truth.json")).read_text()) == (
            json.loads(json.dumps(truth))
        )


@pytest.mark.parametrize("job", ["ddp", "fsdp", "lines"])
def test_events_fit_together(job: str, tmp_path: Path) -> None:
    for path, truth in simulate(JOBS[job], tmp_path):
        document = load(path)
        work = slices(document, "kernel", "gpu_memcpy", "gpu_memset")
        calls = {event["args"]["correlation"]: event for event in slices(document, "cuda_runtime", "cuda_driver")}
        free: dict[int, int] = defaultdict(int)
        for event in sorted(work, key=lambda event: event["ts"]):
            assert calls[event["args"]["correlation"]]["ts"] < event["ts"]
            assert nanoseconds(event["ts"]) >= free[event["args"]["stream"]], "operations of a stream run one by one"
            free[event["args"]["stream"]] = nanoseconds(event["ts"]) + nanoseconds(event["dur"])
        flows = [event for event in document["traceEvents"] if event.get("cat") == "ac2g"]
        assert len(flows) == 2 * len(work)
        assert [event["name"] for event in slices(document, "user_annotation") if "Step#" in event["name"]] == (
            [f"ProfilerStep#{number}" for number in truth["file"]["steps"]]
        )
        threads = defaultdict(list)
        for event in slices(document, "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"):
            start = nanoseconds(event["ts"])
            threads[event["tid"]].append((start, -start - nanoseconds(event["dur"])))
        for rows in threads.values():
            open_until: list[int] = []
            for start, end in sorted(rows):
                while open_until and open_until[-1] <= start:
                    open_until.pop()
                assert not open_until or -end <= open_until[-1], "slices of a thread nest"
                open_until.append(-end)


def test_collectives_end_together_and_wait_for_the_straggler(tmp_path: Path) -> None:
    options = JOBS["straggler"]
    ends, waits = [], []
    for (path, truth), offset in zip(simulate(options, tmp_path), options.clock_offset_ns, strict=True):
        kernels = [event for event in slices(load(path), "kernel") if "nccl" in event["name"]]
        assert {event["args"]["Collective name"] for event in kernels} == {"allreduce"}
        ends.append([nanoseconds(event["ts"]) + nanoseconds(event["dur"]) - offset for event in kernels])
        waits.append(truth["communication_computation_overlap"][0]["communication_ns"])
    assert ends[0] == ends[1] == ends[2]
    assert waits[1] < min(waits[0], waits[2])


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, again, other = (
        simulate(dataclasses.replace(SMALL, seed=seed), tmp_path / name)[0][0].read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other


def test_both_layouts_hold_the_same_events(tmp_path: Path) -> None:
    def events(layout: Literal["classic", "lines"]) -> list[str]:
        ((path, _), *_) = simulate(dataclasses.replace(SMALL, layout=layout), tmp_path / layout)
        return sorted(json.dumps(event, sort_keys=True, default=str) for event in load(path)["traceEvents"])

    assert events("classic") == events("lines")


def test_a_known_change_is_the_only_one(tmp_path: Path) -> None:
    base = dataclasses.replace(SMALL, jitter=0.0)

    def truth(name: str, **change: Any) -> dict[str, Any]:
        return simulate(dataclasses.replace(base, **change), tmp_path / name)[0][1]

    def sums(figures: dict[str, Any]) -> dict[str, tuple[int, int]]:
        return {
            row["name"]: (row["count"], row["sum_ns"])
            for row in figures["kernel_breakdown"]
            if "nccl" not in row["name"]
        }

    control = truth("control")
    slow = sums(truth("slow", slow_kernel="flash_fwd", slow_percent=25.0))
    (name,) = (name for name in slow if slow[name] != sums(control)[name])
    assert "flash_fwd" in name
    assert slow[name][1] == pytest.approx(1.25 * sums(control)[name][1])
    added = sums(truth("added", extra_operator="aten::to"))
    assert {name: count for name, (count, _) in added.items() if name not in sums(control)}.popitem()[1] == 4
    stalled = truth("stalled", host_stall_us=500.0, host_stall_step=1)
    assert figure(stalled, "span_ns") - figure(control, "span_ns") == 500_000
    dropped = truth("dropped", drop_collective=0)["kernel_breakdown"]
    assert [row["count"] for row in dropped if "nccl" in row["name"]] == [2]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-o", str(tmp_path), "--size", "1MB", "--write-ranks", "1", "--layers", "1", "--stacks", "--memory"]
    assert command.main(arguments) == 0
    assert "rank1.pt.trace.json.gz" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json.gz")
    document = load(path)
    assert document["distributedInfo"]["rank"] == 1
    assert {"[memory]", "nn.Module: Linear_0"} <= {event["name"] for event in document["traceEvents"]}
    assert len(gzip.decompress(path.read_bytes())) >= 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [["--straggler", "5"], ["--size", "much"], ["--ranks", "0"], ["--run-ahead", "0"], ["--warmup", "0"], ["--tp", "3"],
     ["--record-from", "2", "--record-until", "1"]],
)  # fmt: skip
def test_command_refuses(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["-o", str(tmp_path), *wrong])
    assert refused.value.code == 2


SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "simulated.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("simulated_script", SCRIPT)
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("simulated")
    script.write(folder)
    return folder


def test_the_script_writes_these_traces(written: Path) -> None:
    folder = SCRIPT.with_suffix("")
    names = sorted(path.relative_to(written).as_posix() for path in written.rglob("*.json.gz"))
    assert names == sorted(path.relative_to(folder).as_posix() for path in SIMULATED)
    assert len(names) == 5
    for name in names:
        same = gzip.decompress((written / name).read_bytes()) == gzip.decompress((folder / name).read_bytes())
        assert same, f"{name} is not what the simulator writes: python examples/simulated.py"


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_they_are_small_and_have_gpu_work(path: Path) -> None:
    assert path.stat().st_size < 60_000
    trace = read(str(path))
    assert len(trace.events.slices_of(*GPU_WORK)) > 50
    assert trace.partial is None


JOB = JobOptions(ranks=1, steps=3, layers=2, collectives="none")
PEAK = 989.4e3  #: of an H100 in bf16, operations a nanosecond
#: operations of a layer: four linear layers of 3, 1, 4 and 1 widths, eight products of their backward, attention
GEMMS = (9 + 8) * 2 * TOKENS * HIDDEN**2
FORWARD = 4 * HIDDEN * (TOKENS * (TOKENS + 1) // 2)  # causal
LAYER = GEMMS + FORWARD + FORWARD * 5 // 2
#: less the scores that the backward of attention computes again
MODEL = GEMMS + 3 * FORWARD


@cache
def rows(options: JobOptions) -> list[Row]:
    """The rows of rank 0."""
    with TemporaryDirectory() as folder:
        simulate(options, Path(folder))
        findings = step_efficiency.analyze(augment.read(Path(folder) / "rank0.pt.trace.json.gz"))
    return list(findings.rows)


@pytest.mark.parametrize(
    "options",
    [JOB, replace(JOB, layers=3, microbatches=2), replace(JOB, sync_every=0), replace(JOB, side_streams=2),
     replace(JOB, ranks=2, collectives="fsdp", stacks=True), replace(JOB, whole_us=True, jitter=0.1)],
)  # fmt: skip
def test_operations_and_mfu_are_known(options: JobOptions) -> None:
    for row in rows(options):
        count = options.layers * options.microbatches
        assert (row.flops, row.model_flops) == (count * LAYER, count * MODEL)
        assert row.mfu_ratio == pytest.approx(count * MODEL / PEAK / row.wall_ns)
        assert row.hfu_ratio == pytest.approx(count * LAYER / PEAK / row.wall_ns)
        parts = [getattr(row, f"{name}_ns") for name in (*COMPUTING, *BESIDE)]
        assert sum(parts) == row.wall_ns
        assert min(parts) >= 0
        assert row.ideal_compute_ns == pytest.approx(count * LAYER / PEAK, abs=1)


def test_a_job_stretched_in_time_has_half_the_mfu() -> None:
    for row, twice in zip(rows(JOB), rows(replace(JOB, stretch=2.0)), strict=True):
        assert twice.wall_ns == pytest.approx(2 * row.wall_ns, abs=2)
        assert twice.mfu_ratio == pytest.approx((row.mfu_ratio or 0) / 2, rel=1e-5)
        assert twice.ideal_compute_ns == pytest.approx(row.ideal_compute_ns, abs=1)


def test_slower_products_lose_below_the_peak_and_nowhere_else() -> None:
    calm = replace(JOB, jitter=0.0)
    for row, slow in zip(rows(calm), rows(replace(calm, slow_kernel="nvjet", slow_percent=50.0)), strict=True):
        assert slow.compute_above_ns > row.compute_above_ns
        assert slow.wall_ns - row.wall_ns == pytest.approx(slow.compute_above_ns - row.compute_above_ns, rel=0.02)
        assert slow.memory_above_ns == pytest.approx(row.memory_above_ns, rel=0.01)


def test_graphs_leave_no_mfu_and_say_why() -> None:
    for row in rows(replace(JOB, graphs=True)):
        assert row.mfu_ratio is None
        assert "CUDA graphs" in (row.lacking or "")


@pytest.mark.parametrize("options", [replace(JOB, jitter=0.0), JOB, replace(JOB, jitter=0.1, steps=10)])
def test_no_operator_is_above_its_roof(options: JobOptions, tmp_path: Path) -> None:
    simulate(options, tmp_path)
    findings = roofline.analyze(augment.read(tmp_path / "rank0.pt.trace.json.gz"))
    assert not [diagnostic for diagnostic in findings.diagnostics if diagnostic.code == "above_peak"]
    assert {row.operator for row in findings.rows if row.bound == "compute"} >= {"aten::addmm", "aten::mm"}
    assert all(row.roof_ratio < 1 for row in findings.rows if row.bound == "compute")
