"""Args as columns: by both ways through the text, and against JSON itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from augment import Trace, read
from augment.core.args import WANTED
from augment.facts.source.event_args import IDENTIFIERS, OF_FRAMES, ArgColumns, arg_columns, args_of_rows, identifiers
from augment.facts.steps.window import chosen, only
from augment.kernels.wanted_args import KEY_SLOTS, MOST_ARGS
from augment.readers.event_scanner import ARG_FIELDS
from oracles import with_unknown_decoder
from traces import event, kernel, op, trace_text, write_trace

pytestmark = pytest.mark.slow

CATEGORIES = ("cpu_op", "kernel", "cpu_instant_event", "cuda_sync", "user_annotation", "python_function")
ALL = (*WANTED, *IDENTIFIERS)
NAMES = sorted({spelling for arg in ALL for spelling in (arg.name, *arg.also)})


def by(engine: str, trace: Trace) -> ArgColumns:
    """The args, by the kernel, or each event decoded as a whole."""
    if engine == "plain":
        trace = with_unknown_decoder(trace)
    return ArgColumns(args_of_rows(trace, np.arange(len(trace.events)), ALL))


def seen(arg_columns: ArgColumns) -> dict[str, Any]:
    """All that can be asked of the columns, in Python's own types."""
    output: dict[str, Any] = {"diagnostics": arg_columns.diagnostics(list(arg_columns.args))}
    for arg in (each for each in ALL if each.name in arg_columns.args):
        if arg.is_text:
            rows, texts = arg_columns.texts(arg.name)
            output[arg.name] = dict(
                zip(rows.tolist(), [texts.values[code] for code in texts.codes.tolist()], strict=True)
            )
        else:
            ints = arg_columns.ints(arg.name)
            assert (np.diff(ints.rows) > 0).all()
            output[arg.name] = dict(zip(ints.rows.tolist(), ints.values.tolist(), strict=True))
    return output


def test_values_as_they_are_written(tmp_path: Path) -> None:
    memory = {"Addr": 2**63 + 5, "Bytes": "-512", "Total Allocated": 4096.0, "Total Reserved": 0.5, "Device Id": None}
    collective = {"Collective name": "all\u00e9\n", "dtype": "Float", "Process Group Ranks": "[0, 1]"}
    path = write_trace(
        tmp_path / "rank0.json",
        op(ts=1, **{"Input Dims": [[2, 3], []], "External id": 7, "Bytes": 1}),
        event("cpu_instant_event", "[memory]", 2, 0, 1, 1, **memory),
        op("record_param_comms", 3, **collective),
        kernel("ncclDevKernel", 4) | {"args": {"Process Group Ranks": [0, 1], "Comms Id": 2**64 + 1}},
        op(ts=5, **{"external id": 9}),
    )
    for engine in ("compiled", "plain"):
        content = by(engine, read(str(path)))
        output = seen(content)
        assert output["Input Dims"] == {0: "[[2, 3], []]"}
        assert output["External id"] == {0: 7, 4: 9}
        assert output["Bytes"] == {1: -512}  # of an operator, nobody wants them
        assert output["Addr"] == {1: 5 - 2**63}
        assert content.ints("Addr").values[:].view(np.uint64).tolist() == [2**63 + 5]
        assert output["Total Allocated"] == {1: 4096}
        assert output["Total Reserved"] == output["Device Id"] == {}
        assert output["Collective name"] == {2: "all\u00e9\n"}
        assert output["Process Group Ranks"] == {2: "[0, 1]", 3: "[0, 1]"}
        assert len(content.texts("Process Group Ranks")[1].values) == 1
        assert output["Comms Id"] == {3: str(2**64 + 1)}
        assert [(each.code, each.count) for each in output["diagnostics"]] == [("arg_converted", 2), ("arg_dropped", 1)]


def test_rows_ascend_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", *(op(ts=ts, **{"External id": ts}) for ts in (30, 10, 20)))
    assert seen(identifiers(read(str(path))))["External id"] == {0: 10, 1: 20, 2: 30}


numbers = st.one_of(
    st.integers(-(2**64), 2**65).map(str),
    st.sampled_from(["0", "-0", "007", "-", "1.", "1.0", "-2.5E-2", "1e3", "1E400", "12345678901234567890123", "NaN"]),
)
strings = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['"12"', '"-7"', '" 8 "', '"0x1F"', '"1e3"', '"\\u0031"', '"a\\/b"', '"\\q"', '"tab\there"']),
)
others = st.sampled_from(["true", "null", "[]", "{}", '[[1,"}"],{"a":"]"}]', "[ 1,2]", "[1, 2]", '{"Bytes": 3}'])
members = st.one_of(numbers, strings, others)
keys = st.one_of(st.sampled_from(NAMES), st.sampled_from(["Ev Idx", "Byte", "B\\u0079tes", "\\q", "args"]))
blanks = st.sampled_from(["", " ", "\n          "])


@st.composite
def args_texts(draw: st.DrawFn) -> str:
    pairs = draw(st.lists(st.tuples(keys, members, blanks, blanks), max_size=6))
    return "{" + ",".join(f'{a}"{key}"{b}:{a}{value}{b}' for key, value, a, b in pairs) + "}"


LAYOUTS = ('{{{own}, "args": {args}}}', '{{"args": {args}, {own}}}', '{{"args": 1, {own}, "args": {args}}}')


@st.composite
def events_texts(draw: st.DrawFn) -> list[str]:
    made = []
    for ts in range(draw(st.integers(1, 8))):
        category, args = draw(st.sampled_from(CATEGORIES)), draw(args_texts())
        part = f'"ph": "X", "cat": "{category}", "name": "n", "pid": 1, "tid": 2, "ts": {ts}, "dur": 1'
        made.append(draw(st.sampled_from(LAYOUTS)).format(own=part, args=args))
    return made


def has_odd_number(text: str) -> bool:
    """Whether an arg is a number that JSON does not know: only if it is wanted, compiled code looks at it closely."""
    try:
        json.loads(text.replace("\\q", ""), strict=False)
    except ValueError:
        return True
    return False


@settings(suppress_health_check=list(HealthCheck))
@given(texts=events_texts())
def test_both_ways_agree(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("args") / "trace.json"
    kept = [text for text in texts if not has_odd_number(text)] or ['{"ph": "X", "ts": 1, "name": "n"}']
    path.write_bytes(f"[{','.join(kept)}]".encode("utf-8", "surrogatepass"))
    trace = read(str(path))
    assert seen(by("compiled", trace)) == seen(by("plain", trace))
    assert trace.events.args is not None
    again = trace.changed(events=replace(trace.events, args=None))
    assert seen(arg_columns(trace)) == seen(arg_columns(again))


def test_blocks_end_anywhere_and_tables_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.facts.source.event_args._BLOCK_BYTES", 1 << 19)
    events = [op(ts=i, **{"Input Dims": [[i]], "External id": i, f"key {i % 3000}": "x"}) for i in range(9000)]
    trace = read(str(write_trace(tmp_path / "trace.json", *events)))
    assert seen(identifiers(trace))["External id"] == {i: i for i in range(9000)}
    assert seen(arg_columns(trace))["Input Dims"] == {i: f"[[{i}]]" for i in range(9000)}


def test_the_reader_takes_them_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.readers.event_scanner.LEAST_ROOM", 64)
    monkeypatch.setattr("augment.readers.chrome.CHUNK_BYTES", 1 << 12)
    events = [op(ts=9000 - i, **{"Input Dims": [[i]], "Sequence number": i, "x" * 20: i}) for i in range(9000)]
    events[7]["args"]["Sequence number"] = "7"
    events[8]["args"]["Input dims"] = events[8]["args"].pop("Input Dims")
    events[9] = op(**{"Sequence number": 9}) | {"ts": None}
    trace = read(str(write_trace(tmp_path / "trace.json", *events)))
    result = arg_columns(trace)
    rows = {8999 - i - (i < 9): i for i in range(9000) if i != 9}
    assert seen(result)["Input Dims"] == {row: f"[[{i}]]" for row, i in rows.items()}
    assert seen(result)["Sequence number"] == rows
    assert [(each.code, each.count) for each in result.diagnostics(["Sequence number"])] == [("arg_converted", 1)]
    assert not np.isin(result.ints("Addr").rows, [0]).any()
    part = only(trace, chosen(trace, 100_000, 200_000))
    assert part.events.args is not None
    assert seen(arg_columns(part)) == seen(arg_columns(part.changed(events=replace(part.events, args=None))))


def test_compiled_code_has_room_for_all_keys() -> None:
    for args, fields in ((WANTED, ARG_FIELDS), (IDENTIFIERS, ()), (OF_FRAMES, ())):
        assert len(args) <= MOST_ARGS
        assert len([name for arg in args for name in (arg.name, *arg.also)]) + len(fields) <= KEY_SLOTS // 2


def test_a_key_is_known_by_all_its_bytes(tmp_path: Path) -> None:
    name = "wait_on_cuda_event_record_corr_id"
    other = name[:10] + "x" + name[11:]
    path = write_trace(
        tmp_path / "a.json", event("cuda_sync", "Event Sync", 1, 1, 0, 7, **{name: 5, other: 6, "wait_on_stream": 1})
    )
    taken = arg_columns(read(str(path)))
    assert seen(taken)[name] == {0: 5}
    assert seen(taken)["wait_on_stream"] == {0: 1}


def test_real_traces_against_json(shared_traces: Path) -> None:
    compared = 0
    for name in ("hta_nccl/nccl_data.json.gz", "h100_kineto_out_of_order/after_fix_trace.json",
                 "cpu_dtu/exercise_trace.json.gz", "b200_tracelens/b200_eager_rank0of8.json.gz"):  # fmt: skip
        trace = read(str(shared_traces / name))
        output = seen(arg_columns(trace)) | seen(identifiers(trace))
        args_of = trace.args_of(np.arange(len(trace.events)))
        for arg in ALL:
            for row, value in output[arg.name].items():
                expected = args_of[row][arg.name]
                assert value == (expected if isinstance(expected, (int, str)) else json.dumps(expected))
                compared += 1
            candidates = np.flatnonzero(np.isin(trace.events.category, arg.categories)).tolist()
            assert len(output[arg.name]) == sum(arg.name in args_of[row] for row in candidates)
        assert output["diagnostics"] == []
    assert compared > 1000


def test_no_events_of_interest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(trace_text(event("python_function", "f", 1, 2, 1, 1, Bytes=1)))
    assert all(not arg_column for arg_column in seen(arg_columns(read(str(path)))).values())
