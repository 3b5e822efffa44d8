"""One name of a column is one figure in one unit, in all tables."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import ANALYSES
from augment.compare.diff_rows import ROWS as OF_DIFF
from augment.core import old_names
from augment.core.findings import AugmentedTrace, Column, columns_of
from augment.job.answer import ROWS as OF_JOB
from augment.pipeline import augment
from augment.readers import read
from simulator import JobOptions, simulate

ROOT = Path(__file__).resolve().parents[2]
OF_TRACE = {analysis.NAME: analysis.ROW for analysis in ANALYSES}
KEY = ("rank", "device", "step")
#: statistics of what their table names: a queue's length, or any figure
OF_ANYTHING = {"mean", "std", "max", "min"}
MANY = 3  #: tables; a figure in so many is in the vocabulary


@pytest.fixture(scope="module")
def columns() -> dict[str, dict[str, Column]]:
    """The columns by name, then table."""
    named: dict[str, dict[str, Column]] = defaultdict(dict)
    for table, row in {**OF_TRACE, **OF_JOB, **OF_DIFF}.items():
        for column in columns_of(row):
            named[column.name][table] = column
    return named


def test_a_name_has_one_unit(columns: dict[str, dict[str, Column]]) -> None:
    units = {name: {column.unit for column in tables.values()} for name, tables in columns.items()}
    assert {name for name, several in units.items() if len(several) > 1} <= OF_ANYTHING


def test_figures_of_many_tables_are_in_the_vocabulary(columns: dict[str, dict[str, Column]]) -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text()
    listed: dict[str, str] = {}
    for names, unit in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([\w/]+) \|", page, re.M):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), unit)
    shared = {name: tables for name, tables in columns.items() if len(tables) >= MANY}
    figures = {name: next(iter(tables.values())).unit for name, tables in shared.items() if name not in OF_ANYTHING}
    assert {name: unit for name, unit in figures.items() if unit and listed.get(name) != unit} == {}
    assert set(listed) <= set(columns), "what no table has is not in the vocabulary"


def test_no_old_name_is_used(columns: dict[str, dict[str, Column]]) -> None:
    assert not columns.keys() & {"step_ns", "mean_step_ns", "max_step_ns", "exposed_copy_ns"}
    assert not old_names.TABLES.keys() & {**OF_TRACE, **OF_JOB, **OF_DIFF}.keys()


def differences(augmented: AugmentedTrace) -> list[str]:
    """Figures of equal name and key that differ between tables with a row for each rank, device and step."""
    tables: dict[str, dict[Any, Any]] = {}
    for name, row in OF_TRACE.items():
        rows = augmented.outcomes[name].rows if hasattr(augmented.outcomes[name], "rows") else ()
        keys = [tuple(getattr(each, column) for column in KEY) for each in rows if {*KEY} <= {*row.__struct_fields__}]
        if keys and len(set(keys)) == len(keys):
            tables[name] = dict(zip(keys, rows, strict=True))
    assert {"steps", "step_efficiency"} <= tables.keys()
    differing = []
    for (one_name, these), (other_name, others) in combinations(tables.items(), 2):
        for key in these.keys() & others.keys():
            shared = {*type(these[key]).__struct_fields__} & {*type(others[key]).__struct_fields__}
            differing += [
                f"{column} of {one_name} and {other_name}"
                for column in shared
                if column.endswith("_ns") and getattr(these[key], column) != getattr(others[key], column)
            ]
    return differing


def test_tables_of_steps_agree(tmp_path: Path) -> None:
    """Of a host that runs ahead, so that annotation and window differ."""
    options = JobOptions(ranks=1, steps=4, layers=2, run_ahead=1, side_streams=1)
    augmented = augment(read(str(simulate(options, tmp_path)[0][0])))
    assert any(row.wall_ns != row.host_wall_ns for row in augmented.outcomes["steps"].rows)
    assert not differences(augmented)


def test_tables_of_recorded_steps_agree(shared_traces: Path) -> None:
    augmented = augment(read(str(shared_traces / "h100_8rank_modded_nanogpt" / "rank5.json.gz")))
    assert any(row.wall_ns != row.host_wall_ns for row in augmented.outcomes["steps"].rows)
    assert not differences(augmented)
