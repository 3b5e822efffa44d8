from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from augment import Findings, Skipped, Trace, augment, read, with_execution_trace
from augment.analyses import execution_trace
from augment.core import Flows, SliceTrack
from augment.writers import write_all
from execution_traces import execution_trace_of, tensor, write_execution_trace
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import call, op, rows_of, slices_of, trace_of
from traces import Event, event, write_trace
from traces import op as operator

pytestmark = pytest.mark.slow


def node(number: int, name: str, parent: int = 1, takes: Any = (), gives: Any = (), **more: Any) -> dict[str, Any]:
    return {"name": name, "id": number, "rf_id": number, "parent": parent, "tid": 1, "inputs": list(takes),
            "outputs": list(gives), **more}  # fmt: skip


def traced(tmp_path: Path, events: list[Event], nodes: list[dict[str, Any]]) -> Trace:
    for number, each in enumerate(events, 1):
        each["args"].setdefault("Record function id", number)
    trace = read(str(write_trace(tmp_path / "a.json", *events)))
    return with_execution_trace(trace, write_execution_trace(tmp_path / "et.json.gz", {"nodes": nodes}))


def analyzed(trace: Trace) -> Findings:
    return execution_trace.analyze(trace)


def arrows(outcome: Findings) -> list[list[str]]:
    result = []
    for flows in (annotation for annotation in outcome.annotations if isinstance(annotation, Flows)):
        for out, into in zip(flows.out.rows.tolist(), flows.into.rows.tolist(), strict=True):
            assert flows.out.track
            assert flows.into.track
            ends = slices_of(flows.out.track)[out], slices_of(flows.into.track)[into]
            result.append((ends[0]["ts"], ends[0]["name"], ends[1]["name"]))
    return [names for _, *names in sorted(result)]


def test_every_node_and_every_event_counts_once(tmp_path: Path) -> None:
    shapes = {"input_shapes": [[2]], "input_types": ["Tensor(float)"]}
    events = [operator("mm", 0, 5), operator("mm", 10, 3), operator("add", 20, 1), operator("only here", 30, 4),
              event("user_annotation", "note", 40, 2, 1, 1)]  # fmt: skip
    nodes = [node(1, "mm", **shapes), node(2, "mm", **shapes), node(3, "add"), node(77, "mm", **shapes), node(78, "x")]
    rows = rows_of(analyzed(traced(tmp_path, events, nodes)), *execution_trace.Row.__struct_fields__)
    assert rows == [
        (None, "mm", "[[2]]", '["Tensor(float)"]', 1, 2, 1, 0, 8000),
        (None, "add", None, None, 3, 1, 0, 0, 1000),
        (None, "x", None, None, 78, 0, 1, 0, 0),
        (None, "only here", None, None, None, 0, 0, 1, 4000),
        (None, "note", None, None, None, 0, 0, 1, 2000),
    ]


def test_slices_nest_and_carry_what_the_node_tells(tmp_path: Path) -> None:
    events = [operator("linear", 0, 9), operator("t", 1, 2), operator("unknown", 4, 2), operator("addmm", 4, 5)]
    events[2]["args"]["Record function id"] = 99
    nodes = [node(1, "linear", takes=[tensor(5), [tensor(6), tensor(7)], 3], gives=[tensor(8)], op_schema="linear(…)"),
             node(2, "t", 1, output_shapes=[[4, 4]], output_types=["Tensor(float)"]), node(4, "addmm", 1)]  # fmt: skip
    (track,) = (each for each in analyzed(traced(tmp_path, events, nodes)).annotations if isinstance(each, SliceTrack))
    assert (track.name, track.analysis) == ("Execution trace", "execution_trace")
    linear, t, addmm = slices_of(track)
    assert (linear["ts"], linear["dur"], t["dur"], addmm["dur"]) == (linear["ts"], 9000, 2000, 5000)
    assert {key: linear[key] for key in linear if key not in ("ts", "dur")} == {
        "name": "linear", "node_id": 1, "parent_id": 1, "op_schema": "linear(…)", "input_tensors": "[5, 6, 7]",
        "output_tensors": "[8]",
    }  # fmt: skip
    assert (t["parent_id"], t["output_shapes"], t["output_types"]) == (1, "[[4, 4]]", '["Tensor(float)"]')


def test_what_overlaps_another_in_part_ends_where_that_begins(tmp_path: Path) -> None:
    events = [operator("a", 0, 10), operator("b", 5, 10)]
    (track,) = analyzed(traced(tmp_path, events, [node(1, "a"), node(2, "b")])).annotations
    assert [(each["name"], each["dur"]) for each in slices_of(track)] == [("a", 5000), ("b", 10000)]


def test_arrows_lead_from_who_gives_a_tensor_to_who_takes_it(tmp_path: Path) -> None:
    events = [operator("a", 0, 4), operator("in a", 1, 1), operator("b", 5, 4), operator("in b", 6, 1),
              operator("c", 10, 1), operator("in place", 12, 1), operator("d", 14, 1)]  # fmt: skip
    first, second = tensor(1), tensor(2)
    reused = [1, 33, 0, 16, 4, "cpu"]  # the tensor's id in another storage is another tensor
    nodes = [
        node(1, "a", takes=[first]), node(2, "in a", 1, gives=[first]), node(3, "b", takes=[7]),
        node(4, "in b", 3, takes=[[first]], gives=[second]), node(5, "c", takes=[reused]),
        node(6, "in place", takes=[second], gives=[second]), node(7, "d", takes=[second, first, second]),
    ]  # fmt: skip
    trace = traced(tmp_path, events, nodes)
    assert arrows(analyzed(trace)) == [["a", "b"], ["a", "d"], ["b", "in place"], ["in place", "d"]]


def test_without_an_execution_trace_or_with_that_of_another_it_is_skipped(tmp_path: Path) -> None:
    outcome = execution_trace.analyze(trace_of(op("a", 0, 5), call("launch", 1, 2)))
    assert outcome == Skipped("no execution trace is given beside the trace; name one with --execution-trace")
    outcome = execution_trace.analyze(traced(tmp_path, [operator("a")], [node(5, "b"), node(6, "c")]))
    assert "the 2 nodes of the execution trace share neither" in outcome.reason


def test_ids_whose_names_differ_are_counted(tmp_path: Path) -> None:
    events = [operator(f"op {n}", 10 * n, 1) for n in range(20)]
    nodes = [node(n + 1, f"op {n}" if n else "another") for n in range(20)]
    assert [(each.code, each.count) for each in analyzed(traced(tmp_path, events, nodes)).diagnostics] == [
        ("execution_node_differs", 1)
    ]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2), folder)
    document = execution_trace_of(path)
    return with_execution_trace(read(str(path)), write_execution_trace(folder / "et.json.gz", document)), document


def test_a_simulated_job(simulated: tuple[Trace, dict[str, Any]]) -> None:
    trace, document = simulated
    nodes = document["nodes"][1:]
    outcome = analyzed(trace)
    assert sum(row.linked_count for row in outcome.rows) == len(nodes) > 100
    assert not any(row.unlinked_node_count for row in outcome.rows)
    tracks = [annotation for annotation in outcome.annotations if isinstance(annotation, SliceTrack)]
    assert len(tracks) == 2, "forward and backward thread"
    drawn = {each["node_id"]: each for track in tracks for each in slices_of(track)}
    assert {number: (each["name"], each["parent_id"]) for number, each in drawn.items()} == {
        node["id"]: (node["name"], node["parent"]) for node in nodes
    }
    for node in nodes:
        assert drawn[node["id"]].get("input_shapes") == (
            json.dumps(node["input_shapes"]) if node["input_shapes"] else None
        )
    outermost = [node["name"] for node in nodes if node["parent"] == 1]
    assert arrows(outcome) == [list(pair) for pair in itertools.pairwise(outermost)]


def test_steps_alone(simulated: tuple[Trace, dict[str, Any]]) -> None:
    trace, _ = simulated
    whole, part = (
        augment(trace, only=["execution_trace"], steps=each).outcomes["execution_trace"] for each in (None, (1, 1))
    )
    assert isinstance(whole, Findings)
    assert isinstance(part, Findings)
    assert 40 < len(arrows(part)) < len(arrows(whole))
    assert arrows(part) == arrows(whole)[-len(arrows(part)) :]


@pytest.mark.parametrize(("form", "prefix"), [("chrome", "args"), ("perfetto", "debug")])
def test_perfetto_shows_nodes_and_arrows(
    simulated: tuple[Trace, dict[str, Any]], tmp_path: Path, perfetto: PerfettoEngine, form: str, prefix: str
) -> None:
    trace, document = simulated
    nodes = document["nodes"][1:]
    perfetto.load(write_all(augment(trace, only=["execution_trace"]), tmp_path, [form])[0])
    seen = perfetto.rows(
        f"select extract_arg(arg_set_id, '{prefix}.node_id'), extract_arg(arg_set_id, '{prefix}.input_tensors'), name"
        " from slice where category = 'augment.execution_trace' order by 1"
    )
    assert seen == [(node["id"], json.dumps([node["inputs"][0][0]]), node["name"]) for node in nodes]
    outermost = [node["name"] for node in nodes if node["parent"] == 1]
    flows = perfetto.rows(
        "select out.name, taker.name from flow"
        " join slice out on out.id = slice_out join slice taker on taker.id = slice_in"
        " where out.category = 'augment.execution_trace' order by out.ts"
    )
    assert flows == list(itertools.pairwise(outermost))
    assert not perfetto.problems()
