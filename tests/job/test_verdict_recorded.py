"""Who is late in recorded jobs, by the kernels in the raw JSON one by one, beside the verdict."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from answered_jobs import answered, job_at
from augment.job.verdict.verdict_text import late_without_gain

FIRST_COMMON = 30  #: collectives at the end of the recording that all ranks have


def leads(paths: list[Path]) -> dict[int, float]:
    """By how much each rank arrived after the last but one, us, in its collectives counted from the end."""
    ranks, kernels = [], []
    for path in paths:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        ranks.append(trace["distributedInfo"]["rank"])
        rows = [(e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"]
                 if e.get("ph") == "X" and e.get("cat") == "kernel" and "nccl" in e["name"].lower()]  # fmt: skip
        kernels.append(sorted(rows)[-FIRST_COMMON:])
    ahead = [
        statistics.median(part[1] - first[1] for part, first in zip(each, kernels[0], strict=True)) for each in kernels
    ]
    charged = dict.fromkeys(ranks, 0.0)
    for place in range(FIRST_COMMON):
        arrivals = sorted((row[place][0] - shift, rank) for row, shift, rank in zip(kernels, ahead, ranks, strict=True))
        charged[arrivals[-1][1]] += arrivals[-1][0] - arrivals[-2][0]
    return charged


@pytest.mark.parametrize("folder", ["control", "test"])
def test_rank_2_of_the_torchrec_pair(folder: str, shared_traces: Path) -> None:
    paths = job_at(shared_traces / "v100_4rank_pair_torchrec" / folder)
    charged = leads(paths)
    assert charged[2] > max(100_000, 0.9 * sum(charged.values()))
    result = answered(paths)
    verdict, tracks = result.verdict, result.of_job((-(1 << 62), 1 << 62))
    (late,) = [track for track in tracks if track.name == "Late rank"]  # its device works for no longer than its peers'
    assert "its device works" not in {late.inner.values[code] for code in late.inner.codes[late.names.codes == 2]}
    assert [row.rank for row in verdict.rows] == [2]
    # what its device does later, after the others waited, is no second cause
    assert {row.cause for row in result.outcomes["stragglers"].rows if row.rank == 2} == {"host"}
    assert verdict.text[0].startswith("Possible: Rank 2 delays the other three by ")
    sentences = [each for text in verdict.text for each in re.split(r"(?<=[.]) (?=[A-Z])", text)]
    assert [each for each in sentences if len(each.split()) > 30] == []
    assert sentences[1].startswith("Cause: ")
    remains = sentences[2].endswith(", as other hosts and devices are busy for most of that time anyway.")
    assert remains == (verdict.rows[0].gain_ns < verdict.rows[0].charged_ns / 2) == (folder == "test")


def test_other_slow_hosts_limit_what_a_late_rank_gains(shared_traces: Path) -> None:
    """Plainly: how long the hosts take for a step without calls that wait, the mean less its standard error. That of
    rank 7, of which no device waits for its host, takes as long as that of the late one."""
    paths = job_at(shared_traces / "h100_8rank_modded_nanogpt")
    paces = {}
    for path in paths:
        rows = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
        waits = [e for e in rows if e.get("cat") == "cuda_runtime" and "Synchronize" in e["name"]]
        steps = sorted((e["ts"], e["dur"]) for e in rows if e["name"][:13] == "ProfilerStep#" and e["pid"] == e["tid"])
        took = [dur - sum(e["dur"] for e in waits if ts <= e["ts"] < ts + dur) for ts, dur in steps[-3:]]
        paces[path.name] = statistics.mean(took) - statistics.stdev(took) / 3**0.5
    late = paces.pop("rank1.json.gz")
    assert max(paces.values()) == paces["rank7.json.gz"] == pytest.approx(late, rel=0.05)
    job = answered(paths, "diagnosis")
    (row,) = job.verdict.rows
    assert (row.rank, row.cause) == (1, "host")
    length = job.judgement.recorded_ns / 3000
    assert (length - row.gain_ns / 3000) == pytest.approx(paces["rank7.json.gz"], rel=0.015)
    assert row.gain_ns < row.charged_ns / 5
    assert ", as the host of rank 7 takes that long." in job.verdict.text[0]


def idle_below(path: Path, names: Sequence[str]) -> float:
    """How long the device idles while a thread is in operators, annotations or calls of these names, us."""
    rows = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    busy = sorted((e["ts"], e["ts"] + e["dur"]) for e in rows if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    gaps, until = [], busy[0][0]
    for start, end in busy:
        if start > until:
            gaps.append((until, start))
        until = max(until, end)
    return sum(
        max(min(end, e["ts"] + e["dur"]) - max(start, e["ts"]), 0)
        for e in rows if e["name"] in names and e.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime")
        for start, end in gaps
    )  # fmt: skip


def test_calls_that_take_others_longer_are_not_named(shared_traces: Path) -> None:
    """The device of rank 2 alone idles below cudaMalloc, which takes the hosts of the others twice as long, hidden."""
    paths = job_at(shared_traces / "v100_4rank_pair_torchrec" / "control")
    (row,) = answered(paths).verdict.rows
    assert (row.rank, row.cause) == (2, "host")
    assert row.evidence.startswith("its host (")
    taken = {}
    for path in paths:
        document = json.loads(gzip.decompress(path.read_bytes()))
        calls = [e["dur"] for e in document["traceEvents"] if e.get("name") == "cudaMalloc" and "dur" in e]
        taken[document["distributedInfo"]["rank"]] = sum(calls)
    assert taken.pop(2) < min(taken.values())


@pytest.mark.parametrize("folder", ["test", "sst_sleep_pl_dense_after_backward_2"])
def test_what_is_named_is_no_habit_of_all(folder: str, shared_traces: Path) -> None:
    """All ranks wait 100 ms for a product in the first step, which explains no rank's delay."""
    paths = job_at(shared_traces / "v100_4rank_pair_torchrec" / folder)
    (row,) = answered(paths).verdict.rows
    names = re.findall(r"`(.*?)`", row.evidence)
    assert "cudaMalloc, cudaFree" not in row.evidence
    assert row.gain_ns is None or row.gain_ns <= row.charged_ns
    ranks = {json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"]: path for path in paths}
    late = idle_below(ranks.pop(row.rank), names)
    others = [idle_below(path, names) for path in ranks.values()]
    assert late - statistics.median(others) > 0.5 * row.charged_ns / 1000


def test_ranks_that_gain_nothing_are_not_named_where_all_wait_alike(shared_traces: Path) -> None:
    """One step of eight ranks, each of whose devices idles most of the time: none is the reason."""
    paths = job_at(shared_traces / "dlrm_8rank_v100_param" / "kineto")
    assert min(idle_ratio(path) for path in paths) > 0.3
    verdict = answered(paths).verdict
    (row,) = verdict.rows
    assert (row.rank, row.cause, row.confidence) == (None, "shared", "low")


def idle_ratio(path: Path) -> float:
    """The share of a recording in which its device idles, from its first kernel on."""
    rows = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in rows if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    idle, until = 0.0, work[0][0]
    for start, end in work:
        idle, until = idle + max(start - until, 0), max(until, end)
    return idle / (until - work[0][0])


def test_a_rank_that_is_late_without_gain() -> None:
    text = late_without_gain(2, 98_300_000, "host", 45_500_000, 0.0071, 0)
    assert text == (
        "Rank 2 keeps others waiting: 98.3 ms more than its peers between collectives, 45.5 ms of that is waiting for "
        "the host. At the median's speed the job would gain only 0.7 %."
    )
    assert late_without_gain(None, 1000, "compute", 900, -0.01, 0).endswith("the job would gain nothing.")
    assert ": 49.1 ms per step more than" in late_without_gain(2, 98_300_000, "host", 45_500_000, 0.0071, 2)
