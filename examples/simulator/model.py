"""The training step that the job repeats: a transformer's forward, backward and optimizer, and its collectives."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field

from simulator import kernels
from simulator.builder import AUTOGRAD, MAIN, StepBuilder, dims_text
from simulator.options import GPUS, JobOptions
from simulator.program import Program, Slot

COMPUTE, COPY, COLLECTIVE, SIDE = 7, 20, 23, 30
TOKENS, HIDDEN, HEADS = 4096, 2048, 16
LAYER_PARAMETERS = 12 * HIDDEN * HIDDEN
LATENCY_NS = 8000  #: of a collective of no bytes


@dataclass
class _Model:
    """One rank's step while it is played."""

    b: StepBuilder
    options: JobOptions
    speed: float
    waits: bool  #: the host waits for the device at the end of the step
    collectives: int = 0
    waiting: list[int] = field(default_factory=list)  #: what the next compute kernel waits for
    sequences: dict[str, tuple[Slot, Slot]] = field(default_factory=dict)
    activations: list[tuple[int, Slot]] = field(default_factory=list)

    # --- operators ---

    def kernel(self, name: str, us: float) -> int:
        """A kernel on the compute stream that takes ``us`` on an H100."""
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
        self.b.flow("s", self.sequences[key][1], start)

    def differentiable(self, key: str) -> Slot:
        """The sequence number that forward and backward of ``key`` share."""
        self.sequences[key] = self.b.new_id("sequence"), self.b.new_id("fwdbwd")
        return self.sequences[key][0]

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

    def unary(self, key: str, operator: str, name: str, us: float) -> None:
        """A differentiable operator of one kernel."""
        sequence = self.differentiable(key)
        with self.b.op(operator, dims=dims_text((TOKENS, HIDDEN)), sequence=sequence) as start:
            self.arrow_from(key, start)
            self.keep(2 * TOKENS * HIDDEN)
            self.kernel(name, us)

    def backward_node(self, key: str, node: str, launched: list[tuple[str, str, float]]) -> None:
        """What the autograd engine runs for one node."""
        sequence, flow = self.sequences[key]
        with (
            self.b.op(f"autograd::engine::evaluate_function: {node}", sequence=sequence, forward_thread=1),
            self.b.op(node, sequence=sequence, forward_thread=1) as start,
        ):
            self.b.flow("f", flow, start)
            for operator, name, us in launched:
                with self.b.op(operator, dims=dims_text((TOKENS, HIDDEN), (HIDDEN, HIDDEN))):
                    self.kernel(name, us)
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
        with b.op("aten::to", dims=dims_text((TOKENS, HIDDEN))), b.op("aten::_to_copy"), b.op("aten::copy_"):
            gpu = GPUS[self.options.gpu]
            copy = b.launch(
                "Memcpy HtoD (Pinned -> Device)", size / gpu.host_copy_gbps, COPY, category="gpu_memcpy", size=size
            )
            b.call("cudaEventRecord", 135)
        self.waiting.append(copy)
        with b.op("aten::zero_"):
            b.launch("Memset (Device)", size / gpu.device_copy_gbps, COMPUTE, category="gpu_memset", size=size)

    def forward_layer(self, layer: int) -> None:
        """Attention and the feed-forward block."""
        b = self.b
        with b.frame(f"nn.Module: Block_{layer}", 100 + layer), b.frame("examples/train.py(41): forward"):
            self.unary(f"{layer}.norm1", "aten::native_layer_norm", kernels.NORM, 14)
            self.linear(f"{layer}.qkv", 3 * HIDDEN, 190, 4 * layer)
            self.unary(f"{layer}.attention", "aten::_scaled_dot_product_flash_attention", kernels.FLASH, 150)
            self.linear(f"{layer}.out", HIDDEN, 70, 4 * layer + 1)
            self.simple("aten::add", kernels.ADD, 9, (TOKENS, HIDDEN), (TOKENS, HIDDEN))
            self.release()
            self.unary(f"{layer}.norm2", "aten::native_layer_norm", kernels.NORM, 14)
            self.linear(f"{layer}.up", 4 * HIDDEN, 250, 4 * layer + 2)
            self.unary(f"{layer}.gelu", "aten::gelu", kernels.GELU, 24)
            self.linear(f"{layer}.down", HIDDEN, 255, 4 * layer + 3)
            self.simple("aten::add", kernels.ADD, 9, (TOKENS, HIDDEN), (TOKENS, HIDDEN))
            self.release()
            self.beside(layer)
            if self.options.extra_operator:
                self.simple(self.options.extra_operator, kernels.CAST, 30, (TOKENS, HIDDEN))
                self.release()

    def beside(self, layer: int) -> None:
        """A little work on each side stream, after the layer; the next kernel waits for that of every other layer."""
        after = len(self.b.ops) - 1
        for number in range(self.options.side_streams):
            with self.b.op("aten::mul", dims=dims_text((TOKENS,))):
                self.b.call("cudaStreamWaitEvent", 147, 1500)
                index = self.b.launch(kernels.CAST, 12_000 / self.speed, SIDE + number, waits=(after,))
            if layer % 2:
                self.waiting.append(index)

    def backward_layer(self, layer: int) -> None:
        """The same, from the end."""
        grad = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
        weight = "nvjet_tst_256x128_64x4_2x1_v_bz_coopB_TNT"

        def gemm(us: float) -> list[tuple[str, str, float]]:
            return [("aten::mm", grad, us), ("aten::mm", weight, us * 1.05), ("aten::sum", kernels.REDUCE, 8)]

        norm: list[tuple[str, str, float]] = [
            ("aten::native_layer_norm_backward", kernels.NORM_BACKWARD, 22),
            ("aten::sum", kernels.GAMMA, 11),
        ]
        attention = [
            ("aten::_scaled_dot_product_flash_attention_backward", kernels.FLASH_BACKWARD, 390.0),
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
            self.backward_node(f"{layer}.{key}", node, launched)

    def collective(self, kind: str, *, after_compute: bool) -> int | None:
        """A collective on its stream, started after the compute stream's newest kernel if ``after_compute``."""
        number = self.collectives
        self.collectives += 1
        if self.options.collectives == "none" or number == self.options.drop_collective:
            return None
        b, what, ranks = self.b, kernels.COLLECTIVES[kind], self.options.ranks
        whole = LAYER_PARAMETERS >> (2 * (number % 4) if self.options.uneven_buckets else 0)
        shard = whole // ranks
        sent, received = (shard, whole) if kind == "allgather" else (whole, shard) if what.shards else (whole, whole)
        b.new_id("collective")
        group = self.told(what.api, sent, received)
        traffic = 2 * whole * (1 if what.shards else 2) * (ranks - 1) / ranks
        before = len(b.ops) - 1
        compute = [i for i in range(before, -1, -1) if b.ops[i].stream == COMPUTE][:1] if after_compute else []
        with ExitStack() as stack:
            stack.enter_context(b.op(what.operator, dims=dims_text((sent,))))
            stack.enter_context(b.op("record_param_comms", dims=dims_text((sent,)), extra=group))
            b.call("cudaEventRecord", 135)
            b.call("cudaStreamWaitEvent", 147)
            external = stack.enter_context(b.annotation(what.annotation))
            args = group.replace("%", "%%") + (', "Seq": %d' if self.options.collective_args == "full" else "")
            ns = LATENCY_NS + traffic / GPUS[self.options.gpu].link_gbps
            index = b.launch(what.kernel, ns, COLLECTIVE, waits=compute, collective=args, cost=7500)
        b.note_on_gpu(what.annotation, COLLECTIVE, index, index, external)
        return index

    def told(self, api: str, sent: int, received: int) -> str:
        """What a collective's args say, less its ``Seq``."""
        ranks, args = self.options.ranks, self.options.collective_args
        size = (
            f'"Collective name": "{api}", "In msg nelems": {sent}, "Out msg nelems": {received}, '
            f'"Group size": {ranks}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]"'
        )
        group = (
            ', "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": "{json.dumps(list(range(ranks)))}"'
        )
        return "" if args == "none" else size if args == "no_group" else size + group

    def gather(self, layer: int) -> int | None:
        """FSDP's all-gather of a layer's parameters; nothing for the others or past the last layer."""
        inside = self.options.collectives == "fsdp" and 0 <= layer < self.options.layers
        return self.collective("allgather", after_compute=False) if inside else None

    def await_op(self, index: int | None) -> None:
        """Let the next compute kernel wait for an operation."""
        if index is not None:
            self.waiting.append(index)

    def forward(self) -> None:
        """All layers, and the loss."""
        pending = self.gather(0)
        for layer in range(self.options.layers):
            following = self.gather(layer + 1)
            self.await_op(pending)
            pending = following
            with self.b.graph(self.options.graphs):
                self.forward_layer(layer)
        self.unary("loss", "aten::_log_softmax", kernels.SOFTMAX, 60)

    def backward(self) -> None:
        """All layers from the last, on the autograd thread, with gradients on their way as soon as they are there."""
        self.b.thread = AUTOGRAD
        self.b.spend(25_000)
        self.backward_node("loss", "LogSoftmaxBackward0", [("aten::_log_softmax_backward_data", kernels.SOFTMAX, 70)])
        sent: list[int | None] = []
        pending = self.gather(self.options.layers - 1)
        for layer in reversed(range(self.options.layers)):
            following = self.gather(layer - 1)
            self.await_op(pending)
            pending = following
            with self.b.graph(self.options.graphs):
                self.backward_layer(layer)
            if self.options.collectives == "ddp":
                self.bucket()
                sent.append(self.collective("allreduce", after_compute=True))
            elif self.options.collectives == "fsdp":
                sent.append(self.collective("reducescatter", after_compute=True))
        self.await_op(next((index for index in reversed(sent) if index is not None), None))
        self.b.thread = MAIN
        self.b.spend(15_000)

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
            for _ in range(self.options.layers):
                with b.op("aten::_fused_adamw_", dims=dims_text((HIDDEN, HIDDEN), kind="float")):
                    self.kernel(kernels.ADAM, 120)
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
                first = len(b.ops) - 1
                self.forward()
                with b.frame("torch/autograd/__init__.py(354): _engine_run_backward"):
                    self.backward()
                self.optimize()
                if self.waits:
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


def build_step(options: JobOptions, pid: int, tids: tuple[int, int], device: int, *, waits: bool = True) -> Program:
    """The step of one rank; ranks differ in ids alone. The host ``waits`` for the device at its end, or runs on."""
    builder = StepBuilder(pid, tids, device, options)
    _Model(builder, options, GPUS[options.gpu].speed / options.work, waits).step()
    return builder.build()
