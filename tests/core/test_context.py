"""Facts are computed once, go after the stage that they name, and no stage requests one that is gone."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from augment import pipeline
from augment.analyses import ANALYSES
from augment.batch.job_question import COMPARISON
from augment.core.annotations import Flows
from augment.core.attachments import ExecutionNodes, Tables, tables_of
from augment.core.context import STAGES, UNTIL, Context, Stage, derived
from augment.core.findings import AugmentedTrace, Findings
from augment.core.threads import Threads
from augment.core.trace import Trace
from augment.pipeline import STAGE_OF, augment
from augment.readers import read
from augment.writers import metrics, write_seamed
from tables import op, trace_of
from traces import SIMULATED


@derived
def lowest(trace: Trace) -> int:
    return len(trace.events)


@derived(until="rules")
def middle(trace: Trace) -> int:
    return lowest(trace)


class Record(dict[str, Any]):
    """Facts, with a count of how often each was computed, and the last stage that requested it."""

    def __init__(self) -> None:
        self.computed: Counter[str] = Counter()
        self.last: dict[str, Stage] = {}
        self.stage: Stage = STAGES[0]
        self.events = 1

    def __setitem__(self, key: str, value: Any) -> None:
        self.computed[key] += 1
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        self.last[key] = self.stage
        return super().get(key, default)


def run(path: Path, facts: Record, folder: Path, **options: Any) -> AugmentedTrace:
    """A conversion in all its stages."""
    trace = read(str(path))
    facts.events = len(trace.events)
    augmented = augment(replace(trace, context=Context(facts=facts)), later="summary", **options)
    COMPARISON.summarize(augmented)
    assert COMPARISON.under
    COMPARISON.under(augmented)
    augmented.trace.context.begin("writing")
    write_seamed(augmented, folder, ("chrome", "perfetto"))
    return augmented


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are dropped as of a large trace."""
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)


@pytest.fixture
def used(large: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Record]:
    """The facts of every simulated trace. None was dropped: what counts is who requested them last."""
    begin, records = Context.begin, [Record() for _ in SIMULATED]

    def note(context: Context, stage: Stage) -> None:
        assert isinstance(context.facts, Record)
        context.facts.stage = stage

    monkeypatch.setattr(Context, "begin", note)
    for path, record in zip(SIMULATED, records, strict=True):
        run(path, record, tmp_path)
    monkeypatch.setattr(Context, "begin", begin)
    return records


def test_facts_go_after_the_last_stage_that_requests_them(used: list[Record]) -> None:
    last: dict[str, Stage] = {}
    for record in used:
        last |= {key: stage for key, stage in record.last.items() if is_later(stage, last.get(key, STAGES[0]))}
    assert len(last) > 70
    late = {key: (UNTIL[key], stage) for key, stage in last.items() if key in UNTIL and is_later(stage, UNTIL[key])}
    assert not late, "a stage requests a fact that is gone: say @derived(until=) of this stage"
    grows = {key for record in used for key, value in record.items() if bytes_of(value) > record.events}
    kept = {key: last[key] for key in grows if key not in UNTIL and last[key] != STAGES[-1]}
    assert not kept, "a large fact is kept for nothing: say @derived(until=) of this stage"


def is_later(stage: Stage, than: Stage) -> bool:
    return STAGES.index(stage) > STAGES.index(than)


def bytes_of(value: Any) -> int:
    """The arrays in a fact."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(map(bytes_of, value))
    names = {*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ())}
    return sum(bytes_of(getattr(value, name, None)) for name in names)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", SIMULATED[:2], ids=lambda path: path.name[:5])
def test_facts_are_dropped_and_computed_once(path: Path, threads: int, large: None, tmp_path: Path) -> None:
    kept, facts = augment(read(str(path))), Record()
    dropped = run(path, facts, tmp_path, threads=threads)
    assert metrics.encode(metrics.document(dropped)) == metrics.encode(metrics.document(kept))
    assert max(facts.computed.values()) == 1
    assert len(facts.computed) > 70 > 50 > len(facts)


def test_arrows_of_a_part_lead_to_rows_of_the_whole(large: None) -> None:
    """Dropping facts must not drop where the part's rows are in the whole."""
    trace = read(str(SIMULATED[0]))
    assert any(ends_of(trace, None))
    assert ends_of(trace, "writing") == ends_of(trace, None)


def ends_of(trace: Trace, later: Any) -> list[list[int]]:
    """The rows at which arrows begin."""
    outcomes = augment(trace.changed(), steps=(2, 2), later=later).outcomes.values()
    drawn = [each for outcome in outcomes if isinstance(outcome, Findings) for each in outcome.annotations]
    return [each.out.rows.tolist() for each in drawn if isinstance(each, Flows) and not each.out.track]


def test_what_is_requested_later_is_kept() -> None:
    trace = trace_of(op("a", 0, 10))
    assert middle(trace) == 1
    facts = trace.context.facts
    trace.context.begin("rules")
    assert facts == {f"{__name__}.middle": 1, f"{__name__}.lowest": 1}
    trace.context.begin("operations")
    assert facts == {f"{__name__}.lowest": 1}
    assert middle(trace) == 1


def test_a_changed_trace_has_its_attachments_and_no_facts() -> None:
    trace = trace_of(op("a", 0, 10), beside=[ExecutionNodes([])])
    assert lowest(trace) == 1
    other = trace.changed(Tables({"peak": []}), partial="cut off")
    assert other.partial == "cut off"
    assert not other.context.facts
    assert trace.context.facts
    assert other.context.attached(ExecutionNodes) is trace.context.attached(ExecutionNodes)
    assert (tables_of(trace), tables_of(other)) == ({}, {"peak": []})


def test_a_context_can_be_pickled() -> None:
    context = Context([Tables({})], {"a": 1}, Threads(4))
    again = pickle.loads(pickle.dumps(context))
    assert (again.attached(Tables), again.facts, again.threads.count) == (Tables({}), {"a": 1}, 1)
    assert again.lock("x") is again.lock("x")


def test_analyses_of_stages_exist() -> None:
    assert {*STAGE_OF} <= {analysis.NAME for analysis in ANALYSES}
    assert {*STAGE_OF.values(), *UNTIL.values()} <= {*STAGES}
