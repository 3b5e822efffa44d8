"""Figures obey the changes whose effect is known, on real traces and on simulated ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metamorphic
from augment import Findings, augment, read
from simulator import JobOptions, simulate

SIMULATED = {
    "waits": JobOptions(ranks=1, steps=4, layers=2),
    "cut in a backlog": JobOptions(ranks=1, steps=5, layers=2, run_ahead=1, record_from=(1.3,), side_streams=1),
    "crossing": JobOptions(ranks=1, steps=3, layers=2, cross_ns=1, collectives="fsdp"),
}
RECORDED = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
)
FACTOR, LAUNCHES = 3, 40
Figures = dict[str, list[Any]]
#: what an analysis compares times with is stretched with them
CUTOFFS = {
    "idle_time_breakdown": {"consecutive_kernel_delay_ns": 30_000, "arrow_min_gap_ns": 100_000},
    "launch_statistics": {"runtime_cutoff_ns": 50_000, "launch_delay_cutoff_ns": 100_000},
    "launch_outliers": {"runtime_cutoff_ns": 50_000, "launch_delay_cutoff_ns": 100_000},
}
#: of work alone, whatever launched it
OF_WORK = "temporal_breakdown", "communication_computation_overlap", "kernel_type_breakdown"
OF_WORK += "kernel_breakdown", "memory_bandwidth"
#: the critical path holds launch latencies of its own, which do not stretch
#: and the peaks of a device, which what is told of work against them depends on, do not, either
#: and the edges of equal parts are rounded to a nanosecond
SKIPPED = "critical_path", "critical_path_operators", "roofline", "step_efficiency"
SKIPPED += "model_flops", "diagnosis", "activity_over_time"


@pytest.fixture(scope="module", params=[*SIMULATED, *RECORDED])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> metamorphic.Document:
    if request.param in RECORDED:
        return metamorphic.load(metamorphic.real_trace(request.param))
    return metamorphic.load(simulate(SIMULATED[request.param], tmp_path_factory.mktemp("job"))[0][0])


@pytest.fixture(scope="module")
def before(document: metamorphic.Document, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures of the document as it is."""
    return figures(document, tmp_path_factory.mktemp("before"))


def figures(document: metamorphic.Document, folder: Path, factor: int = 1) -> Figures:
    """Every analysis's rows, or what it was skipped for."""
    options = {name: {key: ns * factor for key, ns in asked.items()} for name, asked in CUTOFFS.items()}
    outcomes = augment(
        read(str(metamorphic.save(document, folder / f"{factor}.json"))), options=options, skip=SKIPPED
    ).outcomes
    rows = {name: list(each.rows) if isinstance(each, Findings) else [] for name, each in outcomes.items()}
    # what a finding costs is what the diagnosis, which is skipped, says that it would save
    return rows | {"cost": [row for row in rows["cost"] if row.part != "finding"]}


def in_stretched_time(column: str, value: Any) -> Any:
    if value is None or column in ("kernel_wait_ns", "other_wait_ns"):  # parted by a cutoff that is no option
        return value
    if column.endswith("_ns") or column == "cost_per_million_steps":
        return value * FACTOR
    return value / FACTOR if column.endswith("_gbps") else value


def test_stretched_times_stretch_every_figure(document: metamorphic.Document, before: Figures, tmp_path: Path) -> None:
    after = figures(metamorphic.stretched(document, FACTOR), tmp_path, FACTOR)
    assert before.keys() == after.keys()
    rows = [
        f"{name}, {row}"
        for name, rows in before.items()
        for row in metamorphic.differences(rows, after[name], in_stretched_time)
        if "_wait_ns is" not in row
    ]
    assert not rows
    for row, other in zip(before["steps"], after["steps"], strict=True):
        waited, longer = (each.kernel_wait_ns + each.other_wait_ns + each.host_wait_ns for each in (row, other))
        assert longer == FACTOR * waited


def test_cut_launches_change_what_counts_launches_alone(
    document: metamorphic.Document, before: Figures, tmp_path: Path
) -> None:
    after = figures(metamorphic.without_first_launches(document, LAUNCHES), tmp_path)
    changed = [
        f"{name}, {difference}" for name in OF_WORK for difference in metamorphic.differences(before[name], after[name])
    ]
    by_operator = ("family is", "matrix_units is")  # told by the operator that launched a kernel, where one is known
    assert not [each for each in changed if not any(column in each for column in by_operator)]
    counts = [sum(row.launch_count for row in each["launch_statistics"]) for each in (before, after)]
    if counts[0] > LAUNCHES:
        assert counts[0] - counts[1] == LAUNCHES


def test_work_after_a_cut_is_all_there(document: metamorphic.Document, tmp_path: Path) -> None:
    ns = 2_000_000
    cut = metamorphic.without_first_ns(document, ns)
    work = Counter(event["name"] for event in cut["traceEvents"] if event.get("cat") in metamorphic.GPU_WORK)
    durations: Counter[str] = Counter()
    for event in cut["traceEvents"]:
        if event.get("cat") in metamorphic.GPU_WORK:
            durations[event["name"]] += int(event["dur"] * 1000)
    rows = figures(cut, tmp_path)["kernel_breakdown"]
    assert {row.name: row.count for row in rows} == work
    assert {row.name: row.sum_ns for row in rows} == durations


def test_steps_after_a_cut_are_as_before(tmp_path: Path) -> None:
    path, truth = simulate(JobOptions(ranks=1, steps=5, layers=2, causes=True), tmp_path)[0]
    document, steps = metamorphic.load(path), truth["causes"]["steps"]
    middle = (steps[1]["host_begin"] + steps[1]["host_finish"]) // 2 - steps[0]["host_begin"]
    before, after = figures(document, tmp_path), figures(metamorphic.without_first_ns(document, middle), tmp_path)
    assert [row.step for row in after["steps"]] == [2, 3, 4]
    of_the_recording = ("start_ns is", "robust_z is", "median_ratio is", "is_outlier is")
    differing = metamorphic.differences(before["steps"][2:], after["steps"])
    assert not [each for each in differing if not any(column in each for column in of_the_recording)]


def test_files_say_what_documents_do(document: metamorphic.Document, tmp_path: Path) -> None:
    assert list(times(metamorphic.load(metamorphic.save(document, tmp_path / "again.json")))) == list(times(document))


def times(document: metamorphic.Document) -> Iterator[tuple[Any, Any]]:
    return ((event.get("ts"), event.get("dur")) for event in document["traceEvents"])
