"""Every figure of every real trace, against the exact figures that ``shared/reference/oracle.py`` made of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from augment import Findings, UnknownFormat, augment, read

SHARED = Path(__file__).parents[3] / "shared"
FIGURES = SHARED / "reference" / "figures"
SUFFIX = ".figures.json"
KEYS = ("device", "stream", "category", "kernel_type", "name", "kind")
NAMES = sorted(str(path.relative_to(FIGURES))[: -len(SUFFIX)] for path in FIGURES.rglob(f"*{SUFFIX}"))

#: GPU work of vendors whose categories the oracle does not know; it says nothing where we may say something
BEYOND_THE_ORACLE = ("ascend_trace_view/trace_view", "hta_mtia/mtia_rank_0")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FIGURES.is_dir(), reason=f"no reference figures at {FIGURES}")]


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_the_oracles(name: str) -> None:
    (path,) = (SHARED / "traces" / name).parent.glob(f"{Path(name).name}.json*")
    expected = json.loads((FIGURES / f"{name}{SUFFIX}").read_text())
    try:
        outcomes = augment(read(str(path)), only=list(expected)).outcomes
    except UnknownFormat:
        assert not any(expected.values())  # no trace, for the oracle neither
        return
    differences = []
    for analysis, rows in expected.items():
        if (outcome := outcomes.get(analysis)) is None:
            continue
        result = (
            {key_of(row): row for row in map(structs.asdict, outcome.rows)} if isinstance(outcome, Findings) else {}
        )
        wanted = {key_of(row): row for row in rows}
        if not wanted and name in BEYOND_THE_ORACLE:
            continue
        if set(result) != set(wanted):
            differences.append(f"{analysis}: rows {set(result) ^ set(wanted)}")
        differences += [
            f"{analysis} {key}: {column} is {result[key][column]}, not {value}"
            for key in set(result) & set(wanted)
            for column, value in wanted[key].items()
            if column not in KEYS and not same(result[key][column], value)
        ]
    assert not differences, "\n".join(differences)


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What tells a row from the others: the oracle names devices and streams by strings."""
    return tuple(str(row[key]) for key in KEYS if key in row)


def same(result: Any, expected: Any) -> bool:
    """Integers are exact; the oracle's ratios are of Python's exact integers, ours of sums of floats."""
    if isinstance(expected, float):
        return isinstance(result, float) and math.isclose(result, expected, rel_tol=1e-9, abs_tol=1e-12)
    return bool(result == expected)
