"""Every communication kernel as an instance of a collective: its process group, kind, bytes and exposed time.

PyTorch writes the figures of a collective into the args of its kernel, or into those of the operator
``record_param_comms`` that launched it (``record_shapes``). Without these args, the kind comes from the name of the
host's annotation (``nccl:all_reduce``) or operator (``c10d::allreduce_``), and failing that from the kernel's name.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import numpy as np
from msgspec import Struct

from augment import arrays
from augment.core import Category, Texts, Trace, derived
from augment.facts import gpu, names, steps
from augment.facts.host.call_stacks import call_stacks, enclosing, places_of
from augment.facts.host.training_phases import TrainingPhase, training_phases

_INT64_MAX = (1 << 63) - 1
ARGS = (
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Seq",
    "Comms Id",
    "Src Rank",
    "Dst Rank",
)


Origin = Literal["recorded", "listed", "inferred"]


class Group(Struct, frozen=True):
    """A process group, as a rank's trace describes it. Unknown texts are empty; an unknown ``size`` is
    :data:`NO_VALUE`. ``origin`` says how its ranks are known: ``recorded`` with the collectives, ``listed`` elsewhere
    in the trace, or ``inferred`` from when the ranks end."""

    name: str = ""
    description: str = ""
    ranks: str = ""
    comms_id: str = ""
    size: int = arrays.NO_VALUE
    origin: Origin = "recorded"

    @property
    def identity(self) -> str:
        """A key that is equal on all ranks of the group and on no other group. Where PyTorch cut a long list of ranks,
        it has NCCL's id."""
        members = self.ranks + self.comms_id if not self.ranks or "..." in self.ranks else self.ranks
        return f"{self.name}|{members}" if self.name or members else ""


class Collectives(Struct, frozen=True):
    """Communication kernels: equal-length columns, ascending ``ts``, then stream. ``NO_VALUE``: not recorded."""

    place: arrays.WorkIndexes  #: the kernel
    ts: arrays.Int64s  #: ns
    end: arrays.Int64s  #: ns
    group: arrays.Int64s  #: an index of ``groups``
    kind: Texts  #: such as AllReduce
    seq: arrays.Int64s  #: its number in the group
    bytes: arrays.Int64s  #: as nccl-tests counts them
    step: arrays.Int64s  #: the number of the step
    peer: arrays.Int64s  #: the rank that a Send goes to or a Recv comes from
    received: arrays.Int64s  #: bytes that the rank receives
    element_bytes: arrays.Int64s  #: of each element
    exposed_ns: arrays.Int64s  #: the part of the duration in which the device computes nothing
    groups: tuple[Group, ...]  #: the process groups

    def __len__(self) -> int:
        return len(self.place)

    def where(self, chosen: arrays.Bools) -> arrays.CollectiveIndexes:
        """The indexes of the ``chosen`` collectives, ascending."""
        return cast("arrays.CollectiveIndexes", np.flatnonzero(chosen))

    @property
    def dur(self) -> arrays.Int64s:
        """Durations, int64 ns."""
        return self.end - self.ts

    @property
    def is_message(self) -> arrays.Bools:
        """Whether each is a message from one rank to another, as between the stages of a pipeline."""
        table = np.array([kind in (names.SEND, names.RECV) for kind in self.kind.values], np.bool_)
        return table[self.kind.codes] if len(self) else np.zeros(0, np.bool_)

    @property
    def bus_factor(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The factor from bytes to what a link carries, for each collective; NaN where unknown."""
        (kinds, groups), which = arrays.combinations(self.kind.codes, self.group)
        pairs = zip(kinds.tolist(), groups.tolist(), strict=True)
        factors = [names.bus_factor(self.kind.values[kind], self.groups[group].size) for kind, group in pairs]
        return np.array([np.nan if factor is None else factor for factor in factors])[which]


@derived(until="summary")
def collectives(trace: Trace) -> Collectives:
    """The communication kernels: kind, group, bytes, and how long nothing is computed meanwhile."""
    work = gpu.work(trace)
    place = work.where(work.type == names.KernelType.COMMUNICATION)
    order = np.argsort(work.ts[place], kind="stable")
    place, kinds = place[order], gpu.collective_kinds(trace)
    reader, kind = _Told(trace, work.row[place], work.launch[place]), Texts(kinds.codes[order], kinds.values)
    groups, group = reader.groups()
    numbers = np.append(steps.recorded(trace).number, arrays.NO_VALUE)
    # the time of each place of gpu_work in which its device communicates and computes nothing, ns
    exposed = np.zeros(len(place), np.int64)
    for coverage in gpu.coverage(trace):
        places = np.flatnonzero((place >= coverage.device.start) & (place < coverage.device.stop))
        span = work.ts[place[places]], work.end[place[places]]
        exposed[places] = coverage.time_within(*span, any_of=gpu.COMMUNICATION, none_of=gpu.COMPUTATION)
    return Collectives(
        place=place,
        ts=work.ts[place],
        end=work.end[place],
        group=group,
        kind=kind,
        seq=reader.ints("Seq"),
        bytes=reader.bytes(kind),
        step=numbers[steps.of_work(trace)[place]],
        peer=reader.peers(kind),
        received=reader.received(),
        element_bytes=reader.element_bytes(),
        exposed_ns=np.maximum(exposed, 0),
        groups=groups,
    )


class _Told(gpu.CollectiveArgs):
    """What the args tell of collectives."""

    def peers(self, kind: Texts) -> arrays.Int64s:
        peer = np.full(len(self._row), arrays.NO_VALUE, np.int64)
        for name, arg in ((names.SEND, "Dst Rank"), (names.RECV, "Src Rank")):
            if name in kind.values:
                is_kind = kind.codes == kind.values.index(name)
                peer[is_kind] = self.ints(arg)[is_kind]
        return peer

    def groups(self) -> tuple[tuple[Group, ...], arrays.Int64s]:
        args = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Comms Id")
        columns = [self.texts(name) for name in args]
        size = self.ints("Group size")
        values, which = arrays.combinations(*(column.codes for column in columns), size)
        groups = []
        for row in zip(*(value.tolist() for value in values), strict=True):
            name, about, ranks, comms = (
                column.values[code] if code >= 0 else "" for column, code in zip(columns, row, strict=False)
            )
            groups.append(Group(name, about, ranks, comms, row[-1]))
        return tuple(groups), which

    def element_bytes(self) -> arrays.Int64s:
        dtype = self.texts("dtype")
        sizes = [*(names.element_bytes(name) or arrays.NO_VALUE for name in dtype.values), arrays.NO_VALUE]
        return np.array(sizes, np.int64)[dtype.codes]

    def received(self) -> arrays.Int64s:
        sizes, count = self.element_bytes(), self.ints("Out msg nelems")
        known = (sizes > 0) & (count >= 0) & (count <= _INT64_MAX // 16)
        return np.where(known, np.where(known, count, 0) * np.where(known, sizes, 0), arrays.NO_VALUE)

    def bytes(self, kind: Texts) -> arrays.Int64s:
        dtype = self.texts("dtype")
        size = [names.element_bytes(value) for value in dtype.values]
        columns = (
            kind.codes,
            dtype.codes,
            self.ints("In msg nelems"),
            self.ints("Out msg nelems"),
            self.ints("Group size"),
        )
        values, which = arrays.combinations(*columns)
        sizes = []
        for code_of_kind, code, sent, received, ranks in zip(*(column.tolist() for column in values), strict=True):
            count = names.size_elements(kind.values[code_of_kind], sent, received, ranks)
            each = size[code] if code >= 0 else None
            size_bytes = count * each if each is not None and count >= 0 else arrays.NO_VALUE
            sizes.append(size_bytes if size_bytes <= _INT64_MAX else arrays.NO_VALUE)
        return np.array(sizes, np.int64)[which]


def exposed_ns(trace: Trace, chosen: arrays.CollectiveIndexes, start: arrays.Int64s) -> int:
    """For how long a device, in the mean, communicates in the ``chosen`` collectives from ``start`` on and computes
    nothing, ns. What several streams do at a time counts once."""
    every, exposed, devices = collectives(trace), 0, gpu.coverage(trace)
    for coverage in devices:
        places = every.place[chosen]
        here = (places >= coverage.device.start) & (places < coverage.device.stop)
        running = arrays.union(start[here], np.maximum(every.end[chosen][here], start[here]))
        exposed += arrays.total(
            arrays.clip(running, coverage.intervals_of(any_of=gpu.COMMUNICATION, none_of=gpu.COMPUTATION))[2]
        )
    return exposed // max(len(devices), 1)


SMALL_BYTES = 1 << 20  #: below this a collective takes as long as an empty one
#: ranges, operators and functions of FSDP1, FSDP2 and ZeRO-3
_SHARDS = re.compile(r"\bFSDP::|\bfsdp::|FullyShardedDataParallel|\bfully_shard\b|partitioned_param_coordinator")
#: descriptions of groups that share parameters
_GROUP = re.compile(r"fsdp|dp_shard|zero3", re.IGNORECASE)


@derived
def trains(trace: Trace) -> bool:
    """Whether a backward pass or an optimizer was recorded."""
    phases = training_phases(trace)
    return phases is not None and bool(arrays.is_any(phases, (TrainingPhase.BACKWARD, TrainingPhase.OPTIMIZER)).any())


@derived
def gathers_of_parameters(trace: Trace) -> arrays.Bools:
    """Whether each of ``collectives`` is a gather of parameters, as far as the trace tells.

    It is if FSDP or ZeRO-3 launches it, or its group's description says so. Without such names the use of the group
    tells: it gathers in the forward or backward pass, and reduces and scatters gradients, in the backward pass alone.
    Activations of sequence parallelism are reduced and scattered in the forward pass, too.
    """
    every = collectives(trace)
    kinds = np.array(every.kind.values)
    gathers, scatters = ((kinds == kind)[every.kind.codes] for kind in (names.ALL_GATHER, names.REDUCE_SCATTER))
    phase = _phases(trace)
    in_model = arrays.is_any(phase, (TrainingPhase.FORWARD, TrainingPhase.BACKWARD))
    backward, forward = (
        arrays.sums(every.group, scatters & (phase == each), len(every.groups))
        for each in (TrainingPhase.BACKWARD, TrainingPhase.FORWARD)
    )
    gathered = arrays.sums(every.group, gathers & in_model, len(every.groups))
    behaves = (backward > 0) & (forward == 0) & (gathered > 0)
    described = np.array([bool(_GROUP.search(group.description)) for group in every.groups], np.bool_)
    by_use = described[every.group] | behaves[every.group]
    launch = _launch_places(trace)
    by_shards = np.zeros(len(launch), np.bool_)  # launched within FSDP's or ZeRO-3's own ranges or functions
    named = places_of(trace, Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION).where(_SHARDS.search)
    if len(named) and len(launch):
        by_shards = (launch >= 0) & (enclosing(trace, named) >= 0)[launch]
    chosen: arrays.Bools = gathers & (phase != TrainingPhase.OPTIMIZER) & (by_shards | by_use)
    return chosen


def opens_pass(trace: Trace) -> arrays.Bools:
    """Whether each of ``collectives`` is the first gather of parameters of its group in a forward or backward pass of a
    step that begins with another: no unit before it asks for it ahead."""
    every, phase = collectives(trace), _phases(trace)
    gathers = np.flatnonzero(gathers_of_parameters(trace))
    gathers = gathers[np.argsort(every.group[gathers], kind="stable")]
    of_pass, *others = (arrays.run_starts(codes[gathers]) for codes in (phase, every.group, every.step))
    opens = np.zeros(len(every), np.bool_)
    opens[gathers[np.setdiff1d(of_pass, np.concatenate(others))]] = True
    return opens


@derived
def carries_activations(trace: Trace) -> arrays.Bools:
    """Whether each of ``collectives`` carries, or may carry, what the next computation needs.

    That is one of a run without training, or of a kind and group that also communicate in the forward pass, other than
    to gather parameters.
    """
    every = collectives(trace)
    if not trains(trace):
        return np.ones(len(every), np.bool_)
    (kinds, _), which = arrays.combinations(every.kind.codes, every.group)
    forward = (_phases(trace) == TrainingPhase.FORWARD) & ~gathers_of_parameters(trace)
    of_model: arrays.Bools = arrays.sums(which, forward, len(kinds)) > 0
    return of_model[which] & ~gathers_of_parameters(trace)


def _phases(trace: Trace) -> arrays.Bytes:
    """The phase in which each collective was launched, :class:`TrainingPhase`."""
    places, phases = _launch_places(trace), training_phases(trace)
    if phases is None or not len(phases):
        return np.full(len(places), TrainingPhase.OTHER, np.uint8)
    return np.where(places >= 0, phases[places], np.uint8(TrainingPhase.OTHER))


def _launch_places(trace: Trace) -> arrays.Int64s:
    """The place of each collective's launch in the call stacks, int64; -1: none."""
    launch = gpu.work(trace).launch[collectives(trace).place]
    places = np.full(len(launch), -1, np.int64)
    known = launch != arrays.NO_INDEX
    places[known] = call_stacks(trace).place_of[launch[known]]
    return places
