"""Equal kernels that take many times as long at times: by hand, in real recordings that are slowed down, and not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import Trace, read
from augment.diagnosis.judging import beside_ns
from augment.diagnosis.rule import Answer, Fine, NotApplicable
from augment.diagnosis.rules import disturbed_device
from augment.facts.gpu.gpu_work import gpu_work
from metamorphic import Document, load, real_trace, save, stretched
from said import evidence_of, problem_of, title_of
from tables import Event, annotation, call, kernel, op, shaped, trace_of

US = 1_000
NAMES = ("gemm", "vectorized_elementwise_kernel", "layer_norm_kernel", "softmax_kernel")
SHAPES = shaped([64, 64])


def run(
    slow: dict[tuple[int, int], int],
    names: tuple[str, ...] = NAMES,
    *,
    steps: int = 6,
    shapes: dict[str, Any] | None = SHAPES,
    beside: bool = False,
) -> Trace:
    """Steps of 20 kernels of 100 µs, in turn of ``names``, which operators launch at once; the host then waits for
    them. ``slow``: step and kernel, and how many times as long it takes. ``beside``: a copy runs beside each."""
    events: list[Event] = []
    at = 0
    for step in range(steps):
        begin = at
        for place in range(20):
            launched, number = begin + 10 * US * place, 100 * step + 2 * place + 1
            until = at + 100 * US * slow.get((step, place), 1)
            events.append(op("aten::add" if names is NAMES else "my::op", launched, launched + 8 * US, args=shapes))
            events.append(call("cudaLaunchKernel", launched, launched + 2 * US, correlation=number))
            at = max(at, launched + 3 * US)
            events.append(kernel(names[place % len(names)], at, until, correlation=number))
            if beside:
                events.append(call("cudaMemcpyAsync", launched + 3 * US, launched + 4 * US, correlation=number + 1))
                events.append(
                    kernel("Memcpy DtoH", max(at, launched + 5 * US), until, stream=9, correlation=number + 1)
                )
            at = until
        events.append(call("cudaDeviceSynchronize", begin + 200 * US, at + US))
        at += 10 * US
        events.append(annotation(f"ProfilerStep#{step}", begin, at))
    return trace_of(*sorted(events, key=lambda event: (event.ts, -event.end)))


HIT = {(1, 3): 25, (2, 8): 12, (2, 9): 30, (4, 6): 8}  # four names, in three of six steps


def test_kernels_of_any_name_that_are_slow_at_times_are_told() -> None:
    answer = problem_of(disturbed_device.check(run(HIT)))
    assert title_of(answer).startswith(
        "In 3 steps, 4 kernels of 4 names take 19 times as long as equal ones, while the"
    )
    assert evidence_of(answer) == ["the longest, vectorized_elementwise_kernel, takes 3.0 ms, usually 100 µs"]
    assert answer.saved_ns == pytest.approx((24 + 11 + 29 + 7) * 100 * US / 6, rel=0.02)
    assert answer.seen.at_least
    assert answer.confidence == "medium"


UNKIND: dict[str, Trace] = {
    "equal": run({}),
    "noise": run({(step, place): 1 + (7 * step + place) % 4 for step in range(6) for place in range(20)}),
    "one name": run(dict.fromkeys(((1, 4), (2, 8), (4, 12)), 25)),
    "depends on data": run(HIT, ("flash_fwd_kernel", "radixSortKVInPlace", "topk", "embedding_backward_kernel")),
    "in each step": run({(step, place): 25 for step in range(6) for place in (3, 8, 9, 14)}),
    "a longer step": run({(2, place): 25 for place in range(20)}, shapes=None),
    "beside copies": run(HIT, beside=True),
    "few steps": run({(1, 3): 25, (2, 8): 12, (2, 9): 30}, steps=3),
}


@pytest.mark.parametrize("name", UNKIND)
def test_what_may_have_another_reason_is_not_told(name: str) -> None:
    assert isinstance(disturbed_device.check(UNKIND[name]), Fine | NotApplicable)


def test_without_shapes_it_is_merely_possible() -> None:
    answer = problem_of(disturbed_device.check(run(HIT, shapes=None)))
    assert answer.confidence == "low"
    assert evidence_of(answer)[1:] == ["shapes were not recorded: some may have had more to do"]


# Real recordings, in which time stands still for everything but a kernel, at times.

RECORDED = ("hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz", "rtx3060_luatil/trace_04.json.gz")


def kernels_of(document: Document) -> Iterator[tuple[tuple[str, int], int, Any]]:
    """Each kernel that begins and ends alone on the device: its name and place among those of its name in the step, the
    step, and its event; by launches, plainly."""
    events = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    work = sorted(
        (each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=itemgetter("ts")
    )
    launches = {each["args"]["correlation"]: each["ts"] for each in events if "runtime" in each.get("cat", "").lower()
                and "correlation" in each.get("args", {})}  # fmt: skip
    steps = sorted(
        each["ts"] for each in events if each["name"].startswith("ProfilerStep#") and "gpu" not in each["cat"]
    )
    place: dict[tuple[str, int], int] = defaultdict(int)
    busy = Decimal(0)
    for index, each in enumerate(work):
        end = each["ts"] + each["dur"]
        following = work[index + 1]["ts"] if index + 1 < len(work) else end
        launched = launches.get(each["args"].get("correlation"))
        if each["cat"] == "kernel" and launched is not None:
            step = int(np.searchsorted([float(ts) for ts in steps], float(launched), side="right")) - 1
            place[each["name"], step] += 1
            if busy <= each["ts"] and end <= following and step >= 0:
                yield (each["name"], place[each["name"], step]), step, each
        busy = max(busy, end)


def slowed(document: Document, chance: np.random.Generator) -> Document:
    """The recording with 40 kernels of 5 µs and more 30 times as long; after the middle of each all comes later."""
    everything = [each for each in kernels_of(document) if 5 <= each[2]["dur"] < 2_000 and each[1] >= 1]
    picked = [everything[place][2] for place in sorted(chance.choice(len(everything), 40, replace=False))]
    middles = np.array([float(each["ts"] + each["dur"] / 2) for each in picked])
    longer = np.concatenate(([0], np.cumsum([int(29 * each["dur"]) for each in picked])))

    def moved(ts: Decimal) -> Decimal:
        return ts + int(longer[np.searchsorted(middles, float(ts))])

    events = []
    for each in document["traceEvents"]:
        if "ts" in each:
            begin = moved(each["ts"])
            each = each | {"ts": begin} | ({"dur": moved(each["ts"] + each["dur"]) - begin} if "dur" in each else {})
        events.append(each)
    return document | {"traceEvents": events}


def answer_of(document: Document, path: Path) -> tuple[Answer, Any]:
    """The answer, and what of slow kernels is seen: where the host decides, nothing is saved."""
    answer = disturbed_device.check(read(str(save(document, path))))
    seen = getattr(answer, "seen", None)
    return answer, seen if isinstance(seen, disturbed_device.Disturbed) else None


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_kernels_are_disturbed_only_where_they_are_slowed_down(name: str, tmp_path: Path) -> None:
    """Of the slowed kernels, those that are told are a part by a plain count; three times as slow a run has as many."""
    document = load(real_trace(name))
    assert answer_of(document, tmp_path / "as.json")[1] is None
    slow = slowed(document, np.random.default_rng(5))
    answer, seen = answer_of(slow, tmp_path / "slow.json")
    plain = defaultdict(list)
    for key, _, each in kernels_of(slow):
        plain[key].append(float(each["dur"]))
    really = [each["dur"] for key, _, each in kernels_of(slow) if float(each["dur"]) >= 5 * np.median(plain[key])]
    assert 3 <= seen.kernel_count <= len(really)
    assert seen.longest_ns in [int(dur * 1000) for dur in really]
    again, seen_again = answer_of(stretched(slow, 3), tmp_path / "stretched.json")
    assert isinstance(again, type(answer))
    assert seen_again.kernel_count >= seen.kernel_count  # 20 µs more count
    assert seen_again.longest_ns == 3 * seen.longest_ns


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(0, 1), st.integers(0, 2)), max_size=8))
def test_time_beside_others_is_that_of_a_count_by_moments(pieces: list[tuple[int, int, int, int]]) -> None:
    kernels = [kernel("k", ts, ts + dur, device=device, stream=stream) for ts, dur, device, stream in pieces]
    trace = trace_of(*kernels, call("cudaLaunchKernel", 0, 1))
    work = gpu_work(trace)
    among = np.arange(len(work)) % 3 != 2
    running = np.zeros((2, 50), np.int64)
    device = [work.devices.index(each) for each in work.devices for _ in range(each.start, each.stop)]
    for place in np.flatnonzero(among).tolist():
        running[device[place], work.ts[place] : work.end[place]] += 1
    assert beside_ns(trace, among).tolist() == [
        int(np.count_nonzero(running[device[place], work.ts[place] : work.end[place]] > 1)) if among[place] else 0
        for place in range(len(work))
    ]
