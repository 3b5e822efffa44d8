"""The catalogue of facts: each is documented to its columns, and gives what its function gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment import Trace, facts, read
from augment.core import Category
from augment.facts.host.call_stacks import places_of
from tables import Event, launched_kernel, op, trace_of
from traces import SIMULATED

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    f"{namespace}.{name}": fact
    for namespace in facts.__all__
    for name in getattr(facts, namespace).__all__
    if inspect.unwrap(fact := getattr(getattr(facts, namespace), name)) is not fact
    and [*inspect.signature(fact).parameters] == ["trace"]
}
WORK, STACKS, EVENTS = "WorkIndexes", "StackIndexes", "EventRows"


def record_of(fact: Callable[..., Any]) -> type[msgspec.Struct] | None:
    known = vars(inspect.getmodule(inspect.unwrap(fact)))
    kinds = [known.get(name) for name in re.findall(r"\w+", fact.__annotations__["return"])]
    records = (kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, msgspec.Struct))
    return next((record for record in records if record.__module__.startswith("augment.facts")), None)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read(str(SIMULATED[0]))


def test_namespaces() -> None:
    assert facts.gpu.work is FACTS["gpu.work"]
    with pytest.raises(AttributeError, match="no attribute 'cpu'"):
        facts.cpu  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("name", FACTS)
def test_each_has_one_sentence_and_documented_columns(name: str, trace: Trace) -> None:
    fact = FACTS[name]
    assert re.fullmatch(r"[A-Z][^\n]*\.", (inspect.getdoc(fact) or "").partition("\n\n")[0])
    assert f"`{name}`" in (ROOT / "docs" / "facts.md").read_text("utf-8")
    assert fact(trace) is fact(trace)  # a fact, not its copy
    record = record_of(fact)
    if record is not None:
        text = inspect.getsource(record)
        plain = [each for each in record.__struct_fields__ if not re.search(rf"^    {each}: [^\n]*  #: \S", text, re.M)]
        assert not plain, f"say beside these fields of {record.__name__} what they are"


@pytest.mark.parametrize("name", FACTS)
def test_indexes_lie_in_what_they_index(name: str, trace: Trace) -> None:
    sizes = {WORK: len(facts.gpu.work(trace)), STACKS: len(facts.host.stacks(trace)), EVENTS: len(trace.events)}
    values = FACTS[name](trace)
    for value in values if isinstance(values, tuple) else [values]:
        for field, kind in getattr(type(value), "__annotations__", {}).items():
            size = next((sizes[each] for each in sizes if str(kind).startswith(each)), None)
            column = getattr(value, field)
            if size is not None and column is not None and len(column):
                assert -1 <= column.min() <= column.max() < size, field


def copied(name: str, at: int, correlation: int) -> list[Event]:
    """An operator whose copy is launched by another within it."""
    return [
        op(name, at, at + 50),
        op("aten::copy_", at + 10, at + 40),
        *launched_kernel("copy", (at + 20, at + 30), (at + 60, at + 70), correlation=correlation),
    ]


def test_work_under_operators() -> None:
    trace = trace_of(
        *copied("aten::contiguous", 0, 1), *copied("aten::to", 100, 2), *copied("aten::contiguous", 200, 3)
    )
    work = facts.gpu.work(trace)
    stacks = places_of(trace, Category.CPU_OP).where(lambda name: name == "aten::contiguous")
    assert work.ts[facts.gpu.launched(trace).under(stacks)].tolist() == [60, 260]
    assert trace.names_of(facts.gpu.innermost_operator(trace)) == ["aten::copy_"] * 3
    inner = places_of(trace, Category.CPU_OP).where(lambda name: name in ("aten::contiguous", "aten::copy_"))
    assert facts.gpu.launched(trace).under(inner).tolist() == [0, 1, 2]  # each once
    assert not len(facts.gpu.launched(trace).under(np.empty(0, np.intp)))
