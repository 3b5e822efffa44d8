"""The training step that the job repeats: a transformer's forward, backward and optimizer, and its collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from simulator import kernels
from simulator.builder import AUTOGRAD, MAIN, StepBuilder, dims_text
from simulator.communication import COMPUTE, HIDDEN, TOKENS
from simulator.options import GPUS, JobOptions
from simulator.parallel import Place
from simulator.program import Program, Slot
from simulator.schedules import Schedules

COPY, SIDE = 20, 30
CONTENDED = 1.5  #: as long a kernel takes beside another stream
#: of AdamW on one parameter
_SINGLE = ("aten::mul_", "aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div_", "aten::add_",
           "aten::addcdiv_")  # fmt: skip
HEAD = 128  #: numbers of a head of attention
#: the parameters whose gradients end with these nodes
PARAMETERS: dict[str, tuple[int, ...]] = {
    "down": (HIDDEN, 4 * HIDDEN),
    "up": (4 * HIDDEN, HIDDEN),
    "norm2": (HIDDEN,),
    "out": (HIDDEN, HIDDEN),
    "qkv": (3 * HIDDEN, HIDDEN),
    "norm1": (HIDDEN,),
}
SDPA = "_scaled_dot_product_flash_attention"
_QKV = [(1, HIDDEN // HEAD, TOKENS, HEAD)] * 3
ATTENTION = dims_text(*_QKV, values=("0.", "True", "False"))  #: dropout, causal, a mask to debug
ATTENTION_BACKWARD = dims_text(
    *_QKV[:1], *_QKV, *_QKV[:1], (1, HIDDEN // HEAD, TOKENS), values=("", "", "4096", "4096", "0.", "True")
)


@dataclass(kw_only=True)
class _Model(Schedules):
    """One rank's step while it is played."""

    speed: float
    waits: bool  #: the host waits for the device at the end of the step
    batch: int = 0  #: the microbatch that is at work
    sequences: dict[tuple[int, str], tuple[Slot, Slot]] = field(default_factory=dict)
    activations: list[tuple[int, Slot]] = field(default_factory=list)

    # --- operators ---

    def kernel(self, name: str, us: float) -> int:
        """A kernel on the compute stream that takes ``us`` on an H100."""
        if "plain_products" in self.options.faults and name.startswith("nvjet"):
            name, us = "ampere_sgemm_128x128_tn", 2 * us
        waits, self.waiting = self.waiting, []
        if waits:
            self.b.call("cudaStreamWaitEvent", 147, 1500)
        return self.b.launch(name, max(us * 1000 / self.speed, 900), COMPUTE, waits=waits)

    def simple(self, operator: str, name: str, us: float, *shapes: tuple[int, ...]) -> None:
        """An operator of one kernel, with its output allocated."""
        with self.b.op(operator, dims=dims_text(*shapes)):
            self.keep(2 * TOKENS * HIDDEN)
            self.kernel(name, us)

    def keep(self, size: int) -> None:
        """Allocate what backward will free."""
        address = self.b.allocate(size)
        if address is not None:
            self.activations.append((size, address))

    def release(self) -> None:
        """Free the newest activation."""
        if self.activations:
            size, address = self.activations.pop()
            self.b.allocate(-size, address)

    def arrow_from(self, key: str, start: int) -> None:
        """Begin the arrow from ``key``, which started at the host point ``start``, to its backward."""
        self.b.flow("s", self.sequences[self.batch, key][1], start)

    def differentiable(self, key: str) -> Slot:
        """The sequence number that forward and backward of ``key`` share."""
        self.sequences[self.batch, key] = self.b.new_id("sequence"), self.b.new_id("fwdbwd")
        return self.sequences[self.batch, key][0]

    def linear(self, key: str, columns: int, us: float, module: int) -> None:
        """``aten::linear`` and what it is made of."""
        rows = (TOKENS, HIDDEN)
        with (
            self.b.frame(f"nn.Module: Linear_{module}", module),
            self.b.frame("torch/nn/modules/linear.py(124): forward"),
            self.b.op("aten::linear", dims=dims_text(rows, (columns, HIDDEN), (columns,))),
        ):
            with (
                self.b.op("aten::t", dims=dims_text((columns, HIDDEN))),
                self.b.op("aten::transpose", dims=dims_text((columns, HIDDEN))),
                self.b.op("aten::as_strided", after=300),
            ):
                pass
            sequence = self.differentiable(key)
            with self.b.op(
                "aten::addmm", dims=dims_text((columns,), rows, (HIDDEN, columns)), sequence=sequence
            ) as start:
                self.arrow_from(key, start)
                self.keep(2 * TOKENS * columns)
                self.kernel(f"nvjet_tst_{columns // 64}x256_64x4_2x1_v_bz_coopA_bias_TNN", us)

    def unary(self, key: str, operator: str, name: str, us: float, dims: str = "") -> None:
        """A differentiable operator of one kernel."""
        dims = dims or dims_text((TOKENS, HIDDEN))
        sequence = self.differentiable(key)
        with self.b.op(operator, dims=dims, sequence=sequence) as start:
            self.arrow_from(key, start)
            self.keep(2 * TOKENS * HIDDEN)
            self.kernel(name, us)

    def backward_node(
        self, key: str, node: str, launched: list[tuple[str, str, float]], *, again: bool = False
    ) -> None:
        """What the autograd engine runs for one node; ``again`` for its weights."""
        sequence, flow = self.sequences[self.batch, key]
        with (
            self.b.op(f"autograd::engine::evaluate_function: {node}", sequence=sequence, forward_thread=1),
            self.b.op(node, sequence=sequence, forward_thread=1) as start,
        ):
            if not again:
                self.b.flow("f", flow, start)
            for operator, name, us in launched:
                dims = ATTENTION_BACKWARD if SDPA in operator else dims_text((TOKENS, HIDDEN), (HIDDEN, HIDDEN))
                with self.b.op(operator, dims=dims):
                    self.kernel(name, us)
            if not again:
                self.release()

    # --- phases ---

    def load_batch(self) -> None:
        """The data loader (where a host stall would be) and the copy of a batch to the device, on its own stream."""
        b, size = self.b, TOKENS * HIDDEN * 2
        with (
            b.frame("torch/utils/data/dataloader.py(733): __next__"),
            b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        ):
            b.spend(60_000)
            b.stall_point = b.point()
        if {"pageable", "staged"} & {*self.options.faults}:
            self.copy_pageable()
            return
        with b.op("aten::to", dims=dims_text((TOKENS, HIDDEN))), b.op("aten::_to_copy"), b.op("aten::copy_"):
            gpu = GPUS[self.options.gpu]
            stream = COMPUTE if "inline_copy" in self.options.faults else COPY
            copy = b.launch(
                "Memcpy HtoD (Pinned -> Device)", size / gpu.host_copy_gbps, stream, category="gpu_memcpy", size=size
            )
            b.call("cudaEventRecord", 135)
        self.waiting.append(copy)
        with b.op("aten::zero_"):
            b.launch("Memset (Device)", size / gpu.device_copy_gbps, COMPUTE, category="gpu_memset", size=size)

    def copy_pageable(self) -> None:
        """A batch from pageable memory, on the compute stream; the host waits for it."""
        b, size = self.b, TOKENS * HIDDEN * 2
        with b.op("aten::to", dims=dims_text((TOKENS, HIDDEN))), b.op("aten::_to_copy"), b.op("aten::copy_"):
            ns = size / GPUS[self.options.gpu].host_copy_gbps
            cost = {"cost": ns} if "staged" in self.options.faults else {}
            b.launch("Memcpy HtoD (Pageable -> Device)", ns, COMPUTE, category="gpu_memcpy", size=size, **cost)
            b.synchronize(COMPUTE)

    def trouble(self) -> None:
        """What the faults add to the forward of a layer."""
        b, faults = self.b, self.options.faults
        if "items" in faults:
            self.read_loss()
        if "mallocs" in faults:
            with b.op("aten::empty", dims=dims_text((TOKENS, HIDDEN))):
                b.call("cudaMalloc", 20, 700_000)
        if "frees" in faults:
            with b.op("aten::cat", dims=dims_text((TOKENS, HIDDEN))):
                b.synchronize(frees=True)
        if "loads" in faults:
            with b.op("aten::add", dims=dims_text((TOKENS, HIDDEN))):
                b.launch(kernels.ADD, 1000, COMPUTE, cost=700_000, loads=True)
        if "single_operations" in faults:
            for operator in ("aten::mul", "aten::add", "aten::tanh", "aten::mul", "aten::add", "aten::pow") * 4:
                self.simple(operator, kernels.ADD, 20, (TOKENS, HIDDEN))
                self.release()
        if "late_copies" in faults:
            with b.op("aten::to"), b.op("aten::copy_"):
                size = TOKENS * HIDDEN * 8
                ns = size / GPUS[self.options.gpu].host_copy_gbps
                b.launch("Memcpy DtoH (Device -> Pinned)", ns, COMPUTE, category="gpu_memcpy", size=size)

    def contended_layer(self, layer: int) -> None:
        """A layer's forward; if streams contend, each second one takes longer, beside a kernel of another stream."""
        if "contention" not in self.options.faults or layer % 2 == 0:
            self.forward_layer(layer)
            return
        before, speed = len(self.b.ops), self.speed
        self.speed /= CONTENDED
        self.forward_layer(layer)
        self.speed = speed
        ns = sum(op.base_ns for op in self.b.ops[before:])
        self.b.launch(kernels.CAST, ns, SIDE + 9, waits=(before - 1,))

    def forward_layer(self, layer: int) -> None:
        """Attention and the feed-forward block."""
        b = self.b
        self.trouble()
        with b.frame(f"nn.Module: Block_{layer}", 100 + layer), b.frame("examples/train.py(41): forward"):
            self.unary(f"{layer}.norm1", "aten::native_layer_norm", kernels.NORM, 14)
            self.linear(f"{layer}.qkv", 3 * HIDDEN, 190, 4 * layer)
            self.unary(f"{layer}.attention", f"aten::{SDPA}", kernels.FLASH, 150, ATTENTION)
            self.linear(f"{layer}.out", HIDDEN, 70, 4 * layer + 1)
            self.sum_shards()
            self.simple("aten::add", kernels.ADD, 9, (TOKENS, HIDDEN), (TOKENS, HIDDEN))
            self.release()
            self.unary(f"{layer}.norm2", "aten::native_layer_norm", kernels.NORM, 14)
            self.route("dispatch")
            self.linear(f"{layer}.up", 4 * HIDDEN, 250, 4 * layer + 2)
            self.unary(f"{layer}.gelu", "aten::gelu", kernels.GELU, 24)
            self.linear(f"{layer}.down", HIDDEN, 255, 4 * layer + 3)
            self.route("combine")
            self.sum_shards()
            self.simple("aten::add", kernels.ADD, 9, (TOKENS, HIDDEN), (TOKENS, HIDDEN))
            self.release()
            self.side_work(layer)
            if self.options.extra_operator:
                self.simple(self.options.extra_operator, kernels.CAST, 30, (TOKENS, HIDDEN))
                self.release()

    def side_work(self, layer: int) -> None:
        """A little work on each side stream, after the layer; the next kernel waits for that of every other layer."""
        after = len(self.b.ops) - 1
        for number in range(self.options.side_streams):
            with self.b.op("aten::mul", dims=dims_text((TOKENS,))):
                self.b.call("cudaStreamWaitEvent", 147, 1500)
                index = self.b.launch(kernels.CAST, 12_000 / self.speed, SIDE + number, waits=(after,))
            if layer % 2:
                self.waiting.append(index)

    def backward_layer(self, layer: int, half: str) -> None:
        """The same, from the end: all of it, or the half for inputs or weights."""
        grad = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
        weight = "nvjet_tst_256x128_64x4_2x1_v_bz_coopB_TNT"

        def gemm(us: float) -> list[tuple[str, str, float]]:
            of_inputs = [("aten::mm", grad, us)] if half != "W" else []
            of_weights = [("aten::mm", weight, us * 1.05), ("aten::sum", kernels.REDUCE, 8.0)] if half != "I" else []
            return of_inputs + of_weights

        norm: list[tuple[str, str, float]] = [
            ("aten::native_layer_norm_backward", kernels.NORM_BACKWARD, 22),
            ("aten::sum", kernels.GAMMA, 11),
        ]
        attention = [
            (f"aten::{SDPA}_backward", kernels.FLASH_BACKWARD, 390.0),
            ("aten::sum", kernels.REDUCE, 12.0),
        ]
        for key, node, launched in (
            ("down", "AddmmBackward0", gemm(250)),
            ("gelu", "GeluBackward0", [("aten::gelu_backward", kernels.GELU, 31.0)]),
            ("up", "AddmmBackward0", gemm(245)),
            ("norm2", "NativeLayerNormBackward0", norm),
            ("out", "AddmmBackward0", gemm(68)),
            ("attention", "ScaledDotProductFlashAttentionBackward0", attention),
            ("qkv", "AddmmBackward0", gemm(185)),
            ("norm1", "NativeLayerNormBackward0", norm),
        ):
            if half == "W" and node != "AddmmBackward0":
                continue
            if key == "down" and half != "W":
                self.route("dispatch")
            self.backward_node(f"{layer}.{key}", node, launched, again=half == "W")
            if self.options.bucket_mib and key in PARAMETERS and self.batch == self.final:
                self.accumulate(PARAMETERS[key])
            if half == "W":
                continue
            if key == "up":
                self.route("combine")
            if key in ("up", "qkv"):
                self.sum_shards()

    def gather(self, layer: int) -> int | None:
        """FSDP's all-gather of a layer's parameters; nothing for the others or past the last layer."""
        inside = self.options.collectives == "fsdp" and layer in self.layers
        return self.collective("allgather", after_compute=False) if inside else None

    def forward(self, batch: int, *, receives: bool = True) -> None:
        """All layers of the stage, and the loss in the last; the activations may have been received before."""
        self.batch = batch
        if receives and self.part < 0:
            self.message("recv", -1)
        pending = self.gather(self.layers[0])
        for layer in self.layers:
            following = self.gather(layer + 1)
            self.await_op(pending)
            pending = following
            with self.b.graph(self.options.graphs):
                self.contended_layer(layer)
        if self.last:
            self.unary("loss", "aten::_log_softmax", kernels.SOFTMAX, 60)
        if self.part < 0:
            self.message("send", 1)

    def backward(self, batch: int, *, sends: bool = True, half: str = "B") -> None:
        """All layers from the last, on the autograd thread, with gradients on their way as soon as they are there.

        What the stage before needs may be sent later.
        """
        self.batch = batch
        self.b.thread = AUTOGRAD
        self.b.spend(25_000)
        if self.part < 0:
            self.message("recv", 1)
        if self.last and half != "W":
            last = ("aten::_log_softmax_backward_data", kernels.SOFTMAX, 70.0)
            self.backward_node("loss", "LogSoftmaxBackward0", [last])
        sent: list[int | None] = []
        pending = self.gather(self.layers[-1])
        for layer in reversed(self.layers):
            following = self.gather(layer - 1)
            self.await_op(pending)
            pending = following
            with self.b.graph(self.options.graphs):
                self.backward_layer(layer, half)
            for _ in range(8 if "small_messages" in self.options.faults else 0):
                group = self.place.data
                self.await_op(self.meet("allreduce", group, 4096, after_compute=True))
            if batch == self.final and half != "I":
                sent.append(self.average())
        if self.options.bucket_mib and batch == self.final and half != "I":
            sent.append(self.reduce_bucket())
        if sends and self.part < 0:
            self.message("send", -1)
        self.await_op(next((index for index in reversed(sent) if index is not None), None))
        self.b.thread = MAIN
        self.b.spend(15_000)

    def average(self) -> int | None:
        """Data parallelism: a layer's gradients."""
        if self.options.bucket_mib:
            return None
        if self.options.collectives == "ddp":
            self.bucket()
            return self.collective("allreduce", after_compute=True)
        if self.options.collectives == "fsdp":
            return self.collective("reducescatter", after_compute=True)
        return None

    def bucket(self) -> None:
        """DDP copies a layer's gradients into its bucket."""
        size = 2 * HIDDEN * HIDDEN
        with self.b.op("torch.distributed.ddp.reducer::copy_bucket_to_grad"), self.b.op("aten::copy_"):
            ns = size / GPUS[self.options.gpu].device_copy_gbps + 1000
            self.b.launch("Memcpy DtoD (Device -> Device)", ns, COMPUTE, category="gpu_memcpy", size=size)

    def optimize(self) -> None:
        """A fused AdamW step, one kernel a layer, and the gradients' release."""
        b = self.b
        with b.frame("torch/optim/optimizer.py(493): wrapper"), b.annotation("Optimizer.step#AdamW.step"):
            for _ in range(len(self.layers) if "unfused_optimizer" not in self.options.faults else 0):
                with b.op("aten::_fused_adamw_", dims=dims_text((HIDDEN, HIDDEN), kind="float")):
                    self.kernel(kernels.ADAM, 120)
            for operator in _SINGLE * (12 * len(self.layers) if "unfused_optimizer" in self.options.faults else 0):
                with b.op(operator, dims=dims_text((HIDDEN, HIDDEN), kind="float")):
                    self.kernel(kernels.ADD, 30 / len(_SINGLE))
        with b.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
            b.spend(8_000)

    def read_loss(self) -> None:
        """``loss.item()``: a copy to the host, waited for."""
        b = self.b
        with b.op("aten::item"), b.op("aten::_local_scalar_dense"):
            b.launch("Memcpy DtoH (Device -> Pinned)", 1400, COMPUTE, category="gpu_memcpy", size=4)
            b.synchronize(COMPUTE)

    def step(self) -> None:
        """One ``ProfilerStep#n``."""
        b = self.b
        step = b.new_id("step")
        with b.annotation("ProfilerStep#%d", step) as external:
            with b.frame("examples/train.py(88): train_step"):
                self.load_batch()
                if "pauses" in self.options.faults:
                    b.spend(6_000_000)
                first = len(b.ops) - 1
                self.run_schedule()
                self.part = -1
                if "pauses_after_backward" in self.options.faults:
                    b.spend(6_000_000)
                self.optimize()
                if self.waits and self.last:
                    self.read_loss()
            while self.activations:
                self.release()
            last = len(b.ops) - 1
            if self.waits:
                b.synchronize()
            elif self.options.run_ahead is not None:
                b.call("cudaEventRecord", 135)
                b.synchronize(back=self.options.run_ahead)
        b.note_on_gpu("ProfilerStep#%d", COMPUTE, first, last, external, step)


@lru_cache(64)
def build_step(options: JobOptions, place: Place, *, waits: bool) -> Program:
    """The step of one rank, to be :meth:`~Program.played_by` it. The host ``waits`` at its end, or runs on."""
    builder = StepBuilder(options)
    speed = GPUS[options.gpu].speed / options.work
    _Model(b=builder, options=options, place=place, speed=speed, waits=waits).step()
    return builder.build()
