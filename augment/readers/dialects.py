"""The names that older versions and other vendors use for Kineto's categories. This module holds data only; extend it
here.
"""

from __future__ import annotations

import re

from augment.core.trace import Category

#: prefixes that forks of Kineto put before categories: their vendor's name
_OF_A_FORK = {
    "runtime": Category.CUDA_RUNTIME,
    "driver": Category.CUDA_DRIVER,
    "memcpy": Category.GPU_MEMCPY,
    "memset": Category.GPU_MEMSET,
    "user_annotation": Category.GPU_USER_ANNOTATION,
    "sync": Category.CUDA_SYNC,
    "profiler_range": Category.CUDA_PROFILER_RANGE,
}

#: category of the file, lower case → ours. Kineto's own names first, then 2020's, then other vendors'.
CATEGORIES: dict[str, Category] = {
    **{category.name.lower(): category for category in Category if category},
    "operator": Category.CPU_OP,
    "runtime": Category.CUDA_RUNTIME,
    "driver": Category.CUDA_DRIVER,
    "memcpy": Category.GPU_MEMCPY,
    "memset": Category.GPU_MEMSET,
    "async": Category.AC2G,
    "async_cpu_to_gpu": Category.AC2G,
    "forward_backward": Category.FWDBWD,
    "hip_runtime": Category.CUDA_RUNTIME,
    "hip_driver": Category.CUDA_DRIVER,
    "xpu_runtime": Category.CUDA_RUNTIME,
    "xpu_driver": Category.CUDA_DRIVER,
    "privateuse1_runtime": Category.CUDA_RUNTIME,
    "privateuse1_driver": Category.CUDA_DRIVER,
    "mtia_runtime": Category.CUDA_RUNTIME,
    "mtia_ccp_events": Category.KERNEL,
    # Ascend's. HostToDevice begins at the call of the runtime, async_npu at the operator. PyTorch puts operators on a
    # queue (enqueue), and another thread executes them (dequeue).
    "hosttodevice": Category.AC2G,
    "enqueue": Category.CPU_OP,
    "dequeue": Category.CPU_OP,
    "hpu_op": Category.CUDA_RUNTIME,
    "glow_runtime": Category.CUDA_RUNTIME,
    # forks of Kineto for Cambricon's, Enflame's and Moore Threads' devices
    **{f"{vendor}_{name}": category for vendor in ("mlu", "gcu", "musa") for name, category in _OF_A_FORK.items()},
    # rocprofv3's
    "kernel_dispatch": Category.KERNEL,
    "memory_copy": Category.GPU_MEMCPY,
    "hip_api": Category.CUDA_RUNTIME,
    "hsa_api": Category.CUDA_DRIVER,
    "marker_api": Category.USER_ANNOTATION,
}

#: the process of an Ascend device, whose work has no category; the processes that hold its collectives, older first;
#: how the threads end on which those are whole, and how the others are called, with the tasks that they consist of
ASCEND_DEVICE = "Ascend Hardware"
ASCEND_CALL = "AscendCL@"  #: how the calls of its runtime begin, which have no category, either
ASCEND_TASK = "Dequeue@"  #: how tasks begin that a thread took from a queue
#: the process that these calls lie in, with the tids of the program's threads; and the program's process
ASCEND_CALLS, ASCEND_PROGRAM = "CANN", "Python"
ASCEND_COLLECTIVES = ("HCCL", "Communication")
ASCEND_COLLECTIVES_THREAD = ("Communication", "Communication Kernel")
ASCEND_PLANE = re.compile(r"Plane \d+")
#: tasks of an Ascend device that are not work: a stream waits, or signals others
ASCEND_SYNC = re.compile(
    r"(?:(?:REMOTE_)?(?:EVENT|NOTIFY|CAPTURE)_(?:WAIT|RECORD|RESET)|PLACE_HOLDER|WRITE_VALUE|MAINTENANCE"
    r"|PROFILER_TRACE\w*|STREAM_(?:SWITCH|ACTIVE)\w*|LABEL_\w+)(?:_SQE)?"
)

#: tasks that collectives consist of, beside those: copies between devices, which may add
ASCEND_TRANSFER = re.compile(r"(?:MEMCPY_ASYNC|REDUCE_ASYNC|SDMA|PCIE_DMA|RDMA)\w*")

#: name → category of events of that name without one (Kineto of 2021 gives its memory instants none)
UNCATEGORISED_NAMES: dict[str, Category] = {"[memory]": Category.CPU_INSTANT_EVENT}

#: where a file name gives the rank; in SGLang's ``ID-TP-3-DP-0`` it is the TP's, unless there are pipeline stages
RANK_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])rank[-_]?(\d{1,9})(?!\d)|-TP-(\d{1,9})(?!\d)(?!.*-PP-[1-9])", re.IGNORECASE)


def rank_in_name(name: str) -> int | None:
    """The rank in the name of a file, None without one. The rank among all processes is preferred to a
    ``local_rank``.
    """
    matches = list(RANK_IN_NAME.finditer(name))
    of_all = (match_ for match_ in matches if not name[: match_.start()].lower().endswith("local"))
    match = next(of_all, matches[0] if matches else None)
    return int(match[1] or match[2]) if match else None
