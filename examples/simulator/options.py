"""What can be asked of the simulated job."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Literal, get_args

from simulator.orders import parts_in

Collectives = Literal["ddp", "fsdp", "none"]
CollectiveArgs = Literal["full", "no_seq", "no_group", "none"]
Layout = Literal["classic", "lines"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipe", "dualpipev"]
Unawaited = Literal["", "allreduce", "allgather", "reducescatter"]
StageLabels = Literal["none", "torch", "megatron"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model: its name in the trace, how fast it is beside an H100, and what the trace's header says of it."""

    name: str
    speed: float
    multiprocessors: int
    memory_bytes: int
    compute: tuple[int, int]
    host_copy_gbps: float
    device_copy_gbps: float
    link_gbps: float


GPUS = {
    "H100": Gpu("NVIDIA H100 80GB HBM3", 1.0, 132, 85028372480, (9, 0), 48.0, 1350.0, 320.0),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", 0.45, 108, 84974239744, (8, 0), 22.0, 790.0, 210.0),
    "V100": Gpu("Tesla V100-SXM2-32GB", 0.18, 80, 34079637504, (7, 0), 11.0, 390.0, 120.0),
    "T4": Gpu("Tesla T4", 0.08, 40, 15642329088, (7, 5), 5.5, 110.0, 5.0),
}


FAULTS = (
    "items",  #: each layer's forward reads a number from the device
    "inline_copy",  #: the batch is copied on the compute stream, yet from pinned memory
    "pageable",  #: the batch is copied from pageable memory, and the host waits for it
    "staged",  #: the same, and the call takes as long as the copy
    "mallocs",  #: each layer's forward asks the driver for memory
    "frees",  #: and gives memory back, for which the host waits until the device is done
    "loads",  #: each layer's forward launches a kernel that the call loads first
    "pauses",  #: the host stops for a while in each step, in no operator
    "pauses_after_backward",  #: the same, between the backward pass on its thread and the optimizer
    "single_operations",  #: each layer has a row of elementwise kernels that could be one
    "unfused_optimizer",  #: a kernel for each operation of the optimizer
    "plain_products",  #: products of FP32 without matrix units, twice as slow
    "late_copies",  #: results are copied to the host in the middle of the step
    "contention",  #: each second layer's forward runs beside a kernel of another stream, and takes 1.5 times as long
    "small_messages",  #: each layer's backward sums eight small tensors over the ranks, and waits
)


#: what changes when things happen and what is written of them, and nothing of what a step is made of
TIMES = frozenset((
    "steps", "jitter", "seed", "first_step", "size_bytes", "write_ranks", "clock_offset_ns", "clock_drift_ppm",
    "end_spread_ns", "straggler", "straggler_factor", "slow_link", "slow_link_factor", "host_stall_us",
    "host_stall_step", "host_stall_every", "slow_kernel", "slow_percent", "host_stall_rank", "causes", "sync_every",
    "warmup", "step_jitter", "step_drift", "step_tail", "step_seed", "record_from", "record_until", "lost_rank",
    "lost_every", "stretch",
))  # fmt: skip

Ranks = int | tuple[int, ...] | None


def among(ranks: Ranks) -> tuple[int, ...]:
    """The ranks."""
    return ranks if isinstance(ranks, tuple) else () if ranks is None else (ranks,)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One training job. Equal options give equal bytes; change one field to have a known difference."""

    ranks: int = 2
    steps: int = 3
    layers: int = 4
    collectives: Collectives = "ddp"
    gpu: str = "H100"
    stacks: bool = False
    memory: bool = False
    counters: bool = False  #: a range with CUPTI counters for each kernel
    jitter: float = 0.05  #: standard deviation of the logarithm of each host and GPU duration
    seed: int = 0
    first_step: int = 0
    layout: Layout = "classic"  #: "lines": a line for each key, names first, as PyTorch 2.13 writes
    work: float = 1.0  #: factor on every kernel: small makes the job host-bound
    size_bytes: int = 0  #: go on with steps until rank 0's text is this long
    write_ranks: tuple[int, ...] | None = None  #: simulate all, write these only
    clock_offset_ns: tuple[int, ...] = ()  #: how far each rank's clock is ahead of rank 0's
    clock_drift_ppm: tuple[float, ...] = ()  #: how much faster each rank's clock goes, in millionths
    end_spread_ns: float = 0.0  #: standard deviation of the ends of a collective among its ranks
    uneven_buckets: bool = False  #: collectives of four sizes, each a quarter of the one before
    straggler: Ranks = None  #: a rank, or several, whose kernels run slower
    straggler_factor: float = 1.4
    slow_link: int | None = None  #: a rank whose collectives and messages move data slower
    slow_link_factor: float = 3.0
    host_stall_us: float = 0.0  #: the data loader takes this much longer
    host_stall_step: int | None = None  #: in this step only
    host_stall_every: int = 1  #: in each n-th step only
    slow_kernel: str | None = None  #: kernels whose name contains this ...
    slow_percent: float = 20.0  #: ... take so much longer
    extra_operator: str | None = None  #: an operator added to each layer's forward
    drop_collective: int | None = None  #: the collective of this index is left out of each step
    host_stall_rank: Ranks = None  #: on this rank only, or these
    causes: bool = False  #: tell what everything waited for, too
    sync_every: int = 1  #: the host waits for the device at the end of every step, of every so many, or (0) of none
    run_ahead: int | None = None  #: where it does not (alone: nowhere) it waits for the end of the step so many before
    side_streams: int = 0  #: streams with a little work after each layer, and none else
    warmup: float = 1.0  #: everything of the first recorded step takes so much longer
    step_jitter: float = 0.0  #: standard deviation of the logarithm of a factor on all of a step, alike on all ranks
    step_drift: float = 0.0  #: each step takes so much longer than the one before
    step_tail: float = 0.0  #: some steps take much longer: 1 + this times a Pareto number
    step_seed: int | None = None  #: of these factors, where runs of different ``seed`` shall have them in common
    record_from: tuple[float, ...] = ()  #: each rank's recording begins so many steps after the job does
    record_until: tuple[float, ...] = ()  #: and ends so many steps after it
    cross_ns: int = 0  #: operators end so long after one that they are in
    cross_every: int = 7  #: of those inside another, every so many
    whole_us: bool = False  #: clocks of whole microseconds, as Kineto had until 2023
    graphs: bool = False  #: a CUDA graph for each layer's forward and backward
    collective_args: CollectiveArgs = "full"  #: "no_seq"; "no_group": no name or ranks of the group either; "none"
    lost_rank: int | None = None  #: the recording of this rank lacks kernels of collectives ...
    lost_every: int = 5  #: ... every so many
    tp: int = 1  #: ranks that share each layer: two all-reduces a layer, forward and backward
    pp: int = 1  #: pipeline stages, each with its part of the layers
    ep: int = 1  #: data-parallel ranks that share experts: a DeepEP dispatch and combine a layer
    microbatches: int = 1  #: of a step: all forward, then all backward
    schedule: Schedule = "gpipe"  #: "1f1b": of each stage but the last, backward begins while others go forward;
    #: "interleaved": 1F1B with two parts of the model a stage; "zb1p", "zbv": backward in halves; "dualpipe",
    #: "dualpipev": also a forward and a backward at once
    bucket_mib: float = 0.0  #: DDP's cap of buckets; 0: a bucket for each layer
    stage_labels: StageLabels = "none"  #: ranges around each microbatch, of torch.distributed.pipelining, or Megatron's
    unawaited: Unawaited = ""  #: collectives of this kind that no kernel waits for
    stretch: float = 1.0  #: factor on all times of the written job
    faults: tuple[str, ...] = ()  #: of :data:`FAULTS`: what a diagnosis should find

    def __post_init__(self) -> None:
        """Refuse what would simulate nonsense."""
        if self.gpu not in GPUS:
            raise ValueError(f"unknown GPU {self.gpu!r}: one of {', '.join(GPUS)}")
        if self.ranks < 1 or self.layers < 1 or self.steps < 1:
            raise ValueError("ranks, layers and steps must be at least 1")
        if any(not 0 <= rank < self.ranks for rank in among(self.straggler)):
            raise ValueError(f"straggler {self.straggler} is no rank of 0 to {self.ranks - 1}")
        if self.write_ranks is not None and not all(0 <= rank < self.ranks for rank in self.write_ranks):
            raise ValueError(f"ranks to write must be among 0 to {self.ranks - 1}")
        if self.collectives not in ("ddp", "fsdp", "none"):
            raise ValueError(f"unknown collectives {self.collectives!r}: ddp, fsdp or none")
        if self.sync_every < 0 or (self.run_ahead is not None and self.run_ahead < 1):
            raise ValueError("sync_every must be at least 0, run_ahead at least 1")
        self._refuse_unequal_parts()
        if unknown := set(self.faults) - set(FAULTS):
            raise ValueError(f"unknown fault {min(unknown)!r}: one of {', '.join(FAULTS)}")
        if min(self.cross_every, self.lost_every) < 1 or self.cross_ns < 0:
            raise ValueError("cross_every and lost_every must be at least 1, cross_ns at least 0")
        if min(self.warmup, self.stretch) <= 0:
            raise ValueError("warmup and stretch must be above 0")
        if any(self.window_of(rank)[0] >= self.window_of(rank)[1] for rank in range(self.ranks)):
            raise ValueError("a recording must end after it begins")
        if self.keeps_all and self.size_bytes:
            raise ValueError(
                "size_bytes goes with steps that the simulator can forget: without causes or their options"
            )

    def _refuse_unequal_parts(self) -> None:
        if min(self.tp, self.pp, self.ep, self.microbatches) < 1 or self.ranks % (self.tp * self.pp):
            raise ValueError("ranks must be a multiple of tp times pp; all of them and microbatches at least 1")
        if self.dp % self.ep or self.layers % self.pp:
            raise ValueError("ranks / (tp * pp) must be a multiple of ep, layers one of pp")
        if self.bucket_mib < 0 or (self.bucket_mib and self.collectives != "ddp"):
            raise ValueError("bucket_mib must be at least 0, and goes with collectives ddp")
        if self.schedule not in get_args(Schedule) or self.stage_labels not in get_args(StageLabels):
            raise ValueError(f"schedule must be one of {get_args(Schedule)}, stage_labels of {get_args(StageLabels)}")
        self._refuse_impossible_orders()
        if self.pp > 1 and self.collectives == "none":
            raise ValueError("stages need sends: collectives must not be none")

    def _refuse_impossible_orders(self) -> None:
        if self.schedule in ("gpipe", "1f1b"):
            return
        if self.pp < 2 or self.layers % parts_in(self.schedule, self.pp):
            raise ValueError(f"{self.schedule} needs at least 2 stages, and equally many layers in each part of them")
        if self.schedule == "interleaved" and self.microbatches % self.pp:
            raise ValueError("interleaved needs a multiple of pp microbatches")
        if self.schedule == "zbv" and self.microbatches < 2 * self.pp - 1:
            raise ValueError("zbv needs at least 2 pp - 1 microbatches")
        if self.schedule in ("dualpipe", "dualpipev") and self.microbatches < 2 * self.pp:
            raise ValueError("DualPipe needs at least 2 pp microbatches")
        if self.schedule == "dualpipe" and (self.pp % 2 or self.microbatches % 2):
            raise ValueError("dualpipe needs an even number of stages, and of microbatches")
        if self.stage_labels == "megatron" and self.schedule != "interleaved":
            raise ValueError("Megatron has no halves of the backward to label")

    @property
    def dp(self) -> int:
        """How many ranks do the same with other data."""
        return self.ranks // (self.tp * self.pp)

    @property
    def shape(self) -> JobOptions:
        """Equal for jobs whose steps are made of the same, whenever it happens."""
        return replace(self, **{field.name: field.default for field in fields(self) if field.name in TIMES})

    @property
    def keeps_all(self) -> bool:
        """Whether steps overlap, or something is asked that takes all steps to tell."""
        waits = self.sync_every == 1 and self.run_ahead is None
        cut = self.record_from or self.record_until or self.lost_rank is not None
        return self.causes or not waits or bool(cut or self.cross_ns or self.graphs)

    @property
    def first_recorded(self) -> int:
        """The place of the first step that any rank's recording has from its start."""
        return ceil(min(self.window_of(rank)[0] for rank in range(self.ranks)))

    def waits_in(self, number: int) -> bool:
        """Whether the host waits for the device at the end of this step."""
        every = 0 if self.run_ahead is not None and self.sync_every == 1 else self.sync_every
        return every > 0 and (number - self.first_step) % every == every - 1

    def window_of(self, rank: int) -> tuple[float, float]:
        """When the recording of ``rank`` begins and ends, in steps since the job's begin."""
        first = self.record_from[min(rank, len(self.record_from) - 1)] if self.record_from else 0.0
        last = self.record_until[min(rank, len(self.record_until) - 1)] if self.record_until else float("inf")
        return first, last

    def offset_of(self, rank: int) -> int:
        """How far the clock of ``rank`` is ahead when the job starts, ns."""
        return self.clock_offset_ns[rank] if rank < len(self.clock_offset_ns) else 0

    def drift_of(self, rank: int) -> float:
        """How much further ahead it is with each ns."""
        return self.clock_drift_ppm[rank] / 1e6 if rank < len(self.clock_drift_ppm) else 0.0
