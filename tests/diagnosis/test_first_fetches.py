"""The first fetch of an epoch waits for workers that only begin: by hand, simulated and changed, and in real traces."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from simulated_jobs import changed
from test_rules_by_hand import launched

from augment.core.trace import Trace
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading
from augment.readers import read
from metamorphic import Document, Event, load, real_trace, save
from said import advice_of
from simulator import simulate
from tables import annotation, op, trace_of

SLOW, BEGINNING, ALONE = "workers are too slow", "first fetch of an epoch", "main process loads the data itself"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEED = "aten::random_"
LONG, BRIEF = 50_000_000, 2_000_000
JOB = changed(ranks=1, steps=4, layers=2, host_stall_us=20_000.0)


def advice(trace: Trace) -> str:
    answer = data_loading.check(trace)
    assert isinstance(answer, Found), answer
    return advice_of(answer)


def loop(*steps: str, name: str = WORKERS) -> Trace:
    """Fetches, long (L) or brief (b), after a seed (S) or one drawn within an operator (R); a kernel after each."""
    events, at = launched("first", 900_000, 950_000, 99), 1_000_000
    for number, letters in enumerate(steps):
        if "S" in letters or "R" in letters:
            events.append(op(SEED, at, at + 10_000))
            events += [op("aten::randint", at - 10_000, at + 20_000)] * ("R" in letters)
        end = at + 100_000 + (LONG if "L" in letters else BRIEF)
        events += [annotation(name, at + 100_000, end), *launched("gemm", end + 20_000, end + 500_000, number + 1)]
        at = end + 600_000
    return trace_of(*events)


@pytest.mark.parametrize(
    ("steps", "phrase"),
    [
        (["SL"], BEGINNING),
        (["L"], SLOW),
        (["RL"], SLOW),
        (["SL", "b", "b", "b"], BEGINNING),
        (["SL", "L", "L", "L"], SLOW),
        (["b", "b", "SL", "b"], BEGINNING),  # an epoch ends
        (["Sb", "L", "b", "b"], SLOW),
    ],
)
def test_workers_that_only_begin_are_not_too_slow(steps: list[str], phrase: str) -> None:
    assert phrase in advice(loop(*steps))


def test_a_seed_does_not_matter_without_workers() -> None:
    assert ALONE in advice(loop("SL", name=MAIN))


def seeded(document: Document, place: int, brief: bool) -> Document:
    """The simulated job with workers, whose fetch at ``place`` is an iterator's first, and the others brief or not."""
    rows: list[Event] = []
    fetches = sorted(each["ts"] for each in document["traceEvents"] if each["name"] == MAIN)
    for each in document["traceEvents"]:
        if each["name"] == MAIN:
            first = each["ts"] == fetches[place]
            rows.append(each | {"name": WORKERS} | ({} if first or not brief else {"dur": Decimal(1)}))
            if first:
                seed = {"ph": "X", "cat": "cpu_op", "name": SEED, "ts": each["ts"] - 3, "dur": Decimal(2), "args": {}}
                rows.append(seed | {key: each[key] for key in ("pid", "tid")})
        elif not str(each["name"]).startswith("ProfilerStep"):
            rows.append(each)
    return document | {"traceEvents": rows}


@pytest.mark.parametrize(("place", "brief", "phrase"), [(1, True, BEGINNING), (2, True, BEGINNING), (0, False, SLOW)])
def test_a_simulated_loader_begins_or_is_slow(place: int, brief: bool, phrase: str, tmp_path: Path) -> None:
    document = load(simulate(JOB, tmp_path / "job")[0][0])
    assert phrase in advice(read(str(save(seeded(document, place, brief), tmp_path / "job.json"))))


@pytest.mark.parametrize(
    "name",
    [
        "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
        "hta_trace_diff_pair/control.json.gz",
    ],
)
def test_no_epoch_begins_where_no_seed_was_drawn(name: str) -> None:
    path = real_trace(name)
    trace, names = read(str(path)), {each.get("name") for each in load(path)["traceEvents"]}
    rows = data_loading.fetches(trace)
    assert len(rows)
    assert SEED not in names
    assert not data_loading._first_of_iterators(trace, rows).any()
