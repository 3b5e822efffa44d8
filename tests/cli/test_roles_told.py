"""Folders of several roles, as the commands tell and draw them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from running import Augment

from perfetto_engine import PerfettoEngine
from pipelines import Pipeline, simulate_pipeline
from traces import write_trace


def test_commands_tell_roles(tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    run = tmp_path / "run"
    simulate_pipeline(Pipeline(), run)
    ended = augment("diagnose", run)
    assert ended.code == 0
    said = ended.out
    assert "roles of run: rollout, actor, reference, reward:" in said
    assert "At work: rollout 56 %, actor 25 %, reference 9.4 %, reward 6.3 %." in said
    assert "A host that stalls may be one that waits for them." in said
    out = tmp_path / "out"
    ended = augment("run", run, "-o", out, "--merge", "--quiet")
    assert ended.code == 0
    assert str(out / "roles.job.metrics.json") in ended.lines
    sidecar = json.loads((out / "roles.job.metrics.json").read_text())
    assert {row["role"] for row in sidecar["analyses"]["roles"]["rows"]} == {"rollout", "actor", "reference", "reward"}
    assert "Role waits" in augment("show", out / "roles.job.metrics.json").out
    perfetto.load_clean(out / "roles.job.augmented.pftrace")
    parents = perfetto.rows(
        "select child.name, parent.name from track child join track parent on parent.id = child.parent_id "
        "where parent.parent_id is null and child.name like '% rank _' order by 1"
    )
    assert parents == [
        ("actor rank 0", "actor"), ("reference rank 0", "reference"), ("reward rank 0", "reward"),
        ("rollout rank 0", "rollout"), ("rollout rank 1", "rollout"), ("rollout rank 2", "rollout"),
    ]  # fmt: skip
    (drawn,) = perfetto.rows(
        "select sum(slice.dur) from slice join track on track.id = track_id "
        "where track.name = 'Role actor' and slice.name = 'at work'"
    )
    (actor,) = (
        row["active_ns"]
        for row in sidecar["analyses"]["roles"]["rows"]
        if row["role"] == "actor" and row["iteration"] is None
    )
    assert drawn == (actor,)
    count = perfetto.rows("select count(*) from slice where category = 'kernel'")
    paths = run.glob("*/*.json.gz")
    every = [event for path in paths for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert count == [(sum(event.get("cat") == "kernel" for event in every),)]


def test_a_role_on_hosts_is_on_the_timeline(tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    run = tmp_path / "run"
    simulate_pipeline(Pipeline(), run)
    reward = run / "reward" / "rank0.json.gz"
    events = json.loads(gzip.decompress(reward.read_bytes()))["traceEvents"]
    kept = [event for event in events if event["cat"] != "kernel"]
    write_trace(reward, *kept, distributedInfo={"rank": 0})
    assert augment("run", run, "--merge", "-o", tmp_path / "all.pftrace").code == 0
    perfetto.load_clean(tmp_path / "all.pftrace")
    groups = perfetto.rows("select name from track where parent_id is null and name is not null order by 1")
    assert groups == [("Roles",), ("actor",), ("reference",), ("reward",), ("rollout",)]
    calls = perfetto.rows("select count(*) from slice where category = 'cuda_runtime'")
    paths = run.glob("*/*.json.gz")
    everything = (json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in paths)
    assert calls == [(sum(event["cat"] == "cuda_runtime" for events in everything for event in events),)]


def test_users_tables_tell_roles(tmp_path: Path, augment: Augment) -> None:
    simulate_pipeline(Pipeline(iterations=1), tmp_path / "run")
    (tmp_path / "run" / "rollout").rename(tmp_path / "run" / "pool")
    tables = tmp_path / "roles.toml"
    tables.write_text('[[role]]\nrole = "rollout"\npattern = "^pool$"\n')
    ended = augment("run", tmp_path / "run", "-o", tmp_path / "out", "--tables", tables)
    assert "rollout 5" in ended.err
