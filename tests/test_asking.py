"""Which facts code asks for, and that no fact is dropped before its last use."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from augment import pipeline
from augment.analyses import ANALYSES
from augment.asking import Forgetting, facts_asked
from augment.batch.stages import STAGES
from augment.derived.host.call_stacks import thread_bounds
from augment.pipeline import augment
from augment.readers import read
from augment.trace import Trace, derived
from augment.writers import metrics, write_seamed
from traces import SIMULATED


@derived
def lowest(trace: Trace) -> int:
    return len(trace.events)


@derived
def middle(trace: Trace) -> int:
    return lowest(trace)


class Record(dict[str, Any]):
    """Facts, with a count of how often each was computed."""

    def __init__(self) -> None:
        self.computed: Counter[str] = Counter()

    def __setitem__(self, key: str, value: Any) -> None:
        self.computed[key] += 1
        super().__setitem__(key, value)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read(str(SIMULATED[0]))


def test_facts_are_found_through_functions_classes_and_collections() -> None:
    # all that a test module names is foreign: only what it asks for itself is found
    assert facts_asked([middle]) == {f"{__name__}.middle"}
    (of_steps,) = [analysis for analysis in ANALYSES if analysis.NAME == "steps"]
    result = facts_asked([of_steps])
    assert "augment.derived.steps.steps.steps" in result
    assert "augment.derived.critical.critical_graph.critical_graph" not in result
    assert facts_asked([of_steps.analyze]) == facts_asked([partial(of_steps.analyze)]) == facts_asked([(of_steps,)])
    assert facts_asked([{"a": of_steps}]) == result
    assert facts_asked([stage.summarize for stage in STAGES])  # which import what they call when they are called


def test_all_that_an_analysis_asks_for_is_found(trace: Trace) -> None:
    for analysis in ANALYSES:
        asked = Record()
        pipeline._outcome(replace(trace, facts=asked), analysis, {})
        assert asked.keys() - facts_asked([analysis, pipeline._outcome]) == set(), analysis.NAME


@pytest.mark.parametrize("threads", [1, 2])
def test_facts_are_dropped_after_their_last_use(trace: Trace, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "THREADS_FROM", 0)
    facts, kept = Record(), augment(trace, threads=threads)
    dropped = augment(replace(trace, facts=facts), threads=threads, later=[write_seamed])
    assert max(facts.computed.values()) == 1
    assert metrics.encode(metrics.document(dropped)) == metrics.encode(metrics.document(kept))
    assert facts.keys() <= facts_asked([write_seamed, pipeline._outcome, pipeline._of_whole])
    assert len(facts.computed) > 50 > len(facts)


def test_what_is_asked_for_later_is_kept() -> None:
    facts = {f"{__name__}.middle": 1, f"{__name__}.lowest": 2, "other": 3}
    forgetting = Forgetting(facts, {"first": middle, "second": ()}, [lowest])
    forgetting.ended("second")
    assert facts.keys() == {f"{__name__}.middle", f"{__name__}.lowest"}
    forgetting.ended("first")
    assert facts.keys() == {f"{__name__}.lowest"}


def test_what_went_into_a_known_fact_is_dropped() -> None:
    stacks, bounds = (f"augment.derived.host.call_stacks.{name}" for name in ("call_stacks", "thread_bounds"))
    for facts, kept in (({stacks: 1}, {stacks}), ({stacks: 1, bounds: 2}, {bounds})):
        Forgetting(facts, {"first": thread_bounds, "second": ()}, []).ended("second")
        assert facts.keys() == kept


def test_what_a_part_asks_for_is_dropped_when_the_part_ends() -> None:
    facts, part = {f"{__name__}.middle": 1, f"{__name__}.lowest": 2}, (lowest,)
    forgetting = Forgetting(facts, {"whole": (middle, part), "other": ()}, [], {"part": part})
    forgetting.ended("other")
    assert facts.keys() == {f"{__name__}.middle", f"{__name__}.lowest"}
    forgetting.ended("part")
    assert facts.keys() == {f"{__name__}.middle"}
