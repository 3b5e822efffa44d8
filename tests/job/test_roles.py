"""Roles that work together: simulated pipelines of known truth, as the commands tell them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from answered_jobs import answered
from augment import UsageError, read, with_tables
from augment.batch.inputs import choose_inputs
from augment.batch.jobs import group, pipelines
from augment.facts.names import role_of, role_rules
from augment.job.roles import Together, together
from metamorphic import real_trace
from pipelines import Pipeline, Truth, simulate_pipeline
from traces import write_trace

MS = 1_000_000
POINTS = 0.01


def judged(folder: Path, how: Pipeline) -> tuple[Together, Truth]:
    """The roles of a pipeline, and what is so."""
    truth = simulate_pipeline(how, folder)
    names = sorted({path.parent.name for path in folder.glob("*/*.json.gz")})
    return together({name: [answered(sorted((folder / name).glob("*.json.gz")))] for name in names}), truth


def rows(roles: Together, name: str = "roles") -> list[Any]:
    """The rows of all of the common time."""
    return [row for row in roles.outcomes[name].rows if row.iteration is None]  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(5))  # all lengths and numbers of iterations
@pytest.mark.parametrize("engines", [1, 2, 4, 5])
def test_what_roles_do_is_what_was_simulated(tmp_path: Path, seed: int, engines: int) -> None:
    lengths = tuple(300.0 + 97 * place + 40 * ((seed * 7 + place) % 5) for place in range(engines))
    roles, truth = judged(tmp_path, Pipeline(seed=seed, rollout=lengths, noise=0.2, iterations=2 + seed % 3))
    window = roles.window[1] - roles.window[0]
    assert window == pytest.approx(truth.whole * MS, rel=POINTS)
    for row in rows(roles):
        assert row.active_ns / window == pytest.approx(truth.at_work[row.role] / truth.whole, abs=POINTS)
        assert row.active_ns + row.communication_ns + row.idle_ns == window
    (rollout,) = (row for row in rows(roles) if row.role == "rollout")
    if engines == 1:
        assert rollout.longest_ns is None  # one trace without batches: nothing tells which sequence is long
    else:
        assert rollout.longest_ns / window == pytest.approx(truth.longest / truth.whole, abs=POINTS)
    waits = rows(roles, "role_waits")
    for name in truth.at_work:
        idle = {row.others: row.idle_ns / window for row in waits if row.role == name}
        expected = {other: part / truth.whole for other, part in truth.at_work.items() if other != name}
        expected["none"] = truth.nobody / truth.whole
        assert {other: part for other, part in idle.items() if part > POINTS} == {
            other: pytest.approx(part, abs=POINTS) for other, part in expected.items() if part > POINTS
        }
    assert len(roles.iterations) == 2 + seed % 3


def test_batches_tell_the_longest_sequences_of_one_engine(tmp_path: Path) -> None:
    how = Pipeline(rollout=(1_000.0,), has_batches=True, iterations=2)
    roles, truth = judged(tmp_path, how)
    (rollout,) = (row for row in rows(roles) if row.role == "rollout")
    assert rollout.longest_ns == pytest.approx(2 * 200 * MS, rel=0.02)  # the last fifth has 2 of 40 sequences
    text = " ".join(roles.verdict.text)
    assert "12 % of the iterations waits for the longest rollouts" in text
    assert truth.whole > 0


def test_longer_last_rollouts_are_a_longer_wait(tmp_path: Path) -> None:
    """Metamorphic: only the last engine's rollouts grow."""
    waited = []
    for number, last in enumerate((620.0, 700.0, 900.0, 1_500.0)):
        roles, _ = judged(tmp_path / str(number), Pipeline(rollout=(600.0, 620.0, 620.0, last)))
        waited.append(next(row.longest_ns for row in rows(roles) if row.role == "rollout"))
    assert waited == sorted(waited)
    assert waited[0] == pytest.approx(0, abs=0.01 * waited[3])
    assert waited[3] - waited[2] == pytest.approx(3 * 600 * MS, rel=0.02)


def test_balanced_rollouts_are_not_waited_for(tmp_path: Path) -> None:
    roles, _ = judged(tmp_path, Pipeline(rollout=(600.0, 601.0, 602.0), noise=0.001))
    assert "longest" not in " ".join(roles.verdict.text)


def test_roles_recorded_at_different_times_are_not_judged(tmp_path: Path) -> None:
    roles, _ = judged(tmp_path, Pipeline())
    actor = next(path for path in tmp_path.glob("actor/*.json.gz"))
    write_trace(
        actor, *[event | {"ts": event["ts"] + 3_600_000_000} for event in _events(actor)], distributedInfo={"rank": 0}
    )
    names = sorted({path.parent.name for path in tmp_path.glob("*/*.json.gz")})
    roles = together({name: [answered(sorted((tmp_path / name).glob("*.json.gz")))] for name in names})
    assert "no moment has all roles" in roles.lacking
    assert all("no moment" in outcome.reason for outcome in roles.outcomes.values())  # type: ignore[union-attr]
    (sentence,) = roles.verdict.text
    assert sentence.startswith("Rollout, actor, reference and reward are not judged together")
    assert roles.tracks() == [[]] * 5


def test_a_role_without_gpu_work_is_not_called_idle(tmp_path: Path) -> None:
    """It may compute on its host: no figure tells."""
    simulate_pipeline(Pipeline(), tmp_path)
    reward = tmp_path / "reward" / "rank0.json.gz"
    write_trace(reward, *[event for event in _events(reward) if event["cat"] != "kernel"], distributedInfo={"rank": 0})
    names = sorted({path.parent.name for path in tmp_path.glob("*/*.json.gz")})
    roles = together({name: [answered(sorted((tmp_path / name).glob("*.json.gz")))] for name in names})
    assert {row.role for row in rows(roles)} == {"rollout", "actor", "reference"}
    assert roles.verdict.text[-1].startswith("Reward without GPU work may be what others wait for")
    assert not any("Reward idles" in sentence for sentence in roles.verdict.text)
    alone = together({name: [answered(sorted((tmp_path / name).glob("*.json.gz")))] for name in ("reward", "actor")})
    assert "reward have no GPU work" in alone.lacking


def _events(path: Path) -> list[dict[str, Any]]:
    import gzip

    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("rollout", "rollout"), ("rollout_generate", "rollout"), ("actor_update", "actor"), ("train_actor", "actor"),
        ("vllm_generation_worker", "rollout"), ("dtensor_policy_worker", "actor"), ("reference_policy", "reference"),
        ("ref_compute_log_prob", "reference"), ("reward-model", "reward"), ("critic0", "critic"),
        ("actor_rollout_ref", ""), ("refactor", ""), ("factory", ""), ("prefilled", ""), ("trace", ""),
        ("prefill-0", "prefill"), ("rank0", ""),
    ],
)  # fmt: skip
def test_names_tell_roles(name: str, role: str) -> None:
    assert role_of(name) == role


def test_users_rules_tell_roles(tmp_path: Path) -> None:
    assert role_of("my_sampler_pool", role_rules([{"role": "actor", "pattern": "sampler_pool"}])) == "actor"
    for row in ({"role": "actor"}, {"role": "", "pattern": "a"}, {"role": "a", "pattern": "("}):
        with pytest.raises(UsageError):
            role_rules([row])
    tables = tmp_path / "roles.toml"
    tables.write_text('[[role]]\nrole = "rollout"\npattern = "pool"\n')
    path = write_trace(tmp_path / "rank0.json.gz")
    assert with_tables(read(str(path)), tables) is not None


def test_a_folder_of_roles_is_one_pipeline(tmp_path: Path) -> None:
    simulate_pipeline(Pipeline(iterations=1), tmp_path / "run")
    jobs = group(choose_inputs([str(tmp_path / "run")], None).inputs)
    assert [(job.role, len(job.members)) for job in jobs] == [
        ("actor", 1), ("reference", 1), ("reward", 1), ("rollout", 3),
    ]  # fmt: skip
    (whole,) = pipelines(jobs)
    assert [part.role for part in whole.parts] == ["rollout", "actor", "reference", "reward"]
    assert (whole.name, whole.folder, len(whole.members)) == ("run", str(tmp_path / "run"), 6)


def test_roles_in_the_names_of_files_of_one_folder(tmp_path: Path) -> None:
    simulate_pipeline(Pipeline(iterations=1), tmp_path / "run")
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in (tmp_path / "run").glob("*/*.json.gz"):
        (flat / f"{path.parent.name}_{path.name}").write_bytes(path.read_bytes())
    (whole,) = pipelines(group(choose_inputs([str(flat)], None).inputs))
    assert [(part.role, len(part.members)) for part in whole.parts] == [
        ("rollout", 3), ("actor", 1), ("reference", 1), ("reward", 1),
    ]  # fmt: skip


def test_one_role_is_no_pipeline(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / "actor" / f"rank{rank}.json.gz")
    assert pipelines(group(choose_inputs([str(tmp_path)], None).inputs)) == []


def test_rollouts_beside_training_have_no_iterations(tmp_path: Path) -> None:
    """The actor trains while the next rollouts run."""
    roles, _ = judged(tmp_path, replace(Pipeline(sync=0.0, reward=10.0, reference=10.0), skew=-300.0))
    assert all(window[1] > window[0] for window in roles.iterations)
    assert sum(row.alone_ns for row in rows(roles)) < roles.window[1] - roles.window[0]


def test_one_file_of_a_recorded_run_is_no_pipeline() -> None:
    trace = real_trace("slime_gpu_memory/0802-1task.gz")
    assert pipelines(group(choose_inputs([str(trace.parent), str(trace)], None).inputs)) == []
