"""A simulated job through the command, judged by what the simulator knows and by what Perfetto's engine sees."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from augment import augment, read
from augment.core import Flows
from augment.facts.critical.longest_path import DRAWN, KINDS
from augment.writers import chrome
from augment.writers import perfetto as perfetto_writer
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate

KEYS = {
    "temporal_breakdown": ("device",),
    "idle_time_breakdown": ("device", "stream", "category"),
    "communication_computation_overlap": ("device",),
    "kernel_breakdown": ("device", "kernel_type", "name"),
    "memory_bandwidth": ("device", "kind"),
    "queue_length": ("device", "stream"),
    "launch_statistics": ("device", "stream"),
}
OURS = """
    select t.name, s.name, count(*), sum(s.dur) from slice s join thread_track on thread_track.id = s.track_id
    join thread t using (utid) where s.category = '{}' group by 1, 2
"""
IDLE = """
    select t.name, coalesce(extract_arg(arg_set_id, 'args.hta_category'), s.name), sum(s.dur) from slice s
    join thread_track on thread_track.id = s.track_id join thread t using (utid)
    where s.category = 'augment.idle_time_breakdown' and s.depth = 0 group by 1, 2
"""
GAP_ARROWS = """
    with idle as (select * from slice where category = 'augment.idle_time_breakdown'),
    pairs as (select slice_out gap, slice_in other from flow union all select slice_in, slice_out from flow)
    select idle.ts, other.ts, other.name, (
      select string_value from args where args.arg_set_id = idle.arg_set_id and key in ('args.owner', 'debug.owner'))
    from pairs join idle on idle.id = pairs.gap join slice other on other.id = pairs.other
"""
PATH_OF_STEPS = """
    select step.name, path.name, sum(path.dur) from slice path join slice step
    on path.ts >= step.ts and path.ts < step.ts + step.dur
    where path.category = 'augment.critical_path' and path.depth = 0 and step.category = 'user_annotation'
    and step.name like 'ProfilerStep#%' group by 1, 2
"""
COUNTER = """
    select ts, value from counter c join process_counter_track t on c.track_id = t.id
    where t.name like '{}%' order by ts
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The augmented trace, the sidecar and the truth."""
    folder = tmp_path_factory.mktemp("job")
    options = JobOptions(ranks=1, steps=3, layers=2, stacks=True, memory=True, jitter=0.05, seed=5, host_stall_us=3000)
    ((path, truth),) = simulate(options, folder)
    command = [sys.executable, "-m", "augment", "run", str(path), "--quiet", "--to", "chrome"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "rank0.augmented.json.gz", json.loads((folder / "rank0.metrics.json").read_text()), truth


@pytest.mark.parametrize("analysis", KEYS)
def test_the_sidecar_says_what_the_simulator_knows(job: Any, analysis: str) -> None:
    _, sidecar, truth = job
    keys = KEYS[analysis]
    rows = {tuple(str(row[key]) for key in keys): row for row in sidecar["analyses"][analysis]["rows"]}
    known = {tuple(str(row[key]) for key in keys): row for row in truth[analysis]}
    assert rows.keys() == known.keys()
    for key, row in known.items():
        for column in set(row) - set(keys):
            assert rows[key][column] == pytest.approx(row[column], rel=1e-12), (key, column)


def rows_of(sidecar: dict[str, Any], analysis: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sidecar["analyses"][analysis]["rows"]
    return rows


def test_perfetto_sees_the_idle_time(job: Any, perfetto: PerfettoEngine) -> None:
    path, sidecar, _ = job
    seen = {(track, name): ns for track, name, ns in perfetto.load(path).rows(IDLE)}
    assert perfetto.problems() == {}
    for row in rows_of(sidecar, "idle_time_breakdown"):
        assert seen.get((f"Idle stream {row['stream']}", row["category"]), 0) == row["idle_ns"]
    device = [ns for (track, _), ns in seen.items() if track == "Idle"]
    assert sum(device) == rows_of(sidecar, "temporal_breakdown")[0]["idle_ns"]


def test_host_wait_is_drawn_where_the_whole_device_waits(job: Any, perfetto: PerfettoEngine) -> None:
    seen = perfetto.load(job[0]).rows(OURS.format("augment.idle_time_breakdown"))
    waits = {track: ns for track, name, _, ns in seen if name == "host_wait"}
    assert waits["Idle"] > 0
    assert all(ns <= waits["Idle"] for ns in waits.values())
    assert "other_stream_busy" in {name for _, name, *_ in seen}


def test_perfetto_sees_the_critical_path_of_each_step(job: Any, perfetto: PerfettoEngine, tmp_path: Path) -> None:
    trace = augment(read(str(job[0].with_name("rank0.pt.trace.json.gz"))), only=["critical_path"])
    perfetto_writer.write(trace, tmp_path / "t.pftrace")
    seen = {(name, kind): ns for name, kind, ns in perfetto.load(tmp_path / "t.pftrace").rows(PATH_OF_STEPS)}
    assert perfetto.problems() == {}
    rows = rows_of(job[1], "critical_path")
    name = dict(zip(KINDS, DRAWN, strict=True))
    output = {(f"ProfilerStep#{row['step']}", name[row["bound_by"]]): row["time_ns"] for row in rows}
    assert seen == output
    assert len({step for step, _ in output}) == 3


@pytest.mark.parametrize("writer", [chrome, perfetto_writer])
def test_arrows_lead_from_gaps_to_their_owners(job: Any, perfetto: PerfettoEngine, writer: Any, tmp_path: Path) -> None:
    trace = augment(read(str(job[0].with_name("rank0.pt.trace.json.gz"))), only=["idle_time_breakdown"])
    writer.write(trace, tmp_path / f"t{writer.SUFFIX}")
    base_ns = trace.trace.source.base_ns if writer is chrome else 0
    wanted = []
    for flows in trace.annotations:
        if isinstance(flows, Flows):
            times = (ends.times(trace.trace) - base_ns for ends in (flows.into, flows.out))
            wanted += zip(*(time.tolist() for time in times), trace.trace.names_of(flows.out.rows), strict=True)
    assert len(wanted) > 5
    rows = perfetto.load(tmp_path / f"t{writer.SUFFIX}").rows(GAP_ARROWS)
    assert perfetto.problems() == {}
    assert sorted(row[:3] for row in rows) == sorted(wanted)
    assert all(owner in (None, name) for *_, name, owner in rows)
    assert any(owner for *_, owner in rows)


def test_perfetto_sees_the_exposed_communication(job: Any, perfetto: PerfettoEngine) -> None:
    path, sidecar, _ = job
    seen = perfetto.load(path).rows(OURS.format("augment.communication_computation_overlap"))
    exposed = rows_of(sidecar, "temporal_breakdown")[0]["exposed_communication_ns"]
    assert exposed > 0
    assert sum(ns for *_, ns in seen) == exposed  # type: ignore[misc]


def test_perfetto_sees_the_queues(job: Any, perfetto: PerfettoEngine) -> None:
    path, sidecar, _ = job
    perfetto.load(path)
    for row in rows_of(sidecar, "queue_length"):
        points: Any = perfetto.rows(COUNTER.format(f"Queue Length stream {row['stream']}"))
        held = [(value, later - ts) for (ts, value), (later, _) in itertools.pairwise(points)]
        assert max(value for _, value in points) == row["max"]
        assert sum(value * ns for value, ns in held) / sum(ns for _, ns in held) == pytest.approx(
            row["mean"], rel=1e-12
        )
        assert points[-1][1] == 0


def test_perfetto_sees_the_bytes_of_the_copies(job: Any, perfetto: PerfettoEngine) -> None:
    path, sidecar, _ = job
    perfetto.load(path)
    for row in rows_of(sidecar, "memory_bandwidth"):
        points: Any = perfetto.rows(COUNTER.format(f"{row['kind']} bandwidth"))
        moved = sum(value * (later - ts) for (ts, value), (later, _) in itertools.pairwise(points))
        assert moved == pytest.approx(row["bytes"], abs=1e-6 * row["busy_ns"])  # drawn with six decimals of GB/s
        assert points[-1][1] == 0
