"""What kind of work kernels are, and whether matrix units did it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import augment
from augment.analyses import kernel_breakdown, kernel_family_breakdown
from augment.core.trace import Category, Trace, Track
from augment.errors import UsageError
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import (
    MATRIX_FAMILIES,
    MatrixUnits,
    _of_lower_case,
    kernel_families,
    shipped_rules,
)
from augment.facts.host.training_phases import forward_backward
from augment.facts.names import KernelType, compiled_pattern
from augment.facts.operators.matrix_products import TileFit, fit_of
from tables import Event, annotation, call, fwdbwd, kernel, launched_kernel, op, rows_of, shaped, trace_of

SHARED = Path(__file__).parents[3] / "shared"
LABELLED = SHARED / "prototypes" / "kernel_names_tc.tsv.gz"


@pytest.fixture
def kernels() -> augment.Trace:
    """Kernels of no known name, the second launched by an operator that is known."""
    return trace_of(
        kernel("first_one", 0, 10, correlation=1),
        op("aten::mm", 0, 8),
        *launched_kernel("second_one", (2, 4), (20, 30), correlation=2),
    )


@pytest.mark.parametrize(("operator_name", "kernel_name", "family"), [
    ("aten::addmm", "ampere_sgemm_32x128_tn", "gemm"),
    ("aten::addmm", "void splitKreduce_kernel<32, 16>(cublasSplitKParams<float>)", "gemm"),
    ("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float>()", "copy_transpose"),
    ("aten::miopen_convolution", "batched_transpose_32x32_half", "copy_transpose"),
    ("aten::cudnn_convolution", "cudnn::cnn::computeOffsetsKernel", "convolution"),
    ("aten::_flash_attention_forward", "attn_fwd", "attention"),
    ("AddmmBackward0", "volta_sgemm_128x64_nt", "gemm"),
    ("autograd::engine::evaluate_function: ReluBackward0", "vectorized_elementwise_kernel", "elementwise"),
    ("aten::_foreach_add_", "multi_tensor_apply_kernel", "elementwise"),
    ("aten::_foreach_copy_", "multi_tensor_apply_kernel", "copy_transpose"),
    ("aten::_fused_adamw_", "multi_tensor_apply_kernel", "optimizer"),
    (None, "void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>", "copy_transpose"),
    (None, "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedSgdMathFunctor>", "optimizer"),
    (None, "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>>", "optimizer"),
    (None, "void multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float>>", "reduction"),
    ("aten::upsample_bilinear2d", "upsample_bilinear2d_out_frame", "copy_transpose"),
    ("CompiledFunction", "triton_poi_fused__scaled_mm__to_copy_clone_div_3", "elementwise"),
    ("Torch-Compiled Region: 0/0", "triton_per_fused_add_native_layer_norm_20", "norm"),
    ("triton_red_fused_sum_1", "triton_red_fused_sum_1", "reduction"),
    (None, "triton_poi_fused__to_copy_permute_t_4", "copy_transpose"),
    (None, "triton_poi_fused__unsafe_view_mul_nll_loss_forward_softmax_sum_5", "elementwise"),
    (None, "triton_red_fused__log_softmax_nll_loss_forward_7", "softmax"),
    (None, "triton_", "unknown"),
    (None, "triton__0d1d2d3de", "unknown"),
    (None, "triton_tem_fused_relu_31", "unknown"),
    (None, "triton_tem_fused_bmm_12", "gemm"),
    ("aclnnMm", "aclnnMm_TransData_TransData", "copy_transpose"),
    ("aten::mm", "aclnnMm_MatMulCommon_MemSet", "elementwise"),
    ("aten::mm", "aclnnMm_MatMulCommon_MatMulV2", "gemm"),
    ("aten::sum", "aclnnReduceSum_ReduceSumOpAiCore_MemSet", "elementwise"),
    ("aten::sum", "aclnnReduceSum_CastAiCpu_Cast", "copy_transpose"),
    ("aten::addmm", "aclnnAddmm_AddAiCore_Add", "elementwise"),
    ("linear_relu_square_kernel_1", "linear_relu_square_kernel", "gemm"),
    (None, "_fwd_kernel_aligned_0d1d2d3d45d", "attention"),
    (None, "sage_fwd", "attention"),
    (None, "fused_softcapped_entropy_fwd_kernel", "softmax"),
    (None, "fused_softcapped_entropy_bwd_kernel", "softmax"),
    (None, "void at::native::upsample_bilinear2d_out_frame<float>", "copy_transpose"),
    (None, "void linearize_index_kernel<long>", "embedding"),
    (None, "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<NumericArrayConverter> >(Params)", "gemm"),
    (None, "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "gemm"),
    (None, "Cijk_Alik_Bljk_BBS_BH_MT128x64x32_MI32x32x1", "gemm"),
    (None, "void flash::flash_fwd_splitkv_kernel<…>", "attention"),
    (None, "void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<…>>", "grouped_gemm"),
    (None, "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128", "grouped_gemm"),
    (None, "igemm_wrw_gtcx3_nhwc_bf16_bx0", "convolution"),
    (None, "void vllm::rms_norm_kernel<c10::BFloat16>", "norm"),
    (None, "void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "rope_kv"),
    ("RopeFlashAttnFunc", "void flash::compute_attn_ws<Flash_fwd_kernel_traits<192>>", "attention"),
    ("RopeFlashAttnFunc", "rotary_kernel", "rope_kv"),
    (None, "void cub::DeviceRadixSortOnesweepKernel<…>", "sort"),
    (None, "a_kernel_of_nobody", "unknown"),
    ("aten::embedding", "aclnnEmbedding_GatherV2AiCore_GatherV2", "embedding"),
])  # fmt: skip
def test_family(operator_name: str | None, kernel_name: str, family: str) -> None:
    assert shipped_rules().family(operator_name, kernel_name) == family


@pytest.mark.parametrize(("name", "elsewhere"), [
    ("multi_tensor_apply_kernel", "elementwise"),
    ("triton_for_fused_1", "unknown"),
    ("triton_red_fused__foreach_norm_0", "reduction"),
])  # fmt: skip
def test_lists_of_tensors_are_the_optimizers_where_it_runs_over_them(name: str, elsewhere: str) -> None:
    trace = trace_of(
        annotation("Optimizer.step#AdamW.step", 0, 20),
        *launched_kernel(name, (2, 4), (30, 40), correlation=1),
        *launched_kernel("vectorized_elementwise_kernel", (6, 8), (40, 50), correlation=2),
        *launched_kernel(name, (22, 24), (50, 60), correlation=3),
    )
    families = kernel_families(trace)
    assert [families.names[code] for code in families.family] == ["optimizer", "elementwise", elsewhere]


def test_collectives_are_of_the_recorded_kind_whatever_their_kernels_are_called() -> None:
    """NCCL once had one kernel for all kinds. Of those without a record, the name is all there is."""
    name, kinds = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", ("all_reduce", "_all_gather_base")
    recorded = [(annotation(f"nccl:{kind}", at, at + 9),
                 *launched_kernel(name, (at + 2, at + 4), (at + 90, at + 99), correlation=at))
                for at, kind in zip((10, 30), kinds, strict=True)]  # fmt: skip
    trace = trace_of(*recorded[0], *recorded[1], kernel(name, 0, 9))
    families, content = kernel_families(trace), collectives(trace)
    assert [families.names[code] for code in families.family] == ["send_recv", "all_reduce", "all_gather"]
    assert [content.kind.values[code] for code in content.kind.codes] == ["SendRecv", "AllReduce", "AllGather"]
    [row] = kernel_breakdown.analyze(trace).rows
    assert (row.name, row.family, row.count) == (name, "communication", 3)


def test_matrix_units_of_labelled_names() -> None:
    if not LABELLED.exists():
        pytest.skip("the labelled names are not at hand")
    wrong, count = [], 0
    wanted = {"yes": MatrixUnits.USED, "no": MatrixUnits.NOT_USED}
    with gzip.open(LABELLED, "rt") as file:
        for line in file:
            if line.startswith("#"):
                continue
            label, _, _, _, name = line.rstrip("\n").split("\t")
            count += 1
            result = shipped_rules().matrix("gemm", name)
            if label in wanted and result != wanted[label]:
                wrong.append((label, result, name))
    assert len(wrong) <= 0.02 * count, wrong[:10]


@pytest.mark.parametrize(("kernel_name", "units"), [
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", MatrixUnits.USED),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_aligna4", MatrixUnits.NOT_USED),
    ("volta_sgemm_128x64_nt", MatrixUnits.NOT_USED),
    ("void splitKreduce_kernel<32, 16>()", MatrixUnits.NO_QUESTION),
    ("a_summary_of_gemm", MatrixUnits.UNTOLD),
])  # fmt: skip
def test_matrix_units(kernel_name: str, units: MatrixUnits) -> None:
    assert shipped_rules().matrix("gemm", kernel_name) == units
    assert shipped_rules().matrix("norm", kernel_name) == MatrixUnits.NO_QUESTION


def test_unknown_is_rare_in_recorded_traces() -> None:
    """Less than 5 % of the computation of all of them; the shortest of each folder stand for the rest."""
    folders = sorted(folder for folder in (SHARED / "traces").glob("*") if folder.is_dir())
    if not folders:
        pytest.skip("no recorded traces are at hand")
    unknown = total = 0
    for folder in folders:
        paths = sorted((path for path in folder.rglob("*.json*") if path.stat().st_size < 3 << 20), key=str)
        for path in paths[:1]:
            try:
                trace = augment.read(str(path))
            except augment.InputError:
                continue
            work, families = gpu_work(trace), kernel_families(trace)
            dur = (work.end - work.ts) * (work.type == KernelType.COMPUTATION)
            total += int(dur.sum())
            if "unknown" in families.names:
                unknown += int(dur[families.family == families.names.index("unknown")].sum())
    assert unknown < 0.05 * total


def test_tables_of_a_user_come_first(tmp_path: Path, kernels: augment.Trace) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(
        "[[kernel]]\nfamily = 'ours'\npattern = 'first'\n[[operator]]\nfamily = 'theirs'\npattern = '^mm'\n"
    )
    families = kernel_families(augment.with_tables(kernels, table))
    assert {families.names[code] for code in families.family} == {"ours", "gemm"}
    assert "ours" not in kernel_families(kernels).names
    table.write_text("[[operator]]\nfamily = 'ours'\npattern = '^aten::mm$'\n")
    assert "ours" in kernel_families(augment.with_tables(kernels, table)).names
    table.write_text("[[kernel]]\nfamily = 'ours'\npattern = 'transpose'\n")  # also before what a name says for certain
    moved = trace_of(*launched_kernel("batched_transpose_32x32", (2, 4), (30, 40), correlation=1))
    assert kernel_families(augment.with_tables(moved, table)).names == ("ours",)


@pytest.mark.parametrize(("text", "because"), [
    ("[[kernel]]\nfamily = 'x'\n", "must have the texts pattern and family"),
    ("[[kernel]]\nfamily = 'x'\npattern = '('\n", "no regular expression"),
    ("kernel = 5\n", "must be a list of tables"),
    ("[[kernels]]\nfamily = 'x'\n", "did you mean kernel?"),
    ("no toml", "ours.toml: "),
    ("[[collectives]]\npattern = 'x'", "must have the texts pattern and kind"),
    ("[[collectives]]\npattern = 'x'\nkind = 'Ring'", "Ring"),
    ("[[collectives]]\npattern = '('\nkind = 'AllReduce'", "is no regular expression"),
])  # fmt: skip
def test_tables_that_are_wrong(tmp_path: Path, kernels: augment.Trace, text: str, because: str) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(text)
    with pytest.raises(UsageError, match=because.replace("?", r"\?")):
        augment.with_tables(kernels, table)


def test_families_that_ask_about_matrix_units_are_known() -> None:
    known = {family for _, family in (*shipped_rules().operators, *shipped_rules().kernels)}
    assert set(MATRIX_FAMILIES) <= known


def test_a_rule_of_the_user_makes_a_kernel_a_collective(tmp_path: Path) -> None:
    trace = trace_of(
        kernel("ourlib_ring_sum<4>", 0, 10), kernel("ourlib_ring_nccl_AllGather", 20, 10), kernel("x", 40, 2)
    )
    table = tmp_path / "ours.toml"
    table.write_text("[[collectives]]\nkind = 'ReduceScatter'\npattern = 'OURLIB_ring_'\n")
    assert list(gpu_work(trace).type) == [KernelType.COMPUTATION, KernelType.COMMUNICATION, KernelType.COMPUTATION]
    ours = augment.with_tables(trace, table)
    assert list(gpu_work(ours).type) == [KernelType.COMMUNICATION, KernelType.COMMUNICATION, KernelType.COMPUTATION]
    known = collectives(ours)
    assert [known.kind.values[code] for code in known.kind.codes] == ["ReduceScatter", "ReduceScatter"]
    families = kernel_families(ours)
    assert [families.names[code] for code in families.family] == ["reduce_scatter", "reduce_scatter", "unknown"]


NAMES = [
    "aten::mm", "MyAttention_FWD", "void cutlass::Kernel2<cutlass_80_TensorOp_s1688gemm>", "FlashAttn", "ncclKernel",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", "Torch-Compiled Region: 0/0",
    "aten::_Softmax", "nvjet_TST_128", "Cijk_Ailk_Bljk_HHS_BH_MT64", "Memcpy HtoD", "triton_poi_fused_Add_0",
]  # fmt: skip


def test_patterns_for_lower_case_find_what_patterns_without_regard_to_case_do() -> None:
    rules = shipped_rules()
    patterns = [pattern for kind in (rules.operators, rules.kernels, rules.matrix_units) for pattern, _ in kind]
    texts = {*NAMES, *map(str.upper, NAMES), *map(str.lower, NAMES)}
    texts |= {part for pattern in patterns for part in pattern.replace("\\", "").split("|")}
    texts |= {part.swapcase() for part in texts}
    late = [_of_lower_case(pattern) for pattern in patterns]
    assert sum(each is None for each in late) <= 2
    for pattern, lower in zip(patterns, late, strict=True):
        for text in texts if lower else ():
            assert bool(lower.search(text.lower())) == bool(compiled_pattern(pattern).search(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern", [r"(?P<a>x)", r"(?i:x)", r"\x41", r"[A-z]", r"[@-_]", r"[+-z]", r"(?=[A-Z])", r"\1"]
)
def test_patterns_in_which_case_matters_stay(pattern: str) -> None:
    assert _of_lower_case(pattern) is None


def links_of(*events: Event) -> list[tuple[str, str]]:
    trace = trace_of(*events)
    links = forward_backward(trace)
    assert (links.forward_of(links.backward) == links.forward).all()
    assert links.forward_of(np.array([-1])).tolist() == [-1]
    return list(zip(trace.names_of(links.forward), trace.names_of(links.backward), strict=True))


def test_a_flow_links_the_operators_that_begin_at_its_ends() -> None:
    assert links_of(
        op("linear", 0, 50), op("addmm", 10, 40), op("inner", 10, 20), fwdbwd("s", 7, 10),
        op("engine", 100, 150, thread=2), op("AddmmBackward0", 110, 140, thread=2), fwdbwd("f", 7, 110, thread=2),
    ) == [("addmm", "AddmmBackward0")]  # fmt: skip


def test_an_end_within_an_operator_binds_to_the_innermost() -> None:
    assert links_of(
        op("linear", 0, 50), op("addmm", 10, 30), op("gone", 12, 14), fwdbwd("s", 7, 20),
        op("engine", 100, 150, thread=2), op("before", 110, 120, thread=2), fwdbwd("f", 7, 130, thread=2),
    ) == [("addmm", "engine")]  # fmt: skip


def test_an_id_that_is_used_again_links_what_is_nearest_before() -> None:
    events = []
    for at, forward, backward in ((0, "a", "A"), (1000, "b", "B")):
        events += [op(forward, at, at + 9), fwdbwd("s", 1, at)]
        events += [op(backward, at + 100, at + 109), fwdbwd("f", 1, at + 100)]
        events += [op(f"{backward}2", at + 200, at + 209), fwdbwd("f", 1, at + 200)]
    assert links_of(*events) == [("a", "A"), ("a", "A2"), ("b", "B"), ("b", "B2")]


def test_ends_without_a_beginning_or_an_operator_link_nothing() -> None:
    assert links_of(op("a", 0, 9), fwdbwd("s", 1, 0), fwdbwd("f", 2, 5), fwdbwd("f", 1, 50), op("b", 60, 70)) == []
    assert links_of(kernel("k", 0, 9), fwdbwd("s", 1, 0), fwdbwd("f", 1, 5)) == []
    assert links_of(kernel("k", 0, 9)) == []


def numbered(name: str, ts: int, number: int, forward_thread: int = 0) -> Event:
    """An operator with the args that old traces have, and no flow."""
    args = {"Fwd thread id": forward_thread, "Sequence number": number}
    return Event(Category.CPU_OP, name, ts, ts + 9, Track(0, 100, 1 + bool(forward_thread)), args=args)


def test_without_flows_the_sequence_numbers_tell() -> None:
    events = [
        numbered("peeks", 0, 5), numbered("mm", 10, 5), numbered("relu", 20, 6), numbered("none", 30, -1),
        numbered("engine", 100, 6, 1), numbered("ReluBackward0", 101, 6, 1), numbered("MmBackward0", 120, 5, 1),
        numbered("unknown", 130, 4, 1), numbered("none", 140, -1, 1),
        numbered("mm again", 200, 5), numbered("MmBackward0", 300, 5, 1),
    ]  # fmt: skip
    assert links_of(*events) == [
        ("relu", "engine"), ("relu", "ReluBackward0"), ("mm", "MmBackward0"), ("mm again", "MmBackward0")
    ]  # fmt: skip
    flows = [op("a", 400, 409), fwdbwd("s", 1, 400), op("b", 500, 509), fwdbwd("f", 1, 500)]
    assert links_of(*events, *flows) == [("a", "b")]


# Which products without matrix units could have used them.
SIMT, TENSOR = "ampere_sgemm_128x64_tn", "ampere_bf16_s16816gemm_bf16_128x128_tn"


def product(device: dict[str, Any], types: str = "float", name: str = SIMT, operator: str = "aten::mm") -> Trace:
    """A product on a device."""
    other = [64] if operator == "aten::mv" else [64, 64]
    trace = trace_of(
        op(operator, 0, 10, args=shaped([64, 64], other, types=types)),
        *launched_kernel(name, (2, 4), (100, 150), correlation=1),
    )
    return replace(trace, source=replace(trace.source, metadata={"deviceProperties": [{"id": 0, **device}]}))


H100 = {"name": "NVIDIA H100 80GB HBM3"}
V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0}
P100 = {"name": "Quadro GP100", "computeMajor": 6, "computeMinor": 0}
RTX3060 = {"name": "NVIDIA GeForce RTX 3060", "computeMajor": 8, "computeMinor": 6}


@pytest.mark.parametrize(("device", "types", "name", "operator", "expected"), [
    (H100, "float", SIMT, "aten::mm", "eligible"),
    (H100, "float", TENSOR, "aten::mm", "used"),
    (H100, "double", SIMT, "aten::mm", "eligible"),
    (H100, "float", SIMT, "aten::mv", "not_used"),
    (H100, "float", "a_gemm_of_nobody", "aten::mm", "unknown"),
    (H100, "c10::complex<float>", SIMT, "aten::mm", "not_used"),
    (V100, "c10::Half", SIMT, "aten::mm", "eligible"),
    (V100, "float", SIMT, "aten::mm", "not_eligible"),
    (V100, "c10::BFloat16", SIMT, "aten::mm", "not_eligible"),
    (P100, "c10::Half", SIMT, "aten::mm", "not_eligible"),
    (V100, "float", SIMT, "aten::cudnn_convolution", "not_eligible"),  # its work is unknown without strides
    (RTX3060, "float", SIMT, "aten::mm", "eligible"),
    (RTX3060, "double", SIMT, "aten::mm", "not_used"),
    ({"name": "GPU of tomorrow"}, "float", SIMT, "aten::mm", "not_used"),
])  # fmt: skip
def test_what_could_have_used_them(device: dict[str, Any], types: str, name: str, operator: str, expected: str) -> None:
    trace = product(device, types, name, operator)
    assert rows_of(kernel_breakdown.analyze(trace), "matrix_units") == [(expected,)]
    not_used = 50 if expected in ("eligible", "not_eligible", "not_used") else 0
    columns = ("matrix_used_ns", "matrix_not_used_ns", "matrix_eligible_ns")
    assert rows_of(kernel_family_breakdown.analyze(trace), *columns) == [
        (50 if expected == "used" else 0, not_used, 50 if expected == "eligible" else 0)
    ]


def test_without_shapes_it_is_not_known() -> None:
    trace = product(H100)
    bare = trace_of(
        op("aten::mm", 0, 10), call("cudaLaunchKernel", 2, 4, correlation=1), kernel(SIMT, 100, 150, correlation=1)
    )
    bare = replace(bare, source=trace.source)
    assert rows_of(kernel_breakdown.analyze(bare), "matrix_units") == [("not_used",)]


def test_the_fit_of_sizes_says_of_which_products_it_speaks() -> None:
    trace = trace_of(
        op("aten::mm", 0, 10, args=shaped([64, 64], [64, 64])),
        *launched_kernel(SIMT, (2, 4), (100, 130), correlation=1),
        op("aten::conv2d", 20, 30, args=shaped([8, 3, 7, 7], [4, 3, 3, 3])),
        *launched_kernel("scudnn_winograd", (22, 24), (130, 200), correlation=2),
    )  # fmt: skip
    assert fit_of(trace, np.arange(2), np.array([30, 70])) == TileFit(True, 1.0, 1.0, True, 0.3)
    assert fit_of(trace, np.arange(1), np.array([30])) == TileFit(True, 1.0, 1.0, True, 1.0)


def test_products_of_few_rows_of_a_recorded_run(shared_traces: Path) -> None:
    """Against the trace's own text: kernels ``gemmSN`` of an operator of 16-bit numbers on an A100."""
    path = shared_traces / "a100_sam_fast" / "amg_example_trace.json.gz"
    events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each.get("ph") == "X"]
    calls = {event["args"]["correlation"]: event["ts"] for event in events if event.get("cat") == "cuda_runtime"}
    products = [event for event in events if event.get("cat") == "cpu_op" and event["name"] == "aten::bmm"]
    expected = 0
    for event in events:
        if event.get("cat") == "kernel" and "gemmSN" in event["name"]:
            at = calls[event["args"]["correlation"]]
            (around,) = [op for op in products if op["ts"] <= at < op["ts"] + op["dur"]]
            assert around["args"]["Input type"] == ["c10::BFloat16"] * 2
            expected += round(event["dur"] * 1000)
    findings = kernel_family_breakdown.analyze(augment.read(path))
    (eligible,) = [ns for family, ns in rows_of(findings, "family", "matrix_eligible_ns") if family == "gemm"]
    assert eligible == expected > 0
