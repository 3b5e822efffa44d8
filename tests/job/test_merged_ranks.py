"""Ranks that another tool merged into one file are ranks: their diagnosis says which comes late."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from augment.core.attachments import RankInJob
from augment.core.trace import Trace
from augment.job.rank_answers import with_its_ranks
from augment.readers import read
from augment.results.report.health import report_on
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2)
NUMBERS = 1_000_000  #: between the correlations of two ranks


def merged(options: JobOptions, folder: Path, *, named: bool = True) -> Path:
    """The ranks of a job in one file: as TraceLens' TraceFusion does, with the rank in the args of each event."""
    events: list[dict[str, Any]] = []
    for rank, (path, _) in enumerate(simulate(options, folder / "ranks")):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            args = event.get("args", {})
            numbers = {key: args[key] + rank * NUMBERS for key in ("correlation", "External id") if key in args}
            event["args"] = {**args, **numbers, **({"rank": rank} if named else {})}
            if "id" in event:
                event["id"] += rank * NUMBERS
            if event["ph"] != "M" or "args" in event:
                event["pid"] = f"{rank}:{event['pid']}"
                events.append(event)
    out = folder / "merged.json"
    out.write_text(json.dumps({"traceEvents": events}))
    return out


def of_its_ranks(trace: Trace) -> RankInJob | None:
    return with_its_ranks(trace).context.attached(RankInJob)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, host_stall_us=20_000.0, host_stall_rank=2), "its host"),
        (JobOptions(ranks=4, steps=5, layers=3, run_ahead=2, straggler=2), "its device computes longer"),
    ],
    ids=["host", "compute"],
)
def test_the_late_rank_of_a_merged_file_is_named(options: JobOptions, reason: str, tmp_path: Path) -> None:
    report = report_on(str(merged(options, tmp_path)), lambda _: None)
    row = next(row for row in report["rows"] if row["rule"] == "straggling_rank")
    assert row["status"] == "found"
    assert f"mostly (100 %) rank 2 ({reason}" in row["title"]
    assert any("rank 2" in sentence for sentence in report["verdict"])
    communication = next(row for row in report["rows"] if row["rule"] == "exposed_communication")
    assert (communication["saved_ns"] or 0) < row["saved_ns"] / 2


def test_nobody_is_late_in_a_healthy_merged_file(tmp_path: Path) -> None:
    job = of_its_ranks(read(str(merged(JOB, tmp_path))))
    assert not job.late_ranks


def test_a_file_that_names_no_ranks_or_one_is_left_as_it_is(tmp_path: Path) -> None:
    unnamed = read(str(merged(JOB, tmp_path, named=False)))
    assert with_its_ranks(unnamed) is unnamed
    one_rank = read(str(next((tmp_path / "ranks").glob("*.json.gz"))))
    assert with_its_ranks(one_rank) is one_rank
