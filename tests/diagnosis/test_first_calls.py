"""Libraries that set themselves up at an operator's first call: by hand, simulated, changed, and in real traces."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from simulated_jobs import changed
from test_rules_by_hand import launched

from augment import Trace, facts, read
from augment.diagnosis.first_calls import at_first_calls
from augment.diagnosis.rules import allocator_calls, data_loading
from metamorphic import Document, Event, load, real_trace, save
from said import advice_of, problem_of
from simulator import simulate
from tables import annotation, call, op, trace_of

SET_UP, GIVEN_BACK, STARTING = "libraries are initializing", "empty_cache", "as at the start of a run"
CALLS = changed(ranks=1, steps=3, layers=3, collectives="none", work=0.15, faults=("mallocs",))


def advice(trace: Trace) -> str:
    answer = problem_of(allocator_calls.check(trace))
    return advice_of(answer)


def products(*operators: str, name: str = "aten::mm", nested: bool = False) -> Trace:
    """Matrix products that give back (F) and ask for (M) memory; without steps. Each may hold one of its own name."""
    events, at = launched("first", 9_000_000, 9_100_000, 99), 10_000_000
    for letters in operators:
        begin = at
        for letter in letters:
            events.append(call({"F": "cudaFree", "M": "cudaMalloc"}[letter], at + 10_000, at + 2_010_000))
            at += 3_000_000
        events += [op(name, begin, at + 10_000)] + [op(name, begin + 1_000, at + 5_000)] * nested
        at += 1_000_000
    kernels = [each for n in range(20) for each in launched("gemm", at + n * 100_000, at + n * 100_000 + 90_000, n + 1)]
    return trace_of(*events, *kernels)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("operators", "phrase"), [
    (["FFFMM", "", ""], SET_UP),
    (["FFFMM"], GIVEN_BACK),  # whether later calls do the same is not there
    (["FFFMM", "FFFMM", "FFFMM"], GIVEN_BACK),
    (["", "FFFMM", ""], GIVEN_BACK),
    (["MMM", "", ""], STARTING),
])  # fmt: skip
def test_a_library_sets_itself_up_once(operators: list[str], phrase: str, nested: bool) -> None:
    assert phrase in advice(products(*operators, nested=nested))


def test_rows_outside_of_operators_are_at_no_first_call() -> None:
    trace = trace_of(
        call("cudaFree", 5, 10), op("aten::mm", 20, 40), call("cudaMalloc", 25, 30), op("aten::mm", 50, 60)
    )
    assert at_first_calls(trace, np.array([0, 2, -1], np.int64)).tolist() == [False, True, False]
    assert at_first_calls(trace_of(call("cudaFree", 5, 10)), np.zeros(1, np.int64)).tolist() == [False]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A job each layer of which gives memory back, not asks for it; as recorded without steps."""
    document = load(simulate(CALLS, tmp_path_factory.mktemp("job"))[0][0])
    rows = [each for each in document["traceEvents"] if not str(each["name"]).startswith("ProfilerStep")]
    freed = [each | {"name": "cudaFree"} if each["name"] == "cudaMalloc" else each for each in rows]
    return document | {"traceEvents": freed}


def kept(document: Document, place: int) -> Document:
    """The document, but that only one of its operators gives memory back."""
    frees = sorted(
        (each for each in document["traceEvents"] if each["name"] == "cudaFree"), key=lambda each: each["ts"]
    )
    gone = {id(each) for each in frees} - {id(frees[place])}
    return document | {"traceEvents": [each for each in document["traceEvents"] if id(each) not in gone]}


@pytest.mark.parametrize(("place", "phrase"), [(None, GIVEN_BACK), (0, SET_UP), (1, GIVEN_BACK), (-1, GIVEN_BACK)])
def test_a_simulated_job_gives_back_at_first_or_always(
    simulated: Document, place: int | None, phrase: str, tmp_path: Path
) -> None:
    document = simulated if place is None else kept(simulated, place)
    assert phrase in advice(read(str(save(document, tmp_path / "job.json"))))


def operators_around(document: Document, name: str) -> Iterator[tuple[Document, list[Document]]]:
    """Plainly: each call ``name``, and the operators on its thread that enclose it, the innermost last."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    operators = [each for each in rows if str(each.get("cat")).lower() in ("cpu_op", "operator")]
    for row in rows:
        if row["name"] == name:
            around = [
                each
                for each in operators
                if (each["pid"], each["tid"]) == (row["pid"], row["tid"])
                and each["ts"] <= row["ts"]
                and row["ts"] + row["dur"] <= each["ts"] + each["dur"]
            ]
            yield row, sorted(around, key=lambda each: (each["ts"], -each["dur"]))


@pytest.mark.parametrize("name", [
    "old_2020_21_kineto/resnet50_autograd_api_early2021.pt.trace.json.gz",
    "hta_cupti/cupti_profiler.json.gz",
    "hta_cuda_sync/alexnet.json.gz",
    "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
])  # fmt: skip
def test_first_calls_of_real_traces(name: str) -> None:
    path = real_trace(name)
    document, trace = load(path), read(str(path))
    operators = [each for each in document["traceEvents"] if str(each.get("cat")).lower() in ("cpu_op", "operator")]
    expected = {}
    for row, around in operators_around(document, "cudaMalloc"):
        named = around[-1]["name"] if around else None
        same = sorted((each["ts"], each["ts"] + each["dur"]) for each in operators if each["name"] == named)
        end = same[0][1] if same else 0
        expected[row["ts"]] = bool(same) and row["ts"] + row["dur"] <= end and same[-1][0] >= end
    rows = np.flatnonzero(trace.events.name[:] == trace.strings.index("cudaMalloc"))
    assert 0 < len(rows) == len(expected)
    assert at_first_calls(trace, rows).tolist() == [expected[key] for key in sorted(expected)]


# The first fetch of an epoch waits for workers that only begin: by hand, simulated and changed, and in real
# traces.
SLOW, BEGINNING, ALONE = "workers are too slow", "first fetch of an epoch", "main process loads the data itself"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEED = "aten::random_"
LONG, BRIEF = 50_000_000, 2_000_000
JOB = changed(ranks=1, steps=4, layers=2, host_stall_us=20_000.0)


def advice_of_the_first(trace: Trace) -> str:
    answer = problem_of(data_loading.check(trace))
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


@pytest.mark.parametrize(("steps", "phrase"), [
    (["SL"], BEGINNING),
    (["L"], SLOW),
    (["RL"], SLOW),
    (["SL", "b", "b", "b"], BEGINNING),
    (["SL", "L", "L", "L"], SLOW),
    (["b", "b", "SL", "b"], BEGINNING),  # an epoch ends
    (["Sb", "L", "b", "b"], SLOW),
])  # fmt: skip
def test_workers_that_only_begin_are_not_too_slow(steps: list[str], phrase: str) -> None:
    assert phrase in advice_of_the_first(loop(*steps))


def test_a_seed_does_not_matter_without_workers() -> None:
    assert ALONE in advice_of_the_first(loop("SL", name=MAIN))


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
    assert phrase in advice_of_the_first(read(str(save(seeded(document, place, brief), tmp_path / "job.json"))))


@pytest.mark.parametrize("name", [
    "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
    "hta_trace_diff_pair/control.json.gz",
])  # fmt: skip
def test_no_epoch_begins_where_no_seed_was_drawn(name: str) -> None:
    path = real_trace(name)
    trace, names = read(str(path)), {each.get("name") for each in load(path)["traceEvents"]}
    rows = facts.names.fetches(trace)
    assert len(rows)
    assert SEED not in names
    assert not data_loading._first_of_iterators(trace, rows).any()
