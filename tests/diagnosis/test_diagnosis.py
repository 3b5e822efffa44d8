"""The analysis, the verdict, and what is drawn of them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from simulated_jobs import HEALTHY, changed, trace_of

import augment
from augment.analyses.diagnosis import Row
from augment.core import Findings, Flows, Texts
from augment.diagnosis.drawing import COLOURS, bands
from augment.diagnosis.judging import measure, saved_a_step
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import MOST_LISTED, Spans
from augment.diagnosis.rules.synchronizing_calls import SynchronizingCalls
from augment.diagnosis.verdict import verdict
from augment.diagnosis.wording import heading, words
from augment.facts.critical.what_if import joined
from augment.writers import metrics
from tables import op
from tables import trace_of as made_of

SLOW = changed(host_stall_us=5_000.0, run_ahead=None)


def outcome(options: object = SLOW) -> tuple[augment.AugmentedTrace, Findings]:
    augmented = augment.augment(trace_of(options), only=["diagnosis"])  # type: ignore[arg-type]
    findings = augmented.outcomes["diagnosis"]
    assert isinstance(findings, Findings)
    return augmented, findings


def test_rows_say_what_where_and_how_much() -> None:
    augmented, findings = outcome()
    row = findings.rows[0]
    assert isinstance(row, Row)
    assert (row.rule, row.status, row.severity, row.confidence) == ("data_loading", "found", "high", "high")
    assert row.saved_ns > 4_000_000
    assert row.dur_ns > 5_000_000
    assert row.slice == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert row.track == "thread 4200 (python)"
    assert "num_workers" in (row.advice or "")
    assert {row.rule for row in findings.rows} >= {"launch_bound", "exposed_communication"}
    assert augmented.verdict.rows == tuple(row for row in findings.rows if row.status == "found")


def test_the_verdict_says_how_busy_the_gpu_is_and_what_is_wrong() -> None:
    text = outcome()[0].verdict.text
    assert 1 <= len(text) <= 6  # the device, three findings, what they save together, what limits then
    assert text[0].startswith("The GPU is busy 72 % of a mean step of 19 ms: ")
    assert "The host fetches batches for 5.1 ms per step" in text[1]
    healthy = outcome(HEALTHY)[0].verdict.text
    assert healthy[1].startswith("No serious problem. The largest minor one: ")
    assert all(sentence.startswith("Possible: ") for sentence in healthy[2:-1])
    assert healthy[-1].endswith(" of the GPU's work.")


def test_what_several_findings_save_together_is_not_their_sum() -> None:
    """What all save together is no more than the sum, or a step."""
    trace = trace_of(changed(host_stall_us=10_000.0, run_ahead=None, faults=("late_copies",)))
    findings = [each for each in diagnose(trace).findings if each.found.saved_ns]
    assert len(findings) > 1
    grave = [each for each in findings if each.is_grave][:3]
    together = saved_a_step(trace, joined([each.found.cut for each in grave if each.found.cut is not None]))
    alone = [each.found.saved_ns or 0 for each in grave]
    assert max(alone) <= together <= min(sum(alone), measure(trace).length_ns)
    assert any(text.endswith(f" would save {words(trace).saving(together)}.") for text in verdict(trace))


def test_the_sidecar_has_the_verdict() -> None:
    augmented, _ = outcome()
    sidecar = json.loads(metrics.encode(metrics.document(augmented)))
    assert list(sidecar)[3] == "verdict"
    assert sidecar["verdict"]["text"] == list(augmented.verdict.text)
    assert sidecar["verdict"]["rows"][0]["rule"] == "data_loading"
    other = augment.augment(trace_of(SLOW), only=["steps"])
    assert not other.verdict.text
    assert "verdict" not in json.loads(metrics.encode(metrics.document(other)))


def test_the_track_holds_nested_slices_with_advice_and_arrows() -> None:
    _, findings = outcome()
    track, flows = findings.annotations
    assert isinstance(flows, Flows)
    assert track.name == "Diagnosis"
    end = track.ts + track.dur
    assert (np.diff(track.ts) >= 0).all()
    rules = [each.rule for each in diagnose(trace_of(SLOW)).findings]
    ruled = track.args["rule"]
    assert isinstance(ruled, Texts)
    ranks = [rules.index(ruled.values[code]) for code in ruled.codes.tolist()]
    open_: list[tuple[int, int]] = []
    for start, stop, rank in zip(track.ts.tolist(), end.tolist(), [-1, *ranks[1:]], strict=True):
        while open_ and open_[-1][0] <= start:
            open_.pop()
        assert not open_ or (stop <= open_[-1][0] and rank > open_[-1][1]), "what is more important is above"
        open_.append((stop, rank))
    names = {track.names.values[code] for code in track.names.codes.tolist()}
    assert any(
        re.match(
            r"Waiting for batches \(a fix saves \d\d %\): The host fetches batches .* → The main process loads", name
        )
        for name in names
    )
    unsure = {heading(each.rule) for each in diagnose(trace_of(SLOW)).findings if each.found.confidence == "low"}
    assert all(
        (" (a fix may save " in name) == (name.partition(" (")[0] in unsure) for name in names if " save" in name[:60]
    )
    assert next(iter(track.args)) == "advice", "the first arg that is seen"
    assert len(flows) > 0
    state, *others = verdict(trace_of(SLOW))
    first = next(each for each in diagnose(trace_of(SLOW)).findings if each.is_grave)
    bar = f" {state} → {first.found.seen.advice(words(trace_of(SLOW)))}"  # labels stand before their sentences
    (name,) = (each for each in names if each.startswith("Waiting for batches (a fix saves ") and bar in each)
    assert f": {others[0]} " in name
    assert all(each in name for each in others)
    for column in ("advice", "where", "confidence", "severity", "rule"):
        texts = track.args[column]
        assert isinstance(texts, Texts)
        assert texts.codes[0] >= 0, "the verdict has those of its first finding"
    assert track.colour[0] == COLOURS["high"]
    assert track.dur[0] == end.max() - track.ts[0], "the verdict is around all findings"
    assert {"rule", "severity", "advice", "saved_per_step_ns"} <= track.args.keys()


def test_a_trace_without_gpu_work_is_judged_by_its_host() -> None:
    events = [op("aten::add", 10 * place, 10 * place + 5) for place in range(4)]
    outer = op("aten::mm", 100, 140)
    augmented = augment.augment(made_of(*events, outer, op("aten::empty", 110, 120)), only=["diagnosis"])
    (sentence,) = augmented.verdict.text
    assert sentence.startswith("There is no GPU work in this recording: only the host can be judged. ")
    assert sentence.endswith(
        "All operators of the recording take 60 ns: 50 % in aten::mm, 33 % in aten::add and 17 % in aten::empty."
    )
    longer = augment.augment(made_of(*events, op("aten::add", 200, 220)), only=["diagnosis"]).verdict.text[0]
    assert longer.endswith(" take 40 ns: 100 % in aten::add (20 ns of it in one of 5 calls).")


def test_short_spans_all_over_a_step_are_one_band() -> None:
    """Hairlines have no room for a name: what is close together is one slice, with the row of the longest."""
    start = np.array([0, 20, 40, 500, 45, 1_000], np.int64)
    end = np.array([10, 35, 44, 501, 60, 1_100], np.int64)
    result = bands(Spans(start, end, np.arange(6)), 10)
    assert (result.start.tolist(), result.end.tolist()) == ([0, 500, 1_000], [60, 501, 1_100])
    assert result.row.tolist() == [1, 3, 5]
    assert len(bands(Spans(start, end, np.arange(6)), 500).start) == 1
    assert len(bands(Spans(*(np.empty(0, np.int64) for _ in range(3))), 10)) == 0


def test_the_figures_of_a_finding_are_in_the_sidecar() -> None:
    augmented, _ = outcome()
    rows = json.loads(metrics.encode(metrics.document(augmented)))["analyses"]["diagnosis"]["rows"]
    (row,) = (each for each in rows if each["rule"] == "data_loading")
    assert row["figures"].keys() == {"fetch_ns", "idle_ns", "pace_ns", "host_alone", "why"}
    assert row["figures"]["fetch_ns"] == pytest.approx(5.1e6, rel=0.01)
    assert (row["figures"]["why"], row["in_verdict"], row["at_most"]) == ("no_workers", True, False)
    assert len(SynchronizingCalls(1, 2, ["aten::item"] * 40, []).figures["callers"]) == MOST_LISTED
