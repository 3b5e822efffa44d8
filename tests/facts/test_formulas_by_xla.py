"""Our operations and bytes against those that XLA wrote into a trace of a TPU.

Each event has the HLO instruction as text, with the shapes of its operands and its result, and XLA's own figures:
``model_flops`` and ``raw_bytes_accessed``. The instruction is told to the formula of the operator that does the same.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from augment.facts.operators.formulas_memory import memory_formula
from augment.facts.operators.formulas_products import linear
from augment.facts.operators.operator_calls import Call, Work

TRACE = "jax_tpu/t1v-n-9eb622fc-w-0.2026_01_12_01_08_50.trace.json.gz"
TYPES = {"bf16": "c10::BFloat16", "f32": "float", "s32": "int", "pred": "bool", "u32": "int", "s8": "signed char"}
_SHAPE = re.compile(rf"\b({'|'.join(TYPES)})\[([\d,]*)\]")


@pytest.fixture(scope="module")
def instructions(shared_traces: Path) -> list[dict[str, Any]]:
    """The args of one event of each instruction."""
    events = json.loads(gzip.decompress((shared_traces / TRACE).read_bytes()))["traceEvents"]
    args = [event["args"] for event in events if "raw_bytes_accessed" in event.get("args", {})]
    return list({arg["long_name"]: arg for arg in args}.values())


def call_of(instruction: dict[str, Any], operator: str, *, result: bool) -> Call:
    """The instruction as a call with its operands, and its results as operands if wanted."""
    text = re.split(r", (?:kind|to_apply|channel_id)=", instruction["long_name"])[0]
    results, _, operands = text.partition(f" {text.split('(')[0].split()[-1]}(")
    actual = _SHAPE.findall(text if result else operands or results)
    shapes = [[int(size) for size in dims.split(",") if size] or [1] for _, dims in actual]
    return Call(operator, shapes, [TYPES[kind] for kind, _ in actual])


def figures(instruction: dict[str, Any]) -> tuple[int, int]:
    return int(instruction["model_flops"]), int(instruction["raw_bytes_accessed"])


def of_category(instructions: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [instruction for instruction in instructions if instruction["hlo_category"] == category]


def work(operator: str, call: Call) -> Work:
    formula = memory_formula(operator)
    return formula(call)


def test_a_product_has_the_operations_and_bytes_of_linear(instructions: list[dict[str, Any]]) -> None:
    result = of_category(instructions, "convolution fusion")
    assert result
    for each in result:
        ours = linear(call_of(each, "aten::linear", result=False))
        assert (ours.flops, ours.bytes) == figures(each)


def test_a_gather_has_the_bytes_of_an_embedding(instructions: list[dict[str, Any]]) -> None:
    result = of_category(instructions, "custom fusion")
    assert result
    for each in result:
        (rows, _), weight, *_ = call_of(each, "", result=True).dims  # an index for each row of the result
        call = Call("aten::embedding", [weight, [rows]], ["c10::BFloat16", "int"])
        assert work("aten::embedding", call).bytes == figures(each)[1]


@pytest.mark.parametrize("category", ["data formatting", "all-reduce", "all-gather", "broadcast", "loop fusion"])
def test_what_moves_has_the_bytes_of_all_operands(instructions: list[dict[str, Any]], category: str) -> None:
    """Fusions that read a part of an operand, or convert a part, move less than all of it: never more."""
    result = of_category(instructions, category)
    assert result
    name = "triton_poi_fused_add"
    pairs = [(work(name, call_of(each, name, result=True)).bytes or 0, figures(each)[1]) for each in result]
    assert all(ours >= theirs for ours, theirs in pairs)
    equal = sum(ours == theirs for ours, theirs in pairs)
    assert equal >= 0.9 * len(pairs)
    if category != "loop fusion":
        assert equal == len(pairs)
