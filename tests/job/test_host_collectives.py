"""Jobs whose hosts communicate themselves (gloo): simulated by hand, and recorded ones by their raw events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import augment
from answered_jobs import answered, rows
from traces import write_trace

STEPS, RANKS, TRANSFER = 6, 3, 400  #: µs


def complete(name: str, category: str, ts: int, end: int, tid: int, pid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": end - ts, "tid": tid, "pid": pid, "args": args}


def job(
    folder: Path,
    slept: dict[int, int] | None = None,
    computed: dict[int, int] | None = None,
    uneven: Sequence[Sequence[float]] = ((1.0,) * RANKS,) * STEPS,
    rested: dict[int, int] | None = None,
    apart: int = 1000,
) -> list[Path]:
    """DDP on CPUs: each step computes, reduces its gradients while backward computes, and ends with a barrier. By rank:
    the time that the host of a rank is in nothing at all, at the begin of a step or, ``rested``, at its end, and that
    its backward takes longer, µs a step; ``uneven``: factors on that of each step and rank. Ranks begin ``apart``."""
    now = [apart * rank for rank in range(RANKS)]
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        begin, reached = list(now), []
        for rank in range(RANKS):
            t = now[rank] + (slept or {}).get(rank, 0)
            work = 6000 + (computed or {}).get(rank, 0) + 37 * ((step * 7 + rank * 3) % 5)
            work = round(work * uneven[step][rank])
            events[rank].append(complete("aten::addmm", "cpu_op", t + 100, t + 100 + work, 1, 50 + rank))
            reached.append(t + 100 + work // 2)
            now[rank] = t + 100 + work
        done = max(reached) + TRANSFER
        shape = {"Input Dims": [[1000]], "Input type": ["float"]}
        for rank in range(RANKS):
            events[rank].append(
                complete("gloo:all_reduce", "user_annotation", reached[rank], done, 2, 50 + rank, **shape)
            )
            now[rank] = max(now[rank], done) + 50
        all_in = max(now) + 100
        for rank in range(RANKS):
            events[rank].append(complete("gloo:barrier", "user_annotation", now[rank], all_in, 3, 50 + rank))
            events[rank].append(complete("c10d::barrier", "cpu_op", now[rank] - 10, all_in + 5, 1, 50 + rank))
            now[rank] = all_in + 20 + (rested or {}).get(rank, 0)
            step_name = f"ProfilerStep#{step}"
            events[rank].append(complete(step_name, "user_annotation", begin[rank], now[rank], 1, 50 + rank))
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": RANKS, "ranks": list(range(RANKS))}
    listed = {"backend": "gloo", "world_size": RANKS, "pg_count": 1, "pg_config": [group]}
    return [
        write_trace(folder / f"rank{rank}.json", *events[rank], distributedInfo={**listed, "rank": rank}, host_name="a")
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize(("faults", "why"), [
    ({"slept": {1: 5000}}, "its host, outside all operators"),
    ({"rested": {1: 5000}}, "its host, outside all operators"),
    ({"computed": {2: 8000}}, "comput"),
], ids=["sleeps", "rests", "computes"])  # fmt: skip
def test_the_rank_that_others_wait_for_is_named(faults: dict[str, Any], why: str, tmp_path: Path) -> None:
    (kind,) = faults.values()
    ((rank, late_us),) = kind.items()
    result = answered(job(tmp_path, **faults))
    text = " ".join(result.verdict.text)
    assert text.startswith(f"Rank {rank} "), text
    assert why in text
    late = max(rows(result, "stragglers"), key=lambda row: row.after_the_others_ns)
    assert late.rank == rank
    waits = STEPS - ("rested" in faults)  # nobody waits for it after the last step
    assert late.after_the_others_ns >= 900 * late_us * waits
    unchanged, *others = rows(result, "job_what_if")
    saved = max(unchanged.time_ns - row.time_ns for row in others if row.rank == rank)
    assert saved == pytest.approx(1000 * late_us * STEPS, rel=0.15)


def test_ranks_that_begin_apart_are_not_late(tmp_path: Path) -> None:
    """What the first ranks wait for the last one is of no step."""
    together, apart = (answered(job(tmp_path / str(us), apart=us)) for us in (0, 20_000))
    each = [result.judgement.recorded_ns / result.judgement.step_count for result in (together, apart)]
    assert each[1] == pytest.approx(each[0], rel=0.01)
    assert (together.judgement.steps.left_out, apart.judgement.steps.left_out) == (0, 1)
    assert not apart.verdict.rows


def test_uneven_work_is_no_ranks_fault(tmp_path: Path) -> None:
    """Another rank is slowest in each step. What balance gains is that of the same job with the mean everywhere."""
    factors = [[1.0, 1.0, 1.0] for _ in range(STEPS)]
    for step in range(STEPS):
        factors[step][step % RANKS], factors[step][(step + 1) % RANKS] = 1.5, 0.7
    result = answered(job(tmp_path / "uneven", uneven=factors))
    means = [[sum(row) / RANKS] * RANKS for row in factors]
    balanced = answered(job(tmp_path / "balanced", uneven=means))
    true = sum(6_070_000 * (max(row) - mean[0]) for row, mean in zip(factors, means, strict=True))
    assert true > 0.15 * result.judgement.recorded_ns
    (row,) = result.verdict.rows
    assert (row.rank, row.cause) == (None, "uneven")
    assert row.gain_ns == pytest.approx(true, abs=0.03 * result.judgement.recorded_ns)
    assert result.verdict.text[0].startswith("Work is uneven in every step, and another rank is slowest each time")
    assert "most of it computing" in result.verdict.text[0]
    assert not balanced.verdict.rows


def test_one_rank_that_is_slowest_in_most_steps_is_named(tmp_path: Path) -> None:
    factors = [[1.0, 1.0, 1.0] for _ in range(STEPS)]
    for step in range(STEPS):
        factors[step][2 if step != 3 else 0] = 1.5
    assert answered(job(tmp_path, uneven=factors)).verdict.text[0].startswith("Rank 2 ")


def test_equal_hosts_are_not_blamed(tmp_path: Path) -> None:
    result = answered(job(tmp_path))
    assert result.verdict.text[0].startswith("No rank stands out")
    kinds = {row.kind: row for row in rows(result, "job_collectives")}
    assert {kind: row.count for kind, row in kinds.items()} == {"AllReduce": STEPS, "Barrier": STEPS}
    assert kinds["AllReduce"].bytes == 4000 * STEPS
    assert kinds["AllReduce"].group_size == RANKS


def in_memory(folder: Path, later: int, reduce: bool = True) -> list[Path]:
    """Two ranks of a server on CPUs. Compiled code without operators and one product, ``later`` µs longer on rank 1,
    then an all-reduce through memory, by an operator in another, under two names."""
    events: list[list[dict[str, Any]]] = [[], []]
    typed = {"Input Dims": [[], [100, 10]], "Input type": ["Scalar", "c10::BFloat16"]}
    t = 0
    for step in range(STEPS):
        done = t + 5000 + later + 300
        for rank in range(2):
            reached = t + 5000 + later * rank
            slices = [("aten::mm", "cpu_op", t + 3000, reached)]
            if reduce:
                slices += [(name, "cpu_op", reached, done) for name in ("vllm::all_reduce", *SHARED_MEMORY)]
            slices.append(("## Call CompiledFxGraph None ##", "user_annotation", t + 10, done + 10))
            slices.append((f"ProfilerStep#{step}", "user_annotation", t, done + 20))
            events[rank] += [complete(*each, 1, 50 + rank, **typed) for each in slices]
        t = done + 20
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    alone = {"pg_name": "9", "pg_desc": "undefined", "ranks": [0]}
    listed = {"backend": "gloo", "world_size": 2, "pg_config": [group, {**group, "pg_name": "3"}, alone]}
    return [
        write_trace(folder / f"rank{rank}.json", *events[rank], distributedInfo={**listed, "rank": rank}, host_name="a")
        for rank in range(2)
    ]


SHARED_MEMORY = ("sgl-kernel::shm_allreduce", "_C::shm_allreduce")


def test_operators_through_shared_memory_are_collectives(tmp_path: Path) -> None:
    result = answered(in_memory(tmp_path, 2000))
    (text,) = result.verdict.text
    assert text.startswith("Rank 1 (host a) delays the other rank by 2.00 ms per step (27 %). Cause: it computes")
    (row,) = rows(result, "job_collectives")
    assert (row.kind, row.count, row.group_size, row.bytes) == ("AllReduce", STEPS, 2, 2000 * STEPS)
    assert row.wait_ns == 2_000_000 * STEPS
    cells = {(cell.rank, cell.compute_ns, cell.idle_ns) for cell in rows(result, "step_heat")}
    assert cells == {(0, 5_000_000, 20_000), (1, 7_000_000, 20_000)}
    assert {row.max_compute_ns for row in rows(result, "load_imbalance")} == {7_000_000}
    assert "No rank stands out" in answered(in_memory(tmp_path / "equal", 0)).verdict.text[0]


def test_without_any_it_is_said_which_are_known(tmp_path: Path) -> None:
    (text,) = answered(in_memory(tmp_path, 2000, reduce=False)).verdict.text
    assert "no collective was found on two ranks (without GPU work those of gloo, MPI and operators such as" in text


def test_compiled_code_of_a_host_is_told(tmp_path: Path) -> None:
    verdict = augment.augment(in_memory(tmp_path, 0)[0]).verdict.text[0]
    assert "no recorded thread runs an operator; 99.3 % of these " in verdict
    assert "ms is code that torch.compile made" in verdict
    assert "not recorded" not in verdict


def test_a_device_that_works_has_the_collectives_of_devices_alone(tmp_path: Path) -> None:
    """Barriers over gloo, beside a job on GPUs."""
    paths = job(tmp_path, slept={1: 5000})
    for path in paths:
        trace = json.loads(path.read_text())
        trace["traceEvents"].append(complete("sgemm", "kernel", 2000, 3000, 7, 0, stream=7, device=0))
        path.write_text(json.dumps(trace))
    assert answered(paths).verdict.text[0].startswith("Cannot tell which rank delays the job: no collective")


def test_a_recorded_job(shared_traces: Path) -> None:
    """Two ranks on CPUs; of its nine collectives, rank 1 waits in the barriers, 31 of 32 ms."""
    folder = shared_traces.parent / "evidence" / "joint_gloo_2rank"
    if not folder.is_dir():
        pytest.skip("the recording is not at hand")
    paths = sorted(folder.glob("rank*.json.gz"))
    spans: list[list[tuple[float, float]]] = []
    for path in paths:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        spans.append(
            sorted((e["ts"], e["ts"] + e["dur"]) for e in events if str(e.get("name", "")).startswith("gloo:"))
        )
    leads = [0.0, 0.0]
    for first, second in zip(*spans, strict=True):
        late = int(second[0] > first[0])
        leads[late] += abs(second[0] - first[0])
    result = answered(paths)
    charged = {row.rank: row.after_the_others_ns / 1000 for row in rows(result, "stragglers")}
    assert charged == pytest.approx(dict(enumerate(leads)), rel=0.05)
    late = f"Rank {leads.index(max(leads))}"
    assert " ".join(result.verdict.text).startswith(f"{late} ")
    (row, *_) = result.verdict.rows
    assert 0.9 * row.charged_ns < row.gain_ns <= row.charged_ns
