"""What is no part of the steps changes no verdict on them: other clocks, an idle process, a later beginning."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from simulated_jobs import changed

from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.verdict import busy, verdict
from augment.readers import read
from metamorphic import Document, load, real_trace, save, without_first_ns
from simulator import simulate

RECORDED = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",
    "v100_4rank_pair_torchrec/test/pid45922.pt.trace.json.gz",
    "torchbench/trace2.json",
)
POINTS = 0.02  #: how far shares of the same steps may differ


@pytest.fixture(scope="module", params=[*RECORDED, "healthy", "pauses"])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    if request.param in RECORDED:
        return load(real_trace(request.param))
    faults = () if request.param == "healthy" else (request.param,)
    job = changed(ranks=1, steps=6, layers=3, collectives="none", faults=faults)
    return load(simulate(job, tmp_path_factory.mktemp("job"))[0][0])


def at_other_times(document: Document, us: Decimal) -> Document:
    rows = [each | ({"ts": each["ts"] + us} if "ts" in each else {}) for each in document["traceEvents"]]
    return document | {"traceEvents": rows}


def with_idle_process(document: Document) -> Document:
    """Another process that does next to nothing for all the time."""
    times = [each["ts"] for each in document["traceEvents"] if each.get("ph") == "X"]
    idle = {"ph": "X", "pid": 777_777, "tid": 777_777, "ts": min(times), "args": {}}
    rows = [idle | {"cat": "user_annotation", "name": "idle", "dur": max(times) - min(times)}]
    rows.append(idle | {"cat": "cpu_op", "name": "aten::empty", "dur": Decimal(3)})
    return document | {"traceEvents": [*document["traceEvents"], *rows]}


def test_clocks_and_idle_processes_change_nothing(document: Document, tmp_path: Path) -> None:
    before = verdict(read(str(save(document, tmp_path / "before.json"))))
    for after in (
        at_other_times(document, Decimal(123_456_789)),
        at_other_times(document, Decimal("0.5")),
        with_idle_process(document),
    ):
        assert verdict(read(str(save(after, tmp_path / "after.json")))) == before


def test_a_later_beginning_changes_no_cause(document: Document, tmp_path: Path) -> None:
    """The recording begins in the middle of its first step: the steps after it are judged alike."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    steps = [each for each in rows if each["name"].startswith("ProfilerStep#") and each["cat"] != "gpu_user_annotation"]
    first = min(steps, key=lambda each: Decimal(each["ts"]))
    until = int((first["ts"] - min(each["ts"] for each in rows) + first["dur"] / 2) * 1000)
    before = read(str(save(document, tmp_path / "before.json")))
    after = read(str(save(without_first_ns(document, until), tmp_path / "after.json")))
    old, new = ({each.rule: each for each in diagnose(trace).findings if each.is_grave} for trace in (before, after))
    assert list(old) == list(new)
    for rule, each in old.items():
        assert new[rule].saved_ratio == pytest.approx(each.saved_ratio, abs=POINTS)
    assert set(measure(after).windows.number.tolist()) <= set(measure(before).windows.number.tolist())
    assert busy(after).split(" % ")[0] == busy(before).split(" % ")[0]
