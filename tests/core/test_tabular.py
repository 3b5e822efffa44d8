"""Results in Python: short reprs, tables, frames, Arrow streams, what a notebook displays."""

from __future__ import annotations

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
from augment.core.findings import AugmentedTrace, Skipped
from augment.core.tabular import ColumnKind, Table, concatenated
from augment.core.text import percent
from augment.errors import UsageError
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
ARROW_TYPES = {"int": "int64", "float": "double", "bool": "bool"}
ARROW_TYPES |= {"text": "large_string", "texts": "large_list<item: large_string>"}


@pytest.fixture(scope="module")
def augmented() -> AugmentedTrace:
    return augment.augment(augment.read(SIMULATED[0]))


def test_a_notebook_shows_times_first_and_names_short() -> None:
    """What a row is of, its times with their units and a bar, then the rest; the exact figure is in the title."""
    rows = [{"rank": 0, "name": "k" * 80, "count": 3, "sum_ns": 3_600_000, "mean_bytes": 4_000, "busy_ratio": 0.25}]
    page = Table.of_rows("kernels", rows)._repr_html_()
    heads = [part.partition("<")[0] for part in page.split("scope='col'>")[1:]]
    assert heads == ["rank", "name", "sum_ns", "count", "mean_bytes", "busy_ratio"]
    for shown in (f"title='{'k' * 80}'>{'k' * 59}…", "title='3,600,000 ns'>3.6 ms", "100.0%", ">4.0 kB<", ">25 %<"):
        assert shown in page, shown


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
    types = {analysis.NAME: analysis.Row for analysis in ANALYSES}
    for name in augmented:
        frame = augmented[name].frame()
        nothing = Table.of_rows(name, (), types[name]).frame()
        assert frame.columns.tolist() == nothing.columns.tolist() == list(types[name].__struct_fields__)
        alike = [column for column in frame if column not in ("device", "stream", "correlation")]
        assert frame[alike].dtypes.tolist() == nothing[alike].dtypes.tolist(), name
    assert augmented["kernel_breakdown"].frame()["sum_ns"].dtype == np.int64
    assert augmented["idle_time_breakdown"].frame().attrs["analysis"] == "idle_time_breakdown"


def test_integers_stay_integers_where_some_are_missing() -> None:
    frame = Table("example", {"start_ns": COLUMNS["start_ns"][1]}, {"start_ns": ColumnKind("int")}).frame()
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
        return Table("example", {"device": values}, {"device": ColumnKind("identity")}).frame()["device"]

    assert device([0, 1]).tolist() == [0, 1]
    assert device([0, "npu 1"]).tolist() == ["0", "npu 1"]


def test_tables_of_several_runs_become_one() -> None:
    first = Table("example", {"time_ns": [1, 2]}, {"time_ns": ColumnKind("int", optional=False)})
    kinds = {"added_ratio": ColumnKind("float")}
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
    rows = [row for row in augmented.outcomes["steps"].rows if row.is_steady]
    wall, compute, idle = (sum(getattr(row, f"{name}_ns") for row in rows) for name in ("wall", "compute", "idle"))
    assert f"compute {percent(compute / wall)}" in parser.text
    assert f"idle {percent(idle / wall)}" in parser.text
    for text in (augmented["kernel_breakdown"], augment.diff(augmented.trace, augmented.trace)):
        parser = Balanced()
        parser.feed(text._repr_html_())
        assert parser.open == []


def test_an_arrow_table_has_the_values_and_their_types() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for rows in (0, 1, 3):
        columns = {name: values[:rows] for name, (_, values) in COLUMNS.items()}
        table = Table("example", columns, {name: ColumnKind(kind) for name, (kind, _) in COLUMNS.items()})
        made = pyarrow.table(table)
        made.validate(full=True)
        assert repr(made.to_pydict()) == repr(columns)
        assert list(map(str, made.schema.types)) == [ARROW_TYPES[kind] for kind, _ in COLUMNS.values()]


def test_a_text_that_is_no_unicode_is_mended_in_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = Table("example", {"name": ["a\udcff"], "names": [["\ud800", "b"]]})
    assert pyarrow.table(table).to_pydict() == {"name": ["a?"], "names": [["?", "b"]]}


def test_without_pyarrow_arrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'kineto-augment\[history\]'"):
        Table("example", {"time_ns": [1]}).__arrow_c_stream__()


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
