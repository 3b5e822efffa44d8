"""Kernels that recordings lost, held against counts that are made here from the JSON, without augment's code.

Whole recordings lose none; of those from which the test takes kernels, the share is said, and causes are doubted.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from augment.diagnosis.ranking import diagnose
from augment.diagnosis.recording_completeness import lost_ratio
from augment.readers import read
from said import title_of

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
SMALL = 150_000  #: bytes: of the recorded files, all up to this size
LARGE = ("h100_8rank_modded_nanogpt/rank1.json.gz", "mi300_tracelens/ddp_resnet18_no_pool.json.gz")
CAPTURING = "sglang_mi300_tracelens/capture_bs32_rank0.json.gz"
WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"}
LAUNCH = re.compile(r"(cuda|cu|hip)\w*Launch(Cooperative)?Kernel")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not here")]
Event = dict[str, Any]


def document_of(path: Path) -> Any:
    data = path.read_bytes()
    try:
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except ValueError:
        return []


def events_of(document: Any) -> list[Event]:
    rows = document if isinstance(document, list) else document.get("traceEvents", [])
    return [row for row in rows if isinstance(row, dict)]


def category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def correlation(event: Event) -> Any:
    return (event.get("args") or {}).get("correlation")


def lost(events: list[Event]) -> float:
    """The share of the launches outside of captures whose correlation no work has."""
    slices = [event for event in events if event.get("ph") == "X"]
    work = {correlation(event) for event in slices if category(event) in WORK} - {None}
    calls = [event for event in slices if category(event) in CALLS and LAUNCH.match(event["name"])]
    begins = sorted(float(event["ts"]) for event in slices if "BeginCapture" in event["name"])
    ends = sorted(float(event["ts"]) + float(event["dur"]) for event in slices if "EndCapture" in event["name"])
    captured = list(zip(begins, ends, strict=False))
    calls = [call for call in calls if not any(begin <= float(call["ts"]) <= end for begin, end in captured)]
    return sum(correlation(call) not in work for call in calls) / len(calls) if calls and work else 0.0


def test_as_many_are_lost_as_by_the_file() -> None:
    small = [path for path in sorted(TRACES.rglob("*.json*")) if path.stat().st_size < SMALL]
    compared, different = 0, []
    for path in [*small, *(TRACES / name for name in (*LARGE, CAPTURING))]:
        events = events_of(document_of(path))
        if any(LAUNCH.match(str(event.get("name"))) for event in events):
            compared += 1
            if abs(lost_ratio(read(str(path))) - lost(events)) > 1e-9:
                different.append(path.name)
    assert not different
    assert compared > 40


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(("every", "missed"), [(4, True), (50, False)])
def test_kernels_that_are_taken_out_are_missed(name: str, every: int, missed: bool, tmp_path: Path) -> None:
    document = document_of(TRACES / name)
    kernels = [event for event in events_of(document) if category(event) == "kernel"]
    gone = {id(event) for event in kernels[::every]}
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    trace = read(str(path))
    ratio = lost(events_of(document))
    assert lost_ratio(trace) == pytest.approx(ratio, abs=1e-9)
    assert 0.5 / every < ratio < 1.1 / every
    first = diagnose(trace).findings[0]
    assert (
        first.rule == "partial_recording" and "launched are missing from the recording" in title_of(first.found)
    ) == missed
    doubted = [each.found.confidence for each in diagnose(trace).findings if not each.found.of_recording][missed:]
    assert (set(doubted) <= {"low"}) == missed
