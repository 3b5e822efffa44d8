"""HTA's choice of args: which columns of args the frames have beside those that they have by default."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import ClassVar, NamedTuple


class AttributeSpec(NamedTuple):
    """An arg: the column ``name`` holds ``args[raw_name]``, or ``default_value`` where an event lacks it."""

    name: str
    raw_name: str
    default_value: object = -1


def _specs(**raw_names: str) -> list[AttributeSpec]:
    return [AttributeSpec(name, raw_name) for name, raw_name in raw_names.items()]


#: columns that every frame has, by HTA's groups
_INPUT = _specs(input_dims="Input Dims", input_type="Input type", input_strides="Input Strides")
_BANDWIDTH = _specs(bytes="bytes", memory_bw_gbps="memory bandwidth (GB/s)")
_SYNC = _specs(wait_on_stream="wait_on_stream", wait_on_cuda_event_record_corr_id="wait_on_cuda_event_record_corr_id")
_MINIMUM = _specs(stream="stream", correlation="correlation")
_INDEX = _specs(external_id="External id", python_id="Python id", python_parent_id="Python parent id")
_COMMUNICATION = _specs(
    collective_name="Collective name",
    in_msg_nelems="In msg nelems",
    out_msg_nelems="Out msg nelems",
    group_size="Group size",
    msg_dtype="dtype",
    in_split_size="In split size",
    out_split_size="Out split size",
    process_rank="Rank",
)
_TRITON = _specs(kernel_backend="kernel_backend", kernel_hash="kernel_hash")
_MORE = _specs(
    ev_idx="Ev Idx",
    concrete_inputs="Concrete Inputs",
    fwd_thread_id="Fwd thread id",
    sequence="Sequence number",
    cbid="cbid",
    blocks_per_sm="blocks per SM",
    est_occupancy="est. achieved occupancy %",
    warps_per_sm="warps per SM",
    context="context",
    device="device",
    queued="queued",
    shared_memory="shared memory",
    block="block",
    grid="grid",
    registers_per_thread="registers per thread",
    process_group_name="Process Group Name",
    process_group_desc="Process Group Description",
    process_group_ranks="Process Group Ranks",
    seq_num="Seq",
)


class ParserConfig:
    """The args that frames have. All of :data:`ARGS_DEFAULT` are there, whatever ``args`` says; others are added.

    HTA's other members choose how its parser works, and have no meaning here.
    """

    ARGS_INPUT_SHAPE: ClassVar = _INPUT
    ARGS_BANDWIDTH: ClassVar = _BANDWIDTH
    ARGS_SYNC: ClassVar = _SYNC
    ARGS_MINIMUM: ClassVar = _MINIMUM
    ARGS_COMMUNICATION: ClassVar = _COMMUNICATION
    ARGS_TRITON_KERNELS: ClassVar = _TRITON
    ARGS_DEFAULT: ClassVar = [*_MINIMUM, *_BANDWIDTH, *_SYNC, *_INPUT, *_INDEX, *_COMMUNICATION]
    ARGS_COMPLETE: ClassVar = [*ARGS_DEFAULT, *_TRITON, *_MORE]

    _default: ClassVar[ParserConfig | None] = None

    def __init__(self, args: Sequence[AttributeSpec] | None = None) -> None:
        self.args = list(self.ARGS_DEFAULT if args is None else args)

    @classmethod
    def get_default_cfg(cls) -> ParserConfig:
        """The configuration of traces that are given none."""
        if ParserConfig._default is None:
            ParserConfig._default = ParserConfig()
        return ParserConfig._default

    @classmethod
    def set_default_cfg(cls, cfg: ParserConfig) -> None:
        """Set what :meth:`get_default_cfg` returns."""
        ParserConfig._default = cfg.clone()

    def clone(self) -> ParserConfig:
        """A copy."""
        return deepcopy(self)

    def get_args(self) -> list[AttributeSpec]:
        """The args."""
        return self.args

    def add_args(self, args: Sequence[AttributeSpec]) -> None:
        """Add the args that are not there yet."""
        known = {arg.name for arg in self.args}
        self.args += [arg for arg in args if arg.name not in known]

    def added(self) -> list[AttributeSpec]:
        """The args that frames have not by default."""
        known = {arg.name for arg in self.ARGS_DEFAULT}
        return [arg for arg in self.args if arg.name not in known]
