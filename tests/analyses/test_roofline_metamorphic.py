"""Bounds of operators obey changes whose effect is known, on simulated jobs and on recorded runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.analyses import roofline
from augment.core.attachments import Tables
from augment.core.trace import Trace
from augment.facts.operators import peaks
from augment.facts.operators.peaks import NUMBERS, device_peaks
from metamorphic import Document, differences, load, real_trace, save, stretched
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

FACTOR = 3
DOCUMENTS = {
    "simulated": JobOptions(ranks=1, steps=2, layers=2, side_streams=1),
    "nanogpt": "h100_8rank_modded_nanogpt/rank1.json.gz",
    "resnet on MI300X": "mi300_tracelens/ddp_resnet18_no_pool.json.gz",
}


@pytest.fixture(scope="module", params=DOCUMENTS)
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    source = DOCUMENTS[request.param]
    if isinstance(source, str):
        return load(real_trace(source))
    return load(simulate(source, tmp_path_factory.mktemp("job"))[0][0])


def read(document: Document, folder: Path) -> Trace:
    return augment.read(str(save(document, folder / "trace.json")))


def rows(trace: Trace) -> list[Any]:
    findings = roofline.analyze(trace)
    return sorted(findings.rows, key=lambda row: (row.operator, row.shapes, row.number or "", row.count))


def with_rates(trace: Trace, products: float, memory: float) -> Trace:
    """The trace, its device's peaks multiplied."""
    (peak,) = {value for value in map(_hashable, device_peaks(trace).values()) if value}
    tflops, gbps, cache = peak
    row = {number: rate * products for number, rate in tflops} | {"device": "", "memory_gbps": gbps * memory}
    return trace.changed(Tables({"peak": [row | ({"l2_bytes": cache} if cache else {})]}))


def _hashable(peak: Any) -> Any:
    return peak and (tuple((each, peak.tflops[each]) for each in NUMBERS if each in peak.tflops), peak.memory_gbps,
                     peak.l2_bytes)  # fmt: skip


def test_times_and_peaks_stretched_together_change_no_bound(
    document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(read(document, tmp_path))
    assert {row.bound for row in before} >= {"compute", "memory"}
    monkeypatch.setattr(peaks, "SHORT_NS", peaks.SHORT_NS * FACTOR)
    after = rows(with_rates(read(stretched(document, FACTOR), tmp_path), 1 / FACTOR, 1 / FACTOR))

    def expected(column: str, value: Any) -> Any:
        if value is not None and column in ("achieved_tflops", "modelled_gbps"):
            return value / FACTOR
        return value * FACTOR if value is not None and column == "time_ns" else value

    rounded = ("roof_ns", "lost_ns")  # of sums: within what is rounded
    assert not [row for row in differences(before, after, expected) if not any(f" {name} " in row for name in rounded)]
    for row, other in zip(before, after, strict=True):
        for name in rounded:
            assert (getattr(other, name) or 0) == pytest.approx(FACTOR * (getattr(row, name) or 0), abs=FACTOR)


def test_the_order_of_events_in_the_file_does_not_matter(document: Document, tmp_path: Path) -> None:
    events = list(document["traceEvents"])
    random.Random(1).shuffle(events)
    after = rows(read(document | {"traceEvents": events}, tmp_path))
    assert not differences(rows(read(document, tmp_path)), after)


def test_operators_that_are_gone_change_no_other(document: Document, tmp_path: Path) -> None:
    before = rows(read(document, tmp_path))
    gone = {row.operator for row in before} & {"aten::add", "aten::mul", "aten::gelu", "aten::relu_", "aten::add_"}
    assert gone
    events = [each for each in document["traceEvents"] if each.get("cat") != "cpu_op" or each.get("name") not in gone]
    after = rows(read(document | {"traceEvents": events}, tmp_path))
    assert not differences([row for row in before if row.operator not in gone], after)


def test_faster_memory_makes_nothing_bound_by_it(document: Document, tmp_path: Path) -> None:
    trace = read(document, tmp_path)
    for row, fast in zip(rows(trace), rows(with_rates(trace, 1, 4)), strict=True):
        assert (row.operator, row.shapes, row.time_ns) == (fast.operator, fast.shapes, fast.time_ns)
        if row.roof_ns is not None and fast.roof_ns is not None:
            assert fast.roof_ns <= row.roof_ns
        if row.bound == "compute":
            assert fast.bound == "compute"
        if fast.bound == "memory":
            assert row.bound in ("memory", "unknown")
