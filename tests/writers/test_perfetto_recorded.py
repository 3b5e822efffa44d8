"""Recorded traces in Perfetto's native format: nothing is missing, nothing moved, nothing complained of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from augment import AugmentedTrace, UnknownFormat, augment, read
from augment.core import COMPLETE, CounterTrack, SliceTrack
from augment.writers import perfetto as writer
from metamorphic import real_trace
from perfetto_engine import PerfettoEngine
from perfetto_traces import codes
from traces import SIMULATED, by_folder

TRACES = [
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",  # epoch microseconds with a fraction
    "h100_8rank_modded_nanogpt/rank0.json.gz",  # baseTimeNanoseconds
    "mi300_tracelens/torch_compile_triton.json.gz",  # an AMD device, numbered 2
    "v100_4rank_pair_torchrec/test/pid45920.pt.trace.json.gz",  # epoch microseconds, whole
    "old_2020_21_kineto/gpu_metrics_expected.json.gz",  # counters
    "catapult/simple_trace.json",  # counters, begins and ends, instants
    "catapult/main_thread_has_unclosed_slices.json.gz",
    "ascend_trace_view/trace_view.json.gz",
]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = sorted(
    path
    for path in SHARED.rglob("*")
    if path.is_file()
    and path.name != "SOURCES.md"
    and path.stat().st_size < 300_000  # the rest: by hand, see docs
    and path.relative_to(SHARED).as_posix() not in TRACES
)
OF_SOURCE = "(category is null or category not glob 'augment.*')"


@pytest.mark.parametrize("name", [*SIMULATED, *TRACES], ids=by_folder)
def test_every_slice_is_there_to_the_nanosecond_and_every_annotation(
    perfetto: PerfettoEngine, tmp_path: Path, name: str | Path
) -> None:
    trace = augment(read(str(real_trace(name))))
    lone_ends = codes(writer.write(trace, tmp_path / "t.pftrace")).get("end_without_slice", 0)
    perfetto.load_clean(tmp_path / "t.pftrace")
    events = trace.trace.events
    rows = np.flatnonzero(events.phase == COMPLETE)
    wanted = list(zip(events.ts[rows].tolist(), events.dur[rows].tolist(), trace.trace.names_of(rows), strict=True))
    seen = perfetto.rows(f"select ts, dur, name from slice where {OF_SOURCE}")
    kept = set(wanted)
    assert sorted(row for row in seen if row in kept) == sorted(wanted)
    begun = int(np.count_nonzero(np.isin(events.phase, [ord(phase) for phase in "BiIRP"])))
    assert len(seen) == len(wanted) + begun + lone_ends
    for each in trace.annotations:
        if isinstance(each, SliceTrack):
            sql = f"select s.ts, s.dur from slice s join track t on t.id = track_id where t.name = '{each.name}'"
            assert set(zip(each.ts.tolist(), each.dur.tolist(), strict=True)) <= set(perfetto.rows(sql)), each.name
        elif isinstance(each, CounterTrack):
            sql = f"select c.ts, c.value from counter c join track t on t.id = track_id where t.name = '{each.name}'"
            assert set(zip(each.ts.tolist(), each.values.tolist(), strict=True)) <= set(perfetto.rows(sql)), each.name


@pytest.mark.parametrize("path", FILES, ids=by_folder)
def test_no_slice_of_any_trace_is_lost(perfetto: PerfettoEngine, tmp_path: Path, path: Path) -> None:
    """Counts alone, of every trace that is not among the largest."""
    try:
        trace = read(str(path))
    except UnknownFormat:
        pytest.skip("not a trace")
    writer.write(AugmentedTrace(trace, {}), tmp_path / "t.pftrace")
    perfetto.load_clean(tmp_path / "t.pftrace")
    pairs = {ord(phase) for phase in "BEbeSTFpDNO"}
    if pairs.isdisjoint(np.unique(trace.events.phase).tolist()):  # else what pairs up decides how many there are
        instants = sum(int(np.count_nonzero(trace.events.phase == ord(phase))) for phase in "iIRPn")
        ((slices,),) = perfetto.rows("select count(*) from slice where dur >= 0")
        ((every,),) = perfetto.rows("select count(*) from slice")
        assert slices == every
        assert slices == int(np.count_nonzero(trace.events.phase == COMPLETE)) + instants


@pytest.mark.parametrize("name", [SIMULATED[0], TRACES[0]], ids=by_folder)
def test_args_of_kernels_are_as_in_the_source(perfetto: PerfettoEngine, tmp_path: Path, name: str | Path) -> None:
    source = read(str(real_trace(name)))
    writer.write(AugmentedTrace(source, {}), tmp_path / "t.pftrace")
    perfetto.load(tmp_path / "t.pftrace")
    sql = (
        "select correlation.int_value, grid.string_value from slice"
        " join args correlation on correlation.arg_set_id = slice.arg_set_id and correlation.key = 'debug.correlation'"
        " join args grid on grid.arg_set_id = slice.arg_set_id and grid.key = 'debug.grid' where category = 'kernel'"
    )
    kernels = np.flatnonzero([source.strings[code] == "kernel" for code in source.events.category_name.tolist()])
    wanted = [
        (args["correlation"], json.dumps(args["grid"], separators=(",", ":"))) for args in source.args_of(kernels)
    ]
    assert sorted(perfetto.rows(sql)) == sorted(wanted)
    assert len(wanted) > 100
