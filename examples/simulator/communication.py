"""What ranks tell each other in a step: collectives of their groups, messages between stages, tokens to experts."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod

from simulator import kernels
from simulator.builder import StepBuilder, dims_text
from simulator.options import GPUS, JobOptions
from simulator.orders import Action, sends_of
from simulator.parallel import Group, Place

COMPUTE, COLLECTIVE, TENSOR, SEND, RECV, EXPERT = 7, 23, 24, 25, 26, 27  #: streams
TOKENS, HIDDEN = 4096, 2048
LAYER_PARAMETERS = 12 * HIDDEN * HIDDEN
LATENCY_NS = 8000  #: of a collective of no bytes


@dataclass(kw_only=True)
class Communication:
    """One rank's step while it is played: what it has to do with others."""

    b: StepBuilder
    options: JobOptions
    place: Place
    collectives: int = 0
    met: Counter[object] = field(default_factory=Counter)  #: collectives of each group, messages of each pair
    waiting: list[int] = field(default_factory=list)  #: what the next compute kernel waits for
    received: dict[object, int] = field(default_factory=dict)  #: the operation that receives each named message
    bucket_elements: int = 0  #: gradients that the open bucket has

    def collective(self, kind: str, *, after_compute: bool) -> int | None:
        """A collective of the data-parallel group on its stream; see :meth:`meet`."""
        number = self.collectives
        self.collectives += 1
        if self.options.collectives == "none" or number == self.options.drop_collective:
            return None
        whole = LAYER_PARAMETERS >> (2 * (number % 4) if self.options.uneven_buckets else 0)
        return self.meet(kind, self.place.data, whole, after_compute=after_compute)

    def accumulate(self, shape: tuple[int, ...]) -> int | None:
        """The gradient of a parameter goes into the open bucket of DDP, which is reduced once it reaches its cap."""
        elements = prod(shape)
        with (
            self.b.op("torch::autograd::AccumulateGrad", dims=dims_text(shape)),
            self.b.op("torch::distributed::reducer::mul_out", dims=dims_text(shape)),
        ):
            ns = 2 * elements / GPUS[self.options.gpu].device_copy_gbps + 1000
            self.b.launch("Memcpy DtoD (Device -> Device)", ns, COMPUTE, category="gpu_memcpy", size=2 * elements)
        self.bucket_elements += elements
        return self.reduce_bucket() if 2 * self.bucket_elements >= self.options.bucket_mib * (1 << 20) else None

    def reduce_bucket(self) -> int | None:
        """The all-reduce of the open bucket; nothing for an empty one."""
        whole, self.bucket_elements = self.bucket_elements, 0
        return self.meet("allreduce", self.place.data, whole, after_compute=True) if whole else None

    def meet(
        self,
        kind: str,
        group: Group,
        whole: int,
        *,
        after_compute: bool,
        stream: int = COLLECTIVE,
        peer: int = -1,
        message: object = None,
    ) -> int:
        """A collective of ``whole`` elements, or a message with ``peer``; after the newest compute if so asked.

        A ``message`` with a name is buffered: it is sent whether or not the other rank receives yet.
        """
        b, what, ranks = self.b, kernels.COLLECTIVES[kind], len(group.ranks)
        shard = whole if peer >= 0 else whole // ranks
        sent, received = (shard, whole) if kind == "allgather" else (whole, shard) if what.shards else (whole, whole)
        seq = b.new_id(group.kind)
        args = self.args_text(what.api, sent, received, group)
        if peer >= 0 and args:
            args += f', "{"Dst" if kind == "send" else "Src"} Rank": {peer}'
        traffic = 2 * whole * (1 if what.shards else 2) * (ranks - 1) / ranks
        before = len(b.ops) - 1
        compute = [i for i in range(before, -1, -1) if b.ops[i].stream == COMPUTE][:1] if after_compute else []
        rank = self.place.rank
        link = (rank, peer) if kind == "send" else (peer, rank) if kind == "recv" else ()
        self.met[link or group.name] += 1
        with ExitStack() as stack:
            stack.enter_context(b.op(what.operator, dims=dims_text((sent,))))
            stack.enter_context(b.op("record_param_comms", dims=dims_text((sent,)), extra=args))
            b.call("cudaEventRecord", 135)
            b.call("cudaStreamWaitEvent", 147)
            external = stack.enter_context(b.annotation(what.annotation))
            with_seq = self.options.collective_args == "full"
            index = b.launch(
                what.kernel,
                LATENCY_NS + traffic / GPUS[self.options.gpu].link_gbps,
                stream,
                waits=compute,
                collective=args.replace("%", "%%") + (', "Seq": %d' if with_seq else ""),
                seq=seq if with_seq else None,
                members=link or group.ranks,
                meeting=(link or group.name, message or self.met[link or group.name]),
                buffered=message is not None,
                cost=7500,
            )
        b.note_on_gpu(what.annotation, stream, index, index, external)
        return index

    def args_text(self, api: str, sent: int, received: int, group: Group) -> str:
        """What a collective's args say, less its ``Seq``."""
        args = self.options.collective_args
        size = (
            f'"Collective name": "{api}", "In msg nelems": {sent}, "Out msg nelems": {received}, '
            f'"Group size": {len(group.ranks)}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]"'
        )
        name = (
            f', "Process Group Name": "{group.name}", "Process Group Description": "{group.about}", '
            f'"Process Group Ranks": "{json.dumps(list(group.ranks))}"'
        )
        return "" if args == "none" else size if args == "no_group" else size + name

    def sum_shards(self) -> None:
        """Tensor parallelism: what comes next needs the sum of all shards' results."""
        if self.place.tensor:
            whole = TOKENS * HIDDEN
            self.await_op(self.meet("allreduce", self.place.tensor, whole, after_compute=True, stream=TENSOR))

    def route(self, what: str) -> None:
        """Expert parallelism: tokens to their experts (``dispatch``) or back, by kernels that tell nothing of it."""
        group = self.place.expert
        if group is None:
            return
        b = self.b
        names = (
            [(kernels.NOTIFY, 9_000), (kernels.DISPATCH, 60_000)] if what == "dispatch" else [(kernels.COMBINE, 75_000)]
        )
        newest = [i for i in range(len(b.ops) - 1, -1, -1) if b.ops[i].stream == COMPUTE][:1]
        with b.op(f"deep_ep::{what}"):
            b.call("cudaStreamWaitEvent", 147, 1500)
            for name, ns in names:
                self.met[group.name] += 1
                meeting = group.name, self.met[group.name]
                index = b.launch(name, ns, EXPERT, waits=newest, collective="", members=group.ranks, meeting=meeting)
        self.await_op(index)

    def message(self, kind: str, ahead: int) -> None:
        """A send or receive of activations or gradients to or from a neighbouring stage, if there is one."""
        peer, group = self.place.neighbour(ahead), self.place.pipeline
        if peer is None or group is None:
            return
        stream = SEND if kind == "send" else RECV
        index = self.meet(kind, group, TOKENS * HIDDEN, after_compute=kind == "send", stream=stream, peer=peer)
        if kind == "recv":
            self.await_op(index)

    def send_for(self, stage: int, action: Action) -> None:
        """Send another stage what it needs for an action."""
        group = self.place.pipeline
        assert group is not None
        peer = group.ranks[stage]
        self.meet("send", group, TOKENS * HIDDEN, after_compute=True, stream=SEND, peer=peer, message=action)

    def receive_for(self, stage: int, action: Action) -> None:
        """Receive from another stage what an action needs, after everything that it sends before."""
        group = self.place.pipeline
        assert group is not None
        options, peer = self.options, group.ranks[stage]
        for to, sent in sends_of(options.schedule, stage, self.place.stages, options.microbatches):
            if to == self.place.stage and sent not in self.received:
                whole = TOKENS * HIDDEN
                index = self.meet("recv", group, whole, after_compute=False, stream=RECV, peer=peer, message=sent)
                self.received[sent] = index
            if to == self.place.stage and sent == action:
                break
        self.await_op(self.received[action])

    def await_op(self, index: int | None) -> None:
        """Let the next compute kernel wait for an operation."""
        unawaited = self.options.unawaited and kernels.COLLECTIVES[self.options.unawaited].kernel
        if index is not None and self.b.ops[index].name != unawaited:
            self.waiting.append(index)
