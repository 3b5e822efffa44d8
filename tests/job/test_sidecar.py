"""job.metrics.json: its schema, aggregates over ranks, load imbalance; a summary is small, equal, and read safely."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from augment import Findings, InputError, augment, read
from augment.batch.conversion import RunPlan
from augment.batch.execution import Run
from augment.batch.inputs import choose_inputs
from augment.job import aggregates as module
from augment.job.aggregates import Aggregation, aggregates
from augment.job.answer import answer
from augment.job.collectives import fit
from augment.job.ranks import Figures, RankSummary, read_summary, summarize, summary
from augment.job.sidecar import document, job_schema
from augment.job.verdict.late_ranks import imbalance
from augment.pipeline.request import Request
from job_summaries import summary_of
from simulator import JobOptions, simulate
from traces import kernel, write_trace

OF_OTHER_JOBS = {"pipeline", "expert_parallel", "ddp_buckets", "ddp_caps"}  #: this one is fully sharded


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    simulate(JobOptions(ranks=4, steps=2, collectives="fsdp", uneven_buckets=True, straggler=3), folder / "in")
    inputs = choose_inputs([str(folder / "in")], str(folder / "out")).inputs
    run = Run(inputs, RunPlan(Request(options={"collectives": {"link_gbps": 450.0}}), compares=True))
    list(run.convert())
    (job,) = run.conclude()
    assert job.written == [str(folder / "out" / "job.metrics.json")]
    return folder / "out"


def test_it_is_as_declared(out: Path) -> None:
    content = json.loads((out / "job.metrics.json").read_bytes())
    jsonschema.validate(content, job_schema(closed=True))
    assert {name for name, each in content["analyses"].items() if each["status"] != "ok"} == OF_OTHER_JOBS
    assert content["source"]["ranks"] == [0, 1, 2, 3]
    for row in content["analyses"]["job_collectives"]["rows"]:
        assert row["efficiency_ratio"] == pytest.approx(row["bus_gbps"] / 450)
        assert row["wait_ns"] + row["transfer_ns"] == row["time_ns"]


def test_aggregates_are_of_the_ranks_own_sidecars(out: Path) -> None:
    rows = json.loads((out / "job.metrics.json").read_bytes())["analyses"]["aggregates"]["rows"]
    each = next(row for row in rows if row["analysis"] == "temporal_breakdown" and row["figure"] == "compute_ns")
    part = []
    for rank in range(4):
        sidecar = json.loads((out / f"rank{rank}.metrics.json").read_bytes())
        part.append(sidecar["analyses"]["temporal_breakdown"]["rows"][0]["compute_ns"])
    assert (each["min"], each["max"]) == (min(part), max(part))
    assert (each["mean"], each["std"]) == pytest.approx((statistics.mean(part), statistics.stdev(part)), rel=1e-6)
    assert (each["min_rank"], each["max_rank"], each["rank_count"]) == (part.index(min(part)), 3, 4)


def test_rows_beyond_what_a_summary_holds_are_counted(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    traces = [read(str(out.parent / "in" / f"rank{rank}.pt.trace.json.gz")) for rank in range(2)]
    monkeypatch.setattr(summary, "MOST_ROWS", 3)
    augmented = [augment(trace, only=["kernel_breakdown", "temporal_breakdown"]) for trace in traces]
    cut = sum(len(each.outcomes["kernel_breakdown"].rows) - 3 for each in augmented)  # type: ignore[union-attr]
    rows = document(answer([summarize(each) for each in augmented], ["0", "1"]), "job")
    assert {diagnostic.code: diagnostic.count for diagnostic in rows["diagnostics"]}["rows_not_aggregated"] == cut > 0


def test_a_summary_is_small_equal_and_checked(out: Path, tmp_path: Path) -> None:
    trace = out.parent / "in" / "rank0.pt.trace.json.gz"
    made = [summarize(augment(read(str(trace)))) for _ in range(2)]
    assert made[0] == made[1]
    assert len(made[0]) < 24_000
    each = read_summary((out / "rank0.ranks.summary").read_bytes(), "rank0")
    assert each.rank == 0
    assert "kernel_breakdown" in each.figures
    assert not {"launch_outliers", "activity_over_time"} & each.figures.keys()  # rows that no other rank shares
    with pytest.raises(InputError, match=r"^x: not a summary of a rank"):
        read_summary(made[0][:-9], "x")
    with pytest.raises(InputError, match="not a summary"):
        read_summary(b"{}", "x")


def test_steps_alone_are_summarized_if_those_alone_were_asked_for(out: Path) -> None:
    trace = read(str(out.parent / "in" / "rank0.pt.trace.json.gz"))
    whole, part = (read_summary(summarize(augment(trace, only=["steps"], steps=each)), "x") for each in (None, (1, 1)))
    assert set(whole.column("step").tolist()) == {0, 1}
    assert set(part.column("step").tolist()) == {1}
    assert part.step_column("number").tolist() == [1]
    assert set(part.column("row").tolist()) < set(whole.column("row").tolist())


def test_imbalance() -> None:
    ranks = [summary_of(rank, [], steps=([1, 2], [0, 100], [100, 210], [50 + 10 * rank, 60])) for rank in range(3)]
    first, second = imbalance([*ranks, summary_of(9, [], steps=([2], [100], [600], [0]))])
    assert (first.step, first.rank_count, first.max_rank, first.max_compute_ns) == (1, 3, 2, 70)
    assert first.imbalance_ratio == pytest.approx(70 / 60 - 1)
    assert (second.rank_count, second.mean_compute_ns, second.max_wall_ns) == (4, 45, 500)


def test_the_fit_is_refused_to_what_tells_nothing() -> None:
    sizes = np.array([100, 100, 200, 350])
    assert fit(sizes, np.array([10, 11, 20, 35])) is None  # less than four times the least
    assert fit(np.array([100, 1000, 100]), np.array([1, 2, 1])) is None  # two sizes
    assert fit(np.array([100, 1000, 10_000]), np.array([30, 20, 10])) is None  # larger ones take less
    exact = fit(np.array([1000, 2000, 8000, 16000]), np.array([1500, 2000, 5000, 9000]))
    assert (exact.alpha_ns, exact.beta_gbps, exact.r2) == pytest.approx((1000, 2, 1))
    assert exact.predicted_ns(32_000) == pytest.approx(17_000)
    assert exact.predicted_ns(32_001) is None
    assert fit(np.array([1000, 2000, 8000]), np.array([400, 1000, 4100])).alpha_ns == 0


def test_a_collective_of_negative_duration_takes_no_time(tmp_path: Path) -> None:
    contents = []
    for rank, dur in enumerate((5.0, -3.0)):
        output = {"Collective name": "allreduce", "Seq": 1, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
        path = tmp_path / f"rank{rank}.json"
        write_trace(path, kernel("ncclDevKernel_AllReduce_Sum_f32_RING", dur=dur) | {"args": {"stream": 7, **output}})
        contents.append(summarize(augment(read(str(path)))))
    (row,) = answer(contents, ["a", "b"]).outcomes["job_collectives"].rows
    assert (row.time_ns, row.wait_ns, row.transfer_ns) == (5000, 5000, 0)


# Statistics over ranks, added rank after rank: equal to those of a whole table, in memory that ranks do not
# grow.


def with_figures(rank: int, tables: dict[str, tuple[list[list[str]], np.ndarray]]) -> RankSummary:
    summary = summary_of(rank, [])
    summary.figures = {
        name: Figures(keys=keys, columns=["time_ns", "ratio"], units=["ns", ""], values=values.tobytes())
        for name, (keys, values) in tables.items()
    }
    return summary


def findings_of(summaries: list[RankSummary]) -> Findings:
    return aggregates(summaries)


def test_they_are_those_of_a_whole_table() -> None:
    values = np.random.default_rng(1).normal(1e9, 1e7, (40, 3, 2))
    values[5, 1, 0] = np.nan
    keys = [["name=a"], ["name=b"], ["name=b"]]
    rows = findings_of([with_figures(rank, {"kernels": (keys, values[rank])}) for rank in range(40)]).rows
    assert [(row.of, row.figure) for row in rows] == [
        (key, figure) for key in ("name=a", "name=b", "name=b #2") for figure in ("time_ns", "ratio")
    ]
    for row, column in zip(rows, values.reshape(40, 6).T, strict=True):
        known = column[np.isfinite(column)]
        assert row.rank_count == len(known)
        assert (row.min, row.max) == (known.min(), known.max())
        assert (row.min_rank, row.max_rank) == (np.nanargmin(column), np.nanargmax(column))
        assert row.mean == pytest.approx(known.mean(), rel=1e-6)
        assert row.std == pytest.approx(known.std(ddof=1), rel=1e-6)


def test_keys_of_few_ranks_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 100)
    summaries = []
    for rank in range(60):
        single = [[f"ts_ns={1000 * rank + number}"] for number in range(50)]
        tables = {"outliers": (single, np.ones((50, 2))), "kernels": ([["name=a"]], np.full((1, 2), float(rank)))}
        summaries.append(with_figures(rank, tables))
    outcome = findings_of(summaries)
    assert {row.analysis for row in outcome.rows} == {"kernels"}
    assert [(note.code, note.count) for note in outcome.diagnostics] == [("keys_of_few_ranks", 60 * 50)]
    assert len(findings_of(summaries[:3]).rows) == 2 + 3 * 50 * 2


def test_no_analysis_is_cut_off_by_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 60)
    tables = {
        name: ([[f"name={number}"] for number in range(count)], np.ones((count, 2)))
        for name, count in (("long", 100), ("short", 5), ("last", 20))
    }
    last = {name: (keys, values + 1) for name, (keys, values) in tables.items()}
    outcome = findings_of([with_figures(rank, last if rank == 3 else tables) for rank in range(4)])
    counts = {name: sum(row.analysis == name for row in outcome.rows) for name in tables}
    assert counts == {"long": 25, "short": 10, "last": 25}
    assert outcome.diagnostics[-1].count == 250 - 60


def test_figures_that_are_equal_on_all_ranks_are_left_out() -> None:
    keys = [["name=a"], ["name=b"]]
    ranks = [with_figures(rank, {"kernels": (keys, np.array([[rank, 5.0], [7.0, 8.0]]))}) for rank in range(4)]
    outcome = findings_of(ranks)
    assert [(row.of, row.figure) for row in outcome.rows] == [("name=a", "time_ns")]
    ranks[1].figures["kernels"].values = np.array([[1, 5.0], [np.nan, 8.0]]).tobytes()
    assert [(row.of, row.rank_count) for row in findings_of(ranks).rows] == [("name=a", 4), ("name=b", 3)]
    assert len(findings_of(ranks[:3]).rows) == 4


def test_long_keys_are_shortened_and_stay_distinct() -> None:
    keys = [[f"name={'x' * 300}{number}{'y' * 300}"] for number in range(5)]
    texts = [row.of for row in findings_of([with_figures(0, {"kernels": (keys, np.ones((5, 2)))})]).rows]
    assert len(set(texts)) == 5
    assert max(map(len, texts)) < 110
    assert all(text.startswith("name=xxx") and "yyy (" in text for text in texts)


def test_an_analysis_without_figures_has_no_rows() -> None:
    summaries = [summary_of(rank, []) for rank in range(3)]
    for each in summaries:
        each.figures = {"names": Figures(keys=[["name=a"], ["name=b"]], columns=[], units=[], values=b"")}
    assert not findings_of(summaries).rows


def test_portions_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 150)
    random = np.random.default_rng(2)
    summaries = []
    for rank in range(60):
        values = random.normal(1e6, 1e3, (3, 2))
        values[1] = np.nan if rank % 7 else values[1]
        keys = [["name=a"], ["name=b"], [f"name=c{rank % 4}"]]
        single = [[f"ts_ns={1000 * rank + number}"] for number in range(20)]
        summaries.append(with_figures(rank, {"outliers": (single, np.ones((20, 2))), "kernels": (keys, values)}))
    joined = Aggregation()
    for first in range(0, 60, 13):
        portion = Aggregation()
        for member, each in enumerate(summaries[first : first + 13], first):
            portion.add(member, each)
        joined.join(portion)
    outcome, whole = joined.outcome(summaries), findings_of(summaries)
    assert outcome.diagnostics == whole.diagnostics
    for row, other in zip(outcome.rows, whole.rows, strict=True):
        rounded = {name: pytest.approx(getattr(other, name), rel=1e-9) for name in ("mean", "std")}
        assert replace(row, **rounded) == replace(other, **rounded)
        assert (row.mean, row.std) == (rounded["mean"], rounded["std"])
