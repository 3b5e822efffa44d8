from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import numpy as np
import pytest
from msgspec import Struct

from augment import AugmentedTrace, Findings, Skipped, Trace, __version__, augment, read
from augment.analyses import ANALYSES
from augment.core import Diagnostic, Outcome, Track, column, columns_of
from augment.core.findings import UNITS
from augment.writers import metrics, write_all
from augment.writers.metrics import schema
from metamorphic import real_trace
from traces import SIMULATED, by_folder
from writer_traces import chrome_trace, with_source

STEPS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": 5 + n, "dur": 1}
    for n in (11, 9, 9)
]
ROWS = {analysis.NAME: analysis.Row for analysis in ANALYSES}


class Row(Struct, frozen=True):
    rank: Annotated[int | None, column("Rank of the process.")]
    kind: Annotated[Literal["a", "b"], column("What it is.")]
    mean_ns: Annotated[float, column("Mean of the gaps.", "ns")]
    pattern: Annotated[list[str], column("Names of kernels.")]


def sidecar(trace: Trace, outcomes: dict[str, Outcome], *more: Diagnostic) -> Any:
    """The sidecar as a reader gets it, valid by a schema that allows nothing else."""
    text = metrics.encode(metrics.document(AugmentedTrace(trace, outcomes), more))
    document = json.loads(text, parse_constant=pytest.fail)
    jsonschema.validate(document, schema(dict.fromkeys(outcomes, Row), closed=True))
    return document


def test_it_tells_the_version_of_the_code_that_wrote_it() -> None:
    assert metrics.tool() == {"name": "kineto-augment", "version": __version__}


def test_source() -> None:
    tracks = [Track(3, 1, 1), Track(3, 0, 7, 0, 7)]
    mark = {"ph": "i", "name": "Record Window End", "pid": 1, "tid": 1, "ts": 99}  # ends nothing that was recorded
    trace = with_source(chrome_trace([*STEPS, mark], tracks), rank_from="file name", devices=((0, "H100"), (1, "H100")))
    assert sidecar(trace, {})["source"] == {
        "name": "t.json",
        "sha256": "0" * 64,
        "format": "chrome_json",
        "events": 4,
        "ranks": [3],
        "rank_from": "file name",
        "partial": None,
        "devices": [{"rank": 3, "device": place, "name": "H100", "works": False} for place in (0, 1)],
        "accelerator": "GPU",
        "start_ns": 14000,
        "duration_ns": 85_000,
        "recorded_ns": 3000,
        "steps": [9, 11],
        "window": None,
    }
    assert sidecar(chrome_trace(), {})["source"]["start_ns"] is None


def test_status_and_rows() -> None:
    row = Row(None, "a", float("nan"), ["x", "é"])
    outcomes: dict[str, Outcome] = {
        "whole": Findings([row, msgspec.structs.replace(row, mean_ns=np.float64(1.5))]),
        "half": Findings([], partial="one stream only"),
        "none": Skipped("no event of category kernel"),
    }
    expected = {"rank": None, "kind": "a", "pattern": ["x", "é"]}
    assert sidecar(chrome_trace(), outcomes)["analyses"] == {
        "whole": {"status": "ok", "rows": [{**expected, "mean_ns": None}, {**expected, "mean_ns": 1.5}]},
        "half": {"status": "partial", "reason": "one stream only", "rows": []},
        "none": {"status": "skipped", "reason": "no event of category kernel", "rows": []},
    }


def test_diagnostics_of_all() -> None:
    result = Findings([], diagnostics=[Diagnostic("b", 2, "…")])
    document = sidecar(msgspec.structs.replace(chrome_trace(), diagnostics=(Diagnostic("a", 1, "…"),)), {"x": result},
                       Diagnostic("c", 3, "…"))  # fmt: skip
    assert [diagnostic["code"] for diagnostic in document["diagnostics"]] == ["a", "b", "c"]


def test_a_row_is_a_line() -> None:
    row = Row(0, "a", 0.5, [])
    text = metrics.encode(metrics.document(AugmentedTrace(chrome_trace(), {"x": Findings([row, row])}))).decode()
    assert text.count('\n      {"rank":0,"kind":"a","mean_ns":0.5,"pattern":[]}') == 2


@pytest.mark.parametrize(
    "wrong", [{"rank": "0"}, {"rank": None, "kind": "c"}, {"mean_ns": "1"}, {"pattern": [1]}, {"undeclared": 1}]
)
def test_the_schema_sees_drift(wrong: dict[str, Any]) -> None:
    document = sidecar(chrome_trace(), {"x": Findings([Row(0, "a", 0.5, [])])})
    document["analyses"]["x"]["rows"][0].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema({"x": Row}, closed=True))


def test_the_published_schema_is_open_to_additions() -> None:
    document = sidecar(chrome_trace(), {"x": Findings([Row(0, "a", 0.5, [])])})
    document["analyses"]["x"]["rows"][0]["later"] = 1
    document["analyses"]["later"] = {}
    jsonschema.validate(document, schema({"x": Row}))


def test_a_skipped_analysis_needs_a_reason() -> None:
    document = sidecar(chrome_trace(), {"x": Skipped("because")})
    del document["analyses"]["x"]["reason"]
    with pytest.raises(jsonschema.ValidationError, match="reason"):
        jsonschema.validate(document, schema({"x": Row}))


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.NAME)
def test_every_column_is_declared(analysis: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema({analysis.NAME: analysis.Row}))
    for declared in columns_of(analysis.Row):
        assert declared.doc.endswith("."), declared.name
        assert declared.unit in UNITS, declared.name


@pytest.mark.parametrize("name", [
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "hta_cpu_only/rank-34_of_300_cpu_only.pt.trace.json.gz",
    *SIMULATED,
], ids=by_folder)  # fmt: skip
def test_sidecars_of_whole_traces_are_valid(tmp_path: Path, name: str | Path) -> None:
    written = write_all(augment(read(str(real_trace(name)))), tmp_path)
    expected = [".augmented.pftrace", ".metrics.json"]
    assert [path.name.removeprefix(Path(name).name.removesuffix(".pt.trace.json.gz")) for path in written] == expected
    document = json.loads(written[-1].read_bytes(), parse_constant=pytest.fail)
    jsonschema.validate(document, schema(ROWS, closed=True))
    assert list(document["analyses"]) == list(ROWS)
