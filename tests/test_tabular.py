"""Results in Python: short reprs, tables, frames, Arrow streams, what a notebook displays."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

import augment
from augment.analyses import ANALYSES
from augment.arrays import arrow
from augment.errors import UsageError
from augment.findings import AugmentedTrace, Skipped
from augment.tabular import Kind, Table, concatenated
from augment.writers.metrics import document, encode
from traces import SIMULATED

LONGEST_REPR = 400
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "start_ns": ("int", [1_712_195_495_406_752_797, None, 3]),
    "idle_ratio": ("float", [0.25, None, float("nan")]),
    "is_paired": ("bool", [True, None, False]),
    "name": ("text", ["gemm µ", None, ""]),
    "pattern": ("texts", [["a", "b"], None, []]),
    "rank": ("int", [None, None, None]),
}


@pytest.fixture(scope="module")
def augmented() -> AugmentedTrace:
    return augment.augment(augment.read(SIMULATED[0]))


def test_reprs_are_short(augmented: AugmentedTrace) -> None:
    trace = augmented.trace
    results = [*augmented.outcomes.values(), *(augmented[name] for name in augmented)]
    parts = [trace, trace.events, trace.source, augmented, *augmented.annotations, *results]
    for part in parts:
        assert len(repr(part)) < LONGEST_REPR, type(part)
    assert f"{len(trace.events):,} events" in repr(trace)
    assert len(repr(augment.diff(trace, trace))) < LONGEST_REPR
    assert repr(augmented.verdict) == "\n".join(augmented.verdict.text)


def test_paths_do_as_traces() -> None:
    only = {"only": ["temporal_breakdown"]}
    by_path, by_trace = augment.augment(SIMULATED[0], **only), augment.augment(augment.read(SIMULATED[0]), **only)
    assert by_path["temporal_breakdown"]["span_ns"] == by_trace["temporal_breakdown"]["span_ns"]
    assert repr(augment.diff(str(SIMULATED[0]), [SIMULATED[0]])).startswith("<Diff rank0")


def test_a_table_has_the_rows_of_the_sidecar(augmented: AugmentedTrace) -> None:
    sidecar = json.loads(encode(document(augmented)))["analyses"]
    assert list(augmented) == list(sidecar)
    for name, analysis in sidecar.items():
        table = augmented[name]
        assert (table.status, table.reason) == (analysis["status"], analysis.get("reason"))
        output = {"source": {}, "analyses": {}, "diagnostics": [*table]}
        assert json.loads(encode(output))["diagnostics"] == analysis["rows"]


def test_a_frame_has_every_column_and_the_same_types_without_rows(augmented: AugmentedTrace) -> None:
    types = {analysis.NAME: analysis.ROW for analysis in ANALYSES}
    for name in augmented:
        frame = augmented[name].frame()
        nothing = Table.of_rows(name, (), types[name]).frame()
        assert frame.columns.tolist() == nothing.columns.tolist() == list(types[name].__struct_fields__)
        alike = [column for column in frame if column not in ("device", "stream", "correlation")]
        assert frame[alike].dtypes.tolist() == nothing[alike].dtypes.tolist(), name
    assert augmented["kernel_breakdown"].frame()["sum_ns"].dtype == np.int64
    assert augmented["idle_time_breakdown"].frame().attrs["analysis"] == "idle_time_breakdown"


def test_integers_stay_integers_where_some_are_missing() -> None:
    frame = Table("example", {"start_ns": COLUMNS["start_ns"][1]}, {"start_ns": Kind("int")}).frame()
    assert frame["start_ns"].tolist()[0] == 1_712_195_495_406_752_797
    assert frame["start_ns"].isna().tolist() == [False, True, False]


def test_an_analysis_that_was_not_run_is_told(augmented: AugmentedTrace) -> None:
    with pytest.raises(UsageError, match="did you mean kernel_breakdown"):
        augmented["kernel_breakdwn"]
    assert "kernel_breakdown" in augmented
    assert "nothing" not in augmented


def test_a_skipped_analysis_says_why(augmented: AugmentedTrace) -> None:
    made = AugmentedTrace(augmented.trace, {"cupti_counters": Skipped("no <event>")})
    assert repr(made["cupti_counters"]) == "<Table cupti_counters: skipped, no <event>>"
    assert "no &lt;event&gt;" in made["cupti_counters"]._repr_html_()
    assert len(made["cupti_counters"].frame()) == 0


def test_identities_are_integers_unless_one_is_a_text() -> None:
    def device(values: list[Any]) -> pd.Series[Any]:
        return Table("example", {"device": values}, {"device": Kind("identity")}).frame()["device"]

    assert device([0, 1]).tolist() == [0, 1]
    assert device([0, "npu 1"]).tolist() == ["0", "npu 1"]


def test_tables_of_several_runs_become_one() -> None:
    first = Table("example", {"time_ns": [1, 2]}, {"time_ns": Kind("int", optional=False)})
    kinds = {"added_ratio": Kind("float")}
    second = Table("example", {"time_ns": [3], "added_ratio": [0.5]}, kinds, "partial", "a step")
    frame = concatenated("example", [first, second], [{"run": "a"}, {"run": "b"}]).frame()
    assert frame.to_dict("list")["run"] == ["a", "a", "b"]
    assert frame["time_ns"].tolist() == [1, 2, 3]
    assert frame["added_ratio"].isna().tolist() == [True, True, False]
    assert frame.attrs["reason"] == "a step"


class Balanced(HTMLParser):
    """Whether every tag is closed, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_notebooks_display_a_bar_that_is_whole(augmented: AugmentedTrace) -> None:
    parser = Balanced()
    parser.feed(augmented._repr_html_())
    assert parser.open == []
    assert "device 0" in parser.text
    row = augmented.outcomes["temporal_breakdown"].rows[0]
    assert f"compute {100 * row.compute_ns / row.span_ns:.1f} %" in parser.text
    assert f"idle {100 * row.idle_ns / row.span_ns:.1f} %" in parser.text
    for text in (augmented["kernel_breakdown"], augment.diff(augmented.trace, augmented.trace)):
        parser = Balanced()
        parser.feed(text._repr_html_())
        assert parser.open == []


def structure(kind: Any, address: int) -> Any:
    return kind.from_address(address)


def consumed(capsule: object, *, release: bool = True) -> list[Any]:
    """The columns of a stream, read as a consumer in C reads them; strings and lists by their offsets."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    stream = structure(arrow._Stream, pointer(capsule, arrow.STREAM))
    schema, array, end = arrow._Schema(), arrow._Array(), arrow._Array()
    end.release = 1
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    assert call(stream.get_schema)(ctypes.addressof(stream), ctypes.addressof(schema)) == 0
    for out in (array, end):
        assert call(stream.get_next)(ctypes.addressof(stream), ctypes.addressof(out)) == 0
    assert end.release is None
    children = zip(nested(arrow._Schema, schema), nested(arrow._Array, array), strict=True)
    values = [(its_schema.name.decode(), column(its_schema, its_array)) for its_schema, its_array in children]
    if release:
        for each in (schema, array, stream):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(each.release)(ctypes.addressof(each))
            assert each.release is None
    return values


def nested(kind: Any, parent: Any) -> list[Any]:
    addresses = (ctypes.c_void_p * parent.n_children).from_address(parent.children)
    return [structure(kind, address) for address in addresses]


def column(schema: Any, array: Any) -> list[Any]:
    count, form = array.length, schema.format
    buffers = (ctypes.c_void_p * array.n_buffers).from_address(array.buffers)

    def values(kind: Any, place: int, size: int) -> list[Any]:
        return list((kind * size).from_address(buffers[place])) if size else []

    def flags(place: int) -> list[bool]:
        packed = values(ctypes.c_uint8, place, (count + 7) // 8)
        return [bool(packed[i // 8] >> i % 8 & 1) for i in range(count)]

    if form == b"b":
        result = flags(1)
    elif form in (b"l", b"g"):
        result = values(ctypes.c_int64 if form == b"l" else ctypes.c_double, 1, count)
    else:
        offsets = values(ctypes.c_int64, 1, count + 1)
        if form == b"U":
            content = bytes(values(ctypes.c_uint8, 2, offsets[-1]))
        else:
            content = column(*nested(arrow._Schema, schema), *nested(arrow._Array, array))
        result = [content[a:b] for a, b in itertools.pairwise(offsets)]
        result = [each.decode() if form == b"U" else each for each in result]
    valid = flags(0) if buffers[0] else [True] * count
    assert valid.count(False) == array.null_count
    return [each if known else None for each, known in zip(result, valid, strict=True)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_arrow_stream_has_the_values(rows: int) -> None:
    cut = {name: (kind, values[:rows]) for name, (kind, values) in COLUMNS.items()}
    assert repr(consumed(arrow.stream_of(cut))) == repr([(name, values) for name, (_, values) in cut.items()])


def test_what_is_released_is_freed_at_the_next_export() -> None:
    gc.collect()
    arrow.stream_of({})
    capsule = arrow.stream_of(COLUMNS)
    consumed(capsule, release=False)  # and never released
    held = len(arrow._EXPORTS)
    consumed(arrow.stream_of(COLUMNS))
    del capsule
    arrow.stream_of({})  # which frees the released one, is freed itself at the next
    assert len(arrow._EXPORTS) == held + 1
    arrow.stream_of({})
    assert len(arrow._EXPORTS) == held + 1


READERS = {
    "polars": "d = polars.DataFrame(t); print(d.shape, d['sum_ns'].sum())",
    "pyarrow": "d = pyarrow.table(t); d.validate(full=True); print(d.shape, sum(d['sum_ns'].to_pylist()))",
}


@pytest.mark.parametrize("library", READERS)
def test_libraries_of_arrow_take_a_table_and_release_it_when_they_end(library: str, augmented: AugmentedTrace) -> None:
    pytest.importorskip(library)
    read = f"augment.augment(augment.read({str(SIMULATED[0])!r}), only=['kernel_breakdown'])['kernel_breakdown']"
    code = f"import augment, {library}; t = {read}; {READERS[library]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    table = augmented["kernel_breakdown"]
    assert done.stdout == f"({len(table)}, {len(table.columns)}) {sum(table['sum_ns'])}\n", done.stderr
    assert done.returncode == 0
