"""Libraries that set themselves up at an operator's first call: by hand, simulated, changed, and in real traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from simulated_jobs import changed
from test_rules_by_hand import launched

from augment.core.trace import Trace
from augment.diagnosis.first_calls import at_first_calls
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import allocator_calls
from augment.readers import read
from metamorphic import Document, load, real_trace, save
from said import advice_of
from simulator import simulate
from tables import call, op, trace_of

SET_UP, GIVEN_BACK, STARTING = "libraries set themselves up", "empty_cache", "as at the start of a run"
CALLS = changed(ranks=1, steps=3, layers=3, collectives="none", work=0.15, faults=("mallocs",))


def advice(trace: Trace) -> str:
    answer = allocator_calls.check(trace)
    assert isinstance(answer, Found), answer
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
@pytest.mark.parametrize(
    ("operators", "phrase"),
    [
        (["FFFMM", "", ""], SET_UP),
        (["FFFMM"], GIVEN_BACK),  # whether later calls do the same is not there
        (["FFFMM", "FFFMM", "FFFMM"], GIVEN_BACK),
        (["", "FFFMM", ""], GIVEN_BACK),
        (["MMM", "", ""], STARTING),
    ],
)
def test_a_library_sets_itself_up_once(operators: list[str], phrase: str, nested: bool) -> None:
    assert phrase in advice(products(*operators, nested=nested))


def test_rows_outside_of_operators_are_at_no_first_call() -> None:
    trace = trace_of(
        call("cudaFree", 5, 10), op("aten::mm", 20, 40), call("cudaMalloc", 25, 30), op("aten::mm", 50, 60)
    )
    calls = np.array([0, 2, -1], np.int64)
    assert at_first_calls(trace, calls).tolist() == [False, True, False]
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


@pytest.mark.parametrize(
    "name",
    [
        "old_2020_21_kineto/resnet50_autograd_api_early2021.pt.trace.json.gz",
        "hta_cupti/cupti_profiler.json.gz",
        "hta_cuda_sync/alexnet.json.gz",
        "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
    ],
)
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
