"""The simulated job: its files are Kineto's in form, and the figures beside them are true."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT.parent / "shared" / "reference" / "oracle.py"
sys.path.insert(0, str(ROOT / "examples"))

import simulate as command  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402

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


@pytest.mark.skipif(not ORACLE.exists(), reason="the reference figures are not at hand")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the oracle leaves its file open
@pytest.mark.parametrize("job", JOBS)
def test_truth_is_what_a_slow_reading_of_the_file_finds(job: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("oracle", ORACLE)
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
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


@pytest.mark.parametrize("wrong", [["--straggler", "5"], ["--size", "much"], ["--ranks", "0"]])
def test_command_refuses(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["-o", str(tmp_path), *wrong])
    assert refused.value.code == 2
