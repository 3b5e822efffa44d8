"""What a memory snapshot says: the moments, who held what, growth, leaks and pieces; alone and beside a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import augment
from augment.core import CounterTrack, Findings, Skipped, SliceTrack, Trace
from augment.core.text import size
from augment.readers import read
from augment.readers.attachments.snapshot_file import memory_snapshot
from memory_snapshots import MIB, SEGMENT, Allocator, frame, training, write_snapshot
from tables import annotation, call, kernel, op, trace_of

START_US = 1_700_000_000 * 10**6
MODEL, LIST = "run/model.py:217 forward", "run/train.py:40 step"


def alone(tmp_path: Path, made: Allocator, newest: int | None = None) -> Trace:
    return read(str(write_snapshot(tmp_path / "snapshot.pickle", made.snapshot(newest))))


def findings_of(trace: Trace) -> Findings:
    outcome = augment.augment(trace, only=["memory_snapshot"]).outcomes["memory_snapshot"]
    assert isinstance(outcome, Findings)
    return outcome


def rows(findings: Findings, moment: str, by: str, *columns: str) -> dict[str, Any]:
    chosen = (row for row in findings.rows if (row.moment, row.by) == (moment, by))
    return {row.name: tuple(getattr(row, column) for column in columns) for row in chosen}


def sentences(trace: Trace) -> list[str]:
    return list(augment.augment(trace).verdict.text)


def test_who_held_the_peak(tmp_path: Path) -> None:
    findings = findings_of(alone(tmp_path, training(START_US)))
    held = 10 + 12 + 6 + 4  # parameters, activations, losses of six steps, gradients
    assert rows(findings, "peak", "level", "bytes")["allocated"] == (held * MIB,)
    lines = rows(findings, "peak", "line", "bytes", "count", "step_bytes")
    assert lines[MODEL] == (12 * MIB, 4, 0)
    assert lines[LIST] == (6 * MIB, 6, MIB)
    assert lines["no Python frame"] == (4 * MIB, 2, 0)
    assert sum(count for count, *_ in lines.values()) == held * MIB
    kinds = rows(findings, "peak", "category", "bytes", "confidence")
    assert kinds["parameters"] == (10 * MIB, "high")
    theory = rows(findings, "peak", "category", "theory_bytes")
    assert theory["parameters"] == (None,)
    assert all(theory[name] == (10 * MIB,) for name in theory if name == "gradients")
    assert sum(kinds.get(name, (0,))[0] for name in ("activations", "temporary", "gradients")) == 16 * MIB


def test_what_every_step_leaves_behind(tmp_path: Path) -> None:
    trace = alone(tmp_path, training(START_US))
    assert rows(findings_of(trace), "end", "never freed", "bytes", "count", "step_bytes", "confidence") == {
        LIST: (5 * MIB, 5, MIB, "medium")
    }
    assert sentences(trace)[-1] == f"Every step leaves memory behind that is never freed: `{LIST}` (1.0 MB)."
    for few in (1, 3):
        assert not rows(findings_of(alone(tmp_path, training(START_US, steps=few))), "end", "never freed", "bytes")


def test_what_is_freed_is_no_leak(tmp_path: Path) -> None:
    made = Allocator(START_US)
    for number in range(8):
        made.mark(f"ProfilerStep#{number}")
        made.free(made.alloc(MIB, frame("/a/b/train.py", 3)))
    assert not rows(findings_of(alone(tmp_path, made)), "end", "never freed", "bytes")


def failing(start_us: int = START_US, between: int = 0) -> Allocator:
    """Memory runs out, ``between`` other requests of which nothing remains."""
    made = training(start_us)
    kept = [made.alloc(6 * MIB, frame("/home/me/run/model.py", 300, "grow")) for _ in range(6)]
    for addr in kept[::2]:
        made.free(addr)
    for _ in range(between):
        made.free(made.alloc(MIB // 2, frame("/home/me/run/other.py", 5)))
    made.oom(17 * MIB, 2 * MIB, frame("/home/me/run/model.py", 77, "attention"))
    made.free(kept[1])
    return made


def test_what_does_not_matter_to_memory_that_ran_out(tmp_path: Path) -> None:
    said = sentences(alone(tmp_path, failing()))[1:]
    assert sentences(alone(tmp_path, failing(START_US + 3_600_000_000)))[1:] == said
    assert sentences(alone(tmp_path, failing(between=7)))[1:] == said


def test_out_of_memory_is_told(tmp_path: Path) -> None:
    made = failing()
    trace = alone(tmp_path, made)
    free = rows(findings_of(trace), "oom", "level", "bytes")
    assert free["requested"] == (17 * MIB,)
    assert free["device free"] == (2 * MIB,)
    pieces = rows(findings_of(trace), "oom", "pool", "bytes", "free_bytes", "largest_bytes")["large"]
    assert pieces[0] == len(made.segments) * SEGMENT
    assert pieces[2] < 17 * MIB < pieces[1]
    assert free["fits"] == (pieces[2],)
    first, amounts, second, third, *rest = sentences(trace)
    assert first.startswith("Out of memory at 22:13:2")
    asked = "18 MB (17.00 MiB) requested by `run/model.py:77 attention`, 2.1 MB (2.00 MiB) free."
    assert first.endswith(f"UTC on GPU 0: {asked}")
    reserved, most = size(pieces[0]), size(pieces[0] + 2 * MIB)
    assert f", and {reserved} reserved by PyTorch; if the device has more than {most}, other processes" in amounts
    assert second == f"{size(pieces[1])} more are reserved but unused, in pieces of at most {size(pieces[2])}."
    others = "29 % by `run/train.py:9 step` and 18 % by `run/train.py:40 step`"
    assert third == f"53 % of what is allocated is held by `run/model.py:300 grow`, in 3 allocations; {others}."
    assert "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which joins such pieces." in rest


def test_beside_a_trace(tmp_path: Path) -> None:
    made = training(START_US)
    made.oom(MIB, 0)
    snapshot = memory_snapshot(str(write_snapshot(tmp_path / "a.pickle", made.snapshot())))
    first, last = int(snapshot.action_ts[0]), int(snapshot.action_ts[-1])
    marks = zip(snapshot.mark_name, snapshot.mark_ts.tolist(), strict=True)
    work = [op("aten::mm", first - 90, last), call("cudaLaunchKernel", first - 80, first - 70, correlation=1)]
    work += [kernel("gemm", first - 50, last + 50, correlation=1)]
    events = [*work, *(annotation(name, ts - 3000, ts + 5) for name, ts in marks)]
    trace = trace_of(*events, beside=(snapshot,))
    findings = findings_of(trace)
    (clock,) = findings.diagnostics
    assert (clock.code, clock.count) == ("memory_snapshot_clock", 6)
    assert "3 µs (spread 0 µs) ahead; no time is moved" in clock.message
    counter = next(each for each in findings.annotations if isinstance(each, CounterTrack))
    assert counter.ts[0] == first
    unmarked = trace_of(*work, beside=(snapshot,))
    diagnosis = augment.augment(unmarked).outcomes["diagnosis"]
    (row,) = (row for row in diagnosis.rows if row.rule == "out_of_memory")
    assert (row.status, row.severity) == ("found", "high")
    assert row.start_ns == last - int(unmarked.events.ts[0])


def test_that_of_another_device_is_told(tmp_path: Path) -> None:
    """As where the files of two ranks are swapped; it is joined, because profilers may number devices otherwise."""
    snapshot = memory_snapshot(str(write_snapshot(tmp_path / "a.pickle", training(START_US).snapshot())))
    first, last = int(snapshot.action_ts[0]), int(snapshot.action_ts[-1])
    trace = trace_of(kernel("gemm", first, last, correlation=1, device=3), beside=(snapshot,))
    (lost,) = findings_of(trace).diagnostics
    assert (lost.code, lost.count) == ("memory_snapshot_device", 1)
    assert "it is of GPU 0, and the trace of GPU 3" in lost.message


@pytest.mark.parametrize("away_ns", [-(10**12), 10**12])
def test_that_of_another_time_is_not_joined(tmp_path: Path, away_ns: int) -> None:
    snapshot = memory_snapshot(str(write_snapshot(tmp_path / "a.pickle", training(START_US).snapshot())))
    at = int(snapshot.action_ts[0]) + away_ns
    outcome = augment.augment(trace_of(kernel("gemm", at, at + 10**6), beside=(snapshot,))).outcomes["memory_snapshot"]
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith("the memory snapshot a.pickle covers 2023-11-14 22:13:20")
    assert outcome.reason.endswith("they do not overlap")


def test_without_times_it_is_judged_alone(tmp_path: Path) -> None:
    content = training(START_US).snapshot()
    for entry in content["device_traces"][0]:
        del entry["time_us"]
    trace = read(str(write_snapshot(tmp_path / "a.pickle", content)))
    findings = findings_of(trace)
    assert not findings.annotations
    assert rows(findings, "peak", "level", "bytes")["allocated"] == (32 * MIB,)
    snapshot = memory_snapshot(str(tmp_path / "a.pickle"))
    beside = trace_of(kernel("gemm", START_US * 1000, START_US * 1000 + 5), beside=(snapshot,))
    outcome = augment.augment(beside).outcomes["memory_snapshot"]
    assert isinstance(outcome, Skipped)
    assert "has no times" in outcome.reason


def test_what_was_before_the_history_is_told_apart(tmp_path: Path) -> None:
    findings = findings_of(alone(tmp_path, training(START_US), newest=20))
    assert rows(findings, "peak", "level", "bytes")["before the recording"][0] > 0
    lines = rows(findings, "peak", "line", "bytes")
    assert sum(held for (held,) in lines.values()) == rows(findings, "peak", "level", "bytes")["allocated"][0]


def test_the_peak_is_what_the_allocator_counts(tmp_path: Path) -> None:
    """Requests are rounded up, and what is left of a hole may stay in the block: of what is held at the end that is
    known, of what was freed before it is not."""
    made = Allocator(START_US, unsplit=MIB)
    model, later = frame("/home/me/run/model.py", 5, "forward"), frame("/home/me/run/train.py", 40)
    kept = [made.alloc(size, model) for size in (7 * MIB + 100, 12 * MIB + 900, 40 * MIB - 1, 300)]
    findings = findings_of(alone(tmp_path, made))
    assert rows(findings, "peak", "level", "bytes")["allocated"] == (made.most,)
    assert made.most > 59 * MIB + 3 * 512
    assert sum(held for (held,) in rows(findings, "peak", "line", "bytes").values()) == made.most
    made.free(kept[1])
    made.alloc(11 * MIB, later)
    peak = rows(findings_of(alone(tmp_path, made, newest=3)), "peak", "level", "bytes")["allocated"][0]
    assert 0 <= made.most - peak <= MIB


def test_a_request_that_alone_exceeds_what_there_is(tmp_path: Path) -> None:
    made = training(START_US)
    made.oom(9000 * MIB, 2000 * MIB, frame("/home/me/run/model.py", 77, "attention"))
    said = sentences(alone(tmp_path, made))
    assert said[1].endswith(f"{size(len(made.segments) * SEGMENT + 2000 * MIB)} with what is free; the request alone "
                            "exceeds that.")  # fmt: skip
    advice = (
        "Make the request of `run/model.py:77 attention` smaller: it does not fit even if PyTorch keeps nothing else."
    )
    assert said[-1] == advice


def test_what_private_pools_keep_serves_no_other_request(tmp_path: Path) -> None:
    made = training(START_US)
    made.free(made.alloc(40 * MIB, frame("/home/me/run/model.py", 300, "grow")))
    made.oom(30 * MIB, 2 * MIB)
    snapshot = made.snapshot()
    for segment in snapshot["segments"]:
        if all(block["state"] == "inactive" for block in segment["blocks"]):
            segment["segment_pool_id"] = (0, 1)
    said = sentences(read(str(write_snapshot(tmp_path / "snapshot.pickle", snapshot))))
    assert any(each.endswith("are reserved but unused in private pools, as of CUDA graphs.") for each in said), said
    assert said[-1].startswith("Let CUDA graphs share one pool, or capture fewer")


def test_unused_pieces_may_be_in_the_small_pool(tmp_path: Path) -> None:
    made = Allocator(START_US)
    for amount in (SEGMENT, MIB):
        made.alloc(amount)
    content = made.snapshot()
    content["segments"][1]["segment_type"] = "small"
    first = sentences(read(write_snapshot(tmp_path / "snapshot.pickle", content)))[0]
    assert first.endswith("; 20 MB are unused, in pieces of at most 20 MB.")


def test_that_most_is_from_before_the_history_comes_first(tmp_path: Path) -> None:
    made = Allocator(START_US)
    for mib in (12, 6):
        made.alloc(mib * MIB)
    assert "Who holds it was not recorded: " in sentences(alone(tmp_path, made, newest=0))[1]
    before = len(made.actions)
    for mib in (2, 1):
        made.alloc(mib * MIB, frame("/home/me/run/model.py", mib, "forward"))
    first, second, third = sentences(alone(tmp_path, made, newest=len(made.actions) - before))
    assert "22 MB are allocated, of which 19 MB were there before its history begins" in first
    assert second.startswith("86 % of what is allocated was there before the history begins, by whom is unknown: call")
    assert third == "67 % of what was allocated since is held by `run/model.py:2 forward`, in 1 allocation."


def test_each_device_is_told(tmp_path: Path) -> None:
    sides = []
    for sizes in ((3, 8), (5, 8, 1)):
        content = Allocator(START_US).snapshot()
        for device, mib in enumerate(sizes):
            made = Allocator(START_US, device, 0x7F00_0000_0000 + (device << 36))
            made.alloc(mib * MIB, frame("/home/me/run/model.py", 5, "forward"))
            part = made.snapshot()
            content["segments"] += part["segments"]
            content["device_traces"] = [*content["device_traces"][:device], part["device_traces"][device]]
        sides.append(write_snapshot(tmp_path / f"{len(sizes)}.pickle", content))
    peaks = "Peak allocation: 5.2 MB on GPU 0, 8.4 MB on GPU 1 and 1.0 MB on GPU 2."
    assert sentences(read(str(sides[1])))[2] == peaks
    assert [sentence.partition(":")[0] for sentence in augment.diff(*map(str, sides)).verdict.text] == [
        "At the peak of GPU 0, 2.1 MB more are allocated (5.2 MB instead of 3.1 MB)",
        "At the peak of GPU 2, 1.0 MB more are allocated (1.0 MB instead of 0 B)",
    ]


def test_holders_are_drawn_while_they_hold(tmp_path: Path) -> None:
    findings = findings_of(alone(tmp_path, training(START_US)))
    tracks = [each for each in findings.annotations if isinstance(each, SliceTrack)]
    model = next(each for each in tracks if each.names.values == [MODEL])
    assert len(model.ts) == 6
    assert model.args["most_bytes"].tolist() == [12 * MIB] * 6  # type: ignore[union-attr]
    assert (np.diff(model.ts) > model.dur[:-1]).all()
