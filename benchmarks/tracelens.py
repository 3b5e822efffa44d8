"""Floating-point operations by operator and shapes, beside those of TraceLens, on the same traces.

    python benchmarks/tracelens.py --python VENV/bin/python TRACE…

VENV is an environment of its own with TraceLens (https://github.com/AMD-AGI/TraceLens). Each call of a matrix product,
convolution or attention that TraceLens has a model of is put to our formula, too; a row is an operator with its shapes,
types and values. docs/analyses.md says what came out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import augment
from augment.core.trace import Trace
from augment.facts.operators.counted_operators import formula_of
from augment.facts.operators.operator_calls import Call, Unrecorded, Work
from augment.facts.operators.operator_work import operator_work

#: run by VENV's Python: what each call was called with, its category and 10^9 operations
THEIRS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from TraceLens import TreePerfAnalyzer
table = TreePerfAnalyzer.from_file(sys.argv[1]).build_df_unified_perf_table()
args = "Input Dims", "Input type", "Concrete Inputs", "Input Strides"
rows = {}
for _, row in table.iterrows():
    if row["Input Dims"] is not None:
        gflops = row.get("GFLOPS")
        key = json.dumps([row["name"], str(row["op category"]), *(row[one] or [] for one in args)])
        rows[key] = None if gflops is None or gflops != gflops else gflops
print("\\n" + json.dumps([[*json.loads(key), gflops] for key, gflops in rows.items()]))
"""
_PRODUCTS = ("gemm", "conv", "sdpa", "attention", "moe")  #: categories of TraceLens that are matrix products
_CLOSE = 1e-9


def answers(python: str, path: str) -> Counter[tuple[str, str]]:
    """How many rows of each operator have which answer."""
    trace = augment.read(path)
    counted = {call.operator for call, work in _leaves(trace)}
    output = subprocess.run([python, "-c", THEIRS, path], check=True, capture_output=True, text=True).stdout
    counts: Counter[tuple[str, str]] = Counter()
    seen = set()
    for name, category, *args, gflops in json.loads(output.splitlines()[-1]):
        if name in counted or any(product in category.lower() for product in _PRODUCTS):
            call = Call(name, *args)
            seen.add((name, str(call.dims)))
            counts[name, answer(call, ours(trace, call), None if gflops is None else gflops * 1e9)] += 1
    for call, _ in _leaves(trace):
        if (call.operator, str(call.dims)) not in seen:
            counts[call.operator, "counted here; TraceLens has a row of an operator around it, or none"] += 1
    return counts


def _leaves(trace: Trace) -> list[tuple[Call, Work]]:
    operators = operator_work(trace)
    kinds = sorted(set(operators.kind.tolist()))
    return [(operators.calls[kind], operators.works[kind]) for kind in kinds if operators.works[kind].flops is not None]


def ours(trace: Trace, call: Call) -> Work | None:
    """What our formula says of a call, whether or not it counts here: a parent may be what TraceLens counts."""
    formula = formula_of(trace, call.operator)
    try:
        return formula(call) if formula else None
    except (Unrecorded, ValueError, IndexError, TypeError):
        return None


def answer(call: Call, work: Work | None, expected: float | None) -> str:
    """Whether both agree; else why not, as far as figures show it."""
    if work is None or work.flops is None:
        return "neither has it" if expected is None else "no formula here"
    if expected is None:
        return "no model in TraceLens"
    if abs(expected - work.flops) <= _CLOSE * expected:
        return "equal"
    if _close(expected - work.flops, _result(call), expected):
        return "TraceLens adds the sum with the first operand"
    if work.most_flops != work.flops:
        return "sequences of unknown lengths: at least ours"
    if call.operator == "aten::convolution_backward" and "false" in call.value(10).lower():
        return "TraceLens counts gradients that the output mask leaves out"
    if any(call.flag(place) for place in range(len(call.values))) and expected < work.flops:
        return f"a causal mask: theirs / ours = {expected / work.flops:.4f}, half of all pairs against exact ones"
    return f"theirs / ours = {expected / work.flops:.6g}" if work.flops else "nothing here"


def _close(left: float, other: float, scale: float) -> bool:
    return abs(left - other) <= _CLOSE * scale


def _result(call: Call) -> float:
    """How many elements the result of a product has to which the first operand is added."""
    dims: list[Any] = [count for count in call.dims if count]
    if len(dims) < 3 or not isinstance(dims[1][0], int):
        return -1.0
    count = float(dims[2][-1])
    for dim in dims[1][:-1]:
        count *= dim
    return count


def main(arguments: list[str] | None = None) -> int:
    """Print the answers for each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, metavar="PATH", help="Python of an environment with TraceLens")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    given = parser.parse_args(arguments)
    for path in given.traces:
        counts = answers(given.python, path)
        print(path)
        for (operator, outcome), count in sorted(counts.items(), key=lambda item: (item[0][1] != "equal", item)):
            print(f"  {count:4} {outcome}: {operator}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
