"""What the kernels and collectives of the simulated job are called."""

from __future__ import annotations

from dataclasses import dataclass

_AT = "at::native::"
_HERE = "at::native::(anonymous namespace)::"

ADD = (
    f"void {_AT}vectorized_elementwise_kernel<4, {_AT}CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
    f"(int, {_AT}CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
NORM = (
    f"void {_HERE}vectorized_layer_norm_kernel<c10::BFloat16, float>"
    "(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
)
NORM_BACKWARD = (
    f"void {_HERE}layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"
    "(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16*, int)"
)
GAMMA = f"void {_HERE}GammaBetaBackwardCUDAKernel<c10::BFloat16, float>(long, long, c10::BFloat16 const*)"
GELU = (
    f"void {_AT}vectorized_elementwise_kernel<4, {_AT}GeluCUDAKernelImpl(at::TensorIteratorBase&)::{{lambda()#1}}>"
    f"(int, {_AT}GeluCUDAKernelImpl, std::array<char*, 2ul>)"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"
    "(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8> >"
    "(pytorch_flash::Flash_bwd_params)"
)
REDUCE = (
    f"void {_AT}reduce_kernel<128, 4, {_AT}ReduceOp<c10::BFloat16, {_AT}func_wrapper_t<c10::BFloat16>, 4> >"
    f"({_AT}ReduceOp<c10::BFloat16>)"
)
ADAM = (
    f"void {_HERE}multi_tensor_apply_kernel<{_HERE}FusedAdamMathFunctor<float, 4>, float const*, double>"
    f"({_HERE}FusedOptimizerTensorListMetadata<4>)"
)
SOFTMAX = f"void {_HERE}cunn_SoftMaxForward<8, c10::BFloat16, float>(float*, c10::BFloat16 const*, int)"
CAST = f"void {_AT}unrolled_elementwise_kernel<{_AT}direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


@dataclass(frozen=True, slots=True)
class Collective:
    """What a kind of collective is called in each place."""

    api: str
    operator: str
    annotation: str
    kernel: str
    shards: bool  #: one side is a rank's shard: half the traffic of an all-reduce


def _device(what: str) -> str:
    return f"ncclDevKernel_{what}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


_DEEP_EP = "void deep_ep::intranode::"
NOTIFY = f"{_DEEP_EP}notify_dispatch<8>(int const*, int*, int, int*, int, int*, int const*, bool const*)"
DISPATCH = f"{_DEEP_EP}dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*, int*, int4 const*)"
COMBINE = f"{_DEEP_EP}combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*, __nv_bfloat16 const*)"

COLLECTIVES = {
    "allreduce": Collective("allreduce", "c10d::allreduce_", "nccl:all_reduce", _device("AllReduce_Sum_bf16"), False),
    "allgather": Collective(
        "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", _device("AllGather"), True
    ),
    "send": Collective("send", "c10d::send", "nccl:send", _device("SendRecv").replace("_RING_LL", ""), True),
    "recv": Collective("recv", "c10d::recv_", "nccl:recv", _device("SendRecv").replace("_RING_LL", ""), True),
    "reducescatter": Collective(
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        _device("ReduceScatter_Sum_bf16"),
        True,
    ),
}
