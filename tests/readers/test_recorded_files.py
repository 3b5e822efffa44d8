"""What is recorded beside a trace: execution traces and the events of their nodes; memory timelines as columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import InputError, Trace, UnknownFormat, link_execution_trace, read, read_memory_timeline
from augment.readers.attachments.recorded_files import CATEGORIES, ExecutionLinks, attribute
from execution_traces import ROOT
from traces import Event, event, op, write_trace


def node(name: str, rf_id: int, tid: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "id": 100 + rf_id, "rf_id": rf_id, "parent": 1, "tid": tid, **more}


def chakra(name: str, rf_id: int, tid: int = 1) -> dict[str, Any]:
    attrs = [{"name": key, "type": "uint64", "value": value} for key, value in (("rf_id", rf_id), ("tid", tid))]
    return {"id": 100 + rf_id, "name": name, "ctrl_deps": 2, "attrs": attrs,
            "inputs": {"values": [1], "shapes": [[2]], "types": ["Tensor(float)"]}}  # fmt: skip


def linked(tmp_path: Path, events: list[Event], nodes: list[Any]) -> tuple[Trace, ExecutionLinks]:
    trace = read(str(write_trace(tmp_path / "a.json", *events)))
    path = tmp_path / "et.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schema": "1.0.1", "nodes": [ROOT, *nodes]}).encode()))
    return trace, link_execution_trace(trace, path)


def names_of(trace: Trace, links: ExecutionLinks) -> list[tuple[str, int]]:
    ids = [attribute(links.nodes[link], "rf_id") for link in links.node.tolist()]
    return list(zip(trace.names_of(links.row), ids, strict=True))


@pytest.mark.parametrize("make", [node, chakra])
def test_by_record_function_id(tmp_path: Path, make: Any) -> None:
    ids = [{"External id": 9 - k, "Record function id": k} for k in range(4)]
    events = [
        op("aten::add", 1, 2, **ids[1]), op("aten::mul", 4, 3, **ids[2]), op("of the profiler", 8, 1, **ids[0]),
        event("user_annotation", "forward", 0, 9, 1, 1, **ids[3]), event("kernel", "aten::add", 0, 9, 0, 7, **ids[1]),
    ]  # fmt: skip
    trace, links = linked(
        tmp_path, events, [make("aten::mul", 2), make("aten::add", 1), make("forward", 3), make("x", 7)]
    )
    assert links.method == "record_function_id"
    assert names_of(trace, links) == [("forward", 3), ("aten::add", 1), ("aten::mul", 2)]


def test_ids_that_agree_by_chance_are_not_believed(tmp_path: Path) -> None:
    events = [op(f"op {k % 3}", k, 1, **{"External id": (k + 1) % 6 + 1}) for k in range(6)]
    trace, links = linked(
        tmp_path, [op("ProfilerStep", -1, 1), *events], [node(f"op {k % 3}", k + 1) for k in range(6)]
    )
    assert links.method == "order"
    assert names_of(trace, links) == [(f"op {k % 3}", k + 1) for k in range(6)]


def test_a_few_ids_that_differ_are_counted(tmp_path: Path) -> None:
    events = [op("op", k, 1, **{"External id": k + 1}) for k in range(20)]
    _, links = linked(tmp_path, events, [node("op" if k else "other", k + 1) for k in range(20)])
    assert (links.method, links.differing, len(links.row)) == ("external_id", 1, 19)


def test_order_that_occurs_twice_links_nothing(tmp_path: Path) -> None:
    events = [op(f"op {k % 3}", k, 1) for k in range(6)]
    _, links = linked(tmp_path, events, [node(f"op {k}", k + 1) for k in range(3)])
    assert (links.method, len(links.row)) == (None, 0)


def test_threads_of_one_order_are_not_linked_to_one_thread(tmp_path: Path) -> None:
    nodes = [node(name, 2 * tid + k, tid) for tid in (1, 2) for k, name in enumerate("ab")]
    _, links = linked(tmp_path, [op("a", 1, 1), op("b", 3, 1)], nodes)
    assert (links.method, len(links.row)) == (None, 0)


@pytest.mark.parametrize("tid", [None, [3], {"id": 3}])
def test_threads_that_are_no_numbers(tmp_path: Path, tid: Any) -> None:
    trace, links = linked(tmp_path, [op("a", 1, 1), op("b", 3, 1)], [node("a", 1, tid), node("b", 2, tid)])
    assert names_of(trace, links) == [("a", 1), ("b", 2)]


def test_threads_are_told_apart_by_their_order(tmp_path: Path) -> None:
    events = [op("a", 1, 1), op("b", 3, 1)] + [op(name, ts, 1) | {"tid": 7} for name, ts in (("b", 0), ("a", 5))]
    nodes = [node("b", 1, tid=2), node("a", 2, tid=2), node("a", 3, tid=5), node("b", 4, tid=5)]
    trace, links = linked(tmp_path, events, nodes)
    assert [trace.tracks[track].tid for track in trace.events.track[links.row].tolist()] == [7, 100, 100, 7]
    assert names_of(trace, links) == [("b", 1), ("a", 3), ("b", 4), ("a", 2)]


def test_attributes_of_both_schemas() -> None:
    newer = chakra("x", 5)
    assert [attribute(newer, name) for name in ("rf_id", "parent", "input_shapes", "output_types", "op_schema")] == [
        5, 2, [[2]], None, None
    ]  # fmt: skip
    assert attribute(node("x", 5, op_schema="s"), "op_schema") == "s"


def test_what_is_no_execution_trace(tmp_path: Path) -> None:
    trace = read(str(write_trace(tmp_path / "a.json", op())))
    with pytest.raises(UnknownFormat, match="it has no nodes"):
        link_execution_trace(trace, tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(b"\x00nothing")
    with pytest.raises(UnknownFormat, match="no JSON"):
        link_execution_trace(trace, str(tmp_path / "b.json"))
    with pytest.raises(InputError, match="no such file"):
        link_execution_trace(trace, tmp_path / "c.json")


def test_real_pairs(shared_traces: Path) -> None:
    pairs = [("hta_et_pair/simple_add_trace.json.gz", "hta_et_pair/simple_add_et.json.gz", "external_id")]
    folder = "dlrm_8rank_v100_param"
    pairs += [(f"{folder}/kineto/worker{k}_step_12.pt.trace.json.gz", f"{folder}/execution_trace/dlrm_eg_{k}.json.gz",
               "order") for k in (0, 5)]  # fmt: skip
    for trace_name, name, method in pairs:
        trace = read(str(shared_traces / trace_name))
        links = link_execution_trace(trace, shared_traces / name)
        assert links.method == method
        assert len(links.row) == len(links.nodes)
        assert trace.names_of(links.row) == [links.nodes[link]["name"] for link in links.node.tolist()]
        # the shapes of an operator's inputs are told by both
        args = trace.args_of(links.row)
        both = [(each["Input Dims"][0], attribute(links.nodes[at], "input_shapes")[0])
                for each, at in zip(args, links.node.tolist(), strict=True) if each.get("Input Dims")]  # fmt: skip
        assert all(dims == shape for dims, shape in both if dims and shape and not isinstance(shape[0], list))


def test_sums_by_category(tmp_path: Path) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text(
        "[[-1, 1, 100, 7], [-1, 1, 8, 0], [50, 2, 10, 3], [50, 3, -10, 3], [50, 3, 10, 5], [70, 4, -100, 7]]"
    )
    columns = {name: column.tolist() for name, column in read_memory_timeline(path).items()}
    assert columns.pop("ts") == [50, 70]
    assert columns.pop("Parameter") == [8, 8]
    assert columns.pop("Gradient") == [10, 10]
    assert columns.pop("Unknown") == [100, 0]
    assert set(columns) == {"Optimizer state", "Input", "Temporary", "Activation", "Autograd"}
    assert all(column == [0, 0] for column in columns.values())


def test_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text("[]")
    assert {len(column) for column in read_memory_timeline(path).values()} == {0}


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "[[1, 2, 3]]", '[[1, 2, 3, "a"]]', "[[1, 2, 3, 9]]", "[[1, 2, 3.5, 1]]", "[[1], [1, 2]]", "x"]
)
def test_what_is_no_timeline(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.raw.json"
    path.write_text(text)
    with pytest.raises(UnknownFormat):
        read_memory_timeline(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_memory_timeline(str(tmp_path / "a"))


def test_real_timeline(shared_traces: Path) -> None:
    path = shared_traces / "hta_memory_timeline" / "memory_timeline.raw.gz"
    columns = read_memory_timeline(path)
    events = json.loads(gzip.decompress(path.read_bytes()))
    assert (np.diff(columns["ts"]) > 0).all()
    assert columns["ts"][0] == min(ts for ts, *_ in events if ts >= 0)
    for moment in (0, len(columns["ts"]) // 2, -1):
        sums = dict.fromkeys(CATEGORIES, 0)
        for ts, _, size, category in events:
            if ts <= columns["ts"][moment]:
                sums[CATEGORIES[category]] += size
        assert {name: columns[name][moment] for name in CATEGORIES} == sums
    assert all((columns[name] >= 0).all() for name in CATEGORIES)
