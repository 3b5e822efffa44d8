"""Where a rank is in a job of tensor, data, pipeline and expert parallelism, and the process groups it is in.

Ranks are counted as Megatron does: those of a tensor-parallel group first, then data-parallel ones, then stages. Expert
groups part the data-parallel group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.options import JobOptions

Kind = Literal["collective", "tp", "pp", "ep"]  #: also the name of the group's count of collectives


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that the rank is in."""

    name: str
    about: str
    kind: Kind
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's groups: ``data`` averages gradients; the others are there if they have more than one rank."""

    rank: int
    stage: int
    stages: int
    data: Group
    tensor: Group | None
    pipeline: Group | None
    expert: Group | None
    world: Group

    @property
    def groups(self) -> list[Group]:
        """All, as the rank's file tells them."""
        groups = (self.world, self.data, self.tensor, self.pipeline, self.expert)
        return list({group.name: group for group in groups if group is not None}.values())

    def neighbour(self, ahead: int) -> int | None:
        """The rank of the next (1) or the last (-1) stage."""
        if self.pipeline is None or not 0 <= self.stage + ahead < self.stages:
            return None
        return self.pipeline.ranks[self.stage + ahead]


def place_of(options: JobOptions, rank: int) -> Place:
    """The place of ``rank``."""
    world = Group("0", "default_pg", "collective", tuple(range(options.ranks)))
    tensor, data = options.tp, options.dp
    stage, rest = divmod(rank, tensor * data)
    replica, shard = divmod(rest, tensor)
    first = stage * tensor * data

    def group(number: int, about: str, kind: Kind, ranks: range) -> Group | None:
        return Group(str(number), about, kind, tuple(ranks)) if len(ranks) > 1 else None

    replicas = range(first + shard, first + tensor * data, tensor)
    experts = replica // options.ep * options.ep
    count = options.ranks
    same = group(1 + count + stage * tensor + shard, "DATA_PARALLEL_GROUP", "collective", replicas)
    alone = Group(str(1 + count + stage * tensor + shard), "DATA_PARALLEL_GROUP", "collective", (rank,))
    return Place(
        rank,
        stage,
        options.pp,
        world if options.ranks == data else same or alone,
        group(1 + rank // tensor, "TENSOR_MODEL_PARALLEL_GROUP", "tp", range(rank - shard, rank - shard + tensor)),
        group(1 + 2 * count + rest, "PIPELINE_MODEL_PARALLEL_GROUP", "pp", range(rest, count, tensor * data)),
        group(
            1 + 3 * count + first + experts * tensor + shard,
            "EXPERT_MODEL_PARALLEL_GROUP",
            "ep",
            replicas[experts : experts + options.ep] if options.ep > 1 else range(0),
        ),
        world,
    )
