"""Collectives of one rank: what they are, by args, by the host's words and by kernels' names; sizes and bandwidths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from augment import Findings, Skipped, augment, read
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.names import bus_factor, element_bytes, kind_of, size_elements
from traces import event, kernel, launch, op, step, write_trace


@pytest.mark.parametrize(("name", "kind"), [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce"),
    ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "AllGather"),
    ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "ReduceScatter"),
    ("ncclDevKernel_SendRecv(ncclDevComm*)", "SendRecv"),
    ("ncclDevKernel_Reduce_Sum_f32", "Reduce"),
    ("_allgather_base", "AllGather"),
    ("reduce_scatter_tensor_coalesced", "ReduceScatter"),
    ("all_to_allv", "AllToAll"),
    ("nccl:_all_to_all_base", "AllToAll"),
    ("c10d::broadcast_", "Broadcast"),
    ("void vllm::cross_device_reduce_2stage<__half, 8>(RankData*)", "AllReduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16>(void**)", "AllReduce"),
    ("hcom_allReduce__123_1", "AllReduce"),
    ("hcom_receive__101_0_1", "Recv"),
    ("rcclGenericKernel", "Other"),
    ("recv", "Recv"),
])  # fmt: skip
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert [element_bytes(each) for each in ("Float", "BFloat16", "Float8_e4m3fn", "c10::Half", "Long", "?")] == [
        4, 2, 1, 2, 8, None
    ]  # fmt: skip
    assert [size_elements(kind, 10, 80, 8) for kind in ("AllGather", "AllReduce", "Gather")] == [80, 10, 80]
    assert [size_elements(kind, 80, 10, 8) for kind in ("ReduceScatter", "AllToAll", "Scatter")] == [80, 80, 80]
    kinds = "AllReduce", "AllGather", "Broadcast", "Barrier"
    assert [bus_factor(kind, 8) for kind in kinds] == [1.75, 0.875, 1, None]
    assert bus_factor("AllReduce", 1) is None


def comms(**more: Any) -> dict[str, Any]:
    return {
        "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float",
        "Group size": 4, "Process Group Name": "7", "Process Group Description": "dp",
        "Process Group Ranks": "[0, 1, 2, 3]", **more,
    }  # fmt: skip


def outcome(path: Path, **options: float) -> Findings | Skipped:
    return augment(read(str(path)), only=["collectives"], options={"collectives": options}).outcomes["collectives"]


def test_a_rank(tmp_path: Path) -> None:
    """By the kernel's args, by those of the operator that launched it, by names alone."""
    first, second, third = (
        kernel(f"ncclDevKernel_{what}", 20 * number, 10, correlation=number, stream=20)
        for number, what in enumerate(("AllReduce", "AllReduce", "SendRecv"), 1)
    )
    first["args"] |= comms(Seq=5)
    path = write_trace(
        tmp_path / "rank0.json", step(0), first, second, third, kernel("gemm", 25, 100, correlation=9),
        launch(ts=2, dur=1, correlation=1),
        op("record_param_comms", 4, 4, **comms(dtype="Float8_e5m2")), launch(ts=5, dur=1, correlation=2),
        event("user_annotation", "nccl:all_to_all", 9, 4, 100, 100), launch(ts=10, dur=1, correlation=3),
    )  # fmt: skip
    content = collectives(read(str(path)))
    assert [content.kind.values[code] for code in content.kind.codes] == ["AllReduce", "AllReduce", "AllToAll"]
    assert content.bytes.tolist() == [4000, 1000, -1]
    assert content.seq.tolist() == [5, -1, -1]
    assert content.step.tolist() == [0, 0, 0]
    assert content.exposed_ns.tolist() == [5000, 0, 0]
    findings = outcome(path, link_gbps=2.0)
    known, unknown = sorted(findings.rows, key=lambda row: not row.group)
    assert (known.group, known.description, known.group_size, known.count) == ("7", "dp", 4, 2)
    assert (known.bytes, known.time_ns, known.exposed_ns) == (5000, 20_000, 5000)
    assert known.algorithm_gbps == 5000 / 20_000
    assert known.bus_gbps == known.algorithm_gbps * 1.5
    assert known.efficiency_ratio == known.bus_gbps / 2
    assert (unknown.kind, unknown.bytes, unknown.bus_gbps, unknown.group_size) == ("AllToAll", None, None, None)
    (track,) = findings.annotations
    assert track.name == "Bus bandwidth dp"
    assert track.values.tolist() == [0.6, 0, 0.15, 0]


def test_many_groups_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a job with a process group for every pair of its ranks."""
    count, asked = 60, []
    kernels = [kernel("ncclDevKernel_AllReduce", 20 * each, 10, correlation=each, stream=20) for each in range(count)]
    for number, each in enumerate(kernels):
        each["args"] |= comms(**{"Process Group Name": str(number), "Group size": 2 + number % 3})

    def counting(kind: str, ranks: int) -> float | None:
        asked.append(ranks)
        return bus_factor(kind, ranks)

    monkeypatch.setattr("augment.facts.names.bus_factor", counting)
    findings = outcome(write_trace(tmp_path / "rank0.json", *kernels))
    assert sorted((int(row.group), row.count, row.bus_gbps) for row in findings.rows) == [
        (number, 1, 0.4 * (1.0, 4 / 3, 1.5)[number % 3]) for number in range(count)
    ]
    assert len(asked) <= 2 * count  # for its kernels, and for its row


def test_without_communication_it_is_skipped(tmp_path: Path) -> None:
    assert outcome(write_trace(tmp_path / "a.json")) == Skipped("no communication kernel")
