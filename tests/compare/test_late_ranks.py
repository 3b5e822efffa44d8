"""Whether a comparison of jobs says which rank the others wait for: against simulated truth, and recorded jobs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from augment.compare import diff
from simulator import JobOptions, simulate

JOB = JobOptions(ranks=4, steps=5, layers=2, jitter=0.01)
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "v100_4rank_pair_torchrec"


def written(folder: Path, **changes: Any) -> list[str]:
    return [str(path) for path, _ in simulate(replace(JOB, **changes), folder)]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return written(tmp_path_factory.mktemp("control"))


@pytest.mark.parametrize(("changes", "said"), [
    ({"host_stall_rank": 2, "host_stall_us": 9_000.0}, "Rank 2 itself changed: +9 ms waiting for the host ("),
    ({"straggler": 1, "straggler_factor": 2.0}, "Rank 1 itself changed: +6.44 ms computing; "),
    ({"host_stall_us": 9_000.0}, ""),  # all ranks
    ({"slow_link": 1, "slow_link_factor": 20.0}, ""),  # the collectives themselves take longer, on all ranks
    ({"work": 1.5}, ""),
    ({}, ""),
], ids=str)  # fmt: skip
def test_the_late_rank_is_told_and_nobody_else(
    control: list[str], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    result = diff(control, written(tmp_path, seed=1, **changes))
    (sentence,) = [text for text in result.verdict.text if "itself changed" in text] or [""]
    assert sentence.startswith(said)
    assert not said or result.verdict.text[1] == sentence, "before what the others only wait for"
    assert bool(sentence) == bool(said)
    assert sentence.startswith(f"Rank {result.late[1]} " * bool(said))


def test_the_other_way_round_the_others_had_waited(control: list[str], tmp_path: Path) -> None:
    """Metamorphic: the same rank, the same time."""
    slow = written(tmp_path, seed=1, host_stall_rank=2, host_stall_us=9_000.0)
    there, back = (diff(*sides).verdict.text[1] for sides in ((control, slow), (slow, control)))
    assert back == (
        there.replace("no longer", "as long as before").replace("+", "-").replace("only wait", "only have waited")
    )


def test_one_rank_waits_for_nobody(control: list[str], tmp_path: Path) -> None:
    slow = written(tmp_path, host_stall_rank=2, host_stall_us=9_000.0)
    assert not diff(control[2], slow[2]).late[0]


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded traces are not here")
def test_the_rank_that_sleeps_is_told() -> None:
    """By the file alone: NCCL's kernels take a second longer on all ranks but one."""
    sides = [sorted(RECORDED.joinpath(name).glob("*.json.gz")) for name in ("control", "sst_long_a2a_optimizer")]
    took: dict[int, float] = {}
    for path in sides[1]:
        document = json.loads(gzip.decompress(path.read_bytes()))
        kernels = (row for row in document["traceEvents"] if row.get("cat") == "kernel" and "nccl" in row["name"])
        took[document["distributedInfo"]["rank"]] = sum(row["dur"] for row in kernels)
    late = min(took, key=took.__getitem__)
    assert sorted(took.values())[1] > took[late] + 1e6
    result = diff(*([str(path) for path in side] for side in sides))
    assert result.late[0].startswith(f"Rank {late} itself changed: +1.05 s waiting for the host (# running sparse arch")
