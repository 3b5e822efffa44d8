"""Recordings that begin while devices still do what no file has: the time before the first work belongs to nobody."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from augment.compare import diff
from augment.compare.gate import check
from augment.compare.totals import samples_of
from augment.core.findings import AugmentedTrace
from augment.core.trace import Trace
from augment.facts.steps.step_windows import recorded_windows
from augment.job.answer import Answer, answer
from augment.job.ranks.summary import summarize
from augment.readers import read
from traces import write_trace

RANKS, ROUNDS, FREE = 4, 40, 500_000  #: µs: when the devices get free, on all ranks at one moment


def recorded(folder: Path, leads: Sequence[int], late: int | None = None) -> list[Path]:
    """Ranks that compute and exchange in turn; each recording begins so many µs before its device gets free, in a wait
    for it. ``late``: a rank whose kernels take half as long again."""
    now, paths = [FREE + 1] * RANKS, []
    group = {"Process Group Name": "0", "Process Group Ranks": str(list(range(RANKS))), "Group size": RANKS}
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]

    def add(rank: int, name: str, category: str, start: int, end: int, **args: Any) -> None:
        place = {"pid": rank, "tid": 7} if category == "kernel" else {"pid": 100, "tid": 1}
        events[rank].append(
            {"ph": "X", "name": name, "cat": category, "ts": start, "dur": end - start, **place, "args": args}
        )

    for rank, lead in enumerate(leads):
        add(rank, "aten::to", "cpu_op", FREE - lead, FREE + 20)
        add(rank, "cudaStreamSynchronize", "cuda_runtime", FREE - lead + 20, FREE, correlation=1)
    for number in range(ROUNDS):
        arrived = []
        for rank in range(RANKS):
            noise = random.Random(100 * number + rank).randrange(30)
            took = round((700 + noise) * (1.5 if rank == late else 1.0))
            correlation = 10 + 2 * number
            add(rank, "cudaLaunchKernel", "cuda_runtime", FREE + 30 + 2 * number, FREE + 31 + 2 * number,
                correlation=correlation)  # fmt: skip
            add(rank, "gemm", "kernel", now[rank], now[rank] + took, stream=7, device=rank, correlation=correlation)
            arrived.append(now[rank] + took + 2)
        done = max(arrived) + 200
        for rank in range(RANKS):
            add(rank, "cudaLaunchKernel", "cuda_runtime", FREE + 31 + 2 * number, FREE + 32 + 2 * number,
                correlation=11 + 2 * number)  # fmt: skip
            add(rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "kernel", arrived[rank], done, stream=7,
                device=rank, correlation=11 + 2 * number, **group)  # fmt: skip
            now[rank] = done + 2
    for rank in range(RANKS):
        listed = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        paths.append(write_trace(folder / f"rank{rank}.json", *events[rank], distributedInfo=listed))
    return paths


def answered(paths: list[Path]) -> Answer:
    return answer([summarize(AugmentedTrace(read(str(path)), {})) for path in paths], [path.name for path in paths])


@pytest.mark.parametrize("leads", [(100_000, 93_000, 30_000, 82_000), (64_000, 100, 100, 100), (0, 0, 0, 0)])
@pytest.mark.parametrize("late", [None, 2])
def test_where_recordings_begin_changes_no_verdict(leads: Sequence[int], late: int | None, tmp_path: Path) -> None:
    result = answered(recorded(tmp_path / "leads", leads, late))
    plain = answered(recorded(tmp_path / "none", (0,) * RANKS, late))
    assert result.verdict.text == plain.verdict.text
    assert result.verdict.text[0].startswith("No rank stands out" if late is None else f"Rank {late} delays")
    assert "keeps others waiting" not in " ".join(result.verdict.text)


def recording(folder: Path, lead: int) -> Trace:
    return read(str(recorded(folder, (lead,) * RANKS)[0]))


def test_a_recording_that_began_earlier_is_not_slower(tmp_path: Path) -> None:
    control, test = recording(tmp_path / "a", 96_000), recording(tmp_path / "b", 126_000)
    assert diff(control, test).verdict.text[0].startswith("No difference")
    before, after = (samples_of(trace, recorded_windows(trace)) for trace in (control, test))
    assert check(before, after)[0].status == "pass"
    assert before["wall_ns"] == after["wall_ns"]
