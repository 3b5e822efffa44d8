"""The work of compiled kernels from the compiler's log: by hand, on a real log, and by what may not change."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from augment.core.records import CompileLog, CompileLogs, GraphOrigins
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.operators.operator_work import operator_work, work_families
from augment.readers.attachments.compile_log import graph_nodes, read_compile_log
from tables import Event, call, kernel, op, shaped, trace_of

REAL = Path(__file__).parents[3] / "shared" / "evidence" / "torch_trace"
GRAPH = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "bf16[64, 32][32, 1]cuda:0", w: "bf16[32, 16][16, 1]cuda:0", b: "bf16[16][1]cuda:0"):
         # File: /w/model.py:3 in forward, code: y = x @ w + b
        mm: "bf16[64, 16][16, 1]cuda:0" = torch.ops.aten.mm.default(x, w)
        expand: "bf16[64, 16][0, 1]cuda:0" = torch.ops.aten.expand.default(b, [64, 16])
        add: "bf16[64, 16][16, 1]cuda:0" = torch.ops.aten.add.Tensor(mm, expand);  mm = expand = None
        convert: "f32[64, 16][16, 1]cuda:0" = torch.ops.prims.convert_element_type.default(add, torch.float32)
        var_mean = torch.ops.aten.var_mean.correction(convert, [1], correction = 0, keepdim = True)
        getitem: "f32[64, 1][1, 64]cuda:0" = var_mean[0]
        getitem_1: "f32[64, 1][1, 64]cuda:0" = var_mean[1];  var_mean = None
        view: "f32[64][1]cuda:0" = torch.ops.aten.reshape.default(getitem_1, [64])
        relu: "bf16[64, 16][16, 1]cuda:0" = torch.ops.aten.relu.default(add)
        return (relu, view)
"""
MADE_OF = {
    "triton_tem_fused_0:1": ("mm", "expand", "add"),
    "triton_per_fused_1:2": ("convert", "var_mean"),
    "triton_poi_fused_2:3": ("relu",),
}
WORK = {  # flops and bytes, by hand
    "triton_tem_fused_0": (2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 16 + 64 * 16)),
    "triton_per_fused_1": (None, 2 * 64 * 16 + 4 * 64),  # the variance is used by none, and not written
    "triton_poi_fused_2": (None, 2 * 2 * 64 * 16),
}


def beside(
    text: str = GRAPH, made_of: dict[str, tuple[str, ...]] | None = None, rank: int | None = None
) -> CompileLogs:
    origins = GraphOrigins("0/0", {}, *graph_nodes(text), MADE_OF if made_of is None else made_of)
    return CompileLogs((CompileLog("a.log", rank, graphs=[origins]),))


def launched(*args: dict[str, object]) -> list[Event]:
    """A call of the region that launches the three kernels; the first operator may have ``args``."""
    events = [op("Torch-Compiled Region: 0/0", 0, 1000)]
    for place, name in enumerate(WORK):
        at = 100 * (place + 1)
        events.append(op(name, at, at + 50, args=dict(args[0]) if args and not place else None))
        events.append(call("cuLaunchKernel", at + 10, at + 20, correlation=place + 1))
        events.append(kernel(name, 1000 + at, 1050 + at, correlation=place + 1))
    return events


def works(trace: Trace) -> dict[str, tuple[int | None, int | None]]:
    work = operator_work(trace)
    of_place = {}
    for row, owner in zip(gpu_work(trace).row, work.owner.tolist(), strict=True):
        if owner >= 0:
            done = work.works[work.kind[owner]]
            of_place[trace.strings[trace.events.name[row]]] = (done.flops, done.bytes)
    return of_place


def test_a_kernel_reads_and_writes_what_is_outside_once() -> None:
    assert works(trace_of(*launched(), beside=[beside()])) == WORK
    assert works(trace_of(*launched())) == {}


def test_a_product_is_a_product_whatever_the_kernel_is_called() -> None:
    trace = trace_of(*launched(), beside=[beside()])
    families = work_families(trace)
    named = [families.names[index] for index in families.family.tolist()]
    assert named[0] == "gemm"
    before = work_families(trace_of(*launched()))
    assert [before.names[index] for index in before.family.tolist()][1:] == named[1:]


def test_shapes_of_the_trace_come_first() -> None:
    args = shaped([8, 8], [8, 8], [8, 8], [], values={3: "64"})
    trace = trace_of(*launched(args), beside=[beside(made_of={**MADE_OF, "triton_poi_fused_2:3": ("relu",)})])
    plain = works(trace_of(*launched(args)))
    assert {name: work for name, work in works(trace).items() if name in plain} == plain


@pytest.mark.parametrize(("text", "made_of", "missing"), [
    (GRAPH.replace("64", "s0"), MADE_OF, set(WORK)),  # sizes that are symbols
    (GRAPH, {**MADE_OF, "other:4": ("relu",)}, {"triton_poi_fused_2"}),  # which of the two writes it?
    (GRAPH, {name.partition(":")[0]: nodes for name, nodes in MADE_OF.items()}, set(WORK)),  # calls thrown together
    (GRAPH.replace("aten.relu.default", "aten.slice.Tensor"), MADE_OF, {"triton_poi_fused_2"}),  # a part is read
    (GRAPH, {**MADE_OF, "triton_poi_fused_2:4": ("add",)}, {"triton_tem_fused_0", "triton_poi_fused_2"}),
    (GRAPH, {"triton_poi_fused_2:3": ("gone",)}, set(WORK)),
], ids=["symbols", "shared", "no_handles", "part", "two_sites", "no_node"])  # fmt: skip
def test_what_cannot_be_told_is_not(text: str, made_of: dict[str, tuple[str, ...]], missing: set[str]) -> None:
    shown = works(trace_of(*launched(), beside=[beside(text, made_of)]))
    unknown = {name for name in WORK if shown.get(name, (None, None))[1] is None}
    assert unknown == missing
    assert {name: work for name, work in shown.items() if name not in missing} == {
        name: work for name, work in WORK.items() if name not in missing
    }


def test_the_log_of_another_rank_says_nothing() -> None:
    trace = trace_of(*launched(), beside=[beside(rank=3)])
    assert works(trace) == ({} if trace.rank == 0 else WORK)


def test_a_real_log() -> None:
    """By the sizes in its code: additions, a product of (8, 10) by (10, 16), and one of (10, 20) by (20, 30)."""
    path = REAL / "inductor_provenance_jit_debug_handle_log.txt.gz"
    if not path.is_file():
        pytest.skip(f"no log at {path}")
    log = read_compile_log(str(path))
    names = ["triton_poi_fused_addmm_relu_sigmoid_threshold_backward_0", "triton_poi_fused_mul_1"]
    names += ["triton_poi_fused_addmm_gelu_2"]
    events = [op("Torch-Compiled Region: 0/0", 0, 1000)]
    for place, name in enumerate([*names, "mm", "mm"]):
        at = 100 * (place + 1)
        if name == "mm":
            events.append(op("aten::mm", at, at + 50))
        events.append(call("cuLaunchKernel", at + 10, at + 20, correlation=place + 1))
        events.append(kernel(f"gemm{place}" if name == "mm" else name, 1000 + at, 1050 + at, correlation=place + 1))
    assert works(trace_of(*events, beside=[CompileLogs((log,))])) == {
        names[0]: (None, 4 * (8 * 16 + 16 + 8 * 16) + 8 * 16),
        names[1]: (None, 4 * 2 * 10 * 20),
        names[2]: (None, 4 * 3 * 10 * 30),
        "gemm3": (2 * prod((8, 10, 16)), 4 * (8 * 10 + 10 * 16 + 8 * 16)),
        "gemm4": (2 * prod((10, 20, 30)), 4 * (10 * 20 + 20 * 30 + 10 * 30)),
    }
