from __future__ import annotations

import pytest

from augment.analyses import kernel_type_breakdown
from augment.facts.names.kernel_types import KernelType, copy_kind, type_of
from tables import copy, kernel, rows_of, trace_of


def test_busy_time_is_divided_by_what_runs_at_each_moment() -> None:
    trace = trace_of(
        kernel("gemm", 0, 10),
        kernel("ncclKernel", 5, 20, stream=8),
        copy("Memset (Device)", 15, 25, stream=9),
    )
    assert rows_of(kernel_type_breakdown.analyze(trace), "kernel_types", "time_ns", "time_ratio") == [
        ("COMPUTATION", 5, 0.2),
        ("COMMUNICATION", 5, 0.2),
        ("MEMORY", 5, 0.2),
        ("COMMUNICATION overlapping COMPUTATION", 5, 0.2),
        ("COMMUNICATION overlapping MEMORY", 5, 0.2),
    ]


def test_all_three_at_once() -> None:
    trace = trace_of(kernel("a", 0, 4), kernel("nccl", 0, 4, stream=8), copy("Memcpy DtoD", 0, 4, stream=9))
    assert rows_of(kernel_type_breakdown.analyze(trace), "kernel_types", "time_ratio") == [
        ("COMMUNICATION overlapping COMPUTATION overlapping MEMORY", 1.0)
    ]


def test_no_time_at_all_has_no_row() -> None:
    assert rows_of(kernel_type_breakdown.analyze(trace_of(kernel("a", 5, 5)))) == []


@pytest.mark.parametrize(
    ("name", "kernel_type"),
    [
        ("ampere_sgemm_128x64_tn", KernelType.COMPUTATION),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", KernelType.COMMUNICATION),
        ("rcclGenericKernel", KernelType.COMMUNICATION),
        ("void vllm::cross_device_reduce_1stage<half>", KernelType.COMMUNICATION),
        ("multimem_all_reduce_kernel", KernelType.COMMUNICATION),
        ("deep_ep::intranode::dispatch", KernelType.COMMUNICATION),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>(int4*)", KernelType.COMMUNICATION),
        ("void my::step::internodes()", KernelType.COMPUTATION),
        ("mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>", KernelType.COMMUNICATION),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false", KernelType.COMMUNICATION),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int)", KernelType.COMMUNICATION),
        (
            "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)",
            KernelType.COMMUNICATION,
        ),
        ("hcom_broadcast__123_0_1", KernelType.COMMUNICATION),
        ("MEMCPY_ASYNC", KernelType.MEMORY),
        ("void at::native::vecClamp<float>", KernelType.COMPUTATION),
        ("__amd_rocclr_copyBuffer", KernelType.COMPUTATION),
        ("elementwise_kernel_memory::mori_a2a", KernelType.COMPUTATION),
        ("triton_poi_fused_all_reduce_mul_0", KernelType.COMPUTATION),
        ("void vllm::SyncNorm", KernelType.COMPUTATION),
        ("hipcub::DeviceReduce", KernelType.COMPUTATION),
        ("Memcpy DtoH (Device -> Pinned)", KernelType.MEMORY),
        ("Memset (Device)", KernelType.MEMORY),
    ],
)
def test_type_of(name: str, kernel_type: KernelType) -> None:
    assert type_of(name) is kernel_type


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("Memset (Unknown)", "Memset"),
        ("CopyHostToDevice", "Memcpy Unknown"),
    ],
)
def test_copy_kind(name: str, kind: str) -> None:
    assert copy_kind(name) == kind
