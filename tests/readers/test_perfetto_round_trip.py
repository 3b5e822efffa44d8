"""What our own writer writes is read again as it was: the events, and every analysis's figures."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment import AugmentedTrace, Findings, Trace, augment, read
from augment.writers import perfetto
from metamorphic import real_trace
from oracles import packets_by_hand
from perfetto_messages import diagnostic_counts
from simulator import JobOptions, simulate
from traces import SIMULATED, by_folder, copy, event, kernel, launch, op, step, write_trace

pytestmark = pytest.mark.slow

SHARED = (
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz", "hta_cuda_sync/alexnet.json.gz",
    "hta_tiny/backward_thread.json",
    "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz", "legacy_autograd_array/pipe_visualized.json",
    "mi300_tracelens/torch_compile_triton.json.gz", "rtx3060_luatil/trace_04.json.gz",
    "ascend_trace_view/trace_view.json.gz", "slime_gpu_memory/0802-1task.gz",
)  # fmt: skip


def again(trace: Trace, folder: Path) -> Trace:
    """The trace written, with what all analyses add, and read."""
    path = folder / f"rank1.{len(trace.source.path)}.pftrace"
    perfetto.write(augment(trace), path)
    return read(str(path))


def slices(trace: Trace, *, whole_tracks: bool = True) -> Counter[tuple[Any, ...]]:
    """The slices and moments: what a reader makes of them, but for where they lie in the file."""
    events = trace.events
    kept = np.flatnonzero((events.phase == ord("X")) | (events.phase == ord("i")))
    columns = [getattr(events, name)[kept].tolist() for name in ("ts", "dur", "phase", "category", "correlation")]
    tracks = [trace.tracks[index] for index in events.track[kept].tolist()]
    where = [
        (row.pid, row.tid, row.device, row.stream) if whole_tracks and row.pid is not None else (row.device, row.stream)
        for row in tracks
    ]
    return Counter(zip(*columns, trace.names_of(kept), events.bytes.at(kept, -1).tolist(), where, strict=True))


def figures(augmented: AugmentedTrace) -> dict[str, Any]:
    """The rows of all analyses; the rank may be told by the file's name alone."""
    rows: dict[str, Any] = {}
    for name, outcome in augmented.outcomes.items():
        rows[name] = type(outcome).__name__
        if isinstance(outcome, Findings):
            rows[name] = [{**msgspec.structs.asdict(row), "rank": None} for row in outcome.rows]
    return rows


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    options = JobOptions(steps=2, layers=3, stacks=True, memory=True, host_stall_us=900.0, host_stall_step=1)
    return read(str(simulate(options, tmp_path_factory.mktemp("job"))[1][0]))


def test_flows_and_args(job: Trace, tmp_path: Path) -> None:
    back = again(job, tmp_path)
    assert flows(back, "ac2g") == flows(job, "ac2g")
    assert len(flows(back, "fwdbwd")) == len(flows(job, "fwdbwd")) > 0
    assert args(back) == args(job)
    assert any("Input Dims" in arg for arg in args(job))


def args(trace: Trace) -> Counter[str]:
    """The args of all slices, as JSON."""
    rows = np.flatnonzero(trace.events.phase == ord("X"))
    return Counter(json.dumps(row, sort_keys=True) for row in trace.args_of(rows))


def flows(trace: Trace, category: str) -> list[tuple[int, int, str]]:
    events = trace.events
    kept = np.isin(events.category_name, [i for i, text in enumerate(trace.strings) if text == category])
    marked = np.flatnonzero(kept)
    ids = events.flow_id.at(marked, -1).tolist()
    return sorted(zip(ids, events.ts[marked].tolist(), map(chr, events.phase[marked].tolist()), strict=True))


def test_a_second_time_is_like_the_first(job: Trace, tmp_path: Path) -> None:
    once = again(job, tmp_path)
    twice = again(once, tmp_path)
    assert slices(twice) == slices(once)
    assert figures(augment(twice)) == figures(augment(once))


def test_what_json_cannot_have(scanner: str, tmp_path: Path) -> None:
    """Slices that overlap in part, last no time or less than none; pids that are text; names of any letters."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 100, "args": {"name": "python"}},
        step(), op(), launch(), launch(ts=12, correlation=2), kernel(), copy(),
        kernel("beside", 25, 10, correlation=3), kernel("beside", 26, 20, correlation=4),
        op("no time", 50, 0), op("less", 51, -2), op("Ünï 🚀", 60, 1), op("overlapping", 61, 20),
        op("overlapped", 70, 20),
        event("Trace", "text", 0, 99, "Spans", "PyTorch Profiler"),
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace x", "ts": 3},
    ]  # fmt: skip
    trace = read(str(write_trace(tmp_path / "t.json", *events)))
    perfetto.write(augment(trace), tmp_path / "t.pftrace")
    back = read(str(tmp_path / "t.pftrace"))
    assert slices(back) == slices(trace)
    assert figures(augment(back)) == figures(augment(trace))
    assert diagnostic_counts(back) == {}


#: An arrow of Ascend's begins within a call that launches several kernels; Perfetto's begin with a slice.
WITHIN_SLICES = {"critical_path", "critical_path_operators", "diagnosis", "cost"}


@pytest.mark.parametrize("name", [*SIMULATED, *SHARED], ids=by_folder)
def test_whole_traces(name: str | Path, tmp_path: Path) -> None:
    trace = read(str(real_trace(name)))
    back = again(trace, tmp_path)
    assert not slices(trace, whole_tracks=False) - slices(back, whole_tracks=False), "pairs of B and E are slices, too"
    before, after = figures(augment(trace)), figures(augment(back))
    different = {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
    assert different <= (WITHIN_SLICES if "ascend" in str(name) else set())
    assert not args(trace) - args(back)


def test_the_kernel_and_python_agree(job: Trace, tmp_path: Path) -> None:
    path = tmp_path / "rank1.augmented.pftrace"
    perfetto.write(augment(job), path)
    (tmp_path / "rank1.pftrace.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    second = read(str(path))
    with packets_by_hand():
        first = read(str(path))
    zipped = read(str(tmp_path / "rank1.pftrace.gz"))
    for each in (second, zipped):
        assert list(each.strings) == list(first.strings)
        assert each.tracks == first.tracks
        for column in ("ts", "dur", "phase", "category", "name", "track", "correlation", "offset", "length"):
            assert np.array_equal(getattr(each.events, column), getattr(first.events, column)), column
        assert np.array_equal(each.events.flow_id.values, first.events.flow_id.values)
    assert json.dumps(figures(augment(zipped))) == json.dumps(figures(augment(first)))
